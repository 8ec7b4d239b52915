"""Figures of the evaluations of many runs: one curve per run, its 95 % interval as a band."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.engine.files import replaced_file
from train.engine.line_styles import COLORS, line_styles
from train.engine.results import Evaluation, require_comparable

literal_text = matplotlib.rc_context({"text.parse_math": False})
"""Decorates functions that draw: texts are drawn as they are, because names of data may have dollar signs."""


class Curve(NamedTuple):
    """The results of one run, for a figure.

    Attributes:
        at: sizes or lengths, ascending.
        value: the number at each; NaN = none.
        interval: the 95 % interval `(low, high)` at each; if one is infinite, no band is drawn.
    """

    at: Sequence[int]
    value: Sequence[float]
    interval: Sequence[tuple[float, float]]


def curve(points: Iterable[tuple[int, float, tuple[float, float]]]) -> Curve:
    """Return the curve through points `(size, value, interval)`."""
    return Curve(*zip(*points, strict=True))


def plot(axes: Axes, runs: Sequence[Evaluation], curves: Sequence[Curve], trained: str) -> None:
    """Draw one curve per run, named by its label, its interval as a band, and a line at the trained size or length."""

    def last_value(i: int) -> list[float]:
        return [value for value in curves[i].value if not math.isnan(value)][-1:]

    styles = line_styles([run.label for run in runs])
    for i in sorted(range(len(runs)), key=last_value, reverse=True):
        curve, (number, line, marker) = curves[i], styles[i]
        color = COLORS[number]
        low, high = zip(*curve.interval, strict=True)
        if not any(map(math.isinf, (*low, *high))):
            axes.fill_between(curve.at, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(curve.at, curve.value, line, marker=marker, markersize=4, color=color, label=runs[i].label)
    axes.axvline(runs[0].trained, color="0.5", linestyle="-.", linewidth=1, label=trained, zorder=0)
    ticks = sorted({size for curve in curves for size in curve.at})
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axes.grid(alpha=0.3, which="both")


@literal_text
def draw_curves(
    runs: Sequence[Evaluation], curves: Sequence[Curve], path: Path, *, trained: str, log: bool = False, **texts: str
) -> None:
    """Write a figure of one panel.

    Args:
        runs: their labels name the curves.
        curves: one per run.
        path: path of the figure.
        trained: label of the line at the trained size or length.
        log: logarithmic axes, with base 2 on the x axis.
        **texts: `xlabel`, `ylabel` and `title`.

    Raises:
        ValueError: runs that are not comparable.
    """
    require_comparable(runs)
    figure = Figure(figsize=(9.0, 5.0) if len(runs) > 1 else (7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    plot(axes, runs, curves, trained)
    axes.set(**texts)
    figure.legend(loc="outside right upper", frameon=False)
    write_figure(figure, path, runs[0].note)


@literal_text
def draw_panels(
    runs: Sequence[Evaluation],
    panels: Mapping[str, Sequence[Curve]],
    path: Path,
    *,
    trained: str,
    xlabel: str,
    ylabel: str,
) -> None:
    """Write a figure of several panels side by side, whose values are proportions.

    Args:
        runs: their labels name the curves.
        panels: the curves of each panel, one per run, by the title of the panel.
        path: path of the figure.
        trained: label of the line at the trained size or length.
        xlabel: label of the x axis of every panel.
        ylabel: label of the y axis of the first panel.

    Raises:
        ValueError: runs that are not comparable.
    """
    require_comparable(runs)
    figure = Figure(figsize=(4.0 + 3.5 * len(panels), 4.5), layout="constrained")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, curves) in zip(row, panels.items(), strict=True):
        plot(axes, runs, curves, trained)
        axes.set(xlabel=xlabel, title=title, ylim=(-0.03, 1.03))
    row[0].set_ylabel(ylabel)
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    write_figure(figure, path, runs[0].note)


def write_figure(figure: Figure, path: Path, note: str = "") -> None:
    """Write a figure with a note below it."""
    if note:
        figure.text(0.01, -0.01, note, fontsize=8, va="top", parse_math=False)
    with replaced_file(path) as file:
        figure.savefig(file, dpi=150, bbox_inches="tight", format="png")
