"""Flatter ALiBi slopes beyond the trained length."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from pejax._specs import Extension, Term


def scale_alibi_slopes(
    slopes: Float[Array, " H"], trained_length: int | Sequence[int], length: int | Array | Sequence[int]
) -> Float[Array, " H"]:
    """Flatten ALiBi's slopes beyond the trained length, so that the largest penalty stays that of training.

    `m'_h = m_h · L/L'` when `L' > L`, else `m_h`; on grids L and L' are the lengths of the diagonals.

    Args:
        slopes: one per head, in logits per token (on grids per patch).
        trained_length: L, in tokens, or the trained grid.
        length: L', the current length in tokens, which may be traced, or the current grid.

    Returns:
        The slopes, in the same unit.

    Reference:
        Al-Khateeb et al. 2023, "Position Interpolation Improves ALiBi Extrapolation" (arXiv 2310.13017), section 3.

    Examples:
        >>> scale_alibi_slopes(jnp.asarray([0.5, 0.25]), trained_length=512, length=1024).tolist()
        [0.25, 0.125]
    """
    size = lambda extent: math.hypot(*extent) if isinstance(extent, Sequence) else extent
    ratio = jnp.asarray(size(trained_length), jnp.float32) / jnp.asarray(size(length), jnp.float32)
    return slopes * jnp.minimum(1.0, ratio)


def slopes() -> Extension:
    """Return flatter slopes as the `extend` of `alibi`: `scale_alibi_slopes` at the current length or grid."""
    return Extension((Term("slopes", "factory", scale_alibi_slopes, ()),))
