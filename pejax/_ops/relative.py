"""Relative positions and distances of queries and keys, checks of their axes, and sums of one term per axis."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from pejax._calls.host import to_jax
from pejax._ops.checks import check_position_type

LONGEST = 2.0**30
"""Tokens between queries and keys up to which their distances are counted from the first; beyond, one by one."""


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
        expected, got = shape(axis_shape(axes)), shape(positions.shape[1:])
        raise ValueError(f"{name} on {axes} axes needs positions {expected}, got {got}")


def check_table(name: str, got: tuple[int, ...], axes: int) -> None:
    """Raise ValueError unless the axis dimension of a table, `got`, is that of the positions."""
    if got != axis_shape(axes):
        raise ValueError(f"{name} must have axis dimension {axis_shape(axes)} as the positions have, got {got}")


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
    """Return key - query for every pair and axis, in a signed or floating type of at least 32 bits (`difference`).

    Raises:
        ValueError: queries and keys with different numbers of axes.
        TypeError: positions that are neither integers nor floats of at least 32 bits.
    """
    q, k = _comparable(q_positions, k_positions)
    return difference(q[:, None], k[None])


def float_differences(q_positions: Num[Array, "T *A"], k_positions: Num[Array, "S *A"]) -> Float[Array, "T S *A"]:
    """Return key - query for every pair and axis as floats, rounded once; those of any two int32 are exact before.

    Raises:
        ValueError: as in `relative_positions`.
        TypeError: as in `relative_positions`.
    """
    q, k = _comparable(q_positions, k_positions)
    if q.dtype != jnp.int32:
        return difference(q[:, None], k[None]).astype(q.dtype if jnp.issubdtype(q.dtype, jnp.floating) else jnp.float32)
    (q_high, q_low), (k_high, k_low) = (
        ((x >> 16).astype(jnp.float32), (x & 0xFFFF).astype(jnp.float32)) for x in (q, k)
    )
    return 65536.0 * (k_high[None] - q_high[:, None]) + (k_low[None] - q_low[:, None])


def difference(q: Num[Array, "..."], k: Num[Array, "..."]) -> Num[Array, "..."]:
    """Return k - q of one type; whole numbers are limited to ±(2^31 - 1), or ±(2^63 - 1) in 64 bits, and never wrap."""
    if not jnp.issubdtype(k.dtype, jnp.signedinteger):
        return k - q
    one, zero, largest = map(k.dtype.type, (1, 0, jnp.iinfo(k.dtype).max))
    return k - jnp.minimum(jnp.maximum(q, jnp.maximum(k, -one) - largest), jnp.minimum(k, zero) + largest)


def limited(relative: Num[Array, "..."]) -> Num[Array, "..."]:
    """Return relative positions in a signed or floating type of at least 32 bits in which each has a negative."""
    relative = _signed(relative)
    if jnp.issubdtype(relative.dtype, jnp.floating):
        return relative
    return jnp.maximum(relative, -jnp.iinfo(relative.dtype).max)


def are_consecutive(positions: Int[Array, " T"]) -> Bool[Array, ""]:
    """Return whether each position is one more than the last."""
    return jnp.all(relative_positions(positions[:1], positions)[0] == jnp.arange(len(positions)))


def _comparable(q_positions: Num[Array, "T *A"], k_positions: Num[Array, "S *A"]) -> tuple[Array, Array]:
    """Return positions of queries and keys in one type in which their differences are those of the positions."""
    if q_positions.shape[1:] != k_positions.shape[1:]:
        raise ValueError(f"positions of queries and keys must share axes, got {q_positions.shape}, {k_positions.shape}")
    sides = to_jax("q_positions", q_positions), to_jax("k_positions", k_positions)
    for positions in sides:
        check_position_type(positions)
    if all(x.dtype == jnp.uint32 for x in sides):  # counted from 2^31
        q, k = ((x ^ jnp.uint32(2**31)).astype(jnp.int32) for x in sides)
        return q, k
    q, k = map(_signed, sides)
    kind = jnp.result_type(q, k)
    return q.astype(kind), k.astype(kind)


def _signed(positions: Num[Array, "..."]) -> Num[Array, "..."]:
    """Return numbers in a signed or floating type of at least 32 bits, unsigned ones limited to what it holds."""
    kind = positions.dtype
    wide = max(4, kind.itemsize)
    if jnp.issubdtype(kind, jnp.floating):
        return positions.astype(f"f{wide}")
    if jnp.issubdtype(kind, jnp.unsignedinteger) and kind.itemsize == wide:
        positions = jnp.minimum(positions, kind.type(jnp.iinfo(f"i{wide}").max))
    return positions.astype(f"i{wide}")
