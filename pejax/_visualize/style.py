"""How every picture looks: two themes, colors that color-blind readers can tell apart, and no global state.

A picture is a `matplotlib.figure.Figure` of its own: pyplot, its backend and its settings are never touched, and no
display is needed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

Axes: TypeAlias = Any
"""A matplotlib axes; its stubs would ask for a cast at every call."""

INSTALL = 'pip install "pejax[visualize]"'


class Theme(NamedTuple):
    """Colors of a picture.

    Attributes:
        ink: of text and axes.
        faint: of the grid, of what is masked and of marks behind the data.
        paper: the background.
        mark: of the trained extent.
        lines: of curves, in order: Okabe and Ito's palette, without those too close to the paper.
        diverging: the color map of numbers with a sign.
        sequential: the color map of numbers from 0 on.
    """

    ink: str
    faint: str
    paper: str
    mark: str
    lines: tuple[str, ...]
    diverging: str
    sequential: str


THEMES = {
    "light": Theme(
        ink="#1a1a1a",
        faint="#b0b0b0",
        paper="#ffffff",
        mark="#D55E00",
        lines=("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#1a1a1a"),
        diverging="RdBu_r",
        sequential="viridis",
    ),
    "dark": Theme(
        ink="#e8e8e8",
        faint="#6a6f7a",
        paper="#1e2129",
        mark="#FF8C42",
        lines=("#56B4E9", "#E69F00", "#2CC295", "#E39BC4", "#F0E442", "#FF8C42", "#e8e8e8"),
        diverging="berlin",
        sequential="viridis",
    ),
}
DASHES = ("-", "--", ":", "-.")
"""Line styles; the next one begins when all colors are used."""


def require(package: str) -> None:
    """Refuse to draw without a package of the extra.

    Raises:
        ImportError: it is not installed.
    """
    import importlib

    try:
        importlib.import_module(package)
    except ImportError:
        raise ImportError(f"pejax.visualize needs {package}, which is not installed: {INSTALL}") from None


def theme_of(picture: str, theme: str) -> Theme:
    """Return the theme of this name.

    Raises:
        ValueError: there is none.
    """
    if theme not in THEMES:
        raise ValueError(f"{picture}: theme must be one of {', '.join(THEMES)}, got {theme!r}")
    return THEMES[theme]


def line_style(theme: Theme, i: int) -> dict[str, Any]:
    """Return color and line style of curve i."""
    return {"color": theme.lines[i % len(theme.lines)], "linestyle": DASHES[i // len(theme.lines) % len(DASHES)]}


def new_figure(
    theme: Theme,
    rows: int = 1,
    columns: int = 1,
    *,
    panel: tuple[float, float] = (5.0, 3.6),
    title: str = "",
    **subplots: Any,
) -> tuple[Figure, Any]:
    """Return a figure with a grid of dressed axes, `(rows, columns)`.

    Args:
        theme: of all of it.
        rows: of panels.
        columns: of panels.
        panel: width and height of one, inches.
        title: above all panels.
        **subplots: of `Figure.subplots`.
    """
    require("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    size = (columns * panel[0], rows * panel[1] + (0.4 if title else 0.0))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08), facecolor=theme.paper)
    panels = figure.subplots(rows, columns, squeeze=False, **subplots)
    for axes in panels.flat:
        dress(axes, theme)
    if title:
        figure.suptitle(title, color=theme.ink, fontsize=12)
    return figure, panels


def dress(axes: Axes, theme: Theme) -> None:
    """Give axes the colors of the theme."""
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.ink, which="both", labelsize=9)
    for side in axes.spines.values():
        side.set_color(theme.faint)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color(theme.ink)
    axes.title.set_fontsize(10)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def redress(axes: Axes, theme: Theme) -> None:
    """Empty axes for the next frame of an animation; matplotlib's `clear` forgets the colors of labels and title."""
    axes.clear()
    dress(axes, theme)


def grid(axes: Axes, theme: Theme) -> None:
    """Draw a grid behind the data."""
    axes.grid(color=theme.faint, alpha=0.35, linewidth=0.6)
    axes.set_axisbelow(True)


def signs_of(matrices: Sequence[Any]) -> tuple[int, int]:
    """Return which signs the finite numbers of all matrices have: (-1, 1), or 0 for one that none has."""
    known = np.concatenate([np.asarray(one, np.float64).ravel() for one in matrices])
    known = known[np.isfinite(known)]
    return -int(np.any(known < 0)), int(np.any(known > 0))


