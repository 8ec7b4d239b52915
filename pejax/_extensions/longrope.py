"""LongRoPE: every pair has its own factor, from one list up to the trained length and from another beyond it."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float

from pejax._calls.arguments import checked
from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Number,
    Rotary,
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
    unextended,
)
from pejax._extensions.extension import extension_factory


@checked
def extend_longrope(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    long_factors: Sequence[float] | Float[Array | np.ndarray, " n"],
    short_factors: Sequence[float] | Float[Array | np.ndarray, " n"] | None = None,
    factor: Factor | None = None,
    trained_length: int | tuple[int, ...] | None = None,
    attention_factor: Number | None = None,
) -> Extended:
    """Divide each pair by its own factor, found by search: one list up to the trained length, another beyond it.

    `f'_i = f_i / λ_i`, λ the long factors if L' > L, else the short ones; queries and keys are multiplied by
    `sqrt(1 + ln s / ln L)`.

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies, and L', its current length. None = up to L: the short factors
            apply.
        long_factors: d/2 positive numbers, the fastest pair first, for lengths above L; an array may be traced
            (`search_longrope`).
        short_factors: the same for lengths up to L. None = 1 for every pair.
        factor: s, at least 1, for the attention factor only. None = max(1, L' / L), on each axis.
        trained_length: L, at least 2 tokens, or one length per axis.
        attention_factor: multiplies queries and keys in place of `sqrt(1 + ln s / ln L)`; it may be traced.

    Returns:
        The frequencies, float32, and the attention factor: one number, or `(F,)` where some channels are not rotated (1
        there) or axes differ.

    Raises:
        ValueError: as in `extend_ntk`; or a list that is not d/2 positive numbers, a trained length below 2, or
            a rotary_dim per axis.

    Reference:
        Ding et al. 2024, "LongRoPE" (arXiv 2402.13753), section 3; transformers' rope type "longrope".
    """
    resolved = resolve_factor(frequencies, rotary, trained_length, factor)
    trained = by_axis(known_length("longrope", rotary, trained_length))
    if np.min(trained) < 2:
        raise ValueError(f"longrope needs a trained length of at least 2, got {trained_length}")
    if isinstance(rotary.rotary_dim, tuple):
        raise ValueError(f"longrope needs one rotary_dim for all axes, got {rotary.rotary_dim}")
    index, pairs = pair_index(frequencies, rotary), rotary.rotary_dim // 2
    short_factors = [1.0] * pairs if short_factors is None else short_factors
    check_factors("long_factors", long_factors, pairs)
    check_factors("short_factors", short_factors, pairs)
    xp, (index, long, short) = together(index, long_factors, short_factors)
    place = xp.clip(xp.round(index), 0, pairs - 1).astype(xp.int32)
    size = trained if rotary.length is None else by_axis(rotary.length)
    xp, (long, short, size, limit) = together(long[place], short[place], size, trained)
    divisor = xp.where(size > limit, long, short)
    if attention_factor is None:
        attention_factor = (log_factor(resolved, 1.0 / np.log(trained)) + 1.0) ** 0.5
    else:
        positive("attention_factor", attention_factor)
    return scaled(frequencies, 0.0, divisor), by_channel(attention_factor, unextended(frequencies, rotary))


longrope = extension_factory("longrope", "frequencies", extend_longrope, varies=True)
