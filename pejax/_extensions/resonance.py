"""Resonance RoPE: every period is rounded to whole tokens, so that a pair returns to the angles of training."""

import math

from jax.core import Tracer

from pejax._calls.arguments import checked
from pejax._extensions.base import Extended, Frequencies, Rotary, check_some, together
from pejax._extensions.extension import extension_factory


@checked
def extend_resonance(frequencies: Frequencies, rotary: Rotary) -> Extended:
    """Round the period of every pair to a whole number of tokens (Resonance RoPE).

    `f'_i = 2π / round(2π / f_i)`

    After another extension, the periods that it makes are rounded: `yarn(factor=8) + resonance()`.

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: a period that is rounded to 0 tokens (not checked for traced frequencies).

    Reference:
        Wang et al. 2024, "Resonance RoPE: Improving Context Length Generalization of Large Language Models" (arXiv
        2403.00071), section 3.2.
    """
    check_some(frequencies)
    del rotary
    xp, (frequencies,) = together(frequencies)
    periods = math.tau / xp.where(frequencies == 0, 1.0, frequencies)
    rounded = xp.round(periods)
    if not isinstance(rounded, Tracer) and not rounded.all():
        shortest = abs(periods[rounded == 0]).min()
        raise ValueError(f"resonance needs periods above half a token, got {shortest:.3g}")
    return xp.where(frequencies == 0, 0.0, math.tau / rounded).astype(xp.float32), 1.0


resonance = extension_factory("resonance", "frequencies", extend_resonance)
