"""Results of an evaluation of a vision transformer: top-1 against resolution, as JSON, a table and a figure."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.table import Table

from train.engine import figures, intervals, results


class ResolutionRow(NamedTuple):
    """Top-1 at one image size.

    Attributes:
        size: side of the images, pixels.
        tokens: patches per image.
        correct: number of images whose most likely class is the true one.
        count: number of images.
        each: which ones they are, in the order of the test images (`intervals.packed`); empty = not stored.
    """

    size: int
    tokens: int
    correct: int
    count: int
    each: str = ""

    @property
    def top1(self) -> float:
        """The fraction of correct images."""
        return self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `top1`."""
        return intervals.wilson(self.correct, self.count)

    @property
    def score(self) -> intervals.Score:
        """`top1` in percent."""
        return intervals.share(self.correct, self.count, self.each)

    @property
    def in_percent(self) -> tuple[int, float, tuple[float, float]]:
        """The side, and `top1` with its interval in percent."""
        low, high = self.interval
        return self.size, 100 * self.top1, (100 * low, 100 * high)


@dataclasses.dataclass(frozen=True)
class ResolutionResults(results.Evaluation):
    """Top-1 of one run at many sizes; `trained` is the side of the training images, in pixels."""

    row = ResolutionRow
    higher = True

    rows: tuple[ResolutionRow, ...]

    def stored_rows(self) -> list[dict[str, Any]]:
        """Return the rows as JSON, with top-1 and its interval."""
        return [{**results.stored(row), "top1": row.top1, "interval": row.interval} for row in self.rows]

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"top-1 in percent, {self.label}, {self.data}, trained at {self.trained} px alone"
        table = Table("pixels", "x trained", "tokens", "top-1", "95 % interval", title=title, caption=self.note)
        for row in self.rows:
            low, high = row.interval
            cells = (f"{row.size}", f"{row.size / self.trained:.2f}", f"{row.tokens}", f"{100 * row.top1:.2f}")
            table.add_row(*cells, f"{100 * low:.2f} to {100 * high:.2f}", style=results.emphasis(self, row.size))
        return table

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return the tables for the terminal; evaluations of one run with several extensions share one."""
        first, *others = runs
        if not others:
            return [first.table()]
        title = f"top-1 in percent, {first.name}, {first.data}, trained at {first.trained} px alone"
        names = ["as trained" if run.extend == "none" else run.extend for run in runs]
        table = Table("pixels", "x trained", *names, title=title, caption=first.note)
        for rows in zip(*(run.rows for run in runs), strict=True):
            size = rows[0].size
            cells = (f"{100 * row.top1:.1f} ± {50 * (row.interval[1] - row.interval[0]):.1f}" for row in rows)
            table.add_row(f"{size}", f"{size / first.trained:.2f}", *cells, style=results.emphasis(first, size))
        return [table]

    def measured(self) -> dict[str, dict[int, intervals.Score]]:
        """Return the top-1 in percent by image size."""
        return {"top-1, %": {row.size: row.score for row in self.rows}}

    @classmethod
    def markdown(cls, runs: Sequence[Self]) -> str:
        """Return a table of top-1 in percent, one row per run and one column per size, the best of each size in bold.

        Raises:
            ValueError: runs on different data or trained at different sizes.
        """
        found = [{row.size: 100 * row.top1 for row in run.rows} for run in runs]
        return results.document(runs, results.grid(runs, found, max, "{:.1f}"))

    @classmethod
    def draw(cls, runs: Sequence[Self], path: Path) -> None:
        """Draw top-1 against resolution with its interval as a band, and a line at the trained size."""
        curves = [figures.curve(row.in_percent for row in run.rows) for run in runs]
        figures.draw_curves(
            runs, curves, path,
            trained=f"trained at {runs[0].trained} px",
            xlabel="image side (pixels)", ylabel="top-1, %", title=f"{runs[0].data}: top-1 by image size",
        )  # fmt: skip
