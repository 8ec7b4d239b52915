"""What an evaluation of a language model found: perplexity against length, as JSON, as tables and as a figure."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from rich.table import Table

from train.results import COLOURS, STYLES, require_comparable

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided 95 % quantiles of Student's t at 1 to 15 degrees of freedom; beyond, 1.96 + 2.5/n is within 0.01."""


class Estimate(NamedTuple):
    """A mean over tokens, in nats.

    Attributes:
        mean: of all.
        half: half the width of its 95 % interval; infinite where there is one stretch of text.
        count: tokens.
    """

    mean: float
    half: float
    count: int

    @property
    def perplexity(self) -> float:
        """`exp(mean)`."""
        return math.exp(min(self.mean, 700.0))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the perplexity."""
        return math.exp(min(self.mean - self.half, 700.0)), math.exp(min(self.mean + self.half, 700.0))


def estimate(losses: Float[np.ndarray, "regions tokens"]) -> Estimate:
    """Return the mean loss and its 95 % interval, stretches of text taken as independent and their tokens not.

    `mean ± t · s / √n`, with s the standard deviation of the n stretches' own means.
    """
    means = losses.astype(np.float64).mean(axis=1)
    n = len(means)
    t = math.inf if n == 1 else T95[n - 2] if n - 2 < len(T95) else 1.96 + 2.5 / n
    half = math.inf if n == 1 else t * float(means.std(ddof=1)) / math.sqrt(n)
    return Estimate(float(means.mean()), half, losses.size)


class Row(NamedTuple):
    """One length.

    Attributes:
        length: tokens.
        everything: the loss of all tokens.
        beyond: of tokens with more than the trained length before them.
        sliding: of the same tokens, with the last L as their only context.
        gain: what the longer context is worth on them, `sliding - beyond`.
        refused: why the encoding cannot serve this length.
    """

    length: int
    everything: Estimate | None = None
    beyond: Estimate | None = None
    sliding: Estimate | None = None
    gain: Estimate | None = None
    refused: str = ""


@dataclasses.dataclass(frozen=True)
class Results:
    """One evaluation.

    Args:
        name: of the encoding.
        data: of the corpus.
        trained: L, tokens.
        step: of the checkpoint.
        extend: how the encoding was stretched.
        note: what the reader must know of the text.
        rows: one for each length.
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
        rows = [
            {name: value._asdict() if isinstance(value, Estimate) else value for name, value in row._asdict().items()}
            for row in self.rows
        ]
        stored = {**dataclasses.asdict(self), "rows": rows}
        (folder / f"{self.stem}.json").write_text(json.dumps(stored, indent=2) + "\n")
        draw([self], folder / f"{self.stem}.png")

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"perplexity per token, {self.label}, {self.data}, trained at {self.trained} tokens"
        heads = (
            "length",
            "x trained",
            "all tokens",
            "95 %",
            "beyond L",
            f"last {self.trained} only",
            "gain, nats",
            "95 %",
        )
        reasons = {row.refused for row in self.rows if row.refused}
        table = Table(*heads, title=title, caption="\n".join([self.note, *sorted(reasons)]))
        for row in self.rows:
            cells = [f"{row.length}", f"{row.length / self.trained:g}"]
            if row.everything is None:
                table.add_row(*cells, "refused")
                continue
            low, high = row.everything.interval
            cells += [f"{row.everything.perplexity:.3f}", f"{low:.3f} to {high:.3f}"]
            if row.beyond is not None and row.sliding is not None and row.gain is not None:
                cells += [f"{row.beyond.perplexity:.3f}", f"{row.sliding.perplexity:.3f}", f"{row.gain.mean:+.4f}"]
                cells += [f"±{row.gain.half:.4f} of {row.gain.count:,}"]
            table.add_row(*cells, style="bold" if row.length == self.trained else None)
        return table


