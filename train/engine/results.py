"""What the evaluations of all programs share: a record of one, its JSON; intervals, tables and figures of many."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.engine.files import write_whole

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which the colour-blind can tell apart, its yellow left out."""

STYLES = (("-", "o"), ("--", "s"), (":", "^"))
"""Line and marker; they change once the colours are used up."""


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

    def store(self, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the JSON into the run folder, its rows as given."""
        stored = {**dataclasses.asdict(self), "rows": rows}
        write_whole(folder / f"{self.stem}.json", json.dumps(stored, indent=2) + "\n")


Kind = TypeVar("Kind", bound=Evaluation)


def load(kind: type[Kind], path: Path, row: Callable[[dict[str, Any]], Any]) -> Kind:
    """Read an evaluation from JSON; `row` makes a row of what was stored for it.

    Raises:
        ValueError: the file is missing or holds something else.
    """
    try:
        stored = json.loads(path.read_text())
        found = kind(**{**stored, "rows": tuple(map(row, stored["rows"]))})
        if not found.rows:
            raise ValueError("rows must be at least one, got none")
        for one in (found, *found.rows):
            _require_types(one)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as wrong:
        raise ValueError(f"results must come from an evaluation, got {path}: {wrong}") from None
    return found


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


class Curve(NamedTuple):
    """What one run found, for a figure.

    Attributes:
        at: sizes or lengths, ascending.
        value: one number at each; NaN = none there.
        interval: 95 %, `(low, high)` at each; where one is infinite, no band is drawn.
    """

    at: Sequence[int]
    value: Sequence[float]
    interval: Sequence[tuple[float, float]]


def plot(axes: Axes, runs: Sequence[Evaluation], curves: Sequence[Curve], trained: str) -> None:
    """Draw one curve for each run, its interval as a band, and a line at the trained size or length.

    Args:
        axes: to draw on.
        runs: whose labels name the curves.
        curves: of the runs.
        trained: name of the line.
    """
    last = lambda curve: [value for value in curve.value if not math.isnan(value)][-1:]
    for i in sorted(range(len(runs)), key=lambda i: last(curves[i]), reverse=True):
        curve, colour = curves[i], COLOURS[i % len(COLOURS)]
        line, marker = STYLES[i // len(COLOURS) % len(STYLES)]
        low, high = zip(*curve.interval, strict=True)
        if not any(map(math.isinf, (*low, *high))):
            axes.fill_between(curve.at, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(curve.at, curve.value, line, marker=marker, markersize=4, color=colour, label=runs[i].label)
    axes.axvline(runs[0].trained, color="0.5", linestyle="-.", linewidth=1, label=trained, zorder=0)
    ticks = sorted({size for curve in curves for size in curve.at})
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axes.grid(alpha=0.3, which="both")


def draw_curves(
    runs: Sequence[Evaluation], curves: Sequence[Curve], path: Path, *, trained: str, log: bool = False, **texts: str
) -> None:
    """Write a figure of one panel.

    Args:
        runs: whose labels name the curves.
        curves: of the runs.
        path: of the figure.
        trained: name of the line at the trained size or length.
        log: logarithmic axes, base 2 across.
        **texts: `xlabel`, `ylabel` and `title`.
    """
    require_comparable(runs)
    figure = Figure(figsize=(9.0, 5.0) if len(runs) > 1 else (7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    plot(axes, runs, curves, trained)
    axes.set(**texts)
    figure.legend(loc="outside right upper", frameon=False)
    figure.text(0.01, -0.01, runs[0].note, fontsize=8, va="top")
    figure.savefig(path, dpi=150, bbox_inches="tight")
