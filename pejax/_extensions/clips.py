"""Clipping: the slowest pairs are slowed further, or stop, since training never showed a whole turn of them."""

import math

import numpy as np
from jax.core import Tracer

from pejax._calls.arguments import checked
from pejax._extensions.base import (
    Extended,
    Frequencies,
    Rotary,
    by_axis,
    check_lengths,
    check_some,
    known_length,
    pair_index,
    together,
    unextended,
)
from pejax._extensions.extension import extension_factory


@checked
def extend_soft_clip(frequencies: Frequencies, rotary: Rotary, *, pairs: int = 20) -> Extended:
    """Slow the last pairs down, each more than the one before, until the slowest one stops (soft clipping, "CoPE").

    `f'_{p-n+j} = f_{p-n+j} · ½(1 + cos(π j / (n - 1)))` for j = 0 ... n - 1, of p pairs that turn

    On axes with frequencies of their own, the last n pairs of each axis.

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies.
        pairs: n, at least 2; 20 of the 64 pairs of a head in the paper, after YaRN or with a larger base.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: fewer than 2 pairs, or more than turn, on any axis; for traced frequencies, more than half the
            rotary_dim.

    Reference:
        "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs" (arXiv 2602.05258); no relative of
        contextual position encoding, which has the same name.

    Examples:
        >>> import pejax
        >>> dims = pejax.Dims(heads=8, head_dim=128, extent=4096)
        >>> long = pejax.extensions.yarn(factor=8) + pejax.extensions.soft_clip()
        >>> rope = pejax.encodings.rope(dims, extend=long)
    """
    check_some(frequencies)
    xp, (unscaled, extended) = together(unextended(frequencies, rotary), frequencies)
    index = xp.round(pair_index(unscaled, rotary._replace(base_frequencies=None)))
    turning = xp.where(unscaled == 0, 0.0, index + 1.0)
    count = turning.max(axis=-1, keepdims=True) if isinstance(rotary.rotary_dim, tuple) else turning.max()
    most = int(np.min(rotary.rotary_dim)) // 2 if isinstance(count, Tracer) else int(count.min())
    if not 2 <= pairs <= most:
        got = f"{pairs} of frequencies {frequencies.shape}"
        raise ValueError(f"pairs must be from 2 to {most}, the pairs that turn, got {got}")
    place = xp.clip((index - (count - pairs)) / (pairs - 1), 0.0, 1.0)
    return (extended * 0.5 * (1.0 + xp.cos(math.pi * place))).astype(xp.float32), 1.0


soft_clip = extension_factory("soft_clip", "frequencies", extend_soft_clip)


@checked
def extend_hard_clip(
    frequencies: Frequencies, rotary: Rotary, *, trained_length: int | tuple[int, ...] | None = None
) -> Extended:
    """Stop every pair whose period is longer than the trained length: it made no whole turn in training.

    `f'_i = 0` if `2π / f_i > L`, else `f_i`

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies; periods are those before any extension.
        trained_length: L, tokens, or one length per axis.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: no trained length, one below 1, or another number of lengths than the frequencies have axes.

    Reference:
        Chen et al. 2024, "HoPE: A Novel Positional Encoding Without Long-Term Decay" (arXiv 2410.21216); there, and in
        FoPE (arXiv 2412.17739), the model is trained so.
    """
    check_some(frequencies)
    check_lengths(frequencies, rotary, trained_length)
    trained = by_axis(known_length("hard_clip", rotary, trained_length))
    xp, (unscaled, extended, trained) = together(unextended(frequencies, rotary), frequencies, trained)
    return xp.where(xp.abs(unscaled) * trained < math.tau, 0.0, extended).astype(xp.float32), 1.0


hard_clip = extension_factory("hard_clip", "frequencies", extend_hard_clip)
