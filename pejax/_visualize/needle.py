"""The needle: one position as hands that turn at different speeds, still and animated."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._encodings.sinusoidal import sinusoidal_embedding
from pejax._ops.rotary import rope_apply
from pejax._visualize.animation import Animation
from pejax._visualize.layer import check_count, refuse
from pejax._visualize.rotation import hand, plane, tokens_as_colors
from pejax._visualize.style import SMALL, Canvas, Figure, theme_of


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
        positions: number of positions, from 0 on, at most 12.
        theme: "light" or "dark".

    Raises:
        ValueError: a vector of another size or of length 0, positions outside 1 ... 12, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2.1.

    Examples:
        >>> figure = pejax.visualize.plot_needle(positions=4)
    """
    colors = theme_of("plot_needle", theme)
    if len(vector) != 2 or not np.any(vector):
        refuse("plot_needle", "vector must be two numbers, not both 0", tuple(vector))
    if not 1 <= positions <= 12:
        refuse("plot_needle", "positions must be from 1 to 12", positions)
    tips = _needle(vector, angle, np.arange(positions))
    canvas = Canvas(colors, panel=(4.6, 4.4))
    axes, long = canvas.panels[0, 0], float(np.linalg.norm(vector))
    plane(axes, colors, 1.7 * max(long, 1.0))
    for position, (tip, color) in enumerate(zip(tips, tokens_as_colors(positions, colors), strict=True)):
        hand(axes, tip, color)
        x, y = (round(float(number), 2) + 0.0 for number in tip)
        axes.annotate(
            f"position {position}\n[{x:g}, {y:g}]", tip, xytext=tip * (1.36, 1.22), ha="center", va="center",
            fontsize=SMALL, color=colors.ink,
        )  # fmt: skip
    axes.plot(*tips.T, "o", markersize=3, color=colors.ink)
    axes.set(xlabel="channel 0", ylabel="channel 1", title=f"{angle:.3g} radians per token")
    return canvas.figure


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
        distance: distance between query and key, tokens.
        angle: radians per token.
        positions: number of positions of the query, from `distance` on: one per frame.
        theme: "light" or "dark".

    Returns:
        The animation, saved by `save("name.gif")` or `save("name.html")`.

    Raises:
        ValueError: a distance below 0, no position, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 12; Vaswani et al. 2017 (arXiv 1706.03762), section 3.5.

    Examples:
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
    canvas = Canvas(colors, 1, 3, panel=(3.6, 3.5))
    products = {name: np.sum(a * b, axis=1) for name, (a, b) in moved.items()}

    def draw(i: int) -> None:
        for (name, sides), axes in zip(moved.items(), canvas.panels[0], strict=False):
            canvas.redress(axes)
            plane(axes, colors, 2.4)
            labels = (f"query at {at[i]}", f"key at {at[i] - distance}")
            for color, label, numbers in zip(colors.lines, labels, sides, strict=False):
                hand(axes, numbers[i], color)
                axes.plot([], [], color=color, linewidth=2, label=label)
            axes.set(title=f"{name}\nq·k = {products[name][i]:+.2f}", xlabel="channel 0", ylabel="channel 1")
            canvas.legend(axes, loc="lower left")
        last = canvas.panels[0, 2]
        canvas.redress(last)
        for side, (name, line) in enumerate(products.items()):
            last.plot(at[: i + 1], line[: i + 1], color=colors.lines[2 + side], linewidth=1.8, label=name)
            last.plot(at[i], line[i], "o", color=colors.lines[2 + side])
        low, high = (edge(np.concatenate(list(products.values()))) for edge in (np.min, np.max))
        last.set(xlim=(at[0] - 1, at[-1] + 1), ylim=(low - 0.4, high + 1.4), xlabel="position of the query, tokens")
        last.set(ylabel="q·k", title=f"distance {distance}\nthroughout")
        canvas.grid(last)
        canvas.legend(last, loc="upper right")

    draw(0)
    return Animation(canvas.figure, draw, positions, title="Two needles: rotated, and pushed")
