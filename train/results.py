"""What an evaluation found: top-1 against resolution, as JSON, as a table and as a figure of one run or of many."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from rich.table import Table

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


class Row(NamedTuple):
    """Top-1 at one image size.

    Attributes:
        size: side of the images, pixels.
        tokens: patches of an image.
        correct: images whose likeliest class is the true one.
        count: images.
    """

    size: int
    tokens: int
    correct: int
    count: int

    @property
    def top1(self) -> float:
        """The share of correct images."""
        return self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        return wilson(self.correct, self.count)


@dataclasses.dataclass(frozen=True)
class Results:
    """One evaluation.

    Args:
        name: of the encoding.
        data: of the data set.
        trained: side of the training images, pixels.
        step: of the checkpoint.
        extend: `none` or `pi`.
        note: what the reader must know of the images.
        rows: one for each size.
    """

    name: str
    data: str
    trained: int
    step: int
    extend: str
    note: str
    rows: tuple[Row, ...]

    @property
    def label(self) -> str:
        """The encoding, and how it was extended."""
        return self.name if self.extend == "none" else f"{self.name} + {self.extend}"

    @property
    def stem(self) -> str:
        """Name of its files, without the ending."""
        return "results" if self.extend == "none" else f"results-{self.extend}"

    def save(self, folder: Path) -> None:
        """Write the JSON and the figure into the run folder."""
        rows = [{**row._asdict(), "top1": row.top1, "interval": row.interval} for row in self.rows]
        stored = {**dataclasses.asdict(self), "rows": rows}
        (folder / f"{self.stem}.json").write_text(json.dumps(stored, indent=2) + "\n")
        draw([self], folder / f"{self.stem}.png")

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"zero-shot top-1, {self.label}, {self.data}, trained at {self.trained} px"
        table = Table("pixels", "x trained", "tokens", "top-1", "95 % interval", title=title, caption=self.note)
        for row in self.rows:
            low, high = row.interval
            cells = (f"{row.size}", f"{row.size / self.trained:.2f}", f"{row.tokens}", f"{100 * row.top1:.2f}")
            style = "bold" if row.size == self.trained else None
            table.add_row(*cells, f"{100 * low:.2f} to {100 * high:.2f}", style=style)
        return table


def load_results(path: Path) -> Results:
    """Read results from JSON.

    Raises:
        ValueError: the file is missing or holds something else.
    """
    try:
        stored = json.loads(path.read_text())
        rows = tuple(Row(*(row[field] for field in Row._fields)) for row in stored["rows"])
        return Results(**{**stored, "rows": rows})
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as wrong:
        raise ValueError(f"results must come from an evaluation, got {path}: {wrong}") from None


def markdown(runs: Sequence[Results]) -> str:
    """Return encodings down, sizes across, top-1 in percent, the best of each size in bold.

    Raises:
        ValueError: runs on different data or trained at different sizes.
    """
    require_comparable(runs)
    sizes = sorted({row.size for run in runs for row in run.rows})
    best = {size: max(row.top1 for run in runs for row in run.rows if row.size == size) for size in sizes}
    head = [f"**{size}**" if size == runs[0].trained else f"{size}" for size in sizes]
    lines = [f"| encoding | {' | '.join(head)} |", "|---" + "|---:" * len(sizes) + "|"]
    for run in runs:
        found = {row.size: row.top1 for row in run.rows}
        cells = [_cell(found.get(size), best[size]) for size in sizes]
        lines.append(f"| {run.label} | {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{runs[0].note}\n"


def _cell(top1: float | None, best: float) -> str:
    text = "" if top1 is None else f"{100 * top1:.1f}"
    return f"**{text}**" if top1 == best else text


def require_comparable(runs: Sequence[Results]) -> None:
    """Check that runs may stand in one table.

    Raises:
        ValueError: naming what differs and both values.
    """
    for run in runs:
        for name in ("data", "trained"):
            first, other = getattr(runs[0], name), getattr(run, name)
            if first != other:
                raise ValueError(f"runs in one comparison must share {name}, got {first!r} and {other!r}")


def draw(runs: Sequence[Results], path: Path) -> None:
    """Draw top-1 against resolution with its interval as a band, and a line at the trained size."""
    require_comparable(runs)
    figure = Figure(figsize=(9.0, 5.0) if len(runs) > 1 else (7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    ranked = sorted(range(len(runs)), key=lambda i: -runs[i].rows[-1].top1)
    for i in ranked:
        run, colour = runs[i], COLOURS[i % len(COLOURS)]
        line, marker = STYLES[i // len(COLOURS) % len(STYLES)]
        sizes = [row.size for row in run.rows]
        low, high = zip(*(row.interval for row in run.rows), strict=True)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        top1 = [row.top1 for row in run.rows]
        axes.plot(sizes, top1, line, marker=marker, markersize=4, color=colour, label=run.label)
    trained = runs[0].trained
    axes.axvline(trained, color="0.5", linestyle="-.", linewidth=1, label=f"trained at {trained} px", zorder=0)
    axes.set_xticks(sorted({row.size for run in runs for row in run.rows}))
    axes.set(xlabel="image side (pixels)", ylabel="top-1", title=f"{runs[0].data}: zero-shot top-1 against resolution")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    figure.text(0.01, -0.01, runs[0].note, fontsize=8, va="top")
    figure.savefig(path, dpi=150, bbox_inches="tight")
