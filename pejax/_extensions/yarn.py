"""YaRN: slow pairs are interpolated, fast pairs are unchanged, and the attention is sharpened."""

import math
from typing import Any

from pejax._calls.arguments import checked
from pejax._extensions.base import (
    Extended,
    Factor,
    Frequencies,
    Number,
    Rotary,
    by_axis,
    by_channel,
    check_order,
    known_length,
    log_base,
    log_factor,
    pair_index,
    positive,
    ramp_by_turns,
    resolve_factor,
    scaled,
    together,
    unextended,
)
from pejax._extensions.extension import extension_factory
from pejax._ops.checks import check_choice

RAMPS = ("pair", "turns")


@checked
def extend_yarn(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    factor: Factor | None = None,
    trained_length: int | tuple[int, ...] | None = None,
    beta_fast: Number = 32.0,
    beta_slow: Number = 1.0,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    attention_factor: Number | None = None,
    truncate: bool = True,
    ramp: str = "pair",
) -> Extended:
    """Divide slow pairs by the factor, keep fast pairs, blend linearly in between; sharpen the attention (YaRN).

    `f'_i = f_i · (r_i / s + 1 - r_i)`, where `r_i` rises linearly from 0 at pair i(beta_fast) to 1 at i(beta_slow), by
    the index of the pair, as in the authors' code and in transformers. Pair `i(b) = d · ln(L / 2πb) / (2 ln base)`,
    clipped to 0 ... d - 1, makes b turns in L tokens. In the paper, `1 - r_i = (L·f_i / 2π - beta_slow) /
    (beta_fast - beta_slow)`, clipped to 0 ... 1, is linear in the turns: `ramp="turns"`. Queries and keys are
    multiplied by `0.1 ln s + 1`. The betas and `attention_factor` may be traced, and are not checked then.

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies, and L', its current length.
        factor: s, at least 1 (not checked if traced); one number, or one per axis. None = max(1, L' / L), on each
            axis.
        trained_length: L, tokens, or one length per axis.
        beta_fast: in turns per L tokens; pairs that turn more often are unchanged.
        beta_slow: in turns per L tokens; pairs that turn less often are divided by s.
        mscale: together with `mscale_all_dim`, replaces the factor of queries and keys by
            `(0.1 · mscale · ln s + 1) / (0.1 · mscale_all_dim · ln s + 1)`. Ignored if either is None or 0.
        mscale_all_dim: see `mscale`.
        attention_factor: multiplies queries and keys in place of these factors.
        truncate: whether i(beta_fast) is rounded down and i(beta_slow) up, to whole pairs, with `ramp="pair"`.
        ramp: "pair" or "turns". The two differ most on small grids, where no pair makes 32 turns: "turns" divides all
            pairs by almost s there.

    Returns:
        The frequencies, float32, and the attention factor: one number, or `(F,)` where some channels are not rotated (1
        there) or axes differ.

    Raises:
        ValueError: as in `extend_ntk`; or not 0 < `beta_slow` <= `beta_fast`, an unknown ramp, or an attention factor
            that is not positive.

    Reference:
        Peng et al. 2023, "YaRN" (arXiv 2309.00071), section 3.2, equations 17 to 20, for "turns"; the authors' code and
        transformers' rope type "yarn" for "pair".

    Examples:
        >>> import pejax
        >>> dims = pejax.Dims(heads=8, head_dim=64, extent=4096)
        >>> long = pejax.encodings.rope(dims, extend=pejax.extensions.yarn(factor=8))
    """
    check_order(("beta_slow", beta_slow), ("beta_fast", beta_fast))
    check_choice("ramp", ramp, RAMPS)
    resolved = resolve_factor(frequencies, rotary, trained_length, factor)
    trained = by_axis(known_length("yarn", rotary, trained_length))
    if ramp == "turns":
        keep = ramp_by_turns(frequencies, rotary, trained, beta_slow, beta_fast)
    else:
        low, high = (_yarn_pair(trained, beta, rotary) for beta in (beta_fast, beta_slow))
        keep = 1.0 - _ramp_by_pair(pair_index(frequencies, rotary), low, high, truncate, rotary)
    if attention_factor is None:
        above, below = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (1.0, 0.0)
        above, below = (log_factor(resolved, 0.1 * weight) + 1.0 for weight in (above, below))
        attention_factor = above / below
    else:
        positive("attention_factor", attention_factor)
    return scaled(frequencies, keep, resolved), by_channel(attention_factor, unextended(frequencies, rotary))


def _yarn_pair(length: Any, turns: Number, rotary: Rotary) -> Any:
    """Return the index, a fraction, of the pair that makes this number of turns in this number of tokens."""
    xp, (length, turns) = together(length, turns)
    return by_axis(rotary.rotary_dim) * xp.log(length / (math.tau * turns)) / (2.0 * log_base(rotary))


def _ramp_by_pair(index: Any, low: Any, high: Any, truncate: bool, rotary: Rotary) -> Any:
    """Return 0 for pairs up to the index `low`, 1 from `high` on, a line in between."""
    xp, (low, high) = together(low, high)
    if truncate:
        low, high = xp.floor(low), xp.ceil(high)
    low, high = (xp.clip(end, 0, by_axis(rotary.rotary_dim) - 1) for end in (low, high))
    xp, (index, low, width) = together(index, low, xp.where(low == high, 0.001, high - low))
    return xp.clip((index - low) / width, 0.0, 1.0)


yarn = extension_factory("yarn", "frequencies", extend_yarn)
