"""Sections: runs that may stand in one table, the series in them (one encoding over seeds), and their means.

Two runs share a section if they have the same program, data, test examples, judge, sampling, trained size, model and
budget. Settings of the optimizer may differ, as after a sweep; the label of a series then says so.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from pejax._visualize.style import LineStyle
from train.compare.table import Mean, means
from train.engine.line_styles import line_styles
from train.engine.numbers import Kind, Number
from train.engine.options import names_of
from train.engine.programs import PROGRAMS, config_of
from train.engine.results import Evaluation
from train.report.records import Left, Run
from train.report.texts import plain

CONFIGS = tuple(map(config_of, PROGRAMS))

TUNED = tuple(dict.fromkeys(name for config in CONFIGS for name in names_of(config, "tuned")))
"""Settings of the optimizer, which may differ between the series of a section."""

OF_SERIES = {name for config in CONFIGS for name in names_of(config, "series", "tuned")}
"""Settings by which the series of a section may differ."""

SECTIONS, MEASURES, SIZES = 100, 12, 60
"""Most sections of a report, and most measures and sizes of one: those that most encodings have."""

MADE_BY = "measured with "
"""Begin of the names of settings that say what the numbers were made by."""

IN_A_TITLE = 80
"""Most characters of the name of data, or of a setting, in a title."""

NAMED = 3
"""Maximum number of settings by which sections of one title are told apart in it."""

Value = TypeVar("Value", bound=Hashable)
Settings = tuple[tuple[str, Any], ...]


class Key(NamedTuple):
    """The facts that the runs of a section share.

    Attributes:
        program: the trainer.
        data: its name; empty = unknown.
        trained: size or length; 0 = unknown.
        note: remark on the data.
        examples: number of test images, tokens or questions at the trained size.
        settings: all others, by name.
        kind: what they measure.
    """

    program: str
    data: str
    trained: int
    note: str
    examples: int
    settings: Settings
    kind: Kind

    @property
    def made_by(self) -> set[tuple[str, Any]]:
        """The settings that say what the numbers were made by."""
        return {(name, value) for name, value in self.settings if name.startswith(MADE_BY)}

    @property
    def extent(self) -> str:
        """The trained size or length in words: "28 px", "up to 16 tokens"."""
        return f"{self.kind.most}{self.trained} {self.kind.short}"


class Weights(NamedTuple):
    """Trained weights: the place of their run, its seed, and the step."""

    place: str
    seed: int
    step: int


class Series(NamedTuple):
    """One encoding with one extension, over seeds.

    Attributes:
        label: name in tables and legends.
        runs: by ascending seed.
        scored: the evaluation of each.
        means: quantity -> size or length -> mean over the seeds.
        refused: size or length -> why the encoding does not support it.
    """

    label: str
    runs: tuple[Run, ...]
    scored: tuple[Evaluation, ...]
    means: dict[str, dict[int, Mean]]
    refused: dict[int, str]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(run.seed for run in self.runs)

    def numbers(self, what: str, size: int) -> dict[int, float]:
        """Return the number of each seed that has one."""
        pairs = zip(self.runs, self.scored, strict=True)
        return {
            run.seed: evaluation.scores[what][size]
            for run, evaluation in pairs
            if size in evaluation.scores.get(what, {})
        }

    def measured(self, what: str, size: int) -> dict[Weights, Number]:
        """Return the number of each run that has one with its interval."""
        pairs = zip(self.runs, self.scored, strict=True)
        numbers = {
            Weights(run.place, run.seed, evaluation.step): evaluation.scored.get(what, {}).get(size)
            for run, evaluation in pairs
        }
        return {weights: number for weights, number in numbers.items() if number is not None and number.count}


class Group(NamedTuple):
    """One section.

    Attributes:
        title: unique in the report.
        key: facts that the runs share.
        series: by label.
    """

    title: str
    key: Key
    series: tuple[Series, ...]

    @property
    def higher(self) -> bool:
        """Whether a higher number is better."""
        return self.key.kind.higher

    @property
    def unit(self) -> str:
        """The unit of sizes or lengths: px, frames or tokens."""
        return self.key.kind.short

    @property
    def examples(self) -> str:
        """The name of the test examples: images, text, questions or noise."""
        return self.key.kind.examples

    @property
    def measures(self) -> tuple[str, ...]:
        """The measured quantities."""
        return tuple(_most_common((what for series in self.series for what in series.means), MEASURES))

    @property
    def styles(self) -> dict[str, LineStyle]:
        """The style of each series in every plot, by its label."""
        labels = [series.label for series in self.series]
        return dict(zip(labels, line_styles(labels), strict=True))

    def sizes(self, what: str) -> list[int]:
        """Return all sizes or lengths at which it is measured, ascending."""
        return sorted(_most_common((size for series in self.series for size in series.means.get(what, {})), SIZES))

    @property
    def reference(self) -> Series:
        """The series that others are compared with: `none`, else the first."""
        return next((series for series in self.series if series.label == "none"), self.series[0])

    def as_trained(self, series: Series) -> Series | None:
        """Return the series of the same weights without an extension; None if it is this one, or there is none."""
        shares_weights = lambda other: (
            other.scored[0].extend == "none" and any(run is own_run for run in other.runs for own_run in series.runs)
        )
        return next((other for other in self.series if other is not series and shares_weights(other)), None)


def _most_common(values: Iterable[Value], most: int) -> list[Value]:
    """Return the distinct values in the order in which they come; of more than `most`, the most common ones."""
    counts = Counter(values)
    top_values = {value for value, _ in counts.most_common(most)}
    return [value for value in counts if value in top_values]


def key_of(run: Run, scored: Evaluation) -> Key | None:
    """Return the facts that a run shares with the others of its section, or None if it has no config."""
    config = run.config
    if config is None:
        return None
    facts = {name: value for name, value in config.weights_settings().items() if name not in OF_SERIES}
    data = facts.pop("data")
    settings = {**facts, "from_trained_weights": bool(config.init), **dict(sorted(_made_by(scored)))}
    return Key(run.program, data, scored.trained, scored.note, scored.examples, tuple(settings.items()), scored.kind)


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[Left]]:
    """Return the sections, and the evaluations in none: repeated ones, and ones beyond the most sections."""
    pairs = [(run, evaluation, key_of(run, evaluation)) for run in runs for evaluation in run.scored]
    of_comparison: dict[Any, set[Key]] = {}
    for run, _, key in pairs:
        if run.comparison is not None and key is not None:
            of_comparison.setdefault(run.comparison, set()).add(key)
    sections: dict[Key, list[tuple[Run, Evaluation]]] = {}
    for run, evaluation, key in pairs:
        if key is None:  # a line of results.jsonl, whose comparison has one budget
            keys = [key for key in of_comparison.get(run.comparison, ()) if key.made_by == _made_by(evaluation)]
            key = keys[0] if len(keys) == 1 else _unknown(run, evaluation)
        sections.setdefault(key, []).append((run, evaluation))
    omissions: list[Left] = []
    order = sorted(sections, key=lambda key: (PROGRAMS.index(key.program), -len(sections[key]), key.data))
    for key in order[SECTIONS:]:
        why = f"a report has {SECTIONS} sections at most, those with the most evaluations: give fewer folders"
        omissions += [Left(f"{run.place} ({evaluation.label})", why) for run, evaluation in sections[key]]
    order = order[:SECTIONS]
    titles = _titles(order)
    groups = [Group(titles[key], key, _series(sections[key], omissions)) for key in order]
    return groups, omissions


def _unknown(run: Run, scored: Evaluation) -> Key:
    note = f"Read from {run.comparison}/results.jsonl alone, which records neither data nor trained size nor budget."
    settings = (("comparison", f"{run.comparison}"), *sorted(_made_by(scored)))
    return Key(run.program, "", 0, note, 0, settings, scored.kind)


def _made_by(scored: Evaluation) -> set[tuple[str, str]]:
    """Return the origin of the numbers of an evaluation (`made_by`), as settings of a section."""
    return {(f"{MADE_BY}{name}", value) for name, value in scored.made_by.items()}


def _titles(keys: Sequence[Key]) -> dict[Key, str]:
    """Return a title per section; equal titles are told apart by the settings that differ."""
    first: dict[Key, str] = {}
    for key in keys:
        kind = key.kind.subject
        data = plain(key.data, IN_A_TITLE)
        first[key] = f"{kind}: {data}, trained at {key.extent}" if data else f"{kind}: unknown data"
    titles: dict[Key, str] = {}
    numbers: Counter[str] = Counter()
    for key, title in first.items():
        namesakes = [other for other in keys if first[other] == title]
        facts = {name: value for name, value in _facts(key).items() if _differs(name, namesakes)}
        parts = [f"{name} {plain(f'{value}', IN_A_TITLE)}" for name, value in facts.items()]
        text = title + (f" ({', '.join(parts[:NAMED])})" if parts else "")
        numbers[text] += 1
        titles[key] = text + (f", set {numbers[text]}" if numbers[text] > 1 else "")
    return titles


def _facts(key: Key) -> dict[str, Any]:
    return {**dict(key.settings), "test examples": key.examples}


def _differs(name: str, keys: Iterable[Key]) -> bool:
    return len({repr(_facts(key).get(name)) for key in keys}) > 1


def differences(group: Group, other: Group) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ in two sections: name -> (value here, value there)."""
    facts_of = lambda key: {"data": key.data, "trained": key.trained, "note": key.note, **_facts(key)}
    mine, theirs = facts_of(group.key), facts_of(other.key)
    return {
        name: (mine.get(name), theirs.get(name)) for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)
    }


