"""Pictures of rotary encodings: pairs of channels turning in their planes, still and moving, and all their angles."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._encoding import Dims, Encoding, Params
from pejax._encodings.sinusoidal import sinusoidal_embedding
from pejax._ops.rotary import rope_apply
from pejax._visualize.animation import Animation
from pejax._visualize.layer import (
    applied,
    check_axes,
    check_count,
    check_hooks,
    extent_of,
    refuse,
    settled,
    trained_length,
)
from pejax._visualize.style import (
    THEMES,
    Axes,
    Figure,
    Theme,
    chosen,
    color_bar,
    grid,
    heat_map,
    legend,
    mark_trained,
    new_figure,
    theme_of,
    titled,
)
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


def plot_needle(
    *,
    vector: Sequence[float] = (1.0, 0.0),
    angle: float = np.pi / 2,
    positions: int = 4,
    theme: str = "light",
) -> Figure:
    """Draw a vector of two channels as a needle that each position turns further by one angle.

    `x_p = R(p · angle) x`: with a right angle, (1, 0) becomes (0, 1), (-1, 0) and (0, -1)

    Args:
        vector: x, the needle at position 0.
        angle: radians per token.
        positions: how many, from 0 on, at most 12.
        theme: "light" or "dark".

    Raises:
        ValueError: a vector of another size or of length 0, positions outside 1 ... 12, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2.1.

    Example:
        >>> figure = pejax.visualize.plot_needle(positions=4)
    """
    colors = theme_of("plot_needle", theme)
    if len(vector) != 2 or not np.any(vector):
        refuse("plot_needle", "vector must be two numbers, not both 0", tuple(vector))
    if not 1 <= positions <= 12:
        refuse("plot_needle", "positions must be from 1 to 12", positions)
    tips = _needle(vector, angle, np.arange(positions))
    figure, panels = new_figure(colors, panel=(4.6, 4.4))
    axes, long = panels[0, 0], float(np.linalg.norm(vector))
    plane(axes, colors, 1.7 * max(long, 1.0))
    for position, (tip, color) in enumerate(zip(tips, tokens_as_colors(positions, colors), strict=True)):
        hand(axes, tip, color)
        x, y = (round(float(one), 2) + 0.0 for one in tip)
        axes.annotate(
            f"position {position}\n[{x:g}, {y:g}]", tip, xytext=tip * (1.36, 1.22), ha="center", va="center",
            fontsize=8, color=colors.ink,
        )  # fmt: skip
    axes.plot(*tips.T, "o", markersize=3, color=colors.ink)
    axes.set(xlabel="channel 0", ylabel="channel 1", title=f"{angle:.3g} radians per token")
    return figure


def _needle(vector: Any, angle: float, positions: np.ndarray) -> Float[np.ndarray, "T 2"]:
    """Return the needle at these positions."""
    x = jnp.broadcast_to(jnp.asarray(vector, jnp.float32), (len(positions), 1, 2))
    return np.asarray(rope_apply(x, jnp.asarray(positions), np.array([angle], np.float32)))[:, 0]


def animate_needle(
    *,
    distance: int = 3,
    angle: float = np.pi / 8,
    positions: int = 32,
    theme: str = "light",
) -> Animation:
    """Animate two needles, a query and a key some tokens before it, moving along the sequence together.

    RoPE turns both, so that their product stays: `(R_m q) · (R_n k) = q · R_{n-m} k`. A sinusoid is added to both, so
    that their product changes with the position: `(q + E_m) · (k + E_n)`.

    Args:
        distance: between query and key, tokens.
        angle: radians per token.
        positions: of the query, from `distance` on: frames.
        theme: "light" or "dark".

    Returns:
        The animation, saved by `save("name.gif")` or `save("name.html")`.

    Raises:
        ValueError: a distance below 0, no position, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 12; Vaswani et al. 2017 (arXiv 1706.03762), section 3.5.

    Example:
        >>> animation = pejax.visualize.animate_needle(positions=4)
    """
    colors = theme_of("animate_needle", theme)
    check_count("animate_needle", positions=positions)
    if distance < 0:
        refuse("animate_needle", "distance must be at least 0", distance)
    at = np.arange(positions) + distance
    q, k = np.array([1.0, 0.0]), np.array([0.8, 0.6])
    # one pair of channels of a sinusoid: sine and cosine of position · angle, which is position · angle at base 1
    added = lambda at: np.asarray(sinusoidal_embedding(jnp.asarray(at * angle, jnp.float32), 2, base=1.0))
    moved = {
        "rotated (RoPE)": (_needle(q, angle, at), _needle(k, angle, at - distance)),
        "pushed (sinusoid)": (q + added(at), k + added(at - distance)),
    }
    figure, panels = new_figure(colors, 1, 3, panel=(3.6, 3.5))
    products = {name: np.sum(a * b, axis=1) for name, (a, b) in moved.items()}

    def draw(i: int) -> None:
        for (name, sides), axes in zip(moved.items(), panels[0], strict=False):
            axes.clear()
            plane(axes, colors, 2.4)
            for side, (label, one) in enumerate(
                zip((f"query at {at[i]}", f"key at {at[i] - distance}"), sides, strict=True)
            ):
                hand(axes, one[i], colors.lines[side])
                axes.plot([], [], color=colors.lines[side], linewidth=2, label=label)
            axes.set(title=f"{name}\nq·k = {products[name][i]:+.2f}", xlabel="channel 0", ylabel="channel 1")
            legend(axes, colors, loc="lower left")
        last = panels[0, 2]
        last.clear()
        for side, (name, line) in enumerate(products.items()):
            last.plot(at[: i + 1], line[: i + 1], color=colors.lines[2 + side], linewidth=1.8, label=name)
            last.plot(at[i], line[i], "o", color=colors.lines[2 + side])
        low, high = (edge(np.concatenate(list(products.values()))) for edge in (np.min, np.max))
        last.set(xlim=(at[0] - 1, at[-1] + 1), ylim=(low - 0.4, high + 1.4), xlabel="position of the query, tokens")
        last.set(ylabel="q·k", title=f"distance {distance}\nthroughout")
        grid(last, colors)
        legend(last, colors, loc="upper right")

    draw(0)
    return Animation(figure, draw, positions, title="Two needles: rotated, and pushed")


def plot_rotation(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    positions: int = 12,
    pairs: Sequence[int] | None = None,
    head: int = 0,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw pairs of channels in their planes: where the vector (1, 0) points at every position.

    `x_p = R(p · f_i) (1, 0)` for pair i with frequency f_i; on more axes the position grows on the first

    Args:
        encoding: that rotates.
        dims: it was made for.
        params: its parameters, not yet adapted. None = the initial ones.
        positions: how many, from 0 on.
        pairs: those drawn, in the order of their channels. None = four, spread over all.
        head: whose pairs.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: an encoding that rotates nothing, no position, a pair or head that is not there, an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2.2.

    Example:
        >>> dims = pejax.Dims(heads=2, head_dim=16)
        >>> figure = pejax.visualize.plot_rotation(pejax.encodings.rope(dims), dims)
    """
    picture, colors = "plot_rotation", theme_of("plot_rotation", theme)
    tips, frequencies = _clock(picture, encoding, dims, params, positions, head)
    shown = chosen(picture, "pairs", pairs, len(frequencies), 4)
    heading = titled(name, f"the same vector at positions 0 to {positions - 1}")
    figure, panels = new_figure(colors, 1, len(shown), panel=(3.0, 3.1), title=heading)
    shades, unit = tokens_as_colors(positions, colors), "token" if dims.axes == 1 else "patch"
    for axes, pair in zip(panels[0], shown, strict=True):
        plane(axes, colors)
        for tip, shade in zip(tips[:, pair], shades, strict=True):
            hand(axes, tip, shade, linewidth=1.3)
        axes.set(title=f"pair {pair}\n{frequencies[pair]:.2g} radians per {unit}", xlabel="first channel of the pair")
    panels[0, 0].set_ylabel("second channel of the pair")
    _position_scale(figure, panels, colors, positions)
    return figure


