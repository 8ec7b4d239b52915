"""Results of evaluations of any program: one record per evaluation, its files, and tables and figures of many."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from rich.table import Table

from train.engine.earlier_results import earlier_numbers
from train.engine.files import read_object, with_digest, write_atomic
from train.engine.markdown import escape_markdown
from train.engine.numbers import At, Kind, Measure, Number, from_stored, require_number, stored
from train.engine.stored_config import stored_settings

SHORT = 40
"""Longest extension that is written in full in labels and file names."""


def results_stem(extend: str) -> str:
    """Return the name of the files of an evaluation, without suffix, safe in any file system."""
    if extend == "none":
        return "results"
    safe = re.sub(r"[^\w.=,+-]+", "_", extend).strip("_")
    return f"results-{safe if len(safe) <= SHORT else f'{safe[:16]}-{hashlib.sha256(extend.encode()).hexdigest()[:8]}'}"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run; each program has its own kind of numbers and its own table.

    Attributes:
        kinds: what all evaluations of the program have in common; if it has two, the second is that of videos.
        sampled_with: settings of the run that the numbers depend on and the weights do not; `made_by` has them.

    Args:
        name: name of the encoding.
        data: name of the data.
        trained: size or length of the training examples.
        step: step of the checkpoint.
        extend: the context extension in this evaluation, or `none`.
        note: remark on the data for readers of the table.
        numbers: everything that was measured, or refused.
        steps: number of the last step of training; 0 = unknown.
        run: digest of the settings of the run (`train.engine.stored_config`); empty = unknown.
        made_by: digests of the data and the judge, and the settings of sampling: the key of every table; empty = none.
    """

    kinds: ClassVar[tuple[Kind, ...]]
    sampled_with: ClassVar[tuple[str, ...]] = ()

    name: str
    data: str
    trained: int
    step: int
    extend: str
    note: str
    numbers: tuple[Number, ...]
    steps: int = 0
    run: str = ""
    made_by: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def unfinished(self) -> bool:
        """Whether training went on after this step."""
        return self.step < self.steps

    @property
    def label(self) -> str:
        """The encoding, its extension, and the step if training went on after it."""
        how = self.extend if len(self.extend) <= SHORT else re.sub(r"\(.*\)", "(...)", self.extend)
        label = self.name if self.extend == "none" else f"{self.name} + {how}"
        return f"{label}, step {self.step} of {self.steps}" if self.unfinished else label

    @property
    def stem(self) -> str:
        """Name of its files, without suffix."""
        return results_stem(self.extend) + (f"-step{self.step}" if self.unfinished else "")

    @property
    def videos(self) -> bool:
        """Whether the numbers are those of videos."""
        return len(self.numbers[0].shape) == 3

    @property
    def kind(self) -> Kind:
        """The description of all evaluations of the program."""
        return self.kinds[-1] if self.videos else self.kinds[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that were measured, in order: tasks, or aspect ratios."""
        return tuple(dict.fromkeys(number.of for number in self.numbers))

    def of(self, measure: str, part: str = "") -> dict[At, Number]:
        """Return the numbers of a measure on a part, by place."""
        return {number.at: number for number in self.numbers if (number.measure, number.of) == (measure, part)}

    @property
    def first(self) -> list[Number]:
        """The numbers of the first measure, on all parts."""
        return [number for number in self.numbers if number.measure == self.kind.measures[0].name]

    def heading(self, measure: Measure, part: str) -> str:
        """Return the line above the Markdown table of a measure on a part; empty = none."""
        return (measure.heading or "").format(trained=self.trained, of=escape_markdown(part))

    def row(self, measure: Measure, part: str) -> dict[int, Number]:
        """Return the row of the Markdown table of a measure on a part, by size or length."""
        return {number.place: number for number in self.of(measure.name, part).values()}

    @functools.cached_property
    def scored(self) -> dict[str, dict[int, Number]]:
        """The numbers of the first measure by its name on each part and size or length, without refused ones."""
        name = self.kind.measures[0].name
        by_name: dict[str, dict[int, Number]] = {}
        for number in self.first:
            by_size = by_name.setdefault(self.kind.part.format(of=number.of) if number.of else name, {})
            if not number.refused:
                by_size[number.place] = number
        return by_name

    @property
    def scores(self) -> dict[str, dict[int, float]]:
        """The values of `scored`."""
        return {what: {at: number.value for at, number in by_size.items()} for what, by_size in self.scored.items()}

    @property
    def refused(self) -> dict[int, str]:
        """Why sizes or lengths are refused."""
        return {number.place: number.refused for number in self.first if number.refused}

    @property
    def examples(self) -> int:
        """Number of test images, tokens or questions at the trained size, else the most; 0 = unknown."""
        counts = {number.place: number.count for number in self.first}
        return counts.get(self.trained, max(counts.values(), default=0))

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return the tables for the terminal of evaluations of one run with several extensions."""
        raise NotImplementedError

    @classmethod
    def markdown(cls, runs: Sequence[Self]) -> str:
        """Return the tables of many runs, one for each measure and part.

        Raises:
            ValueError: runs that are not comparable.
        """
        require_comparable(runs)
        first, texts = runs[0], [runs[0].lead]
        for measure in first.kind.measures:
            for part in first.parts if measure.heading is not None else ():
                rows = [run.row(measure, part) for run in runs]
                if any(cell(number, measure, first.kind) for row in rows for number in row.values()):
                    texts += [first.heading(measure, part), grid(runs, rows, measure)]
        return "\n\n".join([*filter(None, texts), escape_markdown(first.note)]) + "\n"

    @property
    def lead(self) -> str:
        """The text above the Markdown tables; empty = none."""
        return self.kind.lead.format(trained=self.trained)

    @classmethod
    def draw(cls, runs: Sequence[Self], path: Path) -> None:
        """Write the figure of many runs: their first measure, with its interval as a band.

        Raises:
            ValueError: runs that are not comparable.
        """
        from train.engine.figures import draw_curves  # matplotlib, which training alone does not need

        require_comparable(runs)
        first, kind = runs[0], runs[0].kind
        numbers = lambda run, part: sorted(
            run.of(kind.measures[0].name, part).values(), key=lambda number: number.place
        )
        parts = first.parts[:1] if kind.title else first.parts
        panels = {part: [numbers(run, part) for run in runs] for part in parts}
        draw_curves(runs, panels, path, kind, kind.title.format(data=first.data), first.note)

    def store(self, folder: Path) -> None:
        """Write the JSON file with its digest into the run folder."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        content = with_digest({**values, "numbers": [stored(number) for number in self.numbers]})
        write_atomic(folder / f"{self.stem}.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def save(self, folder: Path, runs: Sequence[Self] = ()) -> None:
        """Write the JSON file and the figure, with the curves of `runs`, too, into the run folder."""
        self.store(folder)
        self.draw([self, *runs], folder / f"{self.stem}.png")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an evaluation from its JSON file.

        Raises:
            ValueError: the file is missing, holds something else, was changed, or belongs to another run than the
                config.json beside it.
        """
        try:
            values = read_object(path)
            if ("digest" in values or "rows" not in values) and with_digest(values) != values:
                raise ValueError("it has changed since it was written")
            values.pop("digest", None)
            if "rows" in values:
                numbers = earlier_numbers(values.pop("rows"), values["trained"], cls.kinds[0].measures)
            else:
                numbers = map(from_stored, values.pop("numbers"))
            evaluation = cls(**values, numbers=tuple(map(require_number, numbers)))
            if not evaluation.numbers:
                raise ValueError("numbers must be at least one, got none")
            _require_types(evaluation)
            _require_beside(evaluation, stored_settings(path.parent))
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as wrong:
            raise ValueError(f"results must come from an evaluation, got {path}: {wrong}") from None
        return evaluation

    @classmethod
    def compare(cls, files: Sequence[Path], to: Path) -> list[Self]:
        """Write the tables `TO.md` and the figure `TO.png` of many runs, and return their evaluations."""
        runs = [cls.load(path) for path in files]
        Path(f"{to}.md").write_text(cls.markdown(runs), encoding="utf-8")
        cls.draw(runs, Path(f"{to}.png"))
        return runs


def key_text(value: Any) -> str:
    """Return a setting as `made_by` has it."""
    return f"{value:g}" if isinstance(value, float | int) else f"{value}"


def _require_beside(evaluation: Evaluation, config: Mapping[str, Any]) -> None:
    """Check that an evaluation belongs to the config.json beside it, and was sampled with its settings.

    Raises:
        ValueError: it does not, or was not.
    """
    if evaluation.run and config.get("run", "") not in ("", evaluation.run):
        raise ValueError("it belongs to another run than the config.json beside it")
    for name in evaluation.sampled_with:
        was, now = evaluation.made_by.get(name, ""), key_text(config.get(name, ""))
        if was and now and was != now:
            raise ValueError(
                f"it was measured with {name}={was}, the config.json beside it has {now}: train.evaluate measures again"
            )


def caption(evaluation: Evaluation, *lines: str) -> str:
    """Return the text below the table of an evaluation: the note, further lines, and the reasons of refusals."""
    reasons = sorted({number.refused for number in evaluation.numbers if number.refused})
    return "\n".join([evaluation.note, *lines, *reasons])


def emphasis(evaluation: Evaluation, size: int) -> str | None:
    """Return the style of a row of a table: bold at the trained size or length."""
    return "bold" if size == evaluation.trained else None


def _require_types(evaluation: Evaluation) -> None:
    """Check that the fields of an evaluation have their declared types.

    Raises:
        ValueError: naming the field, its type and the value.
    """
    kinds = {"trained": int, "step": int, "steps": int, "numbers": tuple, "made_by": dict}
    for name, value in vars(evaluation).items():
        kind = kinds.get(name, str)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name} must be {kind.__name__}, got {value!r}")
    if not all(isinstance(value, str) for value in evaluation.made_by.values()):
        raise ValueError(f"made_by must be texts, got {evaluation.made_by!r}")


