"""Results of sampling at many shapes, beside the same numbers of true pictures: as JSON, a table and a figure."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.table import Table

from train.dit.measures import LOOP
from train.engine import figures, intervals, results
from train.engine.markdown import escape_markdown


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
        frames: frames of a video, of `size` x `width` pixels; 0 = a picture.
        loops: fraction of videos that repeat themselves after the trained frames; NaN = none is longer.
        true_loops: the same of as many true test videos.
        each: which pictures are of their class, in the order of their noise (`intervals.packed`); empty = not stored.
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
    frames: int = 0
    loops: float = math.nan
    true_loops: float = math.nan
    each: str = ""

    @property
    def at(self) -> int:
        """The place in figures and tables: the height of a picture, pixels, or the frames of a video."""
        return self.frames or self.size

    @property
    def top1(self) -> float:
        """The fraction of pictures of the right class."""
        return math.nan if self.refused else self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `top1`."""
        return (math.nan, math.nan) if self.refused else intervals.wilson(self.correct, self.count)

    @property
    def score(self) -> intervals.Score | None:
        """`top1` in percent; None if the shape is refused."""
        return None if self.refused else intervals.share(self.correct, self.count, self.each)

    @property
    def in_percent(self) -> tuple[int, float, tuple[float, float]]:
        """The place, and `top1` with its interval in percent."""
        low, high = self.interval
        return self.at, 100 * self.top1, (100 * low, 100 * high)

    @property
    def pixels(self) -> str:
        """The height and the width in words: "28 x 56"; of a video "16 frames of 28 x 28"."""
        return f"{f'{self.frames} frames of ' if self.frames else ''}{self.size} x {self.width}"

    @property
    def aspect(self) -> str:
        """The aspect ratio in words, "1 x 2", empty for squares; of a video the pixels of a frame, "28 x 28"."""
        if self.frames:
            return f"{self.size} x {self.width}"
        both = math.gcd(self.size, self.width)
        return "" if self.size == self.width else f"{self.size // both} x {self.width // both}"


class Measure(NamedTuple):
    """A measure of a row.

    Attributes:
        name: in tables, with its unit.
        form: format of a number.
        best: which of two numbers is better.
        number: that of what was sampled; NaN = there is none.
        true: that of true pictures.
    """

    name: str
    form: str
    best: Callable[..., float]
    number: Callable[[SampleRow], float]
    true: Callable[[SampleRow], float]

    def text(self, row: SampleRow, which: Callable[[SampleRow], float] | None = None) -> str:
        """Return the number of a row in words, that of what was sampled where nothing else is said."""
        value = (which or self.number)(row)
        return "" if math.isnan(value) else self.form.format(value)


MEASURES = (
    Measure("class right, %", "{:.1f}", max, lambda row: 100 * row.top1, lambda row: 100 * row.true_top1),
    Measure("Fréchet distance", "{:.2f}", min, lambda row: row.distance, lambda row: row.true_distance),
    Measure("repeated content", "{:.2f}", min, lambda row: row.repeats, lambda row: row.true_repeats),
    Measure("loops, %", "{:.1f}", min, lambda row: 100 * row.loops, lambda row: 100 * row.true_loops),
)


