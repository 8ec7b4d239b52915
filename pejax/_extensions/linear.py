"""Linear scaling: every frequency is divided by one factor."""

from pejax._calls.arguments import checked
from pejax._extensions.base import Extended, Factor, Frequencies, Rotary, resolve_factor, scaled
from pejax._extensions.extension import extension_factory


@checked
def extend_linear(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    factor: Factor | None = None,
    trained_length: int | tuple[int, ...] | None = None,
) -> Extended:
    """Divide every frequency by the factor: position interpolation, without rounding the positions.

    `f'_i = f_i / s`

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies, and L', its current length.
        factor: s, at least 1 (not checked if traced); one number, or one per axis. None = max(1, L' / L), on each
            axis.
        trained_length: L, tokens, or one length per axis. Required if `factor` is None.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: a factor below 1, neither factor nor length, no trained length if it is required, lengths below 1,
            or another number of lengths than the frequencies have axes.

    Reference:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"
        (arXiv 2306.15595), equation 3.
    """
    return scaled(frequencies, 0.0, resolve_factor(frequencies, rotary, trained_length, factor)), 1.0


linear = extension_factory("linear", "frequencies", extend_linear)
