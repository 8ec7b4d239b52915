"""Geometry: plots -> positions in an SVG image, for wide and for narrow screens; the template writes the SVG."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.ticker import LogLocator, MaxNLocator

from pejax._visualize.style import DASHES, LineStyle
from train.engine.line_styles import MARKERS
from train.report.blocks import Axis, Curve, Plot

SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.6-3.6h7.2v7.2h-7.2z", "M0-4.8L4.4 3.4H-4.4z", "M0-5L5 0 0 5-5 0z",
    "M0 4.8L4.4-3.4H-4.4z", "M-4.5-1.4h3.1v-3.1h2.8v3.1h3.1v2.8h-3.1v3.1h-2.8v-3.1h-3.1z",
    "M-4.5-2.6L-2.6-4.5 0-1.9 2.6-4.5 4.5-2.6 1.9 0 4.5 2.6 2.6 4.5 0 1.9-2.6 4.5-4.5 2.6-1.9 0z",
)  # fmt: skip
"""Outlines of the markers: those of `MARKERS`, in that order."""

CHARACTER = 7.2
"""Width of a digit in the font of the ticks, pixels."""

ROW, LANE = 46.0, 15.0
"""Height of a row of strips, and of a lane in it, pixels."""

EQUAL = 1e-9
"""Relative difference of numbers up to which they count as one: a scale between them would have no width."""


class Frame(NamedTuple):
    """The size of an image and the edges of the plotting area, pixels."""

    width: float
    height: float
    left: float
    top: float
    right: float
    bottom: float


class Line(NamedTuple):
    """A drawn curve: its styles, path, band, markers `(x, y, text)`, points of seeds, and where a label would start."""

    label: str
    style: LineStyle
    color: int
    dash: int
    marker: int
    path: str
    band: str
    marks: tuple[tuple[float, float, str], ...]
    seeds: tuple[tuple[float, float, str], ...]
    row: float


class Chart(NamedTuple):
    """A drawn plot: ticks are `(pixel, text)`."""

    kind: str
    frame: Frame
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]
    mark: tuple[float, str, bool] | None
    diagonal: str


class Scale(NamedTuple):
    """A map from numbers to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        """Return the pixel of a number; numbers outside are moved to the nearest edge."""
        bend = math.log if self.log else float
        if self.log and value <= 0:
            return round(self.start, 1)
        share = (bend(value) - bend(self.low)) / (bend(self.high) - bend(self.low))
        return round(self.start + min(1.02, max(-0.02, share)) * (self.end - self.start), 1)


def styles(style: LineStyle) -> tuple[int, int, int]:
    """Return the numbers of color, dash and marker in the style sheet and in `SHAPES`."""
    return style.color, DASHES.index(style.dash), MARKERS.index(style.marker)


def draw_chart(plot: Plot, *, narrow: bool) -> Chart:
    """Return a plot as it is drawn on a wide or a narrow screen."""
    if plot.kind == "strips":
        return _strips(plot, narrow)
    square = plot.kind == "scatter"
    width, height = (400.0, 330.0) if narrow else (480.0, 420.0) if square else (860.0, 420.0)
    top, bottom, right = 16.0, height - 48.0, width - 14.0
    values = [p.y for c in plot.curves for p in c.drawn]
    x_values = [p.x for c in plot.curves for p in c.points]
    shared_values = x_values if square else []  # the two axes of a square plot are alike
    y = _scale(plot.y, [*values, *shared_values, *_ends(plot, values)], bottom, top, True)
    y_ticks = _thin(_name_ticks(y, plot.y.ticks or _ticks(y)), 18.0, None)
    left = 28.0 + CHARACTER * max(len(text) for _, text in y_ticks)
    x = y._replace(start=left, end=right) if square else _scale(plot.x, x_values, left, right, False)
    frame = Frame(width, height, left, top, right, bottom)
    mark = _mark(plot, x, frame)
    x_ticks = _thin(_name_ticks(x, plot.x.ticks or _ticks(x)), 34.0, mark[0] if mark else None)
    lines = tuple(_line(plot, curve, x, y) for curve in plot.curves)
    diagonal = f"M{x(x.low)} {y(x.low)}L{x(x.high)} {y(x.high)}" if square else ""
    return Chart(plot.kind, frame, x_ticks, y_ticks, lines, mark, diagonal)


def _mark(plot: Plot, x: Scale, frame: Frame) -> tuple[float, str, bool] | None:
    """Return the pixel of the trained size, its label, and whether the label is to the left of it."""
    if plot.mark is None:
        return None
    at = x(plot.mark[0])
    return at, plot.mark[1], at > (frame.left + frame.right) / 2


