"""Sections: runs that may stand in one table, the series in them (one encoding over seeds), and their means.

Two runs share a section if they have the same program, data, test examples, judge, sampling, trained size, model and
budget. Settings of the optimizer may differ, as after a sweep; the label of a series then says so.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from pejax._visualize.style import LineStyle
from train.compare.table import Mean, means
from train.engine.intervals import Score
from train.engine.line_styles import line_styles
from train.engine.programs import program
from train.report.records import Left, Run, Scored
from train.report.texts import plain

TUNED = ("optimizer", "lr", "lr_end", "weight_decay", "warmup", "clip")
"""Settings of the optimizer, which may differ between the series of a section."""

OF_SERIES = ("pe", "decoder_pe", "cross", "cross_pe", "seed", "init", "preset", "validation", *TUNED)
"""Settings by which the series of a section may differ."""

KINDS = {
    "vit": ("Images", "px", "images"),
    "lm": ("Text", "tokens", "text"),
    "seq2seq": ("Questions", "tokens", "questions"),
    "dit": ("Sampled pictures", "px", "noise"),
    "tune": ("Fine-tuned on text", "tokens", "text"),
}
"""Subject, unit of sizes, and test examples of each program."""

VIDEOS = ("Sampled videos", "frames", "noise")
"""The same of runs on videos."""

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
    """

    program: str
    data: str
    trained: int
    note: str
    examples: int
    settings: Settings

    @property
    def made_by(self) -> set[tuple[str, Any]]:
        """The settings that say what the numbers were made by."""
        return {(name, value) for name, value in self.settings if name.startswith(MADE_BY)}

    @property
    def kind(self) -> tuple[str, str, str]:
        """Subject, unit of sizes, and test examples."""
        return VIDEOS if dict(self.settings).get("frames") else KINDS[self.program]

    @property
    def extent(self) -> str:
        """The trained size or length in words: "28 px", "up to 16 tokens"."""
        mixed = "up to " if self.program == "seq2seq" else ""
        return f"{mixed}{self.trained} {self.kind[1]}"


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
    scored: tuple[Scored, ...]
    means: dict[str, dict[int, Mean]]
    refused: dict[int, str]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(run.seed for run in self.runs)

    def numbers(self, what: str, size: int) -> dict[int, float]:
        """Return the number of each seed that has one."""
        pairs = zip(self.runs, self.scored, strict=True)
        return {run.seed: one.scores[what][size] for run, one in pairs if size in one.scores.get(what, {})}

    def measured(self, what: str, size: int) -> dict[Weights, Score]:
        """Return the score of each run that has one with its interval."""
        pairs = zip(self.runs, self.scored, strict=True)
        found = {Weights(run.place, run.seed, one.step): one.measured.get(what, {}).get(size) for run, one in pairs}
        return {weights: score for weights, score in found.items() if score is not None}


class Group(NamedTuple):
    """One section.

    Attributes:
        title: unique in the report.
        key: facts that the runs share.
        series: by label.
        higher: whether a higher number is better.
    """

    title: str
    key: Key
    series: tuple[Series, ...]
    higher: bool

    @property
    def unit(self) -> str:
        """The unit of sizes or lengths: px, frames or tokens."""
        return self.key.kind[1]

    @property
    def examples(self) -> str:
        """The name of the test examples: images, text, questions or noise."""
        return self.key.kind[2]

    @property
    def measures(self) -> tuple[str, ...]:
        """The measured quantities."""
        return tuple(_most_common((what for series in self.series for what in series.means), MEASURES))

    @property
    def styles(self) -> dict[str, LineStyle]:
        """The style of each series in every plot, by its label."""
        labels = [one.label for one in self.series]
        return dict(zip(labels, line_styles(labels), strict=True))

    def sizes(self, what: str) -> list[int]:
        """Return all sizes or lengths at which it is measured, ascending."""
        return sorted(_most_common((size for one in self.series for size in one.means.get(what, {})), SIZES))

    @property
    def reference(self) -> Series:
        """The series that others are compared with: `none`, else the first."""
        return next((one for one in self.series if one.label == "none"), self.series[0])

    def as_trained(self, series: Series) -> Series | None:
        """Return the series of the same weights without an extension; None if it is this one, or there is none."""
        alike = lambda one: (
            one.scored[0].extend == "none" and any(run is own for run in one.runs for own in series.runs)
        )
        return next((one for one in self.series if one is not series and alike(one)), None)


def _most_common(values: Iterable[Value], most: int) -> list[Value]:
    """Return the distinct values in the order in which they come; of more than `most`, the most common ones."""
    counts = Counter(values)
    kept = {value for value, _ in counts.most_common(most)}
    return [value for value in counts if value in kept]


def key_of(run: Run, scored: Scored) -> Key | None:
    """Return the facts that a run shares with the others of its section, or None if it has no config."""
    config = run.config
    if config is None:
        return None
    kept = {name: value for name, value in config.weights_settings().items() if name not in OF_SERIES}
    data = kept.pop("data")
    settings = {**kept, "from_trained_weights": bool(config.init), **dict(sorted(_made_by(scored)))}
    return Key(run.program, data, scored.trained, scored.note, scored.examples, tuple(settings.items()))


