"""Stretching a trained encoding: functions on frequencies and slopes.

    f'_i = f_i · ratio(i),   i = -d/2 · log_base(f_i) the pair, d the channels that turn

Every `extend_X(frequencies, ...)` returns the frequencies and the factor that multiplies cosine and sine of queries and
keys. Frequencies are `(F,)`, or `(A, F)` on A axes; zeros, of channels that do not turn, stay zero. What is known when
the program is built is computed in float64 and rounded once; what is traced, in float32. Extensions compose:
`base_frequencies` says what `frequencies` were before any of them, and so which pair is which.
"""

import math
from collections.abc import Callable

from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Length,
    by_axis,
    known_length,
    pair_index,
    powered,
    scaled,
    stretch_factor,
    together,
)
from pejax._extensions.longrope import extend_longrope
from pejax._extensions.yarn import extend_yarn


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
    return scaled(frequencies, 0.0, stretch_factor(frequencies, trained_length, factor, length)), 1.0


def extend_ntk(
    frequencies: Frequencies,
    *,
    base: float,
    rotary_dim: int,
    trained_length: int | tuple[int, ...] | None = None,
    factor: Factor | None = None,
    length: Length | None = None,
    base_frequencies: Frequencies | None = None,
) -> Extended:
    """Raise the base so that the slowest pair is divided by the factor and the fastest is left alone ("NTK-aware").

    `f'_i = f_i · s^(-2i / (d - 2))`, which is base' = base · s^(d / (d - 2))

    Args:
        frequencies: radians per token.
        base: of the unscaled frequencies, above 1.
        rotary_dim: d, channels that turn; D/A on A axes.
        trained_length: as in `extend_linear`, like `factor` and `length`.
        factor: s.
        length: L'.
        base_frequencies: the unscaled frequencies, where `frequencies` were extended before. None = `frequencies`.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: as `extend_linear`; or a base not above 1, or a rotary_dim that is odd or below 2.

    Reference:
        bloc97 2023, "NTK-Aware Scaled RoPE"; Peng et al. 2023, "YaRN" (arXiv 2309.00071), section 3.1.
    """
    stretch = stretch_factor(frequencies, trained_length, factor, length)
    index = pair_index(frequencies if base_frequencies is None else base_frequencies, base, rotary_dim)
    return powered(frequencies, index, stretch, rotary_dim), 1.0


def extend_dynamic_ntk(
    frequencies: Frequencies,
    *,
    base: float,
    rotary_dim: int,
    trained_length: int | tuple[int, ...] | None,
    factor: Factor | None = None,
    length: Length | None = None,
    base_frequencies: Frequencies | None = None,
) -> Extended:
    """Raise the base as the sequence grows beyond the trained length: `extend_ntk` with a factor that follows.

    `f'_i = f_i · a^(-2i / (d - 2)),   a = s · max(L', L) / L - (s - 1)`

    Args:
        frequencies: as in `extend_ntk`, like `base`, `rotary_dim` and `base_frequencies`.
        base: above 1.
        rotary_dim: d.
        trained_length: L, tokens, or one per axis.
        factor: s, from 1: how fast the base grows. None = 1, where a is L' / L.
        length: L', tokens, or one per axis; a number may be traced. None = L.
        base_frequencies: unscaled.

    Returns:
        The frequencies, float32, those given up to the trained length; and the attention factor 1.

    Raises:
        ValueError: as `extend_ntk`.

    Reference:
        emozilla 2023, "Dynamically Scaled RoPE"; transformers' rope type "dynamic".
    """
    speed = stretch_factor(frequencies, trained_length, 1.0 if factor is None else factor, length)
    trained = known_length("dynamic_ntk", trained_length)
    grown = stretch_factor(frequencies, trained, None, trained if length is None else length)
    index = pair_index(frequencies if base_frequencies is None else base_frequencies, base, rotary_dim)
    _, (speed, grown) = together(speed, grown)
    return powered(frequencies, index, speed * (grown - 1.0) + 1.0, rotary_dim), 1.0


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
    stretch = stretch_factor(frequencies, trained_length, factor, length)
    trained = by_axis(known_length("llama3", trained_length))
    xp, (unscaled, trained) = together(frequencies if base_frequencies is None else base_frequencies, trained)
    turns = trained * xp.abs(unscaled) / math.tau
    keep = xp.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return scaled(frequencies, keep, stretch), 1.0


EXTENSIONS: dict[str, Callable[..., Extended]] = {
    "linear": extend_linear,
    "ntk": extend_ntk,
    "dynamic_ntk": extend_dynamic_ntk,
    "yarn": extend_yarn,
    "longrope": extend_longrope,
    "llama3": extend_llama3,
}
