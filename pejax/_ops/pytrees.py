"""The floating point leaves of a pytree, which are the leaves that have gradients."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

Floats: TypeAlias = list[Array]
"""The floating point leaves of a pytree, in the order of its leaves."""


def is_float(leaf: Any) -> bool:
    """Return whether a leaf is floating point, and so has a gradient."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def own_floats(tree: Any) -> Floats:
    """Return the floating point leaves, in their own types."""
    return [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]


def floats_of(tree: Any) -> Floats:
    """Return the floating point leaves, in at least 32 bits."""
    return [wide(leaf) for leaf in own_floats(tree)]


def zeros_of(tree: Any) -> Floats:
    """Return zeros in the shapes of the floating point leaves, in at least 32 bits, to sum gradients in."""
    return [jnp.zeros_like(leaf) for leaf in floats_of(tree)]


def with_floats(tree: Any, floats: Floats) -> Any:
    """Return the tree with its floating point leaves replaced by `floats`."""
    following = iter(floats)
    return jax.tree.map(lambda leaf: next(following) if is_float(leaf) else leaf, tree)


def cotangent_of(tree: Any, gradients: Floats) -> Any:
    """Return the gradients as a tree like `tree`, in the types of its leaves; None for leaves without a gradient."""
    following = iter(gradients)
    return jax.tree.map(lambda leaf: next(following).astype(leaf.dtype) if is_float(leaf) else None, tree)


def wide(x: Array) -> Array:
    """Return floating point arrays in at least 32 bits, other arrays unchanged."""
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32
    return x.astype(jnp.float32) if narrow else x
