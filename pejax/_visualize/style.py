"""The frame of every picture: two themes, colors that color-blind readers can tell apart, and no global state.

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

INSTALL = "pip install matplotlib plotly Pillow"


class Theme(NamedTuple):
    """Colors of a picture.

    Attributes:
        ink: color of text and axes.
        faint: color of the grid, of masked pairs and of marks behind the data.
        paper: color of the background.
        mark: color of the line at the trained extent.
        lines: colors of curves, in order: Okabe and Ito's palette, without those too close to the paper.
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
WIDE = 4.6
"""Width of a panel that has its row for itself, inches: on a phone, 390 pixels wide, its text is still read."""
SMALL = 9.0
"""Size of the smallest text, points."""
DASHES = ("-", "--", ":", "-.")
"""Line styles; the next one begins when all colors are used."""


class LineStyle(NamedTuple):
    """The line of one encoding, the same in every figure.

    Attributes:
        color: number of the color in `Theme.lines`.
        dash: line style of matplotlib.
        marker: marker of matplotlib.
    """

    color: int
    dash: str
    marker: str


LINES = {
    "none": LineStyle(6, "-", "o"),
    "sinusoidal": LineStyle(4, "-", "o"),
    "learned": LineStyle(1, "-", "s"),
    "fourier": LineStyle(4, "-.", "s"),
    "shaw": LineStyle(3, ":", "v"),
    "transformer_xl": LineStyle(4, "--", "v"),
    "t5": LineStyle(3, "-", "o"),
    "kerple": LineStyle(2, ":", "^"),
    "fire": LineStyle(5, "-", "D"),
    "cpb": LineStyle(3, "--", "P"),
    "lookhere": LineStyle(5, "--", "X"),
    "relative_table": LineStyle(1, "--", "P"),
    "alibi": LineStyle(2, "-", "^"),
    "rope": LineStyle(0, ":", "o"),
    "rope_axial": LineStyle(0, "--", "s"),
    "rope_mixed": LineStyle(0, "-", "D"),
}
"""Lines of the encodings: one color for each family, and no two alike."""


def require(package: str) -> None:
    """Refuse to draw without a package of the extra.

    Raises:
        ImportError: the package is not installed.
    """
    import importlib

    try:
        importlib.import_module(package)
    except ImportError:
        raise ImportError(f"pejax.visualize needs {package}, which is not installed: {INSTALL}") from None


def theme_of(picture: str, theme: str) -> Theme:
    """Return the theme of this name.

    Raises:
        ValueError: an unknown theme.
    """
    if theme not in THEMES:
        raise ValueError(f"{picture}: theme must be one of {', '.join(THEMES)}, got {theme!r}")
    return THEMES[theme]


def signs_of(matrices: Sequence[Any]) -> tuple[int, int]:
    """Return the signs among the finite numbers of all matrices, (-1, 1), with 0 in place of a missing one."""
    values = np.concatenate([np.asarray(matrix, np.float64).ravel() for matrix in matrices])
    values = values[np.isfinite(values)]
    return -int(np.any(values < 0)), int(np.any(values > 0))


def shared_scale(matrices: Sequence[Any], *, rooted: bool = True) -> dict[str, Any]:
    """Return the scale that all matrices are drawn in, as options of `Canvas.heat_map`.

    Args:
        matrices: numbers that are drawn alike; those that are not finite do not count.
        rooted: whether colors follow a root where one matrix is much smaller than another.
    """
    tops = [float(np.max(np.abs(matrix), where=np.isfinite(matrix), initial=0.0)) for matrix in matrices]
    return {"top": max(tops), "signs": signs_of(matrices), "rooted": rooted and min(tops) < max(tops) / 8}


def scale_ticks(scale: dict[str, Any]) -> dict[str, Any]:
    """Return the ticks of the color bar of a `shared_scale`, where its colors follow a root."""
    if not scale["rooted"]:
        return {}
    ticks = [float(f"{scale['top'] * part:.3g}") * sign for sign in (-1, 1) for part in (1, 0.2, 0.02)]
    return {"ticks": [*ticks, 0.0]}


