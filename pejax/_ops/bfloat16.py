"""bfloat16 by its bits, for arrays that are kept, or read and written slice by slice, and for rounding.

XLA:CPU slices float32 in place of bfloat16: it would convert the whole array for every slice it reads or writes. And
its own conversion to bfloat16 slows down the loop it is part of: one with an exponential took 1.6 times as long.
"""

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from pejax._ops.bitcast import bitcast


def as_bits(x: Shaped[Array, "*B"]) -> Shaped[Array, "*B"]:
    """Return bfloat16 as uint16, all else as it is."""
    return bitcast(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def from_bits(x: Shaped[Array, "*B"]) -> Float[Array, "*B"]:
    """Undo `as_bits` of floats."""
    return lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


def as_kept(x: Float[Array, "*B"], like: Shaped[Array, "*C"]) -> Shaped[Array, "*B"]:
    """Return x as what `as_bits` made `like` of: in its type, or by the bits of it."""
    return as_bits(x.astype(jnp.bfloat16)) if like.dtype == jnp.uint16 else x.astype(like.dtype)


def rounded(x: Float[Array, "*B"], dtype: DTypeLike) -> Float[Array, "*B"]:
    """Return what `x.astype(dtype)` does, float32 to bfloat16 by integers: half a unit more, ties to even, cut off."""
    if x.dtype != jnp.float32 or dtype != jnp.bfloat16:
        return x.astype(dtype)
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    even = bits + jnp.uint32(0x7FFF) + (bits >> 16 & 1)
    return from_bits((jnp.where(jnp.isnan(x), bits | 0x10000, even) >> 16).astype(jnp.uint16))
