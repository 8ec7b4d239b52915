"""Inside `jax.shard_map`, every array has a type that says over which axes of the mesh its value varies.

Loops need carries of one type, and gradients need the types of their operands. Elsewhere nothing varies, and these
functions change nothing.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike

Tree = TypeVar("Tree")


def varying_axes(*trees: Any) -> frozenset[str]:
    """Return the axes of the mesh over which any leaf varies."""
    return frozenset().union(*map(_axes, jax.tree.leaves(trees)))


def varying_over(axes: frozenset[str], tree: Tree) -> Tree:
    """Return the tree with the type of every leaf varying over these axes, and over its own."""

    def vary(x: ArrayLike) -> Array | ArrayLike:  # a literal of a jaxpr is a number
        missing = tuple(sorted(axes - _axes(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(vary, tree) if axes else tree


def varying_alike(tree: Tree) -> Tree:
    """Return the tree with all leaves varying over the axes over which any of them varies."""
    return varying_over(varying_axes(tree), tree)


def zeros_varying(shape: tuple[int, ...], dtype: Any, *like: Any) -> Array:
    """Return zeros that vary over the axes over which any leaf of `like` does: the start of a loop's sum."""
    return varying_over(varying_axes(*like), jnp.zeros(shape, dtype))


def shape_varying(shape: tuple[int, ...], dtype: Any, axes: frozenset[str]) -> jax.ShapeDtypeStruct:
    """Return the shape of a kernel's output that varies over these axes."""
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    like = jax.typeof(varying_over(axes, jnp.zeros((), dtype)))
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=like.manual_axis_type)


def _axes(x: Any) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying
