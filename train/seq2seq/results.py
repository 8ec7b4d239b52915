"""Results of an evaluation of an encoder-decoder: exact answers against length."""

import dataclasses
from collections.abc import Sequence
from typing import Self

from rich.table import Table

from train.engine import results
from train.engine.numbers import Kind, Measure

EXACT, TOKENS = "exact answers, %", "tokens, %"

KIND = Kind(
    (Measure(EXACT, heading="{of}:"), Measure(TOKENS, heading=None)),
    subject="Questions", examples="questions",
    at="length of the source", unit="tokens", short="tokens", trained="trained at up to {}", most="up to ",
    ylabel=EXACT, part="{of}, exact %",
    lead="Exact answers in percent, trained at up to {trained} tokens, the most of each length in bold.",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ExactMatchResults(results.Evaluation):
    """Exact answers of one run; `name` includes the mode of cross-attention, `trained` is the longest length.

    An answer is exact if it is right up to its end token; `tokens, %` counts the right tokens of all answers.
    """

    kinds = (KIND,)

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return a table for the terminal for each extension."""
        return [run.table() for run in runs]

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"exact answers, {self.label}, trained at up to {self.trained} tokens"
        heads = ("task", "length", "x trained", "exact, %", "95 % interval", "tokens, %")
        table = Table(*heads, title=title, caption=results.caption(self))
        for task in self.parts:
            tokens = self.of(TOKENS, task)
            for at, number in self.of(EXACT, task).items():
                interval = f"{number.low:.1f} to {number.high:.1f}"
                cells = [] if number.refused else [f"{number.value:.1f}", interval, f"{tokens[at].value:.1f}"]
                place = (task, f"{number.place}", f"{number.place / self.trained:g}")
                table.add_row(*place, *(cells or ["refused"]), style=results.emphasis(self, number.place))
            table.add_section()
        return table
