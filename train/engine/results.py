"""Results of evaluations of any program: one record per evaluation, its files, and tables and figures of many."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, get_origin, get_type_hints

from rich.table import Table

from train.engine.files import read_object, with_digest, write_atomic
from train.engine.intervals import Score
from train.engine.markdown import escape_markdown
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
    """One evaluation of a run; each program has its own rows, table and figure.

    Attributes:
        row: NamedTuple of a row; other entries of a stored row were computed from its fields.
        nested: class of values that are stored as JSON objects.
        higher: whether a higher score is better.
        sampled_with: settings of the run that the numbers depend on and the weights do not; `made_by` has them.

    Args:
        name: name of the encoding.
        data: name of the data.
        trained: size or length of the training examples.
        step: step of the checkpoint.
        extend: the context extension in this evaluation, or `none`.
        note: remark on the data for readers of the table.
        rows: one per size or length.
        steps: number of the last step of training; 0 = unknown.
        run: digest of the settings of the run (`train.engine.stored_config`); empty = unknown.
        made_by: digests of the data and the judge, and the settings of sampling: the key of every table; empty = none.
    """

    row: ClassVar[Any]
    nested: ClassVar[Callable[..., Any]] = dict
    higher: ClassVar[bool]
    sampled_with: ClassVar[tuple[str, ...]] = ()

    name: str
    data: str
    trained: int
    step: int
    extend: str
    note: str
    rows: tuple[Any, ...]
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

    def stored_rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows as JSON, with numbers that readers of the file would else compute."""
        return [stored(row) for row in self.rows]

    def table(self) -> Table:
        """Return the table for the terminal."""
        raise NotImplementedError

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return the tables for the terminal of evaluations of one run with several extensions."""
        return [run.table() for run in runs]

    def measured(self) -> dict[str, dict[int, Score]]:
        """Return what was measured by quantity and size or length, without refused ones."""
        raise NotImplementedError

    def scores(self) -> dict[str, dict[int, float]]:
        """Return the measured numbers alone."""
        found = self.measured()
        return {what: {size: score.number for size, score in by_size.items()} for what, by_size in found.items()}

    @classmethod
    def markdown(cls, runs: Sequence[Self]) -> str:
        """Return the tables of many runs.

        Raises:
            ValueError: runs that are not comparable.
        """
        raise NotImplementedError

    @classmethod
    def draw(cls, runs: Sequence[Self], path: Path) -> None:
        """Write the figure of many runs."""
        raise NotImplementedError

    def store(self, folder: Path) -> None:
        """Write the JSON file with its digest into the run folder."""
        stored = with_digest({**dataclasses.asdict(self), "rows": self.stored_rows()})
        write_atomic(folder / f"{self.stem}.json", json.dumps(stored, indent=2) + "\n")

    def save(self, folder: Path, others: Sequence[Self] = ()) -> None:
        """Write the JSON file and the figure, with the curves of `others`, too, into the run folder."""
        self.store(folder)
        self.draw([self, *others], folder / f"{self.stem}.png")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an evaluation from its JSON file.

        Raises:
            ValueError: the file is missing, holds something else, was changed, or belongs to another run than the
                config.json beside it.
        """

        def read(value: Any) -> Any:
            return cls.nested(**value) if isinstance(value, dict) else value

        try:
            stored = read_object(path)
            if "digest" in stored and with_digest(stored) != stored:
                raise ValueError("it has changed since it was written")
            stored.pop("digest", None)
            rows = [{name: read(one[name]) for name in cls.row._fields if name in one} for one in stored["rows"]]
            found = cls(**{**stored, "rows": tuple(cls.row(**values) for values in rows)})
            if not found.rows:
                raise ValueError("rows must be at least one, got none")
            for one in (found, *found.rows):
                _require_types(one)
            _require_beside(found, stored_settings(path.parent))
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as wrong:
            raise ValueError(f"results must come from an evaluation, got {path}: {wrong}") from None
        return found

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


