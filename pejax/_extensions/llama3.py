"""Llama 3.1's scaling: slow pairs are divided by the factor, fast ones are not."""

import math

from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Length,
    by_axis,
    known_length,
    resolve_factor,
    scaled,
    together,
)
from pejax._extensions.extension import Extension, extension


def extend_llama3(
    frequencies: Frequencies,
    *,
    base: float | None = None,
    rotary_dim: int | None = None,
    trained_length: int | tuple[int, ...] | None,
    factor: Factor | None = None,
    length: Length | None = None,
    base_frequencies: Frequencies | None = None,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Extended:
    """Divide slow pairs by the factor, leave fast ones, blend by the turns a pair makes (Llama 3.1).

    `f'_i = f_i · ((1 - k_i) / s + k_i)`, `k_i = (L·f_i / 2π - low) / (high - low)` kept within 0 ... 1

    Args:
        frequencies: radians per token.
        base: not needed; every extension takes it.
        rotary_dim: likewise.
        trained_length: L, tokens, or one per axis.
        factor: s, like `length` as in `extend_linear`; 8 in Llama 3.1, 32 in the small models of Llama 3.2.
        length: L'.
        base_frequencies: the unscaled frequencies, where `frequencies` were extended before. None = `frequencies`.
        low_freq_factor: turns in L tokens up to which a pair is divided.
        high_freq_factor: turns from which it is left alone.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: as `extend_linear`; or `high_freq_factor` not above `low_freq_factor`, or that not above 0.

    Reference:
        Grattafiori et al. 2024, "The Llama 3 Herd of Models" (arXiv 2407.21783); transformers' rope type "llama3".
    """
    del base, rotary_dim
    if not 0 < low_freq_factor < high_freq_factor < math.inf:
        given = f"{high_freq_factor} and {low_freq_factor}"
        raise ValueError(f"high_freq_factor must be above low_freq_factor, both above 0, got {given}")
    resolved = resolve_factor(frequencies, trained_length, factor, length)
    trained = by_axis(known_length("llama3", trained_length))
    xp, (unscaled, trained) = together(frequencies if base_frequencies is None else base_frequencies, trained)
    turns = trained * xp.abs(unscaled) / math.tau
    keep = xp.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return scaled(frequencies, keep, resolved), 1.0


def llama3(
    *,
    factor: float | None = None,
    trained_length: int | tuple[int, ...] | None = None,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Extension:
    """Return Llama 3.1's scaling as an encoding's `extend`: `extend_llama3` of its frequencies.

    Args:
        factor: s, from 1; 8 in Llama 3.1. None = it follows from the length at hand, on each axis.
        trained_length: L, tokens, or one length per axis. None = the encoding's `Dims.extent`.
        low_freq_factor: turns in L tokens up to which a pair is divided.
        high_freq_factor: turns from which it is left alone.
    """
    options = {"factor": factor, "trained_length": trained_length}
    options |= {"low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor}
    return extension("llama3", "frequencies", extend_llama3, options)