def _ends(plot: Plot, values: Sequence[float]) -> Iterable[float]:
    """Return the ends of the bands, up to a third beyond the values, so that they do not hide the curves."""
    if plot.y.log and min(values) > 0:
        span = (max(values) / min(values)) ** (1 / 3)
        low, high = min(values) / span, max(values) * span
    else:
        span = (max(values) - min(values)) / 3
        low, high = min(values) - span, max(values) + span
    ends = (end for c in plot.curves for p in c.points for end in (p.low, p.high))
    return [min(high, max(low, end)) for end in ends]


def _scale(axis: Axis, values: Sequence[float], start: float, end: float, room: bool) -> Scale:
    low, high = min(values), max(values)
    log = bool(axis.log) and low > 0
    spread = high - low > EQUAL * max(abs(low), abs(high))
    if log:
        pad = (high / low) ** 0.04 if spread else 1.5
        return Scale(low / pad, high * pad, start, end, True)
    pad = 0.04 * (high - low) if spread else 0.5 * abs(high) or 0.5
    return Scale(low - pad if room or not spread else low - pad / 2, high + pad, start, end, False)


def _ticks(scale: Scale) -> list[float]:
    if not scale.log:
        ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(scale.low, scale.high)
    else:
        decades = math.log10(scale.high / scale.low)
        subs = (1.0,) if decades > 4 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(map(float, range(1, 10)))
        ticks = LogLocator(base=10, subs=subs, numticks=20).tick_values(scale.low, scale.high)
    inside = [float(tick) for tick in ticks if scale.low <= tick <= scale.high]
    return inside or [float(f"{scale.low:.2g}"), float(f"{scale.high:.2g}")]


def _name_ticks(scale: Scale, ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Return the pixel and the text of ticks: of a linear scale all with as many digits as tell them apart."""
    step = min((abs(b - a) for a, b in itertools.pairwise(ticks)), default=0.0)
    digits = max(0, min(8, 1 - math.floor(math.log10(step)))) if step > 0 else 0
    texts = [f"{tick:g}" if scale.log else f"{tick:.{digits}f}" for tick in ticks]
    while not scale.log and digits and all(text.endswith("0") for text in texts):
        digits -= 1
        texts = [f"{tick:.{digits}f}" for tick in ticks]
    return [(scale(tick), text) for tick, text in zip(ticks, texts, strict=True)]


def _thin(ticks: list[tuple[float, str]], gap: float, mark: float | None) -> tuple[tuple[float, str], ...]:
    """Leave out ticks that are closer than the gap to another; `mark` is the pixel of the one that stays."""
    selection = [tick for tick in ticks if mark is not None and abs(tick[0] - mark) < 0.5]
    for tick in ticks:
        if all(abs(tick[0] - other[0]) >= gap for other in selection):
            selection.append(tick)
    return tuple(sorted(selection))


def _line(plot: Plot, curve: Curve, x: Scale, y: Scale) -> Line:
    points = [(x(p.x), y(p.y), p.text) for p in curve.points]
    path = "M" + "L".join(f"{a} {b}" for a, b, _ in points) if plot.kind == "curves" else ""
    banded = curve.points if any(p.high > p.low for p in curve.points) else ()
    forth, back = ([f"{x(p.x)} {y(end(p))}" for p in banded] for end in (lambda p: p.high, lambda p: p.low))
    band = f"M{'L'.join([*forth, *back[::-1]])}Z" if len(banded) > 1 else ""
    seeds = tuple((x(p.x), y(p.y), p.text) for p in curve.seeds)
    dots = points if plot.dots else points[:: max(1, len(points) // 6)]
    return Line(curve.label, curve.style, *styles(curve.style), path, band, tuple(dots), seeds, 0.0)


def _strips(plot: Plot, narrow: bool) -> Chart:
    width, height = 400.0 if narrow else 860.0, 24.0 + ROW * len(plot.curves) + 44.0
    frame = Frame(width, height, 14.0, 16.0, width - 14.0, height - 44.0)
    values = [p.x for c in plot.curves for p in c.points]
    x = Scale(min(0.0, *values), 1.04 * max(*values, 0.1), frame.left, frame.right, False)
    lines = []
    for row, curve in enumerate(plot.curves):
        top = frame.top + 8.0 + ROW * row
        marks = tuple((x(p.x), round(top + 10.0 + LANE * p.y, 1), p.text) for p in curve.points)
        color, dash, _ = styles(curve.style)
        lines.append(Line(curve.label, curve.style, color, dash, 0, "", "", marks, (), round(top, 1)))
    x_ticks = tuple(_name_ticks(x, _ticks(x)))
    return Chart("strips", frame, x_ticks, (), tuple(lines), None, "")
