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
        frequencies: radians per token.
        base: not needed; every extension takes it.
        rotary_dim: likewise.
        trained_length: L, tokens, or one length per axis of `(A, F)`. Needed where the factor is to follow from it.
        factor: s, from 1 (a traced one is not checked). None = max(1, length / trained_length), on each axis.
        length: L', tokens, or one per axis; a number may be traced.
        base_frequencies: not needed; every extension takes it.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: a factor below 1, neither factor nor length, no trained length where it is needed, or lengths below
            1 or of other axes than the frequencies.

    Reference:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"
        (arXiv 2306.15595), equation 3.
    """
    del base, rotary_dim, base_frequencies
    return scaled(frequencies, 0.0, resolve_factor(frequencies, trained_length, factor, length)), 1.0


def linear(*, factor: float | None = None, trained_length: int | tuple[int, ...] | None = None) -> Extension:
    """Return linear scaling as an encoding's `extend`: `extend_linear` of its frequencies.

    Args:
        factor: s, from 1. None = it follows from the length at hand, on each axis.
        trained_length: L, tokens, or one length per axis. None = the encoding's `Dims.extent`.
    """
    return extension("linear", "frequencies", extend_linear, {"factor": factor, "trained_length": trained_length})
