"""What the evaluations of all programs share: the record of one, its JSON file, and markdown tables of many."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from train.engine.files import write_whole

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal."""


def wilson(correct: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion.

    `(p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)` with p = correct/count, n = count.

    Reference:
        Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22(158).
    """
    p, z2 = correct / count, Z95**2 / count
    half = Z95 * (p * (1 - p) / count + z2 / (4 * count)) ** 0.5
    low, high = (p + z2 / 2 - half) / (1 + z2), (p + z2 / 2 + half) / (1 + z2)
    return max(0.0, low), min(1.0, high)


SHORT = 40
"""Characters of an extension that a label, or the name of a file, spells out."""


def results_stem(extend: str) -> str:
    """Return the name of the files of an evaluation, without the ending: safe in any file system."""
    if extend == "none":
        return "results"
    safe = re.sub(r"[^\w.=,+-]+", "_", extend).strip("_")
    return f"results-{safe if len(safe) <= SHORT else f'{safe[:16]}-{hashlib.sha256(extend.encode()).hexdigest()[:8]}'}"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run; each program's has rows of its own.

    Args:
        name: of the encoding.
        data: of the data.
        trained: size or length of the training examples.
        step: of the checkpoint.
        extend: how the encoding was evaluated beyond that; `none` as it is.
        note: what the reader must know of the data.
        rows: one for each size or length.
    """

    name: str
    data: str
    trained: int
    step: int
    extend: str
    note: str
    rows: tuple[Any, ...]

    @property
    def label(self) -> str:
        """The encoding, and how it was extended."""
        how = self.extend if len(self.extend) <= SHORT else re.sub(r"\(.*\)", "(...)", self.extend)
        return self.name if self.extend == "none" else f"{self.name} + {how}"

    @property
    def stem(self) -> str:
        """Name of its files, without the ending."""
        return results_stem(self.extend)


Kind = TypeVar("Kind", bound=Evaluation)


def store(found: Evaluation, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the JSON file of an evaluation into its run folder, with the given rows."""
    stored = {**dataclasses.asdict(found), "rows": rows}
    write_whole(folder / f"{found.stem}.json", json.dumps(stored, indent=2) + "\n")


def load(kind: type[Kind], row: Any, path: Path, nested: Callable[..., Any] = dict) -> Kind:
    """Read an evaluation from its JSON file.

    Args:
        kind: of the evaluation.
        row: the NamedTuple of its rows; what is stored beside its fields was computed from them.
        path: of the file.
        nested: the class of values that are stored as JSON objects.

    Raises:
        ValueError: the file is missing or holds something else.
    """

    def read(value: Any) -> Any:
        return nested(**value) if isinstance(value, dict) else value

    try:
        stored = json.loads(path.read_text())
        rows = [{name: read(one[name]) for name in row._fields if name in one} for one in stored["rows"]]
        found = kind(**{**stored, "rows": tuple(row(**values) for values in rows)})
        if not found.rows:
            raise ValueError("rows must be at least one, got none")
        for one in (found, *found.rows):
            _require_types(one)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as wrong:
        raise ValueError(f"results must come from an evaluation, got {path}: {wrong}") from None
    return found


def caption(found: Evaluation, *lines: str) -> str:
    """Return what is printed below the table of an evaluation: the note, more lines, and every reason of a refusal."""
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
    return "\n\n".join([*parts, runs[0].note]) + "\n"


def _require_types(record: Any) -> None:
    """Check that what a record and the estimates in it hold has the types it declares, and that shares can be taken.

    Raises:
        ValueError: naming the field, its type and the value.
        ArithmeticError: none of none.
    """
    for name, hint in get_type_hints(type(record)).items():
        value = getattr(record, name)
        if name != "rows" and not isinstance(value, int | float if hint is float else hint):
            raise ValueError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r}")
        if name != "rows" and isinstance(value, tuple):
            _require_types(value)
    _ = getattr(record, "interval", None)


def require_comparable(runs: Sequence[Evaluation]) -> None:
    """Check that runs may stand in one table.

    Raises:
        ValueError: naming what differs and both values.
    """
    for run in runs:
        for name in ("data", "trained"):
            first, other = getattr(runs[0], name), getattr(run, name)
            if first != other:
                raise ValueError(f"runs in one comparison must share {name}, got {first!r} and {other!r}")


def grid(
    runs: Sequence[Evaluation],
    found: Sequence[Mapping[int, float | None]],
    best: Callable[..., float],
    form: str,
    missing: str = "",
) -> str:
    """Return a markdown table: runs down, sizes or lengths across, what reads as the best of a column in bold.

    Args:
        runs: whose labels head the lines.
        found: of each run, the number at each size or length that was measured; None = it has none there.
        best: `min` or `max`.
        form: of a number, such as `"{:.1f}"`.
        missing: the cell of a run that has no number there.
    """
    sizes = sorted({size for one in found for size in one})
    columns = {size: [number for one in found if (number := one.get(size)) is not None] for size in sizes}
    tops = {size: form.format(best(column)) for size, column in columns.items() if column}
    head = [f"**{size}**" if size == runs[0].trained else f"{size}" for size in sizes]
    lines = [f"| encoding | {' | '.join(head)} |", "|---" + "|---:" * len(sizes) + "|"]
    for run, one in zip(runs, found, strict=True):
        texts = {size: _cell(one[size], form, missing) if size in one else "" for size in sizes}
        cells = [f"**{text}**" if text == tops.get(size) else text for size, text in texts.items()]
        lines.append(f"| {run.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(number: float | None, form: str, missing: str) -> str:
    return missing if number is None else form.format(number)
