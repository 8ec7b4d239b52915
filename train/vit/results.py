"""Results of an evaluation of a vision transformer: top-1 against resolution."""

import dataclasses
from collections.abc import Sequence
from typing import Self

from rich.table import Table

from train.engine import results
from train.engine.numbers import Kind, Measure

TOP1, PATCHES = "top-1, %", "patches"

KIND = Kind(
    (Measure(TOP1), Measure(PATCHES, heading=None)),
    subject="Images", examples="images",
    at="image side", unit="pixels", short="px", trained="trained at {} px",
    ylabel=TOP1, title="{data}: top-1 by image size",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ResolutionResults(results.Evaluation):
    """Top-1 of one run at many sizes; `trained` is the side of the training images, in pixels."""

    kinds = (KIND,)

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return the tables for the terminal; evaluations of one run with several extensions share one."""
        first, *followers = runs
        title = f"top-1 in percent, {first.name if followers else first.label}, {first.data}, trained at"
        names = ["as trained" if run.extend == "none" else run.extend for run in runs]
        heads = names if followers else ["tokens", "top-1", "95 % interval"]
        table = Table("pixels", "x trained", *heads, title=f"{title} {first.trained} px alone", caption=first.note)
        patches = first.of(PATCHES)
        for numbers in zip(*(run.first for run in runs), strict=True):
            number, size = numbers[0], numbers[0].place
            interval = f"{number.low:.2f} to {number.high:.2f}"
            cells = [f"{patches[number.at].value:.0f}", f"{number.value:.2f}", interval] if not followers else []
            cells = [f"{number.value:.1f} ± {number.half:.1f}" for number in numbers] if followers else cells
            table.add_row(f"{size}", f"{size / first.trained:.2f}", *cells, style=results.emphasis(first, size))
        return [table]
