"""The plots of a report as PNG files, for papers and slides: the same data as on the page, drawn by matplotlib."""

import warnings
from pathlib import Path
from typing import Any, BinaryIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.engine.figures import literal_text
from train.engine.line_styles import COLORS
from train.report.blocks import Axis, Curve, Plot
from train.report.texts import plain

LANE = 0.3
"""Distance between the two lanes of a strip, in rows."""

NAME, TITLE = 48, 100
"""Most characters of the name of a curve, and of other texts: longer ones would take the room of the curves."""


@literal_text
def draw(plot: Plot, file: Path | BinaryIO) -> None:
    """Write a plot as a PNG file."""
    many = len(plot.curves)
    height = 1.2 + 0.4 * many if plot.kind == "strips" else 4.8
    figure = Figure(figsize=(5.4 if plot.kind == "scatter" else 8.4, height), layout="constrained")
    axes = figure.subplots()
    if plot.kind == "strips":
        _strips(axes, plot)
    else:
        for curve in plot.curves:
            _curve(axes, plot, curve)
        points = [p for curve in plot.curves for p in curve.points]
        _set_scale(axes, "x", plot.x, min(p.x for p in points))
        _set_scale(axes, "y", plot.y, min(p.y for p in points))
        if plot.kind == "scatter":
            low, high = axes.get_xlim()
            axes.plot([low, high], [low, high], color="0.5", linestyle="-.", linewidth=1, zorder=0)
        if plot.mark is not None:
            axes.axvline(plot.mark[0], color="0.4", linestyle="-.", linewidth=1, label=plot.mark[1], zorder=0)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8, ncols=1 + many // 28)
    axes.set_title(plain(plot.title, TITLE), fontsize=10, loc="right" if plot.kind == "strips" else "center")
    axes.set_xlabel(plain(plot.x.label, TITLE))
    axes.set_ylabel(plain(plot.y.label, NAME))
    axes.grid(alpha=0.3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a character that the font lacks is drawn as a box
        figure.savefig(file, dpi=150, format="png")


def _curve(axes: Axes, plot: Plot, curve: Curve) -> None:
    number, dash, marker = curve.style
    color = COLORS[number]
    xs, ys = [p.x for p in curve.points], [p.y for p in curve.points]
    label = _name(curve)
    label = f" {label}" if label.startswith("_") else label  # matplotlib hides labels in "_"
    if plot.kind == "scatter":
        axes.plot(xs, ys, marker, markersize=4, color=color, alpha=0.7, label=label)
        return
    if any(p.high > p.low for p in curve.points):
        low, high = [p.low for p in curve.points], [p.high for p in curve.points]
        axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0)
    every = 1 if plot.dots else max(1, len(xs) // 6)
    axes.plot(xs, ys, dash, marker=marker, markersize=4, markevery=every, color=color, label=label)
    axes.plot([p.x for p in curve.seeds], [p.y for p in curve.seeds], "o", markersize=2.5, color=color, alpha=0.6)


def _name(curve: Curve) -> str:
    return plain(curve.label, NAME)


def _set_scale(axes: Axes, which: str, axis: Axis, least: float) -> None:
    """Set the scale and the ticks of an axis; numbers from `least` on, which a logarithmic one needs above 0."""
    set_scale, ticked = getattr(axes, f"set_{which}scale"), getattr(axes, f"{which}axis")
    if axis.log and least > 0:
        set_scale("log", base=axis.log)
        ticked.set_major_formatter("{x:g}")
        ticked.set_minor_formatter("{x:g}")
    if axis.ticks:
        ticked.set_ticks(axis.ticks, [f"{tick:g}" for tick in axis.ticks])
        ticked.set_ticks([], minor=True)


def _strips(axes: Axes, plot: Plot) -> None:
    for row, curve in enumerate(plot.curves):
        for lane, look in enumerate(("o", "^")):
            xs = [p.x for p in curve.points if p.y == lane]
            style: dict[str, Any] = {"markerfacecolor": "none"} if lane == 0 else {"alpha": 0.7}
            label = plot.lanes[lane] if row == 0 else None
            ys, color = [row + LANE * (lane - 0.5)] * len(xs), COLORS[curve.style.color]
            axes.plot(xs, ys, look, color=color, label=label, **style)
    axes.set_yticks(range(len(plot.curves)), [_name(curve) for curve in plot.curves])
    axes.set_ylim(len(plot.curves) - 0.5, -0.5)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, fontsize=8)
