"""Relative positions and distances of queries and keys, checks of their axes, and sums of one term per axis."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pejax._ops.checks import check_position_type


def axes_of(positions: Num[Array, "T *A"]) -> int:
    """Return A, the number of axes of positions `(T,)` (then 1) or `(T, A)`; their type is checked."""
    check_position_type(positions)
    return 1 if positions.ndim == 1 else positions.shape[1]


def axis_shape(axes: int) -> tuple[int, ...]:
    """Return the trailing shape of positions, and leading shape of tables, for A axes: `(A,)` if A > 1, else `()`."""
    return (axes,) if axes > 1 else ()


def check_axes(name: str, positions: Num[Array, "R *A"], axes: int) -> None:
    """Raise ValueError unless positions, or differences of positions, have the number of axes that `name` needs."""
    check_position_type(positions)
    if positions.shape[1:] != axis_shape(axes):
        shape = lambda trailing: f"({', '.join(['T', *map(str, trailing)])})"
        wanted, got = shape(axis_shape(axes)), shape(positions.shape[1:])
        raise ValueError(f"{name} on {axes} axes needs positions {wanted}, got {got}")


def check_table(name: str, found: tuple[int, ...], axes: int) -> None:
    """Raise ValueError unless the axis dimension of a table, `found`, is that of the positions."""
    if found != axis_shape(axes):
        raise ValueError(f"{name} must have axis dimension {axis_shape(axes)} as the positions have, got {found}")


def token_distance(relative: Num[Array, "..."], axes: int) -> Float[Array, "..."]:
    """Return `|relative|`, or on A > 1 axes the Euclidean length over the last dimension, in float32.

    The gradient at distance 0 is defined as 0.
    """
    relative = relative.astype(jnp.float32)
    if axes == 1:
        return jnp.abs(relative)
    square = jnp.sum(jnp.square(relative), axis=-1)
    nonzero = square > 0
    return jnp.where(nonzero, jnp.sqrt(jnp.where(nonzero, square, 1.0)), 0.0)


def sum_over_axes(term: Callable[..., Array], axes: int, params: Any, *arrays: Array) -> Array:
    """Return `term(params, *arrays)`, or on A > 1 axes `sum_a term(params[a], *(array[..., a]))`.

    On A > 1 axes, A is the leading axis of every leaf of `params` and the last axis of every array.
    """
    if axes == 1:
        return term(params, *arrays)
    of_axis = lambda a: jax.tree.map(lambda leaf: leaf[a], params)
    return functools.reduce(jnp.add, (term(of_axis(a), *(array[..., a] for array in arrays)) for a in range(axes)))


def relative_positions(q_positions: Num[Array, "T *A"], k_positions: Num[Array, "S *A"]) -> Num[Array, "T S *A"]:
    """Return key - query for every pair and axis, in a signed or floating type of at least 32 bits.

    Raises:
        ValueError: queries and keys with different numbers of axes.
        TypeError: positions that are neither integers nor floats of at least 32 bits.
    """
    if q_positions.shape[1:] != k_positions.shape[1:]:
        raise ValueError(f"positions of queries and keys must share axes, got {q_positions.shape}, {k_positions.shape}")

    for positions in (q_positions, k_positions):
        check_position_type(positions)

    def signed(positions: Array) -> Array:
        kind = "f" if jnp.issubdtype(positions.dtype, jnp.floating) else "i"
        return positions.astype(f"{kind}{max(4, positions.dtype.itemsize)}")

    return signed(k_positions)[None] - signed(q_positions)[:, None]