def _require_beside(found: Evaluation, config: Mapping[str, Any]) -> None:
    """Check that an evaluation belongs to the config.json beside it, and was sampled with its settings.

    Raises:
        ValueError: it does not, or was not.
    """
    if found.run and config.get("run", "") not in ("", found.run):
        raise ValueError("it belongs to another run than the config.json beside it")
    for name in found.sampled_with:
        was, now = found.made_by.get(name, ""), key_text(config.get(name, ""))
        if was and now and was != now:
            raise ValueError(
                f"it was measured with {name}={was}, the config.json beside it has {now}: train.evaluate measures again"
            )


def stored(row: Any) -> dict[str, Any]:
    """Return a row as JSON; outcomes of the examples are left out where there are none."""
    return {name: value for name, value in row._asdict().items() if name != "each" or value}


def caption(found: Evaluation, *lines: str) -> str:
    """Return the text below the table of an evaluation: the note, further lines, and the reasons of refusals."""
    reasons = sorted({row.refused for row in found.rows if row.refused})
    return "\n".join([found.note, *lines, *reasons])


def emphasis(found: Evaluation, size: int) -> str | None:
    """Return the style of a row of a table: bold at the trained size or length."""
    return "bold" if size == found.trained else None


def document(runs: Sequence[Evaluation], *parts: str) -> str:
    """Return a markdown document of several parts that ends with the note on the data.

    Raises:
        ValueError: runs that are not comparable.
    """
    require_comparable(runs)
    return "\n\n".join([*parts, escape_markdown(runs[0].note)]) + "\n"


def _require_types(record: Any) -> None:
    """Check that the fields of a record, and of tuples in it, have their declared types and give an interval.

    Raises:
        ValueError: naming the field, its type and the value.
        ArithmeticError: a proportion of zero examples.
    """
    for name, hint in get_type_hints(type(record)).items():
        if get_origin(hint) is ClassVar:
            continue
        value = getattr(record, name)
        if name == "made_by":
            hint, value = str, "".join([*value, *value.values()])  # which refuses all but texts
        wanted = int | float if hint is float else hint
        if name != "rows" and (not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool)):
            raise ValueError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r}")
        if name != "rows" and isinstance(value, tuple):
            _require_types(value)
    _ = getattr(record, "interval", None), getattr(record, "score", None)


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


def require_same_key(one: Mapping[str, str], other: Mapping[str, str]) -> None:
    """Check that numbers were made by the same data, judge and sampling, so that they may stand in one table.

    Raises:
        ValueError: naming what differs and both values.
    """
    for name in {**one, **other}:
        if one.get(name) != other.get(name):
            got = " and ".join(key.get(name, "an unknown one") for key in (other, one))
            rule = f"numbers of one table must be made by the same {name}"
            raise ValueError(f"{rule}, got {got}: train.evaluate measures a run again")


def grid(
    runs: Sequence[Evaluation],
    found: Sequence[Mapping[int, float | None]],
    best: Callable[..., float],
    form: str,
    missing: str = "",
) -> str:
    """Return a markdown table: one row per run, one column per size or length, the best number of a column in bold.

    Args:
        runs: their labels are the row headers.
        found: numbers of each run by size or length; None = it has no number there.
        best: `min` or `max`.
        form: format of a number, such as `"{:.1f}"`.
        missing: text of a cell without a number.
    """
    sizes = sorted({size for one in found for size in one})
    columns = {size: [number for one in found if (number := one.get(size)) is not None] for size in sizes}
    tops = {size: form.format(best(column)) for size, column in columns.items() if column}
    head = [f"**{size}**" if size == runs[0].trained else f"{size}" for size in sizes]
    lines = [f"| encoding | {' | '.join(head)} |", "|---" + "|---:" * len(sizes) + "|"]
    for run, one in zip(runs, found, strict=True):
        texts = {size: _cell(one[size], form, missing) if size in one else "" for size in sizes}
        cells = [f"**{text}**" if text == tops.get(size) else text for size, text in texts.items()]
        lines.append(f"| {escape_markdown(run.label)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(number: float | None, form: str, missing: str) -> str:
    return missing if number is None else form.format(number)
