"""Pictures of rotary encodings: pairs of channels turning in their planes, still and moving, and all their angles."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.animation import Animation
from pejax._visualize.layer import (
    applied,
    check_axes,
    check_count,
    check_hooks,
    drawn_words,
    extent_of,
    settled,
    trained_length,
)
from pejax._visualize.style import SMALL, THEMES, WIDE, Axes, Canvas, Figure, Theme, chosen, titled
from pejax._visualize.subject import Subject
from pejax._visualize.turning import measured_frequencies, planes_of, unit_vectors


def plane(axes: Axes, colors: Theme, reach: float = 1.25) -> None:
    """Draw an empty plane: the unit circle and the axes through 0."""
    turn = np.linspace(0, 2 * np.pi, 181)
    axes.plot(np.cos(turn), np.sin(turn), color=colors.faint, linewidth=0.8, zorder=0)
    axes.axhline(0, color=colors.faint, linewidth=0.5, zorder=0)
    axes.axvline(0, color=colors.faint, linewidth=0.5, zorder=0)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])


def hand(axes: Axes, tip: Any, color: Any, **options: Any) -> Any:
    """Draw an arrow from 0."""
    style = {"arrowstyle": "-|>", "mutation_scale": 12, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0, "color": color}
    return axes.annotate("", xy=tuple(tip), xytext=(0, 0), arrowprops={**style, **options})


def tokens_as_colors(count: int, colors: Theme) -> Any:
    """Return one color of viridis per position, without those too close to the paper."""
    import matplotlib

    ends = (0.0, 0.85) if colors == THEMES["light"] else (0.3, 1.0)
    return matplotlib.colormaps["viridis"](np.linspace(*ends, count))


def _position_scale(shades: Any) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    return ScalarMappable(Normalize(-0.5, len(shades) - 0.5), ListedColormap(shades))


def _clock(
    picture: str, encoding: Encoding, dims: Dims, params: Params | None, positions: int, head: int
) -> tuple[Float[np.ndarray, "T F 2"], Float[np.ndarray, " F"]]:
    """Return the rotated unit vectors of one head at each position on the first axis, and their frequencies."""
    check_hooks(picture, encoding, "rotate")
    check_count(picture, positions=positions)
    chosen(picture, "head", [head], dims.heads, 1)
    extent = extent_of(picture, dims, None) if dims.axes > 1 else max(positions, trained_length(dims) or 1)
    params = settled(encoding, params, extent)
    at = np.zeros((positions, dims.axes), int)
    at[:, 0] = np.arange(positions)
    tips = unit_vectors(picture, encoding, dims, params, at)[:, head]
    return tips, measured_frequencies(picture, encoding, dims, params)[head, 0]


class RotationPictures(Subject):
    """Pictures of rotations: methods of `Pictures`."""

    def rotation(
        self,
        *,
        positions: int = 12,
        pairs: Sequence[int] | None = None,
        head: int = 0,
    ) -> Figure:
        """Draw pairs of channels in their planes: where the vector (1, 0) points at every position.

        `x_p = R(p · f_i) (1, 0)` for pair i with frequency f_i; on more axes the position grows on the first

        Args:
            positions: number of positions, from 0 on.
            pairs: pairs that are drawn, in the order of their channels. None = four, spread over all.
            head: index of the head whose pairs are drawn.

        Raises:
            ValueError: an encoding that rotates nothing, no position, or a pair or head that is not there.
            ImportError: matplotlib is not installed.

        Reference:
            Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2.2.

        Examples:
            >>> dims = pejax.Dims(heads=2, head_dim=16)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.rope(dims)).rotation()
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.rotation", self.colors
        tips, frequencies = _clock(picture, encoding, dims, params, positions, head)
        indices = chosen(picture, "pairs", pairs, len(frequencies), 4)
        heading = titled(self.name, f"the same vector at positions 0 to {positions - 1}")
        canvas = Canvas.of(colors, len(indices), panel=(2.4, 2.7), title=heading)
        shades, unit = tokens_as_colors(positions, colors), "token" if dims.axes == 1 else "patch"
        for axes, pair in zip(canvas.panels.flat, indices, strict=False):
            plane(axes, colors)
            for tip, shade in zip(tips[:, pair], shades, strict=True):
                hand(axes, tip, shade, linewidth=1.3)
            axes.set_title(f"pair {pair}\n{frequencies[pair]:.2g} rad/{unit}")
        canvas.label_outer("first channel of the pair", "second channel")
        canvas.color_bar(_position_scale(shades), canvas.panels, "position, tokens", shrink=0.8, pad=0.01)
        return canvas.figure

    def rotation_animation(
        self,
        *,
        positions: int = 40,
        pairs: Sequence[int] | None = None,
        head: int = 0,
    ) -> Animation:
        """Animate pairs of channels as hands of clocks: each turns at its own speed as the position grows.

        `x_p = R(p · f_i) (1, 0)` for pair i with frequency f_i, radians per token

        Args:
            positions: number of positions: one per frame.
            pairs: pairs that are drawn. None = four, spread over all.
            head: index of the head whose pairs are drawn.

        Returns:
            The animation, saved by `save("name.gif")` or `save("name.html")`.

        Raises:
            ValueError: as `rotation`.
            ImportError: matplotlib is not installed.

        Reference:
            Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2.2.

        Examples:
            >>> dims = pejax.Dims(heads=2, head_dim=16)
            >>> animation = pejax.visualize.Pictures(pejax.encodings.rope(dims)).rotation_animation(positions=3)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.rotation_animation", self.colors
        tips, frequencies = _clock(picture, encoding, dims, params, positions, head)
        indices = chosen(picture, "pairs", pairs, len(frequencies), 4)
        unit = "token" if dims.axes == 1 else "patch"
        canvas = Canvas(colors, 1, len(indices), panel=(3.0, 3.1), title=titled(self.name, "position 0"))

        def draw(i: int) -> None:
            canvas.title(titled(self.name, f"position {i}"))
            for side, (axes, pair) in enumerate(zip(canvas.panels[0], indices, strict=True)):
                canvas.redress(axes)
                plane(axes, colors)
                axes.plot(*tips[max(0, i - 12) : i + 1, pair].T, ".", color=colors.faint, markersize=4)
                hand(axes, tips[i, pair], colors.lines[side % len(colors.lines)], linewidth=2.4)
                axes.set(title=f"pair {pair}\n{frequencies[pair]:.2g} radians per {unit}", xlabel="first channel")
            canvas.panels[0, 0].set_ylabel("second channel")

        draw(0)
        return Animation(
            canvas.figure, draw, positions, title=titled(self.name, "pairs of channels turn with the position")
        )

    def rotary_steps(
        self,
        *,
        words: Sequence[str] = ("the", "dog", "bites", "the", "man"),
        pair: int = 1,
        head: int = 0,
        seed: int = 0,
    ) -> Figure:
        """Draw how a query gets its position: cut into pairs of channels, each turned by position times its frequency.

        `x'_p = diag over pairs i of R(p · f_i) · x_p`. Equal words have equal queries, and are turned apart.

        Args:
            words: words of a sentence, each with a random query of its own.
            pair: index of the pair that is drawn in its plane, before and after.
            head: index of the head whose queries are drawn.
            seed: random seed of the queries.

        Raises:
            ValueError: an encoding that rotates nothing, more than one axis, no words, or a pair or head that is not
                there.
            ImportError: matplotlib is not installed.

        Reference:
            Su et al. 2021, "RoFormer" (arXiv 2104.09864), figure 1 and equation 15.

        Examples:
            >>> dims = pejax.Dims(heads=1, head_dim=8)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.rope(dims)).rotary_steps()
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.rotary_steps", self.colors
        check_hooks(picture, encoding, "rotate")
        check_axes(picture, dims, 1)
        check_count(picture, words=len(words))
        chosen(picture, "head", [head], dims.heads, 1)
        rotate = encoding.rotate
        assert rotate is not None  # checked above
        params = settled(encoding, params, max(len(words), trained_length(dims) or 1))
        before = drawn_words(words, seed, dims.heads, dims.head_dim)
        at = np.arange(len(words))
        after = np.asarray(applied(rotate, params, before, jnp.asarray(at)))[:, head]
        x = np.asarray(before)[:, head]
        pairs = planes_of(picture, encoding, dims, params)
        (index,) = chosen(picture, "pair", [pair], len(pairs), 1)
        frequencies = measured_frequencies(picture, encoding, dims, params)[head, 0]
        canvas = Canvas(colors, 4, 1, panel=(WIDE, 2.9), title=titled(self.name, "queries, turned pair by pair"))
        top = float(np.max(np.abs([x, after])))
        rows = [f"{position}  {word}" for position, word in enumerate(words)]
        first, second, third, last = canvas.panels[:, 0]
        for axes, matrix, label, bar in ((first, x, "queries", ""), (third, after, "queries, rotated", "value")):
            canvas.heat_map(axes, matrix, signed=True, top=top, bar=bar)
            for edge in np.arange(1.5, dims.head_dim - 1, 2):
                axes.axvline(edge, color=colors.faint, linewidth=0.6)
            axes.set(title=label, xlabel="channel")
            axes.set_yticks(at, rows)
        canvas.heat_map(second, at[:, None] * frequencies, signed=False, bar="radians")
        second.set(title="angles: position · frequency", xlabel="pair")
        second.set_yticks(at, rows)
        second.xaxis.get_major_locator().set_params(integer=True)
        channels = list(pairs[index])
        reach = 1.35 * float(np.max(np.hypot(*after[:, channels].T)))
        plane(last, colors, reach)
        ticks = max(np.floor(reach), 1.0) * np.array([-1, 0, 1])
        last.set(xticks=ticks, yticks=ticks)
        for position, shade in enumerate(tokens_as_colors(len(words), colors)):
            hand(last, x[position, channels], colors.faint, linewidth=1.0)
            hand(last, after[position, channels], shade)
            tip = after[position, channels]
            place = tip * (1 + 0.09 * reach / max(float(np.hypot(*tip)), 1e-6))  # beyond the tip, even of a short hand
            last.annotate(f"{position}", place, color=colors.ink, fontsize=SMALL, ha="center", va="center")
        last.set(title=f"pair {index} in its plane\ngray: before", xlabel=f"channel {channels[0]}")
        last.set_ylabel(f"channel {channels[1]}")
        return canvas.figure
