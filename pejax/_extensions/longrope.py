"""LongRoPE: every pair has its own factor, from one list up to the trained length and from another beyond it."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float

from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Length,
    by_axis,
    by_channel,
    check_factors,
    known_length,
    log_factor,
    pair_index,
    positive,
    resolve_factor,
    scaled,
    together,
)
from pejax._extensions.extension import Extension, extension


def extend_longrope(
    frequencies: Frequencies,
    *,
    base: float,
    rotary_dim: int,
    trained_length: int | tuple[int, ...] | None,
    factor: Factor | None = None,
    length: Length | None = None,
    base_frequencies: Frequencies | None = None,
    long_factors: Sequence[float] | Float[Array | np.ndarray, " n"],
    short_factors: Sequence[float] | Float[Array | np.ndarray, " n"] | None = None,
    attention_factor: float | None = None,
) -> Extended:
    """Divide each pair by its own factor, found by search: one list up to the trained length, another beyond it.

    `f'_i = f_i / λ_i`, λ the long factors if L' > L, else the short ones; queries and keys are multiplied by
    `sqrt(1 + ln s / ln L)`.

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        base: of the unscaled frequencies, above 1.
        rotary_dim: d, number of rotated channels; D/A on A axes.
        trained_length: L, at least 2 tokens, or one length per axis.
        factor: s, at least 1, for the attention factor only. None = max(1, L' / L), on each axis.
        length: L', the current length, tokens, or one per axis; a single length may be traced. None = up to L: the
            short factors apply.
        base_frequencies: the unscaled frequencies, if `frequencies` were extended before. None = `frequencies`.
        long_factors: d/2 positive numbers, the fastest pair first; an array may be traced (`search_longrope`).
        short_factors: likewise. None = 1 for every pair.
        attention_factor: multiplies queries and keys in place of `sqrt(1 + ln s / ln L)`.

    Returns:
        The frequencies, float32, and the attention factor: one number, or `(F,)` where some channels are not rotated (1
        there) or axes differ.

    Raises:
        ValueError: as in `extend_ntk`; or a list that is not d/2 positive numbers, or a trained length below 2.

    Reference:
        Ding et al. 2024, "LongRoPE" (arXiv 2402.13753), section 3; transformers' rope type "longrope".
    """
    resolved = resolve_factor(frequencies, trained_length, factor, length)
    trained = by_axis(known_length("longrope", trained_length))
    if np.min(trained) < 2:
        raise ValueError(f"longrope needs a trained length of at least 2, got {trained_length}")
    unscaled = frequencies if base_frequencies is None else base_frequencies
    index = pair_index(unscaled, base, rotary_dim)
    short_factors = [1.0] * (rotary_dim // 2) if short_factors is None else short_factors
    check_factors("long_factors", long_factors, rotary_dim // 2)
    check_factors("short_factors", short_factors, rotary_dim // 2)
    xp, (index, long, short) = together(index, long_factors, short_factors)
    place = xp.clip(xp.round(index), 0, rotary_dim // 2 - 1).astype(xp.int32)
    size = trained if length is None else by_axis(length)
    xp, (long, short, size, limit) = together(long[place], short[place], size, trained)
    divisor = xp.where(size > limit, long, short)
    if attention_factor is None:
        attention_factor = (log_factor(resolved, 1.0 / np.log(trained)) + 1.0) ** 0.5
    else:
        positive("attention_factor", attention_factor)
    return scaled(frequencies, 0.0, divisor), by_channel(attention_factor, unscaled)


def longrope(
    *,
    long_factors: Sequence[float],
    short_factors: Sequence[float] | None = None,
    factor: float | None = None,
    trained_length: int | tuple[int, ...] | None = None,
    attention_factor: float | None = None,
) -> Extension:
    """Return LongRoPE as an encoding's `extend`: `extend_longrope` for its frequencies.

    Args:
        long_factors: one number above 0 per pair, the fastest pair first, for lengths beyond the trained one.
        short_factors: the same for lengths up to the trained one. None = 1 for every pair.
        factor: s, at least 1, for the attention factor only. None = it follows from the current length.
        trained_length: L, at least 2 tokens, or one length per axis. None = the encoding's `Dims.extent`.
        attention_factor: factor that multiplies queries and keys. None = `sqrt(1 + ln s / ln L)`.
    """
    lists = {"long_factors": long_factors, "short_factors": short_factors}
    factors = {key: None if one is None else tuple(map(float, one)) for key, one in lists.items()}
    options = {"factor": factor, "trained_length": trained_length, "attention_factor": attention_factor}
    return extension("longrope", "frequencies", extend_longrope, factors | options, by_length=True)
