"""The floating point leaves of a tree: what gradients are taken of."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

Floats: TypeAlias = list[Array]
"""Of a tree, in the order of its leaves."""


def is_float(leaf: Any) -> bool:
    """Say whether a leaf has a gradient."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def own_floats(tree: Any) -> Floats:
    """Return the leaves that have gradients, as they are."""
    return [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]


def floats_of(tree: Any) -> Floats:
    """Return the leaves that have gradients, in at least 32 bits."""
    return [wide(leaf) for leaf in own_floats(tree)]


def zeros_of(tree: Any) -> Floats:
    """Return zeros to add gradients to, in at least 32 bits."""
    return [jnp.zeros_like(leaf) for leaf in floats_of(tree)]


def with_floats(tree: Any, floats: Floats) -> Any:
    """Return the tree with these leaves for those that have gradients."""
    following = iter(floats)
    return jax.tree.map(lambda leaf: next(following) if is_float(leaf) else leaf, tree)


def cotangent_of(tree: Any, gradients: Floats) -> Any:
    """Return the tree of gradients in the types of its leaves, None where there is none."""
    following = iter(gradients)
    return jax.tree.map(lambda leaf: next(following).astype(leaf.dtype) if is_float(leaf) else None, tree)


def wide(x: Array) -> Array:
    """Return floating point in at least 32 bits, anything else as it is."""
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32
    return x.astype(jnp.float32) if narrow else x