def grouped(runs: Sequence[Run]) -> tuple[list[Group], list[Left]]:
    """Return the sections, and the evaluations in none: repeated ones, and ones beyond the most sections."""
    pairs = [(run, one, key_of(run, one)) for run in runs for one in run.scored]
    of_comparison: dict[Any, set[Key]] = {}
    for run, _, key in pairs:
        if run.comparison is not None and key is not None:
            of_comparison.setdefault(run.comparison, set()).add(key)
    sections: dict[Key, list[tuple[Run, Scored]]] = {}
    for run, one, key in pairs:
        if key is None:  # a line of results.jsonl, whose comparison has one budget
            known = [key for key in of_comparison.get(run.comparison, ()) if key.made_by == _made_by(one)]
            key = known[0] if len(known) == 1 else _unknown(run, one)
        sections.setdefault(key, []).append((run, one))
    left: list[Left] = []
    order = sorted(sections, key=lambda key: (list(KINDS).index(key.program), -len(sections[key]), key.data))
    for key in order[SECTIONS:]:
        why = f"a report has {SECTIONS} sections at most, those with the most evaluations: give fewer folders"
        left += [Left(f"{run.place} ({one.label})", why) for run, one in sections[key]]
    order = order[:SECTIONS]
    titles = _titles(order)
    found = [
        Group(titles[key], key, _series(sections[key], left), program(key.program).results.higher) for key in order
    ]
    return found, left


def _unknown(run: Run, scored: Scored) -> Key:
    note = f"Read from {run.comparison}/results.jsonl alone, which records neither data nor trained size nor budget."
    return Key(run.program, "", 0, note, 0, (("comparison", f"{run.comparison}"), *sorted(_made_by(scored))))


def _made_by(scored: Scored) -> set[tuple[str, str]]:
    """Return what the numbers of an evaluation were made by, as settings of a section."""
    return {(f"{MADE_BY}{name}", value) for name, value in scored.made_by.items()}


def _titles(keys: Sequence[Key]) -> dict[Key, str]:
    """Return a title per section; equal titles are told apart by the settings that differ."""
    first: dict[Key, str] = {}
    for key in keys:
        kind = key.kind[0]
        data = plain(key.data, IN_A_TITLE)
        first[key] = f"{kind}: {data}, trained at {key.extent}" if data else f"{kind}: unknown data"
    found: dict[Key, str] = {}
    numbers: Counter[str] = Counter()
    for key, title in first.items():
        alike = [other for other in keys if first[other] == title]
        facts = {name: value for name, value in _facts(key).items() if _differs(name, alike)}
        apart = [f"{name} {plain(f'{value}', IN_A_TITLE)}" for name, value in facts.items()]
        text = title + (f" ({', '.join(apart[:NAMED])})" if apart else "")
        numbers[text] += 1
        found[key] = text + (f", set {numbers[text]}" if numbers[text] > 1 else "")
    return found


def _facts(key: Key) -> dict[str, Any]:
    return {**dict(key.settings), "test examples": key.examples}


def _differs(name: str, keys: Iterable[Key]) -> bool:
    return len({repr(_facts(key).get(name)) for key in keys}) > 1


def differences(group: Group, other: Group) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ in two sections: name -> (value here, value there)."""
    told = lambda key: {"data": key.data, "trained": key.trained, "note": key.note, **_facts(key)}
    one, two = told(group.key), told(other.key)
    return {name: (one.get(name), two.get(name)) for name in {**one, **two} if one.get(name) != two.get(name)}


def _series(pairs: Sequence[tuple[Run, Scored]], left: list[Left]) -> tuple[Series, ...]:
    tuned = {name for name in TUNED if len({repr(_setting(run, name)) for run, _ in pairs if run.config}) > 1}
    members: dict[str, dict[int, tuple[Run, Scored]]] = {}
    for run, one in sorted(pairs, key=lambda pair: (pair[0].folder is None, pair[0].place)):
        own = "".join(f", {name}={_setting(run, name)}" for name in TUNED if name in tuned and run.config)
        of_label = members.setdefault(_label(run, one) + own, {})
        kept = of_label.setdefault(run.seed, (run, one))
        if kept[0] is not run:
            same = "the same numbers" if kept[1].scores == one.scores else "other numbers"
            why = f"same encoding, extension, seed and settings as {kept[0].place}, with {same}; the first one is kept"
            left.append(Left(f"{run.place} ({one.label}, seed {run.seed})", why))
    found = []
    for label in sorted(members, key=lambda label: (label.partition("(")[0], label)):
        runs, scored = zip(*(members[label][seed] for seed in sorted(members[label])), strict=True)
        refused = {size: why for one in scored for size, why in one.refused.items()}
        found.append(Series(label, runs, scored, means([one.scores for one in scored]), refused))
    return tuple(found)


def _setting(run: Run, name: str) -> Any:
    return getattr(run.config, name, None)


def _label(run: Run, one: Scored) -> str:
    """Return the encoding, its extension, and the run whose weights a run started from, without the seed."""
    start = run.config.init.rstrip("/").split("/")[-1] if run.config else ""
    if not start:
        return one.label
    return f"{one.label.replace(f', from {start}', '')}, from {start.removesuffix(f'-{run.seed}')}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds in words: "seed 0", "seeds 0-2", "seeds 0, 2"."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    whole = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]}-{seeds[-1]}" if whole else f"seeds {', '.join(map(str, seeds))}"
