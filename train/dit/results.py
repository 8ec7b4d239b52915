"""Results of sampling at many shapes, beside the same numbers of true pictures."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

from rich.table import Table

from train.dit.measures import LOOP
from train.engine import results
from train.engine.markdown import escape_markdown
from train.engine.numbers import Kind, Measure, Number

CLASS, DISTANCE, REPEATS, LOOPS = "class right, %", "Fréchet distance", "repeated content", "loops, %"

MEASURES = (
    Measure(CLASS), Measure(DISTANCE, "{:.2f}", False), Measure(REPEATS, "{:.2f}", False), Measure(LOOPS, higher=False),
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

PICTURES = Kind(
    MEASURES,
    subject="Sampled pictures", examples="noise",
    at="height of the picture", unit="pixels", short="px", trained="trained at {} px",
    ylabel="pictures of the right class, %", title="{data}: pictures sampled at sizes that training never saw",
    part="class right at {of}, %", refused="",
    lead=f"Sampled by models that were trained at {{trained}} px. {CAPTION}",
)  # fmt: skip

VIDEOS = PICTURES._replace(
    subject="Sampled videos", at="length of the video", unit="frames", short="frames", trained="trained at {} frames",
    ylabel="videos of the right class, %", title="{data}: videos sampled at lengths that training never saw",
    lead=f"Sampled by models that were trained at {{trained}} frames. {OF_VIDEOS}",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SampleResults(results.Evaluation):
    """Measures of the pictures of one run at many shapes, the trained one first.

    `trained` is the side of the training images, in pixels, or the frames of the training videos.
    """

    kinds = (PICTURES, VIDEOS)
    sampled_with = ("guidance", "sampler", "sampling_steps")

    def heading(self, measure: Measure, part: str) -> str:
        """Return the line above the Markdown table of a measure at an aspect ratio, or for a size of frames."""
        by = "the number of frames" if self.videos else "the height of pictures"
        _, *frame = self.numbers[0].shape
        of = escape_markdown(part) or (" x ".join(map(str, frame)) if self.videos else "")
        return f"{measure.name}, by {by}{f' of {of}' if of else ''}:"

    def row(self, measure: Measure, part: str) -> dict[int, Number]:
        """Return the row of the Markdown table of a measure on a part; it is empty where no side is longer."""
        return {number.place: _number(self, measure, number) for number in self.of(CLASS, part).values()}

    @classmethod
    def tables(cls, runs: Sequence[Self]) -> list[Table]:
        """Return the table for the terminal of evaluations of one run with several extensions."""
        first, what = runs[0], "videos" if runs[0].videos else "pictures"
        title = f"sampled {what}, {first.name}, {first.data}, {first.kind.trained.format(first.trained)}"
        names = {number.measure for run in runs for number in run.numbers if number.known} | {CLASS}
        measures = [measure for measure in MEASURES if measure.name in names]
        heads = ("pixels", "extension", *(measure.name for measure in measures))
        meaning = OF_VIDEOS if first.videos else CAPTION
        table = Table(*heads, title=title, caption=results.caption(first, meaning))
        for number in first.first:
            style = "bold" if number.at == first.numbers[0].at else None
            rows = [[_number(run, measure, number) for measure in measures] for run in runs]
            truth_row = next((row for row in rows if not row[0].refused), rows[0])
            true = [_text(measure, number.beside) for measure, number in zip(measures, truth_row, strict=True)]
            table.add_row(pixels(number), f"true {what}", *true, style=style)
            for run, row in zip(runs, rows, strict=True):
                right, *texts = (_text(measure, number.value) for measure, number in zip(measures, row, strict=True))
                right = "refused" if row[0].refused else f"{right} ± {row[0].half:.1f}"
                table.add_row("", "as trained" if run.extend == "none" else run.extend, right, *texts, style=style)
            table.add_section()
        return [table]


def pixels(number: Number) -> str:
    """Return the shape of a number in words: "28 x 56"; of a video "16 frames of 28 x 28"."""
    *frames, height, width = number.shape
    return f"{f'{frames[0]} frames of ' if frames else ''}{height} x {width}"


def _number(run: SampleResults, measure: Measure, number: Number) -> Number:
    """Return the number of a measure at the shape of another one; one without a value where there is none."""
    return run.of(measure.name, number.of).get(number.at, Number(measure=measure.name, at=number.at))


def _text(measure: Measure, value: float) -> str:
    return "" if math.isnan(value) else measure.form.format(value)