def load_results(path: Path) -> Results:
    """Read results from JSON.

    Raises:
        ValueError: the file is missing or holds something else.
    """
    try:
        stored = json.loads(path.read_text())
        unpack = lambda value: Estimate(**value) if isinstance(value, dict) else value  # noqa: E731
        rows = tuple(Row(**{name: unpack(value) for name, value in row.items()}) for row in stored["rows"])
        return Results(**{**stored, "rows": rows})
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as wrong:
        raise ValueError(f"results must come from an evaluation, got {path}: {wrong}") from None


def markdown(runs: Sequence[Results]) -> str:
    """Return two tables, encodings down and lengths across: perplexity of all tokens, and what longer context gains.

    Raises:
        ValueError: runs on different data or trained at different lengths.
    """
    require_comparable(runs)

    def everything(row: Row) -> float | None:
        return None if row.everything is None else row.everything.perplexity

    def gain(row: Row) -> float | None:
        return None if row.gain is None else row.gain.mean

    lengths = sorted({row.length for run in runs for row in run.rows})
    longer = [length for length in lengths if length > runs[0].trained]
    parts = [
        "Perplexity of all tokens, the lowest of each length in bold:",
        _grid(runs, lengths, everything, min, "{:.2f}"),
    ]
    if longer:
        parts += [
            f"Tokens with more than {runs[0].trained} before them: nats gained over seeing the last "
            f"{runs[0].trained} alone, the highest of each length in bold:",
            _grid(runs, longer, gain, max, "{:+.3f}"),
        ]
    return "\n\n".join([*parts, runs[0].note]) + "\n"


def _grid(
    runs: Sequence[Results],
    lengths: Sequence[int],
    value: Callable[[Row], float | None],
    best: Callable[..., float],
    form: str,
) -> str:
    found = [{row.length: value(row) for row in run.rows} for run in runs]
    columns = {length: [one[length] for one in found if one.get(length) is not None] for length in lengths}
    tops = {length: form.format(best(column)) for length, column in columns.items() if column}
    head = [f"**{length}**" if length == runs[0].trained else f"{length}" for length in lengths]
    lines = [f"| encoding | {' | '.join(head)} |", "|---" + "|---:" * len(lengths) + "|"]
    for run, one in zip(runs, found, strict=True):
        texts = ["refused" if one.get(length) is None else form.format(one[length]) for length in lengths]
        cells = [
            f"**{text}**" if text == tops.get(length) else text for text, length in zip(texts, lengths, strict=True)
        ]
        lines.append(f"| {run.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(runs: Sequence[Results], path: Path) -> None:
    """Draw perplexity against length with its interval as a band, and a line at the trained length."""
    require_comparable(runs)
    figure = Figure(figsize=(9.0, 5.0) if len(runs) > 1 else (7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    last = lambda run: [row.everything.mean for row in run.rows if row.everything is not None][-1]  # noqa: E731
    for i in sorted(range(len(runs)), key=lambda i: -last(runs[i])):
        run, colour = runs[i], COLOURS[i % len(COLOURS)]
        line, marker = STYLES[i // len(COLOURS) % len(STYLES)]
        rows = [(row.length, row.everything) for row in run.rows if row.everything is not None]
        lengths = [length for length, _ in rows]
        low, high = zip(*(found.interval for _, found in rows), strict=True)
        if all(map(math.isfinite, high)):
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
        shown = [found.perplexity for _, found in rows]
        axes.plot(lengths, shown, line, marker=marker, markersize=4, color=colour, label=run.label)
    trained = runs[0].trained
    axes.axvline(trained, color="0.5", linestyle="-.", linewidth=1, label=f"trained at {trained}", zorder=0)
    ticks = sorted({row.length for run in runs for row in run.rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axes.set(xlabel="context length (tokens)", ylabel="perplexity per token")
    axes.set_title(f"{runs[0].data}: perplexity of held-out text against length")
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper", frameon=False)
    figure.text(0.01, -0.01, runs[0].note, fontsize=8, va="top")
    figure.savefig(path, dpi=150, bbox_inches="tight")
