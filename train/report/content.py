"""The sections of a report, built from groups of runs and probes: texts, tables and plots."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from train.compare.table import Mean, cell_text
from train.engine.environment import versions
from train.report.blocks import Axis, Cell, Curve, Document, Plot, Point, Section, Table, capital
from train.report.costs import costs_table
from train.report.groups import Group, Series, differences, seeds_text
from train.report.inside import entropy_section, learned_section
from train.report.leads import on_weights, seed_difference
from train.report.outcome import outcome
from train.report.probe_file import Probe
from train.report.published import published_section
from train.report.records import Left
from train.report.texts import clean
from train.report.training import training_plots

TITLE = "Results of positional encodings"
"""Title of every report: a file with it may be replaced by another report."""


BANDS = 6
"""Seeds from which intervals are drawn as bands; of fewer, every seed is a point."""

OUTCOMES = 5
"""Most sections whose outcome is at the top."""

LEFT = 1000
"""Most items that are left out and named."""


class Material(NamedTuple):
    """Everything that a report is made from.

    Attributes:
        folders: folders that were read.
        groups: sections of comparable runs.
        left: omissions.
        probes: by the folder of the run.
        reasons: why a run has no probe, by its place.
        made: date and time.
    """

    folders: tuple[str, ...]
    groups: tuple[Group, ...]
    left: tuple[Left, ...]
    probes: Mapping[Path, Probe]
    reasons: Mapping[str, str]
    made: str


def document(material: Material) -> Document:
    """Return the report."""
    groups = material.groups
    runs = {run.place for group in groups for series in group.series for run in series.runs}
    count = lambda n, what: f"{n} {what}" + ("" if n == 1 else "s")
    outcomes = [(f"{group.title}: " if len(groups) > 1 else "") + outcome(group) for group in groups[:OUTCOMES]]
    lead = (
        f"{count(len(runs), 'run')} in {count(len(groups), 'section')}, read from {', '.join(material.folders)}; "
        f"{count(len(material.left), 'item')} left out. Runs that differ in data, trained size, model or budget are in "
        "sections of their own."
    )
    sections = [_group_section(material, number) for number in range(len(groups))]
    sections += [_left_section(material), _runs_section(material)]
    made_with = ", ".join(f"{name} {number}" for name, number in versions().items() if number)
    return clean(Document(TITLE, tuple(outcomes), lead, tuple(sections), f"Made {material.made} with {made_with}."))


def _group_section(material: Material, number: int) -> Section:
    group, name = material.groups[number], f"s{number + 1}"
    sentences = [outcome(group)] if number or material.groups[1:] else []  # of a single section, it is at the top
    blocks: list[Any] = [*sentences, _note(group)]
    if number:
        settings = differences(group, material.groups[0])
        sentences = [f"{key} is {value!r} here and {other!r} there" for key, (value, other) in settings.items()]
        first = material.groups[0].title
        if group.key.program != material.groups[0].key.program:
            blocks.append(f"Not comparable with the section “{first}”, which is of another kind.")
        elif sentences:
            blocks.append(f"Not comparable with the section “{first}”: {'; '.join(sentences)}.")
    for place, what in enumerate(group.measures):
        blocks += [_curves(group, what, f"{name}-{place + 1}", name), _means(group, what), _pairs(group, what)]
    trained = training_plots(group, name)
    if trained:
        blocks.append(Section(f"{name}-training", "Training curves", trained))
    blocks += [
        learned_section(group, material.probes, material.reasons, f"{name}-learned"),
        entropy_section(group, material.probes, material.reasons, f"{name}-entropy"),
        Section(f"{name}-costs", "Parameters, FLOPs, step time and memory", costs_table(group, material.probes)),
        Section(f"{name}-settings", "Configuration and versions", _settings(group)),
        published_section(group, f"{name}-published"),
    ]
    return Section(name, group.title, tuple(block for block in blocks if block))


def _note(group: Group) -> str:
    most = max(len(series.seeds) for series in group.series)
    text = f"{group.key.note.rstrip('.')}. " if group.key.note else ""
    if most == 1:
        text += "One seed per encoding: there are no intervals over seeds, and small differences mean nothing."
        if any(group.as_trained(series) for series in group.series):
            text += (
                f" The same weights with and without an extension are compared by the interval of the {group.examples}."
            )
        return text
    return (
        f"{text}Numbers are means over seeds; ± is the 95 % interval of Student's t over them, which one seed does not "
        f"have. Plots show it as a band from {BANDS} seeds on; of fewer, each seed is a small point."
    )


def _curves(group: Group, what: str, file: str, scope: str) -> Plot:
    kind, sizes = group.key.kind, tuple(float(size) for size in group.sizes(what))
    curves = tuple(_curve(group, series, what) for series in group.series if what in series.means)
    of_text, side = kind.log, f"{kind.at}, {kind.unit}"
    trained = group.key.trained
    better = "higher" if group.higher else "lower"
    caption = f"Of the test data; {better} is better."
    if of_text:
        caption += " Both axes are logarithmic. The mean over seeds is that of the perplexities, not of the losses."
    if any(p.high > p.low for curve in curves for p in curve.points):
        caption += " Bands that are wider than the plot are cut off."
    if trained:
        caption += f" All were trained at {group.key.extent}, and at no other size."
    return Plot(
        "curves", file, f"{capital(what)} against {side.partition(',')[0]}", caption,
        Axis(side, 2 if of_text else 0, sizes), Axis(what, 10 if of_text else 0), curves,
        (float(trained), f"trained at {group.key.extent.rpartition(' ')[0]}") if trained else None, scope=scope,
    )  # fmt: skip


def _curve(group: Group, series: Series, what: str) -> Curve:
    means = sorted(series.means[what].items())
    points = tuple(_point(series.label, size, mean, group.unit) for size, mean in means)
    seeds = [
        Point(size, y, y, y, f"{series.label} at {size} {group.unit}, seed {seed}: {y:.4g}")
        for size, mean in means
        if 1 < mean.seeds < BANDS
        for seed, y in series.numbers(what, size).items()
    ]
    return Curve(series.label, group.styles[series.label], points, tuple(seeds))


def _point(label: str, size: int, mean: Mean, unit: str) -> Point:
    half = 0.0 if mean.seeds < BANDS else mean.half
    return Point(size, mean.mean, mean.mean - half, mean.mean + half, f"{label} at {size} {unit}: {cell_text(mean)}")


def _means(group: Group, what: str) -> Table:
    sizes, trained = group.sizes(what), group.key.trained
    best = max if group.higher else min
    measured = [series.means.get(what, {}) for series in group.series]
    tops = {size: best(by_size[size].mean for by_size in measured if size in by_size) for size in sizes}

    def cell(series: Series, size: int) -> Cell:
        mean = series.means.get(what, {}).get(size)
        if mean is None:
            return Cell("refused" if size in series.refused else "", None)
        fewer = f" ({mean.seeds} of {len(series.seeds)})" if mean.seeds < len(series.seeds) else ""
        return Cell(cell_text(mean) + fewer, mean.mean, mean.mean == tops[size])

    rows = tuple(
        (Cell(series.label), Cell(seeds_text(series.seeds), len(series.seeds)), *(cell(series, size) for size in sizes))
        for series in group.series
        if what in series.means
    )
    note = " The best of each column is in bold."
    for series in group.series:
        if series.refused:
            lengths = ", ".join(f"{size}" for size in sorted(series.refused))
            note += f" {series.label} refuses {lengths}: {series.refused[min(series.refused)]}."
    heads = tuple(f"{size}" for size in sizes)
    strong = (2 + sizes.index(trained),) if trained in sizes else ()
    return Table(f"{capital(what)} at each size in {group.unit}.{note}", ("encoding", "seeds", *heads), rows, strong)


def _pairs(group: Group, what: str) -> Table | None:
    """Return the differences to the reference, and of each encoding with an extension to itself without one."""
    reference, sizes = group.reference, group.sizes(what)
    columns = sorted({size for size in (group.key.trained, sizes[-1]) if size in sizes})
    rows, extended = [], False
    for series in group.series:
        as_trained = group.as_trained(series)
        extended |= as_trained is not None
        for other in (reference, as_trained) if as_trained is not reference else (reference,):
            if other is None or other is series or what not in series.means or what not in other.means:
                continue
            common = sorted(set(series.seeds) & set(other.seeds))
            cells = [_difference(series, other, what, size, in_common=bool(common)) for size in columns]
            name = series.label if other is reference else f"{series.label}, to {other.label}"
            rows.append((Cell(name), Cell(seeds_text(common) if common else "none in common", len(common)), *cells))
    if not rows:
        return None
    caption = (
        f"Difference of {what} to {reference.label}, seed by seed: the mean over the seeds that both have, with its "
        "95 % interval from two seeds on."
    )
    if extended:
        caption += f" One seed with and without an extension has that of its {group.examples}."
    heads = ("encoding", "common seeds", *(f"at {size}" for size in columns))
    return Table(caption, heads, tuple(rows), folded=True)


def _difference(series: Series, other: Series, what: str, size: int, *, in_common: bool) -> Cell:
    mean, examples = seed_difference(series, other, what, size), on_weights(series, other, what, size)
    if mean is None:
        return Cell("" if in_common else "no seeds in common", None)
    value = examples if examples and mean.seeds == 1 else mean
    return Cell(cell_text(value, "+"), value.mean)


def _settings(group: Group) -> tuple[str | Table, ...]:
    blocks: list[str | Table] = []
    facts = {"program": f"train.{group.key.program}", "data": group.key.data, **dict(group.key.settings)}
    rows = tuple((Cell(name), Cell(_value(value))) for name, value in facts.items())
    blocks.append(Table("Settings that all runs of this section share.", ("setting", "value"), rows, folded=True))
    origins = {}
    for run in (run for series in group.series for run in series.runs):
        environment = run.made_with
        text = (
            ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
            if environment
            else "not recorded"
        )
        origins.setdefault((text, environment.get("devices", "not recorded")), set()).add(run.place)
    counts = {key: len(places) for key, places in origins.items()}
    rows = tuple((Cell(text), Cell(devices), Cell(f"{n}", n)) for (text, devices), n in counts.items())
    if len(origins) > 1:
        blocks.append("The runs of this section were not all made with the same versions and devices.")
    blocks.append(Table("Versions and devices of the runs.", ("versions", "devices", "runs"), rows))
    return tuple(blocks)


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _short(material: Material, text: str) -> str:
    """Return a text in which runs are named by their place in the folders that were read."""
    for folder in material.folders:
        text = text.replace(f"{folder.rstrip('/')}/", f"{Path(folder).name}/" if len(material.folders) > 1 else "")
    return text


def _left_section(material: Material) -> Section:
    omissions = material.left
    if not omissions:
        return Section("left", "Left out", ("Nothing was left out.",))
    rows = [
        (Cell(_short(material, omission.what)), Cell(_short(material, omission.why))) for omission in omissions[:LEFT]
    ]
    if len(omissions) > LEFT:
        rows.append((Cell(f"{len(omissions) - LEFT:,} more"), Cell("the command names all of them")))
    return Section("left", "Left out", (Table("What is not in this report, and why.", ("what", "why"), tuple(rows)),))


def _runs_section(material: Material) -> Section:
    rows = {}
    for group in material.groups:
        for series in group.series:
            for run, evaluation in zip(series.runs, series.scored, strict=True):
                steps = [line["step"] for line in run.metrics]
                cells = (Cell(_short(material, run.place)), Cell(series.label), Cell(f"{run.seed}", run.seed))
                last = Cell(f"{max(steps)}", max(steps)) if steps else Cell("", None)
                rows[run.place, evaluation.extend] = (*cells, last, Cell(group.title))
    caption = "Every evaluation in this report."
    heads = ("run", "encoding", "seed", "last step", "section")
    return Section("runs", "Runs", (Table(caption, heads, tuple(rows.values()), folded=len(rows) > 40),))
