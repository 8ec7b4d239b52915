"""Linear scaling: every frequency is divided by one factor."""

from pejax._extensions.base import Extended, Factor, Frequencies, Length, resolve_factor, scaled
from pejax._extensions.extension import Extension, extension


def extend_linear(
    frequencies: Frequencies,
    *,
    base: float | None = None,
    rotary_dim: int | None = None,
    trained_length: int | tuple[int, ...] | None = None,
    factor: Factor | None = None,
    length: Length | None = None,
    base_frequencies: Frequencies | None = None,
) -> Extended:
    """Divide every frequency by the factor: position interpolation, without rounding the positions.

    `f'_i = f_i / s`

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        base: ignored; accepted because other extensions need it.
        rotary_dim: likewise.
        trained_length: L, tokens, or one length per axis. Required if `factor` is None.
        factor: s, at least 1 (not checked if traced). None = max(1, L' / L), on each axis.
        length: L', the current length, tokens, or one length per axis; a single length may be traced.
        base_frequencies: ignored, like `base`.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: a factor below 1, neither factor nor length, no trained length if it is required, lengths below 1,
            or another number of lengths than the frequencies have axes.

    Reference:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"
        (arXiv 2306.15595), equation 3.
    """
    del base, rotary_dim, base_frequencies
    return scaled(frequencies, 0.0, resolve_factor(frequencies, trained_length, factor, length)), 1.0


def linear(*, factor: float | None = None, trained_length: int | tuple[int, ...] | None = None) -> Extension:
    """Return linear scaling as an encoding's `extend`: `extend_linear` for its frequencies.

    Args:
        factor: s, at least 1. None = it follows from the current length, on each axis.
        trained_length: L, tokens, or one length per axis. None = the encoding's `Dims.extent`.
    """
    return extension("linear", "frequencies", extend_linear, {"factor": factor, "trained_length": trained_length})
