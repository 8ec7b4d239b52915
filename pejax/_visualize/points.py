"""Tokens as points in three dimensions, moved by an encoding: a plotly figure that can be turned, and an animation."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, rotate_queries
from pejax._visualize.animation import Animation
from pejax._visualize.layer import (
    Layer,
    check_axes,
    check_count,
    check_width,
    drawn_words,
    refuse,
    settled,
    trained_length,
    weights_of,
)
from pejax._visualize.style import Theme, require, titled
from pejax._visualize.subject import Subject

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as PlotlyFigure
else:
    PlotlyFigure = Any


class Moved(NamedTuple):
    """Points on their way from no position to their own.

    Attributes:
        points: the tokens in every frame, in three principal directions.
        shares: t of every frame, which multiplies the positions.
        words: the word of each token.
        what: name of the points in the title.
    """

    points: Float[np.ndarray, "N T 3"]
    shares: Float[np.ndarray, " N"]
    words: Sequence[str]
    what: str

    def places(self) -> dict[str, list[int]]:
        """Return the positions of each word."""
        return {word: [k for k, other in enumerate(self.words) if other == word] for word in dict.fromkeys(self.words)}

    def apart(self, frame: int) -> list[int]:
        """Return tokens whose numbers have room: each is farther than a part of the picture from those before it."""
        points, labels = self.points[frame], []
        least = 0.08 * float(np.max(np.ptp(self.points, axis=(0, 1))))
        for k, point in enumerate(points):
            if all(np.linalg.norm(point - points[other]) > least for other in labels):
                labels.append(k)
        return labels

    def limits(self, margin: float) -> list[list[float]]:
        """Return the two ends of each axis, with a margin as a part of the longest one."""
        low, high = self.points.min(axis=(0, 1)), self.points.max(axis=(0, 1))
        margin = margin * float(np.max(high - low)) + 1e-6
        return [[float(lowest - margin), float(other + margin)] for lowest, other in zip(low, high, strict=True)]


def moved_points(
    picture: str,
    encoding: Encoding,
    dims: Dims,
    params: Params | None,
    words: Sequence[str],
    frames: int,
    seed: int,
) -> Moved:
    """Return the tokens of a sentence as points, with their positions multiplied by 0 ... 1."""
    check_axes(picture, dims, 1)
    check_count(picture, frames=frames)
    if len(words) < 4:
        refuse(picture, "words must be at least four, for three directions", len(words))
    check_width(picture, dims)
    params = settled(encoding, params, max(len(words), trained_length(dims) or 1))
    x = drawn_words(words, seed, dims.width)
    shares = np.linspace(0.0, 1.0, frames)
    acts = encoding.embed is not None or encoding.rotate is not None
    position = jnp.arange(len(words), dtype=jnp.float32)
    arrays = [_representation(encoding, dims, params, x, position * float(share), acts) for share in shares]
    points = np.stack([np.asarray(array, np.float64) for array in arrays])
    flat = points.reshape(-1, points.shape[-1])
    directions = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)[2][:3]
    what = "queries of the first head" if acts else "attention outputs of the first head"
    return Moved((points - flat.mean(axis=0)) @ directions.T, shares, words, what)


def _representation(
    encoding: Encoding, dims: Dims, params: Params, x: Array, positions: Array, acts: bool
) -> Float[Array, "T D"]:
    """Return the first head's queries, or its attention output where the encoding acts on logits."""
    x = x if encoding.embed is None else encoding.embed(params, x, positions)
    parts = x.reshape(len(x), dims.heads, dims.head_dim)
    if acts:
        return rotate_queries(encoding, params, parts, positions)[:, 0]
    kernels = jax.random.normal(jax.random.key(0), (2, dims.heads, dims.head_dim, dims.head_dim), jnp.float32)
    q, k = dims.head_dim**-0.5 * jnp.einsum("thd,nhde->nthe", parts, kernels)
    return weights_of(encoding, dims, Layer(x, q, k, positions, params))[0] @ parts[:, 0]


WORDS = ("dog", "bites", "man") * 5


def _plotly_figure(moved: Moved, colors: Theme, title: str) -> PlotlyFigure:
    """Return the points with a slider over t."""
    require("plotly")
    import plotly.graph_objects as go

    def clouds(points: np.ndarray) -> list[Any]:
        traces = []
        for i, (word, tokens) in enumerate(moved.places().items()):
            x, y, z = points[tokens].T
            marker = {"size": 6, "color": colors.lines[i % len(colors.lines)]}
            places = [str(k) for k in tokens]
            style = {"mode": "markers+text", "text": places, "textfont": {"size": 11, "color": colors.ink}}
            traces.append(go.Scatter3d(x=x, y=y, z=z, name=html.escape(word), marker=marker, **style))
        return traces

    style = {"color": colors.ink, "backgroundcolor": colors.paper, "gridcolor": colors.faint}
    sides = {
        f"{letter}axis": {"range": limits, "title": f"direction {i}", **style}
        for i, (letter, limits) in enumerate(zip("xyz", moved.limits(0.1), strict=True))
    }
    labels = [f"{share:.2f}" for share in moved.shares]
    frames = [go.Frame(data=clouds(p), name=label) for p, label in zip(moved.points, labels, strict=True)]
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}}
    steps = [{"method": "animate", "label": label, "args": [[label], at_once]} for label in labels]
    play = {"method": "animate", "label": "play", "args": [None, {"frame": {"duration": 120, "redraw": True}}]}
    figure = go.Figure(data=clouds(moved.points[0]), frames=frames)
    figure.update_layout(
        title=f"{html.escape(title)}; the number is the position, tokens",
        paper_bgcolor=colors.paper,
        font={"color": colors.ink},
        scene=sides,
        sliders=[{"steps": steps, "currentvalue": {"prefix": "positions multiplied by "}}],
        updatemenus=[{"type": "buttons", "buttons": [play], "font": {"color": "#1a1a1a"}}],
    )
    return figure