def _position_scale(figure: Figure, panels: Any, colors: Theme, positions: int) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    scale = ScalarMappable(Normalize(-0.5, positions - 0.5), ListedColormap(tokens_as_colors(positions, colors)))
    color_bar(figure, scale, list(panels.flat), colors, "position, tokens", shrink=0.8, pad=0.01)


def _clock(
    picture: str, encoding: Encoding, dims: Dims, params: Params | None, positions: int, head: int
) -> tuple[Float[np.ndarray, "T F 2"], Float[np.ndarray, " F"]]:
    """Return where the unit vectors of one head point at each position on the first axis, and their frequencies."""
    check_hooks(picture, encoding, "rotate")
    check_count(picture, positions=positions)
    chosen(picture, "head", [head], dims.heads, 1)
    extent = extent_of(picture, dims, None) if dims.axes > 1 else max(positions, trained_length(dims) or 1)
    params = settled(encoding, params, extent)
    at = np.zeros((positions, dims.axes), int)
    at[:, 0] = np.arange(positions)
    tips = unit_vectors(picture, encoding, dims, params, at)[:, head]
    return tips, measured_frequencies(picture, encoding, dims, params)[head, 0]


def animate_rotation(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    positions: int = 40,
    pairs: Sequence[int] | None = None,
    head: int = 0,
    name: str | None = None,
    theme: str = "light",
) -> Animation:
    """Animate pairs of channels as hands of clocks: each turns at its own speed as the position grows.

    `x_p = R(p · f_i) (1, 0)` for pair i with frequency f_i, radians per token

    Args:
        encoding: that rotates.
        dims: it was made for.
        params: its parameters, not yet adapted. None = the initial ones.
        positions: frames, one per token.
        pairs: those drawn. None = four, spread over all.
        head: whose pairs.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Returns:
        The animation, saved by `save("name.gif")` or `save("name.html")`.

    Raises:
        ValueError: as `plot_rotation`.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2.2.

    Example:
        >>> dims = pejax.Dims(heads=2, head_dim=16)
        >>> animation = pejax.visualize.animate_rotation(pejax.encodings.rope(dims), dims, positions=3)
    """
    picture, colors = "animate_rotation", theme_of("animate_rotation", theme)
    tips, frequencies = _clock(picture, encoding, dims, params, positions, head)
    shown = chosen(picture, "pairs", pairs, len(frequencies), 4)
    unit = "token" if dims.axes == 1 else "patch"
    figure, panels = new_figure(colors, 1, len(shown), panel=(2.6, 2.9), title=titled(name, "position 0"))

    def draw(i: int) -> None:
        figure.suptitle(titled(name, f"position {i}"), color=colors.ink, fontsize=12)
        for side, (axes, pair) in enumerate(zip(panels[0], shown, strict=True)):
            axes.clear()
            plane(axes, colors)
            axes.plot(*tips[max(0, i - 12) : i + 1, pair].T, ".", color=colors.faint, markersize=4)
            hand(axes, tips[i, pair], colors.lines[side % len(colors.lines)], linewidth=2.4)
            axes.set(title=f"pair {pair}\n{frequencies[pair]:.2g} radians per {unit}", xlabel="first channel")
        panels[0, 0].set_ylabel("second channel")

    draw(0)
    return Animation(figure, draw, positions, title=titled(name, "pairs of channels turn with the position"))