@dataclasses.dataclass(frozen=True)
class SampleResults(results.Evaluation):
    """Measures of the pictures of one run at many shapes, the trained one first.

    `trained` is the side of the training images, in pixels, or the frames of the training videos.
    """

    row = SampleRow
    higher = True
    sampled_with = ("guidance", "sampler", "sampling_steps")

    rows: tuple[SampleRow, ...]

    @property
    def aspects(self) -> tuple[str, ...]:
        """The aspect ratios, in order."""
        return tuple(dict.fromkeys(row.aspect for row in self.rows))

    def of(self, aspect: str) -> list[SampleRow]:
        """Return the rows of an aspect ratio by ascending height, or those of a size of frames by ascending length."""
        return sorted((row for row in self.rows if row.aspect == aspect), key=lambda row: row.at)

    @property
    def videos(self) -> bool:
        """Whether these are videos."""
        return self.rows[0].frames > 0

    @property
    def extent(self) -> str:
        """The shape of the training pictures in words: "28 px", "8 frames"."""
        return f"{self.trained} {'frames' if self.videos else 'px'}"

    @property
    def what(self) -> str:
        """The name of what is sampled."""
        return "videos" if self.videos else "pictures"

    @property
    def meaning(self) -> str:
        """The meaning of the measures."""
        return OF_VIDEOS if self.videos else CAPTION

    def stored_rows(self) -> list[dict[str, Any]]:
        """Return the rows as JSON, without what was not measured."""
        found = []
        for row in self.rows:
            values = {} if row.refused else {"top1": row.top1, "interval": row.interval}
            kept = {name: value for name, value in results.stored(row).items() if value == value}  # NaN != NaN
            found.append({**kept, **values})
        return found

    def table(self) -> Table:
        """Return the table for the terminal."""
        return self.tables([self])[0]

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return the table for the terminal of evaluations of one run with several extensions."""
        first = runs[0]
        title = f"sampled {first.what}, {first.name}, {first.data}, trained at {first.extent}"
        right, *others = MEASURES
        known = [right, *(one for one in others if any(one.text(row) for run in runs for row in run.rows))]
        heads = ("pixels", "extension", *(measure.name for measure in known))
        table = Table(*heads, title=title, caption=results.caption(first, first.meaning))
        for rows in zip(*(run.rows for run in runs), strict=True):
            one = next((row for row in rows if not row.refused), rows[0])
            style = "bold" if one.pixels == first.rows[0].pixels else None
            true = [measure.text(one, measure.true) for measure in known]
            table.add_row(one.pixels, f"true {first.what}", *true, style=style)
            for run, row in zip(runs, rows, strict=True):
                cells = [measure.text(row) for measure in known]
                half = 50 * (row.interval[1] - row.interval[0])
                cells[0] = "refused" if row.refused else f"{cells[0]} ± {half:.1f}"
                table.add_row("", "as trained" if run.extend == "none" else run.extend, *cells, style=style)
            table.add_section()
        return [table]

    def measured(self) -> dict[str, dict[int, intervals.Score]]:
        """Return the fraction of the right class in percent by height or frames, for each aspect ratio or size."""
        of_aspect = lambda aspect: {row.at: score for row in self.of(aspect) if (score := row.score)}
        first = self.rows[0].aspect
        named = {aspect: f"class right{f' at {aspect}' if aspect != first else ''}, %" for aspect in self.aspects}
        return {name: of_aspect(aspect) for aspect, name in named.items()}

    @classmethod
    def markdown(cls, runs: Sequence[Self]) -> str:
        """Return one table per measure and aspect ratio: one row per run, one column per height, the best in bold.

        Of videos there is one per measure and size of a frame, with one column per number of frames.

        Raises:
            ValueError: runs on different data or trained at different sizes.
        """
        parts = [f"Sampled by models that were trained at {runs[0].extent}. {runs[0].meaning}"]
        by = "by the number of frames" if runs[0].videos else "by the height of pictures"
        for measure in MEASURES:
            for aspect in runs[0].aspects:
                measured = lambda row, number=measure.number: None if math.isnan(number(row)) else number(row)
                found = [{row.at: measured(row) for row in run.of(aspect)} for run in runs]
                if any(value is not None for one in found for value in one.values()):
                    title = f"{measure.name}, {by}{f' of {escape_markdown(aspect)}' if aspect else ''}:"
                    parts += [title, results.grid(runs, found, measure.best, measure.form)]
        return results.document(runs, *parts)

    @classmethod
    def draw(cls, runs: Sequence[Self], path: Path) -> None:
        """Draw the fraction of the right class, and its interval, by the side of squares or the length of videos."""
        curves = [figures.curve(row.in_percent for row in run.of(run.aspects[0])) for run in runs]
        what, videos = runs[0].what, runs[0].videos
        figures.draw_curves(
            runs, curves, path,
            trained=f"trained at {runs[0].extent}",
            xlabel="frames of the sampled videos" if videos else "side of the sampled pictures (pixels)",
            ylabel=f"{what} of the right class, %",
            title=f"{runs[0].data}: {what} sampled at {'lengths' if videos else 'sizes'} that training never saw",
        )  # fmt: skip


CAPTION = (
    "Class right: a classifier of ours, trained on true pictures of all these shapes, finds the class that was asked "
    "for. Fréchet distance: to true test pictures, in its features. Repeated content: autocorrelation at the trained "
    "side. True pictures: accuracy on test pictures, the distance of as many training pictures, and the test pictures' "
    "autocorrelation; what is wider than high is stretched."
)

OF_VIDEOS = (
    "Class right: a classifier of ours, trained on single true frames, finds the class that was asked for, by the mean "
    "of its logits over the frames. Fréchet distance: of frames to those of true test videos, in its features. Loops: "
    f"videos that correlate by more than {LOOP} with themselves moved by the trained frames. True videos: accuracy on "
    "as many test videos, the distance of as many training videos, and the loops among the test videos."
)