class Canvas:
    """A figure with a grid of panels in the colors of a theme.

    Attributes:
        theme: the colors.
        figure: the figure.
        panels: dressed axes, `(rows, columns)`.
    """

    def __init__(
        self,
        theme: Theme,
        rows: int = 1,
        columns: int = 1,
        *,
        panel: tuple[float, float] = (WIDE, 3.6),
        title: str = "",
        **subplots: Any,
    ) -> None:
        """Make the figure.

        Args:
            theme: the colors.
            rows: number of rows of panels.
            columns: number of columns of panels.
            panel: width and height of a panel, inches.
            title: title above all panels.
            **subplots: options of `Figure.subplots`.
        """
        require("matplotlib")
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        size = (columns * panel[0], rows * panel[1] + (0.4 if title else 0.0))
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        self.theme, self.figure = theme, Figure(figsize=size, layout=layout, facecolor=theme.paper)
        self.panels = self.figure.subplots(rows, columns, squeeze=False, **subplots)
        for axes in self.panels.flat:
            self._dress(axes)
        if title:
            self.title(title)

    @classmethod
    def of(cls, theme: Theme, count: int, *, panel: tuple[float, float], **options: Any) -> "Canvas":
        """Make a figure of `count` panels in two columns; one that is left over is empty."""
        columns = min(2, count)
        canvas = cls(theme, -(-count // columns), columns, panel=panel, **options)
        for axes in canvas.panels.flat[count:]:
            axes.set_axis_off()
        return canvas

    def title(self, text: str, size: float = 12) -> None:
        """Write the title above all panels."""
        self.figure.suptitle(text, color=self.theme.ink, fontsize=size)

    def _dress(self, axes: Axes) -> None:
        axes.set_facecolor(self.theme.paper)
        axes.tick_params(colors=self.theme.ink, which="both", labelsize=SMALL)
        for side in axes.spines.values():
            side.set_color(self.theme.faint)
        for label, size in ((axes.xaxis.label, 9), (axes.yaxis.label, 9), (axes.title, 10)):
            label.set_color(self.theme.ink)
            label.set_fontsize(size)

    def redress(self, axes: Axes) -> None:
        """Empty axes for the next frame of an animation; `clear` alone forgets the colors of labels and title."""
        axes.clear()
        self._dress(axes)

    def line(self, i: int) -> dict[str, Any]:
        """Return color and line style of curve i."""
        lines = self.theme.lines
        return {"color": lines[i % len(lines)], "linestyle": DASHES[i // len(lines) % len(DASHES)]}

    def grid(self, *panels: Axes) -> None:
        """Draw a grid behind the data of each panel."""
        for axes in panels:
            axes.grid(color=self.theme.faint, alpha=0.35, linewidth=0.6)
            axes.set_axisbelow(True)

    def label_outer(self, x: str, y: str) -> None:
        """Label the x axes of the last row and the y axes of the first column."""
        for axes in self.panels[-1]:
            axes.set_xlabel(x)
        for axes in self.panels[:, 0]:
            axes.set_ylabel(y)

    def heat_map(
        self,
        axes: Axes,
        numbers: Any,
        *,
        signed: bool,
        top: float | None = None,
        signs: tuple[int, int] | None = None,
        rooted: bool = False,
        bar: str = "",
        shrink: float = 1.0,
        **options: Any,
    ) -> Any:
        """Draw a matrix in colors; numbers that are not finite get the faint color.

        Args:
            axes: axes to draw on.
            numbers: matrix, drawn with its first row at the top.
            signed: whether numbers may be negative; False = they are from 0 on.
            top: number at the end of the colors. None = the largest magnitude.
            signs: signs of all matrices that are drawn alike (`signs_of`). One sign alone gets the sequential colors.
                None = both where `top` is given, else those of this matrix.
            rooted: whether colors follow `|number|^0.4`, so that small numbers are told apart, too.
            bar: label of a color bar beside the axes; "" = none is drawn.
            shrink: height of that color bar, as a part of that of the axes.
            **options: options of `imshow`.
        """
        import matplotlib
        from matplotlib.colors import FuncNorm

        numbers = np.asarray(numbers, np.float64)
        finite = numbers[np.isfinite(numbers)]
        largest = float(np.max(np.abs(finite), initial=0.0)) if top is None else top
        largest = largest or 1.0
        below, above = (0, 1) if not signed else signs or ((-1, 1) if top is not None else signs_of([finite]))
        below, above = (-1, 1) if below == above == 0 else (below, above)
        name = self.theme.diverging if below and above else self.theme.sequential
        colors = matplotlib.colormaps[name].with_extremes(bad=self.theme.faint)
        options = {"aspect": "auto", "interpolation": "nearest", **options}
        root = lambda x, power: np.sign(x) * np.abs(x) ** power
        scale, low, high = (lambda x: root(x, 0.4), lambda x: root(x, 2.5)), below * largest, above * largest
        limits = {"norm": FuncNorm(scale, low, high)} if rooted else {"vmin": low, "vmax": high}
        image = axes.imshow(np.where(np.isfinite(numbers), numbers, np.nan), cmap=colors, **limits, **options)
        if bar:
            self.color_bar(image, axes, bar, shrink=shrink)
        return image

    def color_bar(self, image: Any, axes: Any, label: str, **options: Any) -> None:
        """Draw the scale of a heat map beside its axes, or beside several."""
        bar = self.figure.colorbar(image, ax=axes, label=label, **options)
        bar.ax.tick_params(colors=self.theme.ink, which="both", labelsize=SMALL)
        for text in (bar.ax.yaxis.label, bar.ax.xaxis.label):
            text.set_color(self.theme.ink)
            text.set_fontsize(9)
        bar.outline.set_edgecolor(self.theme.faint)

    def legend(self, owner: Any, **options: Any) -> None:
        """Draw the legend of axes or of the figure."""
        box = {"facecolor": self.theme.paper, "edgecolor": "none", "framealpha": 0.85}
        owner.legend(**{"fontsize": SMALL, "labelcolor": self.theme.ink, **box, **options})

    def mark_trained(
        self,
        axes: Axes,
        extent: float | None,
        *,
        also_y: bool = False,
        horizontal: bool = False,
        label: str = "",
    ) -> None:
        """Draw the trained extent as a line, where there is one.

        Args:
            axes: axes to draw on.
            extent: the trained extent in the units of the axis.
            also_y: draw it on both axes, as in a map of queries and keys.
            horizontal: draw it on the y axis alone.
            label: label in the legend.
        """
        if extent is None:
            return
        style: dict[str, Any] = {"color": self.theme.mark, "linestyle": "--", "linewidth": 1.3}
        if not horizontal:
            axes.axvline(extent, label=label or None, **style)
        if also_y or horizontal:
            axes.axhline(extent, label=label or None if horizontal else None, **style)


def titled(name: str | None, text: str) -> str:
    """Return a title that begins with the name of the encoding, where one is given; a long one has two lines."""
    if not name:
        return text
    return f"{name}: {text}" if len(name) + len(text) < 46 else f"{name}:\n{text}"


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of 0 ... count - 1, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(i) for i in np.linspace(0, count - 1, most)})


def chosen(picture: str, name: str, choice: Sequence[int] | None, count: int, most: int) -> list[int]:
    """Return the heads, pairs or channels to draw: the wanted ones, or `spread`.

    Raises:
        ValueError: an empty choice, or an index that does not exist.
    """
    if choice is None:
        return spread(count, most)
    if not choice or not all(0 <= index < count for index in choice):
        raise ValueError(f"{picture}: {name} must be some of 0 ... {count - 1}, got {list(choice)}")
    return list(choice)
