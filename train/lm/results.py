"""What an evaluation of a language model found: perplexity against length, as JSON, as tables and as a figure."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from rich.table import Table

from train.engine.results import Curve, Evaluation, draw_curves, grid, load, require_comparable

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided 95 % quantiles of Student's t at 1 to 15 degrees of freedom; beyond, 1.96 + 2.5/freedom is within 0.005."""


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
        return _exp(self.mean)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the perplexity."""
        return _exp(self.mean - self.half), _exp(self.mean + self.half)


def _exp(loss: float) -> float:
    return math.inf if loss > 700.0 else math.exp(loss)


def estimate(losses: Float[np.ndarray, "regions tokens"]) -> Estimate:
    """Return the mean loss and its 95 % interval, stretches of text taken as independent and their tokens not.

    `mean ± t · s / √n`, with s the standard deviation of the n stretches' own means.
    """
    means = losses.astype(np.float64).mean(axis=1)
    n = len(means)
    t = math.inf if n == 1 else T95[n - 2] if n - 2 < len(T95) else 1.96 + 2.5 / (n - 1)
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
class Results(Evaluation):
    """Perplexity of one run at many lengths; `trained` is L, in tokens."""

    rows: tuple[Row, ...]

    def save(self, folder: Path) -> None:
        """Write the JSON and the figure into the run folder."""
        unfold = lambda value: value._asdict() if isinstance(value, Estimate) else value
        self.store(folder, [{name: unfold(value) for name, value in row._asdict().items()} for row in self.rows])
        draw([self], folder / f"{self.stem}.png")

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"perplexity per token, {self.label}, {self.data}, trained at {self.trained} tokens"
        heads = (
            "length",
            "times",
            "all tokens, 95 %",
            f"beyond {self.trained}",
            f"last {self.trained} only",
            "gain, nats",
        )
        reasons = sorted({row.refused for row in self.rows if row.refused})
        text = "length {}: beyond {} tokens of context, {:,} tokens are compared"
        compared = [text.format(row.length, self.trained, row.beyond.count) for row in self.rows if row.beyond]
        table = Table(*heads, title=title, caption="\n".join([self.note, *compared[-1:], *reasons]))
        for row in self.rows:
            cells = [f"{row.length}", f"{row.length / self.trained:g}"]
            if row.everything is None:
                table.add_row(*cells, "refused")
                continue
            low, high = row.everything.interval
            cells += [f"{row.everything.perplexity:.3f}, {low:.2f} to {high:.2f}"]
            if row.beyond is not None and row.sliding is not None and row.gain is not None:
                cells += [f"{row.beyond.perplexity:.3f}", f"{row.sliding.perplexity:.3f}"]
                cells += [f"{row.gain.mean:+.4f} ±{row.gain.half:.4f}"]
            table.add_row(*cells, style="bold" if row.length == self.trained else None)
        return table


def load_results(path: Path) -> Results:
    """Read results from JSON.

    Raises:
        ValueError: the file is missing or holds something else.
    """

    def row(stored: dict[str, Any]) -> Row:
        values: dict[str, Any] = {
            key: Estimate(**value) if isinstance(value, dict) else value for key, value in stored.items()
        }
        return Row(**values)

    return load(Results, path, row)


def markdown(runs: Sequence[Results]) -> str:
    """Return two tables, encodings down and lengths across: perplexity of all tokens, and what longer context gains.

    Raises:
        ValueError: runs on different data or trained at different lengths.
    """
    require_comparable(runs)
    trained = runs[0].trained
    everything = [{row.length: row.everything and row.everything.perplexity for row in run.rows} for run in runs]
    longer = [[row for row in run.rows if row.length > trained and (row.gain or row.refused)] for run in runs]
    gain = [{row.length: row.gain and row.gain.mean for row in rows} for rows in longer]
    parts = [
        "Perplexity of all tokens, the lowest of each length in bold:",
        grid(runs, everything, min, "{:.2f}", "refused"),
    ]
    if any(gain):
        parts += [
            f"Tokens with more than {trained} before them: nats gained over seeing the last {trained} alone, the "
            "highest of each length in bold:",
            grid(runs, gain, max, "{:+.3f}", "refused"),
        ]
    return "\n\n".join([*parts, runs[0].note]) + "\n"


def draw(runs: Sequence[Results], path: Path) -> None:
    """Draw perplexity against length with its interval as a band, and a line at the trained length."""
    missing = Estimate(math.nan, math.nan, 0)
    found = [[(row.length, row.everything or missing) for row in run.rows] for run in runs]
    curves = [Curve(*zip(*((n, one.perplexity, one.interval) for n, one in rows), strict=True)) for rows in found]
    draw_curves(
        runs, curves, path,
        log=True,
        trained=f"trained at {runs[0].trained}",
        xlabel="context length (tokens)", ylabel="perplexity per token",
        title=f"{runs[0].data}: perplexity of held-out text against length",
    )  # fmt: skip
