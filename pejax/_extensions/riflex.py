"""RIFLEx: one pair of the time axis is slowed down, so that a longer video does not repeat itself."""

import math
from typing import Any

from jax.core import Tracer

from pejax._calls.arguments import checked
from pejax._extensions.base import (
    Extended,
    Frequencies,
    Rotary,
    check_lengths,
    check_some,
    known_length,
    of_axis,
    together,
    unextended,
)
from pejax._extensions.extension import extension_factory

TURNS = 0.9
"""Turns of the slowed pair over the whole video."""


@checked
def extend_riflex(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    axis: int = 0,
    repeats_at: int | None = None,
    trained_length: int | tuple[int, ...] | None = None,
) -> Extended:
    """Slow down the pair of time whose period is that of a video's repetitions, to 0.9 turns over all frames (RIFLEx).

    `f'_k = 0.9 · 2π / L'` if `L' > N`, else `f_k`, with `k = argmin_j |round(2π / f_j) - N|` among the pairs of the
    axis. All other pairs and axes are unchanged.

    Args:
        frequencies: radians per frame or patch, `(A, F)` on A axes.
        rotary: the encoding that has these frequencies, and L', its current length. None = no longer than N.
        axis: the axis of time, from 0.
        repeats_at: N, the frame (of latents) at which a longer video begins to repeat itself without this extension: 50
            for HunyuanVideo, 20 for CogVideoX. None = the shortest period above L, that of the fastest pair that makes
            less than a turn in training; for these two models, of 33 and 13 frames, it is 50 and 20.
        trained_length: L, frames, or one length per axis. Required if `repeats_at` is None.

    Returns:
        The frequencies, float32, and the attention factor 1.

    Raises:
        ValueError: frequencies that are not `(A, F)`, an axis that they lack or on which no pair turns, a `repeats_at`
            below 1, or None where there is no trained length or no period above it.

    Reference:
        Zhao et al. 2025, "RIFLEx: A Free Lunch for Length Extrapolation in Video Diffusion Transformers" (arXiv
        2502.15894).

    Examples:
        >>> import pejax
        >>> dims = pejax.Dims(heads=8, head_dim=128, axes=3, extent=(33, 45, 80))
        >>> riflex = pejax.extensions.riflex(repeats_at=50)
        >>> longer = pejax.encodings.rope_axial(dims, preset="hunyuan_video", extend=riflex)
    """
    check_some(frequencies)
    if len(frequencies.shape) != 2:
        rule = "riflex needs frequencies by axis, (A, F), as rope_axial and rope(sections=...) have them"
        raise ValueError(f"{rule}, got shape {frequencies.shape}")
    if not 0 <= axis < frequencies.shape[0]:
        raise ValueError(f"axis must be from 0 to {frequencies.shape[0] - 1}, got {axis}")
    if repeats_at is not None and repeats_at < 1:
        raise ValueError(f"repeats_at must be at least 1, got {repeats_at}")
    check_lengths(frequencies, rotary, trained_length)
    unscaled = unextended(frequencies, rotary)[axis]
    periods = _periods(unscaled, axis)
    if repeats_at is None:
        trained = known_length("riflex without repeats_at", rotary, trained_length)
        repeats_at = _shortest_above(periods, of_axis(trained, axis))
    if rotary.length is None:
        return frequencies, 1.0
    xp, (unscaled, periods, repeats, length) = together(unscaled, periods, repeats_at, of_axis(rotary.length, axis))
    intrinsic = unscaled == unscaled[xp.argmin(xp.abs(periods - repeats))]
    xp, (frequencies, slow) = together(frequencies, TURNS * math.tau / length)
    chosen = (xp.arange(len(frequencies)) == axis)[:, None] & intrinsic & (length > repeats)
    return xp.where(chosen, slow, frequencies).astype(xp.float32), 1.0


def _periods(frequencies: Any, axis: int) -> Any:
    """Return the period of each pair of an axis in whole frames; infinite where it does not turn."""
    xp, (frequencies,) = together(frequencies)
    if not isinstance(frequencies, Tracer) and not frequencies.any():
        raise ValueError(f"axis must be one on which pairs turn, got {axis}")
    return xp.where(frequencies == 0, xp.inf, xp.round(math.tau / xp.where(frequencies == 0, 1.0, xp.abs(frequencies))))


def _shortest_above(periods: Any, trained: int) -> Any:
    """Return the shortest period above the trained length; refuse where there is none."""
    xp, (periods, trained) = together(periods, trained)
    shortest = xp.min(xp.where(periods > trained, periods, xp.inf))
    if not isinstance(shortest, Tracer) and not shortest < math.inf:
        rule = f"repeats_at must be given where no period is above the trained length {trained:.0f}"
        raise ValueError(f"{rule}, got None")
    return shortest


riflex = extension_factory("riflex", "frequencies", extend_riflex, varies=True)