def heat_map(
    axes: Axes,
    numbers: Any,
    theme: Theme,
    *,
    signed: bool,
    top: float | None = None,
    signs: tuple[int, int] | None = None,
    rooted: bool = False,
    **options: Any,
) -> Any:
    """Draw a matrix in colors; what is not finite is drawn in the faint color.

    Args:
        axes: to draw on.
        numbers: rows from the top down.
        theme: gives the color maps.
        signed: whether numbers may be negative; False = they are from 0 on.
        top: the number at the end of the colors. None = the largest magnitude.
        signs: of `signs_of`, of all matrices that are drawn alike. One sign alone gets the sequential colors. None =
            both where `top` is given, else those of this matrix.
        rooted: whether colors follow `|number|^0.4`, so that small numbers are told apart, too.
        **options: of `imshow`.
    """
    import matplotlib
    from matplotlib.colors import FuncNorm

    numbers = np.asarray(numbers, np.float64)
    known = numbers[np.isfinite(numbers)]
    largest = float(np.max(np.abs(known), initial=0.0)) if top is None else top
    largest = largest or 1.0
    below, above = (0, 1) if not signed else signs or ((-1, 1) if top is not None else signs_of([known]))
    below, above = (-1, 1) if below == above == 0 else (below, above)
    name = theme.diverging if below and above else theme.sequential
    colors = matplotlib.colormaps[name].with_extremes(bad=theme.faint)
    options = {"aspect": "auto", "interpolation": "nearest", **options}
    root = lambda x, power: np.sign(x) * np.abs(x) ** power
    scale, low, high = (lambda x: root(x, 0.4), lambda x: root(x, 2.5)), below * largest, above * largest
    limits = {"norm": FuncNorm(scale, low, high)} if rooted else {"vmin": low, "vmax": high}
    return axes.imshow(np.where(np.isfinite(numbers), numbers, np.nan), cmap=colors, **limits, **options)


def color_bar(figure: Figure, image: Any, axes: Any, theme: Theme, label: str, **options: Any) -> None:
    """Draw the scale of a heat map."""
    bar = figure.colorbar(image, ax=axes, label=label, **options)
    bar.ax.tick_params(colors=theme.ink, which="both", labelsize=8)
    for text in (bar.ax.yaxis.label, bar.ax.xaxis.label):
        text.set_color(theme.ink)
        text.set_fontsize(9)
    bar.outline.set_edgecolor(theme.faint)


def legend(owner: Any, theme: Theme, **options: Any) -> None:
    """Draw the legend of axes or of a figure."""
    box = {"facecolor": theme.paper, "edgecolor": "none", "framealpha": 0.85}
    options = {"fontsize": 8, "labelcolor": theme.ink, **box, **options}
    owner.legend(**options)


def mark_trained(
    axes: Axes,
    theme: Theme,
    extent: float | int | None,
    *,
    also_y: bool = False,
    horizontal: bool = False,
    label: str = "",
) -> None:
    """Draw the trained extent as a line, where there is one.

    Args:
        axes: to draw on.
        theme: gives its color.
        extent: in the units of the axis.
        also_y: draw it on both axes, as in a map of queries and keys.
        horizontal: draw it on the y axis alone.
        label: of the legend.
    """
    if extent is None:
        return
    style: dict[str, Any] = {"color": theme.mark, "linestyle": "--", "linewidth": 1.3}
    if not horizontal:
        axes.axvline(extent, label=label or None, **style)
    if also_y or horizontal:
        axes.axhline(extent, label=label or None if horizontal else None, **style)


def titled(name: str | None, text: str) -> str:
    """Return a title that begins with the name of the encoding, where one is given."""
    return f"{name}: {text}" if name else text


def spread(count: int, most: int) -> list[int]:
    """Return at most so many of 0 ... count - 1, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i) for i in np.linspace(0, count - 1, most)})


def chosen(picture: str, name: str, wanted: Sequence[int] | None, count: int, most: int) -> list[int]:
    """Return the heads, pairs or channels to be drawn: those wanted, or `spread`.

    Raises:
        ValueError: none, or one that is not there.
    """
    if wanted is None:
        return spread(count, most)
    if not wanted or not all(0 <= one < count for one in wanted):
        raise ValueError(f"{picture}: {name} must be some of 0 ... {count - 1}, got {list(wanted)}")
    return list(wanted)
