"""Results of an evaluation of a language model: perplexity against length."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.table import Table

from train.engine import results
from train.engine.numbers import PERPLEXITY, Kind, Measure
from train.lm.curves import draw_training

BEYOND = "perplexity beyond the trained length"
"""Of the tokens with more than L tokens before them, L the trained length."""

SLIDING = "perplexity of the last tokens alone"
"""Of the same tokens with only the last L tokens as context."""

GAIN = "gain, nats"
"""Loss of the same tokens with only the last L tokens as context less that with all: what the longer context gives."""

KIND = Kind(
    (
        Measure(PERPLEXITY, "{:.2f}", False, "Perplexity of all tokens, the lowest of each length in bold:"),
        Measure(BEYOND, heading=None),
        Measure(SLIDING, heading=None),
        Measure(
            GAIN, "{:+.3f}", True,
            "Tokens with more than {trained} before them: nats gained over seeing the last {trained} alone, the "
            "highest of each length in bold:",
        ),
    ),
    subject="Text", examples="text",
    at="context length", unit="tokens", short="tokens", trained="trained at {}",
    ylabel="perplexity per token", title="{data}: perplexity of held-out text against length",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PerplexityResults(results.Evaluation):
    """Perplexity of one run at many lengths; `trained` is L, in tokens."""

    kinds = (KIND,)

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return a table for the terminal for each extension."""
        return [run.table() for run in runs]

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"perplexity per token, {self.label}, {self.data}, trained at {self.trained} tokens"
        beyond, sliding, gain = (self.of(measure) for measure in (BEYOND, SLIDING, GAIN))
        names = f"beyond {self.trained}", f"last {self.trained} only"
        heads = ("length", "times", "all tokens, 95 %", *names, "gain, nats")
        text = "{} and {}: means over the tokens that have more than {} before them, {:,} at length {}"
        compared = [text.format(*names, self.trained, number.count, at) for at, number in beyond.items()]
        table = Table(*heads, title=title, caption=results.caption(self, *compared[-1:]))
        for at, number in self.of(PERPLEXITY).items():
            cells = [f"{at}", f"{number.place / self.trained:g}"]
            if number.refused:
                table.add_row(*cells, "refused")
                continue
            interval = (
                f"{number.low:.2f} to {number.high:.2f}" if math.isfinite(number.half) else "no interval: one region"
            )
            cells += [f"{number.value:.3f}, {interval}"]
            if at in beyond:
                half = f" ±{gain[at].half:.4f}" if math.isfinite(gain[at].half) else ""
                cells += [f"{beyond[at].value:.3f}", f"{sliding[at].value:.3f}", f"{gain[at].value:+.4f}{half}"]
            table.add_row(*cells, style=results.emphasis(self, number.place))
        return table

    @classmethod
    def compare(cls, files: Sequence[Path], to: Path) -> list[Self]:
        """Write tables and figure, and `TO-training.png` with the losses during training."""
        runs = super().compare(files, to)
        draw_training(runs, [path.parent for path in files], Path(f"{to}-training.png"))
        return runs
