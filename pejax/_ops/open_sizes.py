"""Sizes that `jax.export` leaves open: axes of any length, which cannot be cut into parts of known sizes."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim
from jaxtyping import Array, Int


def as_length(size: Any) -> int | Int[Array, ""]:
    """Return the size of an axis as it is, or as a traced number if it is open."""
    return jnp.asarray(size, jnp.int32) if is_symbolic_dim(size) else size


def are_open(*arrays: Any) -> bool:
    """Return whether an axis of any of the arrays, which may be trees, has a size that is not known."""
    return any(map(is_symbolic_dim, (size for x in jax.tree.leaves(arrays) for size in x.shape)))