def _series(pairs: Sequence[tuple[Run, Evaluation]], omissions: list[Left]) -> tuple[Series, ...]:
    tuned = {name for name in TUNED if len({repr(_setting(run, name)) for run, _ in pairs if run.config}) > 1}
    members: dict[str, dict[int, tuple[Run, Evaluation]]] = {}
    for run, evaluation in sorted(pairs, key=lambda pair: (pair[0].folder is None, pair[0].place)):
        suffix = "".join(f", {name}={_setting(run, name)}" for name in TUNED if name in tuned and run.config)
        of_label = members.setdefault(_label(run, evaluation) + suffix, {})
        first = of_label.setdefault(run.seed, (run, evaluation))
        if first[0] is not run:
            numbers = "the same numbers" if first[1].scores == evaluation.scores else "other numbers"
            place = f"{first[0].place}, with {numbers}"
            why = f"same encoding, extension, seed and settings as {place}; the first one is kept"
            omissions.append(Left(f"{run.place} ({evaluation.label}, seed {run.seed})", why))
    series = []
    for label in sorted(members, key=lambda label: (label.partition("(")[0], label)):
        runs, scored = zip(*(members[label][seed] for seed in sorted(members[label])), strict=True)
        refused = {size: why for evaluation in scored for size, why in evaluation.refused.items()}
        series.append(Series(label, runs, scored, means([evaluation.scores for evaluation in scored]), refused))
    return tuple(series)


def _setting(run: Run, name: str) -> Any:
    return getattr(run.config, name, None)


def _label(run: Run, evaluation: Evaluation) -> str:
    """Return the encoding, its extension, and the run whose weights a run started from, without the seed."""
    start = run.config.init.rstrip("/").split("/")[-1] if run.config else ""
    if not start:
        return evaluation.label
    return f"{evaluation.label.replace(f', from {start}', '')}, from {start.removesuffix(f'-{run.seed}')}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds in words: "seed 0", "seeds 0-2", "seeds 0, 2"."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    is_range = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]}-{seeds[-1]}" if is_range else f"seeds {', '.join(map(str, seeds))}"
