"""bfloat16 by its bits, for arrays that are kept, or read and written slice by slice.

XLA:CPU slices float32 in place of bfloat16: it would convert the whole array for every slice it reads or writes.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped


def as_bits(x: Shaped[Array, "*B"]) -> Shaped[Array, "*B"]:
    """Return bfloat16 as uint16, all else as it is."""
    return lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def from_bits(x: Shaped[Array, "*B"]) -> Float[Array, "*B"]:
    """Undo `as_bits` of floats."""
    return lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


def as_kept(x: Float[Array, "*B"], like: Shaped[Array, "*C"]) -> Shaped[Array, "*B"]:
    """Return x as what `as_bits` made `like` of: in its type, or by the bits of it."""
    return as_bits(x.astype(jnp.bfloat16)) if like.dtype == jnp.uint16 else x.astype(like.dtype)
