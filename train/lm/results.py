"""Results of an evaluation of a language model: perplexity against length, as JSON, tables and a figure."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float
from rich.table import Table

from train.engine import figures, intervals, results
from train.lm.curves import draw_training


class MeanLoss(NamedTuple):
    """A mean over tokens, in nats.

    Attributes:
        mean: over all tokens.
        half: half the width of its 95 % interval; infinite for a single region of text.
        count: number of tokens.
    """

    mean: float
    half: float
    count: int

    @property
    def perplexity(self) -> float:
        """`exp(mean)`."""
        return perplexity_of(self.mean)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the perplexity."""
        return perplexity_of(self.mean - self.half), perplexity_of(self.mean + self.half)

    def score(self, outcomes: Float[np.ndarray, " regions"] | None) -> intervals.Score:
        """Return the perplexity as a score, given the mean loss of each region; None = unknown."""
        return intervals.Score(self.mean, self.mean - self.half, self.mean + self.half, self.count, outcomes, log=True)


def perplexity_of(loss: float) -> float:
    """Return `exp(loss)`, infinite where it overflows."""
    return math.inf if loss > intervals.LARGEST_LOG else math.exp(loss)


def mean_loss(losses: Float[np.ndarray, "regions tokens"]) -> MeanLoss:
    """Return the mean loss and its 95 % interval; regions of text count as independent, tokens within one do not.

    `mean ± t · s / √n`, with s the standard deviation of the means of the n regions.
    """
    means = losses.astype(np.float64).mean(axis=1)
    n = len(means)
    half = math.inf if n == 1 else intervals.t95(n) * float(means.std(ddof=1)) / math.sqrt(n)
    return MeanLoss(float(means.mean()), half, losses.size)


class PerplexityRow(NamedTuple):
    """The losses at one length.

    Attributes:
        length: tokens.
        everything: loss of all tokens.
        beyond: loss of the tokens with more than L tokens before them, L the trained length.
        sliding: loss of the same tokens with only the last L tokens as context.
        gain: `sliding - beyond`, the gain from the longer context.
        refused: why the encoding does not support this length.
        each: loss of all tokens in each region of text, in their order (`intervals.packed`); empty = not stored.
    """

    length: int
    everything: MeanLoss | None = None
    beyond: MeanLoss | None = None
    sliding: MeanLoss | None = None
    gain: MeanLoss | None = None
    refused: str = ""
    each: str = ""

    @property
    def score(self) -> intervals.Score | None:
        """The perplexity of all tokens; None if the length is refused."""
        return self.everything and self.everything.score(intervals.unpacked_losses(self.each))


@dataclasses.dataclass(frozen=True)
class PerplexityResults(results.Evaluation):
    """Perplexity of one run at many lengths; `trained` is L, in tokens."""

    row = PerplexityRow
    nested = MeanLoss
    higher = False

    rows: tuple[PerplexityRow, ...]

    def stored_rows(self) -> list[dict[str, Any]]:
        """Return the rows as JSON; losses are objects."""
        unfold = lambda value: value._asdict() if isinstance(value, MeanLoss) else value
        return [{name: unfold(value) for name, value in results.stored(row).items()} for row in self.rows]

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"perplexity per token, {self.label}, {self.data}, trained at {self.trained} tokens"
        beyond, sliding = f"beyond {self.trained}", f"last {self.trained} only"
        heads = ("length", "times", "all tokens, 95 %", beyond, sliding, "gain, nats")
        text = "{} and {}: means over the tokens that have more than {} before them, {:,} at length {}"
        names = beyond, sliding, self.trained
        compared = [text.format(*names, row.beyond.count, row.length) for row in self.rows if row.beyond]
        table = Table(*heads, title=title, caption=results.caption(self, *compared[-1:]))
        for row in self.rows:
            cells = [f"{row.length}", f"{row.length / self.trained:g}"]
            if row.everything is None:
                table.add_row(*cells, "refused")
                continue
            low, high = row.everything.interval
            interval = f"{low:.2f} to {high:.2f}" if math.isfinite(row.everything.half) else "no interval: one region"
            cells += [f"{row.everything.perplexity:.3f}, {interval}"]
            if row.beyond is not None and row.sliding is not None and row.gain is not None:
                cells += [f"{row.beyond.perplexity:.3f}", f"{row.sliding.perplexity:.3f}"]
                half = f" ±{row.gain.half:.4f}" if math.isfinite(row.gain.half) else ""
                cells += [f"{row.gain.mean:+.4f}{half}"]
            table.add_row(*cells, style=results.emphasis(self, row.length))
        return table

    def measured(self) -> dict[str, dict[int, intervals.Score]]:
        """Return the perplexity of all tokens by length."""
        return {"perplexity": {row.length: score for row in self.rows if (score := row.score)}}

    @classmethod
    def markdown(cls, runs: Sequence[Self]) -> str:
        """Return two tables, one row per run and one column per length: perplexity, and the gain from longer context.

        Raises:
            ValueError: runs on different data or trained at different lengths.
        """
        trained = runs[0].trained
        everything = [{row.length: row.everything and row.everything.perplexity for row in run.rows} for run in runs]
        longer = [[row for row in run.rows if row.length > trained and (row.gain or row.refused)] for run in runs]
        gain = [{row.length: row.gain and row.gain.mean for row in rows} for rows in longer]
        parts = [
            "Perplexity of all tokens, the lowest of each length in bold:",
            results.grid(runs, everything, min, "{:.2f}", "refused"),
        ]
        if any(gain):
            parts += [
                f"Tokens with more than {trained} before them: nats gained over seeing the last {trained} alone, the "
                "highest of each length in bold:",
                results.grid(runs, gain, max, "{:+.3f}", "refused"),
            ]
        return results.document(runs, *parts)

    @classmethod
    def draw(cls, runs: Sequence[Self], path: Path) -> None:
        """Draw perplexity against length with its interval as a band, and a line at the trained length."""
        missing = MeanLoss(math.nan, math.nan, 0)
        found = [[(row.length, row.everything or missing) for row in run.rows] for run in runs]
        curves = [figures.curve((length, loss.perplexity, loss.interval) for length, loss in rows) for rows in found]
        figures.draw_curves(
            runs, curves, path,
            log=True,
            trained=f"trained at {runs[0].trained}",
            xlabel="context length (tokens)", ylabel="perplexity per token",
            title=f"{runs[0].data}: perplexity of held-out text against length",
        )  # fmt: skip

    @classmethod
    def compare(cls, files: Sequence[Path], to: Path) -> list[Self]:
        """Write tables and figure, and `TO-training.png` with the losses during training."""
        runs = super().compare(files, to)
        draw_training(runs, [path.parent for path in files], Path(f"{to}-training.png"))
        return runs