def plot_rotary_steps(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    words: Sequence[str] = ("the", "dog", "bites", "the", "man"),
    pair: int = 1,
    head: int = 0,
    seed: int = 0,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw how a query gets its position: cut into pairs of channels, each turned by position times its frequency.

    `x'_p = diag over pairs i of R(p · f_i) · x_p`. Equal words have equal queries, and are turned apart.

    Args:
        encoding: that rotates.
        dims: it was made for, on one axis.
        params: its parameters, not yet adapted. None = the initial ones.
        words: of a sentence, each with a random query of its own.
        pair: drawn in its plane, before and after.
        head: whose queries.
        seed: of the queries.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: an encoding that rotates nothing, more than one axis, no words, a pair or head that is not there, or
            an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), figure 1 and equation 15.

    Example:
        >>> dims = pejax.Dims(heads=1, head_dim=8)
        >>> figure = pejax.visualize.plot_rotary_steps(pejax.encodings.rope(dims), dims)
    """
    picture, colors = "plot_rotary_steps", theme_of("plot_rotary_steps", theme)
    check_hooks(picture, encoding, "rotate")
    check_axes(picture, dims, 1)
    check_count(picture, words=len(words))
    chosen(picture, "head", [head], dims.heads, 1)
    rotate = encoding.rotate
    assert rotate is not None  # checked above
    params = settled(encoding, params, max(len(words), trained_length(dims) or 1))
    known = {word: i for i, word in enumerate(dict.fromkeys(words))}
    draws = jax.random.normal(jax.random.key(seed), (len(known), dims.heads, dims.head_dim), jnp.float32)
    before: Array = draws[np.array([known[word] for word in words])]
    at = np.arange(len(words))
    after = np.asarray(applied(rotate, params, before, jnp.asarray(at)))[:, head]
    x = np.asarray(before)[:, head]
    pairs = planes_of(picture, encoding, dims, params)
    (shown,) = chosen(picture, "pair", [pair], len(pairs), 1)
    frequencies = measured_frequencies(picture, encoding, dims, params)[head, 0]
    heading, widths = titled(name, "queries, turned pair by pair"), [1.0, 1.15, 1.2, 1.15]
    figure, panels = new_figure(colors, 1, 4, panel=(4.0, 3.6), title=heading, width_ratios=widths)
    top = float(np.max(np.abs([x, after])))
    rows = [f"{position}  {word}" for position, word in enumerate(words)]
    for axes, matrix, label in ((panels[0, 0], x, "queries"), (panels[0, 2], after, "queries, rotated")):
        image = heat_map(axes, matrix, colors, signed=True, top=top)
        for edge in np.arange(1.5, dims.head_dim - 1, 2):
            axes.axvline(edge, color=colors.faint, linewidth=0.6)
        axes.set(title=label, xlabel="channel")
        axes.set_yticks(at, rows)
    color_bar(figure, image, panels[0, 2], colors, "value")
    angles = heat_map(panels[0, 1], at[:, None] * frequencies, colors, signed=False)
    panels[0, 1].set(title="angles: position · frequency", xlabel="pair")
    panels[0, 1].set_yticks(at, rows)
    color_bar(figure, angles, panels[0, 1], colors, "radians")
    axes, channels = panels[0, 3], list(pairs[shown])
    reach = 1.35 * float(np.max(np.hypot(*after[:, channels].T)))
    plane(axes, colors, reach)
    axes.set(xticks=np.round([-reach / 1.35, 0, reach / 1.35], 1), yticks=np.round([-reach / 1.35, 0, reach / 1.35], 1))
    for position, shade in enumerate(tokens_as_colors(len(words), colors)):
        hand(axes, x[position, channels], colors.faint, linewidth=1.0)
        hand(axes, after[position, channels], shade)
        axes.annotate(f"{position}", 1.12 * after[position, channels], color=colors.ink, fontsize=8, ha="center")
    axes.set(title=f"pair {shown} in its plane\ngray: before", xlabel=f"channel {channels[0]}")
    axes.set_ylabel(f"channel {channels[1]}")
    return figure


def plot_rotation_angles(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    length: int | None = None,
    head: int = 0,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw the angles of a rotary encoding by position and pair, and their cosines.

    `angle[p, i] = p · f_i`, `cos(angle[p, i])`: what a pair of query and key at distance p is multiplied by.

    Args:
        encoding: that rotates.
        dims: it was made for, on one axis.
        params: its parameters, not yet adapted. None = the initial ones.
        length: T, tokens. None = the trained length. The end of the trained positions is marked.
        head: whose pairs.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: an encoding that rotates nothing, more than one axis, a length below 1, a head that is not there, or
            an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 15.

    Example:
        >>> dims = pejax.Dims(heads=2, head_dim=16, extent=32)
        >>> figure = pejax.visualize.plot_rotation_angles(pejax.encodings.rope(dims), dims, length=64)
    """
    picture, colors = "plot_rotation_angles", theme_of("plot_rotation_angles", theme)
    check_hooks(picture, encoding, "rotate")
    check_axes(picture, dims, 1)
    chosen(picture, "head", [head], dims.heads, 1)
    extent = extent_of(picture, dims, length)
    assert isinstance(extent, int)  # one axis
    params = settled(encoding, params, extent)
    at = np.arange(extent)
    angles = at[:, None] * measured_frequencies(picture, encoding, dims, params)[head, 0]
    cosines = unit_vectors(picture, encoding, dims, params, at[:, None])[:, head, :, 0]
    figure, panels = new_figure(colors, 1, 2, panel=(4.8, 3.9), title=titled(name, "rotation by position and pair"))
    trained = trained_length(dims)
    for axes, matrix, label, signed in (
        (panels[0, 0], angles, "angle, radians", bool(np.any(angles < 0))),
        (panels[0, 1], cosines, "cosine of the angle", True),
    ):
        image = heat_map(axes, matrix, colors, signed=signed)
        if trained is not None and trained < extent:
            mark_trained(axes, colors, trained - 0.5, horizontal=True)
            axes.annotate(
                f"trained: {trained} tokens", (0.03, trained - 0.5), xycoords=("axes fraction", "data"), fontsize=8,
                va="bottom", color=colors.ink, bbox={"facecolor": colors.paper, "edgecolor": "none", "pad": 1},
            )  # fmt: skip
        axes.set(xlabel="pair of channels", ylabel="position, tokens", title=label.partition(",")[0])
        color_bar(figure, image, axes, colors, label)
    return figure
