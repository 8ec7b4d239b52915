"""Results of sampling at many shapes, beside the same numbers of true pictures: as JSON, a table and a figure."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.table import Table

from train.engine import figures, results


class SampleRow(NamedTuple):
    """The measures of the pictures that were sampled at one shape.

    Attributes:
        size: height, pixels.
        width: pixels.
        correct: number of pictures that the classifier finds to be of the class that was asked for.
        count: number of pictures.
        distance: Fréchet distance to true test pictures, in the features of the classifier.
        repeats: autocorrelation at the trained side; NaN = no side is longer.
        true_top1: accuracy of the classifier on true test pictures.
        true_distance: Fréchet distance of as many true training pictures to the same test pictures.
        true_repeats: autocorrelation of the true test pictures.
        refused: why the encoding does not support the shape; empty = it does.
    """

    size: int
    width: int
    correct: int = 0
    count: int = 0
    distance: float = math.nan
    repeats: float = math.nan
    true_top1: float = math.nan
    true_distance: float = math.nan
    true_repeats: float = math.nan
    refused: str = ""

    @property
    def top1(self) -> float:
        """The fraction of pictures of the right class."""
        return math.nan if self.refused else self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `top1`."""
        return (math.nan, math.nan) if self.refused else results.wilson(self.correct, self.count)

    @property
    def in_percent(self) -> tuple[int, float, tuple[float, float]]:
        """The height, and `top1` with its interval in percent."""
        low, high = self.interval
        return self.size, 100 * self.top1, (100 * low, 100 * high)

    @property
    def pixels(self) -> str:
        """The height and the width in words: "28 x 56"."""
        return f"{self.size} x {self.width}"

    @property
    def aspect(self) -> str:
        """The aspect ratio in words: "1 x 2", empty for squares."""
        both = math.gcd(self.size, self.width)
        return "" if self.size == self.width else f"{self.size // both} x {self.width // both}"


MEASURES = (
    ("class right, %", "{:.1f}", max, lambda row: 100 * row.top1),
    ("Fréchet distance", "{:.2f}", min, lambda row: row.distance),
    ("repeated content", "{:.2f}", min, lambda row: row.repeats),
)
"""Measures of a row: name, format, which of two numbers is better, and the number."""


@dataclasses.dataclass(frozen=True)
class SampleResults(results.Evaluation):
    """Measures of the pictures of one run at many shapes; `trained` is the side of the training images, in pixels."""

    row = SampleRow
    higher = True

    rows: tuple[SampleRow, ...]

    @property
    def aspects(self) -> tuple[str, ...]:
        """The aspect ratios, in order."""
        return tuple(dict.fromkeys(row.aspect for row in self.rows))

    def of(self, aspect: str) -> list[SampleRow]:
        """Return the rows of an aspect ratio, by ascending height."""
        return sorted((row for row in self.rows if row.aspect == aspect), key=lambda row: row.size)

    def stored_rows(self) -> list[dict[str, Any]]:
        """Return the rows as JSON, without what was not measured."""
        found = []
        for row in self.rows:
            values = {} if row.refused else {"top1": row.top1, "interval": row.interval}
            kept = {
                name: value for name, value in row._asdict().items() if value == value
            }  # NaN is not equal to itself
            found.append({**kept, **values})
        return found

    def table(self) -> Table:
        """Return the table for the terminal."""
        return self.tables([self])[0]

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return the table for the terminal of evaluations of one run with several extensions."""
        first = runs[0]
        title = f"sampled pictures, {first.name}, {first.data}, trained at {first.trained} px"
        heads = ("pixels", "extension", "class right, %", "Fréchet distance", "repeated content")
        table = Table(*heads, title=title, caption=results.caption(first, CAPTION))
        number = lambda value: "" if math.isnan(value) else f"{value:.2f}"
        for rows in zip(*(run.rows for run in runs), strict=True):
            one = next((row for row in rows if not row.refused), rows[0])
            top1 = "" if math.isnan(one.true_top1) else f"{100 * one.true_top1:.1f}"
            true = (top1, number(one.true_distance), number(one.true_repeats))
            style = "bold" if one.size == one.width == first.trained else None
            table.add_row(one.pixels, "true pictures", *true, style=style)
            for run, row in zip(runs, rows, strict=True):
                half = 50 * (row.interval[1] - row.interval[0])
                found = (f"{100 * row.top1:.1f} ± {half:.1f}", number(row.distance), number(row.repeats))
                cells = ("refused", "", "") if row.refused else found
                table.add_row("", "as trained" if run.extend == "none" else run.extend, *cells, style=style)
            table.add_section()
        return [table]

    def scores(self) -> dict[str, dict[int, float]]:
        """Return the fraction of pictures of the right class in percent by height, for each aspect ratio."""
        return {
            f"class right{f' at {aspect}' if aspect else ''}, %": {
                row.size: 100 * row.top1 for row in self.of(aspect) if not row.refused
            }
            for aspect in self.aspects
        }

    @classmethod
    def markdown(cls, runs: Sequence[Self]) -> str:
        """Return one table per measure and aspect ratio: one row per run, one column per height, the best in bold.

        Raises:
            ValueError: runs on different data or trained at different sizes.
        """
        parts = [f"Sampled by models that were trained at {runs[0].trained} px. {CAPTION}"]
        for name, form, best, number in MEASURES:
            for aspect in runs[0].aspects:
                measured = lambda row, number=number: None if math.isnan(number(row)) else number(row)
                found = [{row.size: measured(row) for row in run.of(aspect)} for run in runs]
                if any(value is not None for one in found for value in one.values()):
                    title = f"{name}, by the height of pictures{f' of {aspect}' if aspect else ''}:"
                    parts += [title, results.grid(runs, found, best, form)]
        return results.document(runs, *parts)

    @classmethod
    def draw(cls, runs: Sequence[Self], path: Path) -> None:
        """Draw the fraction of pictures of the right class against the side of square pictures, and its interval."""
        curves = [figures.curve(row.in_percent for row in run.of("")) for run in runs]
        figures.draw_curves(
            runs, curves, path,
            trained=f"trained at {runs[0].trained} px",
            xlabel="side of the sampled pictures (pixels)", ylabel="pictures of the right class, %",
            title=f"{runs[0].data}: pictures sampled at sizes that training never saw",
        )  # fmt: skip


CAPTION = (
    "Class right: a classifier of ours, trained on true pictures of all these shapes, finds the class that was asked "
    "for. Fréchet distance: to true test pictures, in its features. Repeated content: autocorrelation at the trained "
    "side. True pictures: accuracy on test pictures, the distance of as many training pictures, and the test pictures' "
    "autocorrelation; what is wider than high is stretched."
)
