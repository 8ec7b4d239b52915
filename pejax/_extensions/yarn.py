"""YaRN: slow pairs are interpolated, fast pairs are unchanged, and the attention is sharpened."""

import math
from typing import Any

import numpy as np

from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Length,
    by_axis,
    by_channel,
    known_length,
    log_factor,
    pair_index,
    positive,
    resolve_factor,
    scaled,
    together,
)
from pejax._extensions.extension import Extension, extension


def extend_yarn(
    frequencies: Frequencies,
    *,
    base: float,
    rotary_dim: int,
    trained_length: int | tuple[int, ...] | None,
    factor: Factor | None = None,
    length: Length | None = None,
    base_frequencies: Frequencies | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    attention_factor: float | None = None,
    truncate: bool = True,
) -> Extended:
    """Divide slow pairs by the factor, keep fast pairs, blend linearly in between; sharpen the attention (YaRN).

    `f'_i = f_i · (r_i / s + 1 - r_i)`, where `r_i` rises linearly from 0 at pair i(beta_fast) to 1 at i(beta_slow).
    Pair `i(b) = d · ln(L / 2πb) / (2 ln base)`, clipped to 0 ... d - 1, makes b turns in L tokens. Queries and keys are
    multiplied by `0.1 ln s + 1`.

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        base: of the unscaled frequencies, above 1.
        rotary_dim: d, number of rotated channels; D/A on A axes.
        trained_length: L, tokens, or one length per axis.
        factor: s, at least 1 (not checked if traced). None = max(1, L' / L), on each axis.
        length: L', the current length, tokens, or one length per axis; a single length may be traced.
        base_frequencies: the unscaled frequencies, if `frequencies` were extended before. None = `frequencies`.
        beta_fast: in turns per L tokens; pairs that turn more often are unchanged.
        beta_slow: in turns per L tokens; pairs that turn less often are divided by s.
        mscale: together with `mscale_all_dim`, replaces the factor of queries and keys by
            `(0.1 · mscale · ln s + 1) / (0.1 · mscale_all_dim · ln s + 1)`. Ignored if either is None or 0.
        mscale_all_dim: see `mscale`.
        attention_factor: multiplies queries and keys in place of these factors.
        truncate: whether i(beta_fast) is rounded down and i(beta_slow) up, to whole pairs.

    Returns:
        The frequencies, float32, and the attention factor: one number, or `(F,)` where some channels are not rotated (1
        there) or axes differ.

    Raises:
        ValueError: as in `extend_ntk`; or not 0 < `beta_slow` < `beta_fast`, or an attention factor that is not
            positive.

    Reference:
        Peng et al. 2023, "YaRN" (arXiv 2309.00071), section 3 and appendix A.2; transformers' rope type "yarn".
    """
    if not 0 < beta_slow < beta_fast < math.inf:
        raise ValueError(f"beta_fast must be above beta_slow, both above 0, got {beta_fast} and {beta_slow}")
    resolved = resolve_factor(frequencies, trained_length, factor, length)
    unscaled = frequencies if base_frequencies is None else base_frequencies
    index = pair_index(unscaled, base, rotary_dim)
    turns = known_length("yarn", trained_length)
    low, high = (_yarn_pair(by_axis(turns), beta, base, rotary_dim) for beta in (beta_fast, beta_slow))
    if truncate:
        low, high = np.floor(low), np.ceil(high)
    low, high = np.clip(low, 0, rotary_dim - 1), np.clip(high, 0, rotary_dim - 1)
    xp, (index, low, width) = together(index, low, np.where(low == high, 0.001, high - low))
    divided = xp.clip((index - low) / width, 0.0, 1.0)
    if attention_factor is None:
        above, below = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (1.0, 0.0)
        above, below = (log_factor(resolved, 0.1 * weight) + 1.0 for weight in (above, below))
        attention_factor = above / below
    else:
        positive("attention_factor", attention_factor)
    return scaled(frequencies, 1.0 - divided, resolved), by_channel(attention_factor, unscaled)


def _yarn_pair(length: Any, turns: float, base: float, rotary_dim: int) -> Any:
    """Return which pair, a fraction, turns so many times in so many tokens."""
    return rotary_dim * np.log(length / (math.tau * turns)) / (2.0 * math.log(base))


def yarn(
    *,
    factor: float | None = None,
    trained_length: int | tuple[int, ...] | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    attention_factor: float | None = None,
    truncate: bool = True,
) -> Extension:
    """Return YaRN as an encoding's `extend`: `extend_yarn` for its frequencies.

    Args:
        factor: s, at least 1. None = it follows from the current length, on each axis.
        trained_length: L, tokens, or one length per axis. None = the encoding's `Dims.extent`.
        beta_fast: in turns per L tokens; pairs that turn more often are unchanged.
        beta_slow: in turns per L tokens; pairs that turn less often are divided by s.
        mscale: together with `mscale_all_dim`, another factor of queries and keys (`extend_yarn`).
        mscale_all_dim: see `mscale`.
        attention_factor: factor that multiplies queries and keys. None = `0.1 ln s + 1`, or the one by `mscale`.
        truncate: whether the ends of the blend are rounded outward to whole pairs.

    Examples:
        >>> import pejax
        >>> dims = pejax.Dims(heads=8, head_dim=64, extent=4096)
        >>> long = pejax.encodings.rope(dims, extend=pejax.extensions.yarn(factor=8))
    """
    options = {"factor": factor, "trained_length": trained_length, "attention_factor": attention_factor}
    options |= {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
    options |= {"mscale": mscale, "mscale_all_dim": mscale_all_dim}
    return extension("yarn", "frequencies", extend_yarn, options)