def require_comparable(runs: Sequence[Evaluation]) -> None:
    """Check that runs can be compared in one table.

    Raises:
        ValueError: naming the field that differs and both values.
    """
    for run in runs:
        require_same_key(run.made_by, runs[0].made_by)
        for name in ("data", "trained"):
            first, other = getattr(runs[0], name), getattr(run, name)
            if first != other:
                raise ValueError(f"runs in one comparison must share {name}, got {first!r} and {other!r}")


def require_same_key(made_by: Mapping[str, str], other: Mapping[str, str]) -> None:
    """Check that numbers were made by the same data, judge and sampling, so that they may stand in one table.

    Raises:
        ValueError: naming what differs and both values.
    """
    for name in {**made_by, **other}:
        if made_by.get(name) != other.get(name):
            got = " and ".join(key.get(name, "an unknown one") for key in (other, made_by))
            rule = f"numbers of one table must be made by the same {name}"
            raise ValueError(f"{rule}, got {got}: train.evaluate measures a run again")


def grid(runs: Sequence[Evaluation], numbers: Sequence[Mapping[int, Number]], measure: Measure) -> str:
    """Return a markdown table: one row per run, one column per size or length, the best number of a column in bold.

    Args:
        runs: their labels are the row headers.
        numbers: of each run, by size or length.
        measure: what they are.
    """
    sizes = sorted({size for by_size in numbers for size in by_size})
    columns = {
        size: [by_size[size].value for by_size in numbers if size in by_size and by_size[size].known] for size in sizes
    }
    best = max if measure.higher else min
    tops = {size: measure.form.format(best(column)) for size, column in columns.items() if column}
    head = [f"**{size}**" if size == runs[0].trained else f"{size}" for size in sizes]
    lines = [f"| encoding | {' | '.join(head)} |", "|---" + "|---:" * len(sizes) + "|"]
    for run, by_size in zip(runs, numbers, strict=True):
        texts = {size: cell(by_size[size], measure, run.kind) if size in by_size else "" for size in sizes}
        cells = [f"**{text}**" if text and text == tops.get(size) else text for size, text in texts.items()]
        lines.append(f"| {escape_markdown(run.label)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(number: Number, measure: Measure, kind: Kind) -> str:
    """Return a number as it is in a Markdown table."""
    return measure.form.format(number.value) if number.known else kind.refused if number.refused else ""
