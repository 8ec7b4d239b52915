"""A digest of arrays that does not depend on how they are sharded over devices and processes.

    digest(x) = Σ_i mix(bits_i ^ mix(i + 1)),  Σ_i mix²(bits_i ^ mix(i + 1))        mod 2³²

i is the index of an element in the full array. `mix` is a bijection on 32 bits, so a change of one element always
changes the first sum. Integer sums do not depend on their order, so each device sums its own shard and no array is ever
gathered. The digest detects accidental damage; it does not protect against forgery.

Reference:
    Appleby 2011, MurmurHash3: `mix` is its 32-bit finalizer.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from pejax._ops.bitcast import bitcast


def digests(tree: Any) -> dict[str, str]:
    """Return the digest of every leaf by path, with its dtype and shape: "float32 (2, 3) 9b1c...".

    Args:
        tree: pytree of arrays, on the host or on devices.
    """
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    sums = jax.device_get(_sums(list(leaves.values())))
    return {
        name: f"{leaf.dtype} {leaf.shape} {int(first):08x}{int(second):08x}"
        for (name, leaf), (first, second) in zip(leaves.items(), sums, strict=True)
    }


@jax.jit
def _sums(leaves: list[Array]) -> list[UInt32[Array, "2"]]:
    return [_sum(leaf) for leaf in leaves]


def _sum(leaf: Array) -> UInt32[Array, "2"]:
    words = _words(leaf)
    index = jnp.ones(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = math.prod(words.shape[axis + 1 :]) % 2**32
        index = index + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * np.uint32(stride)
    once = _mix(words ^ _mix(index))
    return jnp.stack([jnp.sum(once, dtype=jnp.uint32), jnp.sum(_mix(once), dtype=jnp.uint32)])


def _words(leaf: Array) -> UInt32[Array, "..."]:
    """Return the bits of an array as 32-bit words; a larger type has several words per element."""
    leaf = jnp.asarray(leaf)
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    width = 8 * min(leaf.dtype.itemsize, 4)
    return bitcast(leaf, jnp.dtype(f"uint{width}")).astype(jnp.uint32)


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
