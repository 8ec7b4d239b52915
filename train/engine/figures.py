"""Figures of the evaluations of many runs: one curve per run, its 95 % interval as a band."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.engine.files import replaced_file
from train.engine.line_styles import COLORS, line_styles
from train.engine.numbers import Kind, Number

literal_text = matplotlib.rc_context({"text.parse_math": False})
"""Decorates functions that draw: texts are drawn as they are, because names of data may have dollar signs."""


class Drawn(Protocol):
    """An evaluation, as a figure needs it."""

    @property
    def label(self) -> str:
        """Its name in the legend."""
        ...

    @property
    def trained(self) -> int:
        """The trained size or length."""
        ...


def plot(axes: Axes, runs: Sequence[Drawn], curves: Sequence[Sequence[Number]], trained: str) -> None:
    """Draw one curve per run, its interval as a band, and a line at the trained size or length.

    Args:
        axes: axes that the curves are drawn on.
        runs: their labels name the curves.
        curves: numbers of each run, by ascending size or length.
        trained: label of the line.
    """
    last = lambda curve: [number.value for number in curve if number.known][-1:]
    looks = line_styles([run.label for run in runs])
    for i in sorted(range(len(runs)), key=lambda i: last(curves[i]), reverse=True):
        curve, (number, line, marker) = curves[i], looks[i]
        color, places = COLORS[number], [number.place for number in curve]
        low, high = [number.low for number in curve], [number.high for number in curve]
        if not any(map(math.isinf, (*low, *high))):
            axes.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
        values = [number.value for number in curve]
        axes.plot(places, values, line, marker=marker, markersize=4, color=color, label=runs[i].label)
    axes.axvline(runs[0].trained, color="0.5", linestyle="-.", linewidth=1, label=trained, zorder=0)
    ticks = sorted({number.place for curve in curves for number in curve})
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axes.grid(alpha=0.3, which="both")


@literal_text
def draw_curves(
    runs: Sequence[Drawn], panels: Mapping[str, Sequence[Sequence[Number]]], path: Path, kind: Kind, title: str,
    note: str,
) -> None:  # fmt: skip
    """Write a figure: one panel with a title, or a panel for each part, whose values are percentages.

    Args:
        runs: their labels name the curves.
        panels: the numbers of each run, by the title of the panel.
        path: path of the figure.
        kind: names of the axes.
        title: title of the single panel; empty = a panel for each part.
        note: text below the figure.
    """
    size = ((9.0, 5.0) if len(runs) > 1 else (7.0, 4.5)) if title else (4.0 + 3.5 * len(panels), 4.5)
    figure = Figure(figsize=size, layout="constrained")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (part, curves) in zip(row, panels.items(), strict=True):
        if kind.log:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        plot(axes, runs, curves, kind.trained.format(runs[0].trained))
        axes.set(xlabel=f"{kind.at} ({kind.unit})", title=title or part)
        if not title:
            axes.set(ylim=(-3, 103))
    row[0].set_ylabel(kind.ylabel)
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    write_figure(figure, path, note)


def write_figure(figure: Figure, path: Path, note: str = "") -> None:
    """Write a figure with a note below it."""
    if note:
        figure.text(0.01, -0.01, note, fontsize=8, va="top", parse_math=False)
    with replaced_file(path) as file:
        figure.savefig(file, dpi=150, bbox_inches="tight", format="png")
