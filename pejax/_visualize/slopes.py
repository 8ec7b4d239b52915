"""A picture of the slopes of ALiBi."""

from collections.abc import Sequence

import numpy as np

from pejax._encodings.alibi import alibi_slopes, scale_alibi_slopes
from pejax._visualize.layer import check_count, refuse
from pejax._visualize.style import WIDE, Canvas, Figure, theme_of


def plot_slopes(
    *,
    heads: Sequence[int] = (8, 12, 16),
    trained_length: int | None = None,
    length: int | None = None,
    theme: str = "light",
) -> Figure:
    """Draw ALiBi's slopes against the heads, for models with these numbers of heads.

    `m_h = 2^(-8(h+1)/H)` for H a power of two, the steepest first; for others, `alibi_slopes`. With lengths, also the
    scaled slopes `m_h · L/L'`.

    Args:
        heads: numbers of heads H, one per curve.
        trained_length: L, tokens.
        length: L', tokens.
        theme: "light" or "dark".

    Raises:
        ValueError: no H or one below 1, one of the lengths alone or below 1, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Press et al. 2022 (arXiv 2108.12409), section 3; Al-Khateeb et al. 2023 (arXiv 2310.13017), section 3.

    Examples:
        >>> figure = pejax.visualize.plot_slopes(heads=(8, 12), trained_length=512, length=2048)
    """
    picture, colors = "plot_slopes", theme_of("plot_slopes", theme)
    if not heads:
        refuse(picture, "heads must be at least one number", tuple(heads))
    if (trained_length is None) != (length is None):
        refuse(picture, "trained_length and length go together", f"{trained_length} and {length}")
    check_count(picture, **{f"heads[{i}]": count for i, count in enumerate(heads)})
    canvas = Canvas(colors, panel=(WIDE, 3.6))
    axes = canvas.panels[0, 0]
    for i, count in enumerate(heads):
        slopes, style = alibi_slopes(count), canvas.line(i)
        size = max(9 - 2.5 * i, 3)  # of curves that coincide, all are seen
        axes.plot(np.asarray(slopes), marker="o", markersize=size, label=f"{count} heads", **style)
        if trained_length is not None and length is not None:
            check_count(picture, trained_length=trained_length, length=length)
            scaled = np.asarray(scale_alibi_slopes(slopes, trained_length, length))
            note = f"{count} heads, scaled for {length} tokens, trained on {trained_length}"
            axes.plot(scaled, marker="s", markersize=3, color=style["color"], linestyle=":", label=note)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="head", ylabel="slope, logits per token", title="ALiBi: slope of each head")
    axes.xaxis.get_major_locator().set_params(integer=True)
    canvas.grid(axes)
    canvas.legend(canvas.figure, loc="outside lower center")
    return canvas.figure
