"""Flatter ALiBi slopes beyond the trained length."""

import math

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from pejax._calls.arguments import checked
from pejax._extensions.base import Length
from pejax._record.specs import Extension, Term


@checked
def scale_alibi_slopes(
    slopes: Float[Array, " H"], trained_length: int | tuple[int, ...], length: Length
) -> Float[Array, " H"]:
    """Flatten ALiBi's slopes beyond the trained length, so that the largest penalty stays that of training.

    `m'_h = m_h · L/L'` when `L' > L`, else `m_h`; on grids L and L' are the lengths of the diagonals.

    Args:
        slopes: one per head, in logits per token (on grids per patch).
        trained_length: L, in tokens, or the trained grid.
        length: L', the current length in tokens, or the current grid; may be traced.

    Returns:
        The slopes, in the same unit.

    Raises:
        ValueError: a known length below 1.

    Reference:
        Al-Khateeb et al. 2023, "Position Interpolation Improves ALiBi Extrapolation" (arXiv 2310.13017), section 3.

    Examples:
        >>> scale_alibi_slopes(jnp.asarray([0.5, 0.25]), trained_length=512, length=1024).tolist()
        [0.25, 0.125]
    """
    for name, value in (("trained_length", trained_length), ("length", length)):
        if not isinstance(value, Tracer) and np.min(value, initial=1) < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    ratio = jnp.asarray(_size(trained_length), jnp.float32) / jnp.asarray(_size(length), jnp.float32)
    return slopes * jnp.minimum(1.0, ratio)


def _size(extent: Length) -> float | Array:
    """Return a length, or the length of a grid's diagonal."""
    if isinstance(extent, tuple):
        return math.hypot(*extent)
    return jnp.sqrt(jnp.sum(jnp.square(jnp.asarray(extent, jnp.float32)))) if np.ndim(extent) else extent


def slopes() -> Extension:
    """Return flatter slopes as the `extend` of `alibi`: `scale_alibi_slopes` at the current length or grid."""
    return Extension((Term("slopes", "factory", scale_alibi_slopes, ()),))
