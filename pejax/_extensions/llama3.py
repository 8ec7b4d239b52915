"""Llama 3.1's scaling: the frequencies of slow pairs are divided by the factor, those of fast pairs are not."""

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
    """Divide slow pairs by the factor, keep fast pairs, and blend the pairs in between (Llama 3.1).

    `f'_i = f_i · ((1 - k_i) / s + k_i)`, `k_i = (L·f_i / 2π - low) / (high - low)` clipped to 0 ... 1

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        base: ignored; accepted because other extensions need it.
        rotary_dim: likewise.
        trained_length: L, tokens, or one length per axis.
        factor: s, at least 1; 8 in Llama 3.1, 32 in the small models of Llama 3.2. None = max(1, L' / L), on each axis.
        length: L', the current length, tokens, or one length per axis; a single length may be traced.
        base_frequencies: the unscaled frequencies, if `frequencies` were extended before. None = `frequencies`.
        low_freq_factor: low, in turns per L tokens; pairs that turn less often are divided by s.
        high_freq_factor: high, in turns per L tokens; pairs that turn more often are unchanged.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: as in `extend_linear`; or not 0 < `low_freq_factor` < `high_freq_factor`.

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
    """Return Llama 3.1's scaling as an encoding's `extend`: `extend_llama3` for its frequencies.

    Args:
        factor: s, at least 1; 8 in Llama 3.1. None = it follows from the current length, on each axis.
        trained_length: L, tokens, or one length per axis. None = the encoding's `Dims.extent`.
        low_freq_factor: in turns per L tokens; pairs that turn less often are divided by s.
        high_freq_factor: in turns per L tokens; pairs that turn more often are unchanged.
    """
    options = {"factor": factor, "trained_length": trained_length}
    options |= {"low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor}
    return extension("llama3", "frequencies", extend_llama3, options)