class PointPictures(Subject):
    """Pictures of tokens as points: methods of `Pictures`."""

    def token_points(
        self,
        *,
        words: Sequence[str] = WORDS,
        frames: int = 21,
        seed: int = 0,
    ) -> PlotlyFigure:
        """Draw tokens as points in three dimensions and how an encoding moves them; turn it with the mouse, slide t.

        Positions are multiplied by t from 0 to 1. At t = 0 equal words are one point. An encoding of the input, or a
        rotary one, moves the queries apart. One of the logits moves what attention puts out. `none` moves nothing.

        Args:
            words: words of the sequence, at least four; equal words are equal tokens.
            frames: number of steps of t.
            seed: random seed of the tokens.

        Returns:
            A plotly figure with frames and a slider; `write_html(path)` saves a page that works without a network.

        Raises:
            ValueError: more than one axis, fewer than four words, no frame, or another width.
            ImportError: plotly is not installed.

        Reference:
            The three directions are the principal ones of all frames (Pearson 1901).

        Examples:
            >>> dims = pejax.Dims(heads=1, head_dim=16, extent=16)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.rope(dims)).token_points(frames=3)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.token_points", self.colors
        moved = moved_points(picture, encoding, dims, params, words, frames, seed)
        return _plotly_figure(moved, colors, titled(self.name, moved.what))

    def token_points_animation(
        self,
        *,
        words: Sequence[str] = WORDS,
        frames: int = 24,
        seed: int = 0,
    ) -> Animation:
        """Animate tokens as points in three dimensions that move to their positions, as `token_points` draws them.

        Positions are multiplied by t from 0 to 1; then the view turns. Saved as HTML it is the plotly figure.

        Args:
            words: words of the sequence, at least four; equal words are equal tokens.
            frames: number of steps of t.
            seed: random seed of the tokens.

        Returns:
            The animation, saved by `save("name.gif")` or `save("name.html")`.

        Raises:
            ValueError: as `token_points`.
            ImportError: matplotlib, or for HTML plotly, is not installed.

        Reference:
            The three directions are the principal ones of all frames (Pearson 1901).

        Examples:
            >>> dims = pejax.Dims(heads=1, head_dim=16, extent=16)
            >>> animation = pejax.visualize.Pictures(pejax.encodings.rope(dims)).token_points_animation(frames=3)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.token_points_animation", self.colors
        require("matplotlib")
        from matplotlib.figure import Figure

        moved = moved_points(picture, encoding, dims, params, words, frames, seed)
        figure = Figure(figsize=(5.4, 4.8), facecolor=colors.paper)
        axes: Any = figure.add_axes((0.0, 0.02, 0.98, 0.86), projection="3d")
        limits = dict(zip(("xlim", "ylim", "zlim"), moved.limits(0.08), strict=True))
        turn = max(1, frames // 2)

        def draw(i: int) -> None:
            at = min(i, frames - 1)
            axes.clear()
            axes.set_facecolor(colors.paper)
            for side, axis in enumerate((axes.xaxis, axes.yaxis, axes.zaxis)):
                axis.set_pane_color((0, 0, 0, 0))
                axis.label.set_color(colors.ink)
                axis.set_tick_params(colors=colors.ink, labelsize=7)
                axis.set_label_text(f"direction {side}", fontsize=8)
            for color, (word, tokens) in zip(colors.lines * 9, moved.places().items(), strict=False):
                for k in tokens:
                    axes.plot(*moved.points[: at + 1, k].T, color=color, alpha=0.35, linewidth=0.8)
                axes.scatter(*moved.points[at, tokens].T, color=color, s=28, label=word, depthshade=False)
            for k in moved.apart(at):
                axes.text(*moved.points[at, k], f" {k}", fontsize=8, color=colors.ink)
            axes.set(**limits)
            axes.view_init(elev=22, azim=-60 + 60 * (i - at) / turn)  # at rest while the points move
            title = (
                f"{titled(self.name, moved.what)}\npositions (the numbers, tokens) multiplied by {moved.shares[at]:.2f}"
            )
            figure.suptitle(title, color=colors.ink, fontsize=10)
            legend = axes.legend(loc="upper left", fontsize=8, frameon=False, labelcolor=colors.ink)
            legend.set_title("word", prop={"size": 8})
            legend.get_title().set_color(colors.ink)

        def page() -> str:
            turnable = _plotly_figure(moved, colors, titled(self.name, moved.what))
            text = str(turnable.to_html(include_plotlyjs=True, full_html=True))
            return text.replace("<body>", f'<body style="margin:0;background:{colors.paper}">', 1)

        draw(0)
        return Animation(figure, draw, frames + turn, 110, titled(self.name, moved.what), page)
