"""bfloat16 arrays stored as their bits, uint16, and rounding to bfloat16: both avoid slow paths of XLA:CPU.

XLA:CPU slices float32, not bfloat16: it converts all of a bfloat16 array to float32 for every slice that it reads or
writes. Its conversion to bfloat16 also slows the loop that contains it: one with an exponential by a factor of 1.6.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from pejax._ops.bitcast import bitcast


def as_bits(x: Shaped[Array, "*B"]) -> Shaped[Array, "*B"]:
    """Return the bits of bfloat16 as uint16, any other type unchanged."""
    return bitcast(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def from_bits(x: Shaped[Array, "*B"]) -> Float[Array, "*B"]:
    """Undo `as_bits` for floats: return uint16 as bfloat16, any other type unchanged."""
    return lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


@jax.custom_jvp
def restored(bits: Shaped[Array, "*B"], x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Return x from its bits (`as_bits`), which have no derivative: only derivatives read x itself."""
    del x
    return from_bits(bits)


@restored.defjvp
def _restored_and_tangent(primals: tuple[Array, Array], tangents: tuple[Any, Array]) -> tuple[Array, Array]:
    return restored(*primals), tangents[1]


def as_stored(x: Float[Array, "*B"], like: Shaped[Array, "*C"]) -> Shaped[Array, "*B"]:
    """Return x in the storage type of `like`: as the bits of bfloat16 if that is uint16, else cast to its type."""
    return as_bits(x.astype(jnp.bfloat16)) if like.dtype == jnp.uint16 else x.astype(like.dtype)


def rounded(x: Float[Array, "*B"], dtype: DTypeLike) -> Float[Array, "*B"]:
    """Return `x.astype(dtype)`; from float32 to bfloat16 it rounds half to even by integer arithmetic."""
    if x.dtype != jnp.float32 or dtype != jnp.bfloat16:
        return x.astype(dtype)
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    even = bits + jnp.uint32(0x7FFF) + (bits >> 16 & 1)
    return from_bits((jnp.where(jnp.isnan(x), bits | 0x10000, even) >> 16).astype(jnp.uint16))
