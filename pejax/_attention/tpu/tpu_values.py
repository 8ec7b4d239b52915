"""Values in a Mosaic kernel as arrays of two dimensions, and what their forms have in common.

A value is kept by the tokens that it has: S keys go down the sublanes, T queries along the lanes.

    of a pair       (S, T), one array for each of its channels
    of a query      (C, T)
    of a key        (S, C)
    of neither      (1, C), or (C1, C2)

C counts all channels. An axis along which a value does not vary may have size 1, so that broadcasts cost nothing.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array

from pejax._attention.kernels.programs import KEYS, QUERIES, dtype_of

SIZES = {QUERIES: "t", KEYS: "s"}
"""Sizes of axes of tokens in the trace, and the letters of the tokens."""


class Value(NamedTuple):
    """A value in a kernel: its shape in the trace, and the array, for a pair an object array of one per channel."""

    shape: tuple[int, ...]
    dtype: Any
    data: Any


class Operand(NamedTuple):
    """An operand of the program, which is read in the form that is needed."""

    shape: tuple[int, ...]
    dtype: Any
    load: Callable[[str], Array]


def kind_of(shape: Sequence[int]) -> str:
    """Return which tokens a value has: "st", "s", "t" or ""."""
    return "".join(letter for letter, size in (("s", KEYS), ("t", QUERIES)) if size in shape)


def channels_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the axes that are not tokens'."""
    return tuple(size for size in shape if size not in SIZES)


def of_tile(shape: tuple[int, ...], dtype: Any, array: Array) -> Value:
    if kind_of(shape) != "st":
        return Value(shape, dtype, array)
    return Value(shape, dtype, as_parts([array], ()))


def literal(atom: Literal) -> Value:
    dtype = dtype_of(atom)
    return Value((), dtype, jnp.full((1, 1), atom.val, kept_type(dtype)))


def as_parts(arrays: Sequence[Array], channels: tuple[int, ...]) -> np.ndarray:
    """Return arrays of pairs, one per channel, as an object array."""
    parts = np.empty(len(arrays), object)
    for i, array in enumerate(arrays):
        parts[i] = array
    return parts.reshape(channels)


def map_parts(function: Callable[..., Array], *operands: Any) -> Any:
    """Apply a function to arrays, or to each part of values of pairs, once where the parts are the same."""
    if not isinstance(operands[0], np.ndarray):
        return function(*operands)
    results: dict[tuple[int, ...], Array] = {}
    pairs = [*zip(*(x.ravel() for x in operands), strict=True)]
    for arrays in pairs:
        key = (*map(id, arrays),)
        results[key] = results[key] if key in results else function(*arrays)
    return as_parts([results[(*map(id, arrays),)] for arrays in pairs], operands[0].shape)


def broadcast(x: Array, size: tuple[int, ...]) -> Array:
    """Return an array with this size; Mosaic does not broadcast truth values."""
    if x.dtype != bool or x.shape == size:
        return jnp.broadcast_to(x, size)
    return jnp.broadcast_to(x.astype(jnp.int32), size) != 0


def kept_type(dtype: Any) -> Any:
    """Return the type in which values are kept: narrow floats, which not every TPU computes in, as float32."""
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else dtype


def rounded(data: Array, dtype: Any) -> Array:
    """Return data as kept, rounded to a narrow type."""
    return data.astype(dtype).astype(kept_type(dtype))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Return the numbers of the channels, axes of tokens with size 1."""
    sizes = [1 if size in SIZES else size for size in shape]
    return np.arange(math.prod(sizes)).reshape(sizes)


def padded(grid: np.ndarray, config: Sequence[Any], fill: int) -> np.ndarray:
    """Return `lax.pad(grid, fill, config)`."""
    for axis, (low, high, between) in enumerate(config):
        sizes = [*grid.shape]
        spread = max(sizes[axis] * (between + 1) - between, 0)
        sizes[axis] = max(low, 0) + spread + max(high, 0)
        wide = np.full(sizes, fill)
        lines = np.moveaxis(wide, axis, 0)
        lines[max(low, 0) : max(low, 0) + spread : between + 1] = np.moveaxis(grid, axis, 0)
        grid = np.moveaxis(lines[max(-low, 0) : len(lines) - max(-high, 0)], 0, axis)
    return grid


def keeps_tokens(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether the channels between axes of tokens are the same in number, so that no token moves."""

    def sections(shape: tuple[int, ...]) -> list[int]:
        result = [1]
        for size in shape:
            result = [*result, size, 1] if size in SIZES else [*result[:-1], result[-1] * size]
        return result

    return sections(before) == sections(after)


def select(data: Array, index: np.ndarray, axis: int) -> Array:
    """Return entries of data along an axis, by slices of those that follow each other."""
    if data.shape[axis] == 1 or (len(index) == data.shape[axis] and (index == np.arange(len(index))).all()):
        return data
    runs = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    slices = [lax.slice_in_dim(data, int(run[0]), int(run[-1]) + 1, axis=axis) for run in runs]
    return slices[0] if len(slices) == 1 else jnp.concatenate(slices, axis=axis)


def packed(arrays: list[Array], axis: int) -> Array:
    """Return arrays of size 1 along an axis, side by side on it."""
    if len(arrays) == 1:
        return arrays[0]
    size = [*arrays[0].shape]
    size[axis] = len(arrays)
    place = lax.broadcasted_iota(jnp.int32, size, axis)
    parts = [jnp.where(place == i, jnp.broadcast_to(x, size), 0) for i, x in enumerate(arrays)]
    return functools.reduce(jnp.add, parts)


def to_row(column: Array) -> Array:
    """Return a column as a row: the sums down the columns of a matrix that has it on its diagonal."""
    return jnp.sum(_on_diagonal(column), axis=0, keepdims=True)


def to_column(row: Array) -> Array:
    return jnp.sum(_on_diagonal(row), axis=1, keepdims=True)


def folded(row: Array, shape: Sequence[int]) -> Array:
    """Return a row of channels as a value without tokens is kept."""
    wide = [size for size in shape if size > 1]
    if len(wide) > 2:
        raise NotImplementedError(f"needs the gradient of an array of {len(wide)} axes")
    if len(wide) < 2:
        return row
    starts = range(0, wide[0] * wide[1], wide[1])
    return jnp.concatenate([lax.slice_in_dim(row, start, start + wide[1], axis=1) for start in starts], axis=0)


def _on_diagonal(line: Array) -> Array:
    size = (line.size, line.size)
    rows, columns = (lax.broadcasted_iota(jnp.int32, size, axis) for axis in (0, 1))
    return jnp.where(rows == columns, jnp.broadcast_to(line, size), 0)


def as_matrix(value: Any, contract: Sequence[Any]) -> tuple[int, str] | None:
    """Return the axis of the data that a product sums over, and what the other one counts: "s", "t" or "c".

    None = the product is none of matrices.
    """
    shape = value.shape
    kind, tokens = kind_of(shape), [axis for axis, size in enumerate(shape) if size in SIZES]
    channels = [axis for axis in range(len(shape)) if axis not in tokens]
    if kind == "st":
        return None if channels or len(contract) != 1 else _st_side(shape, contract[0])
    if kind:
        place = "ts".index(kind)  # the axis of the data that counts channels
        if [*sorted(contract)] == channels and channels:
            return place, kind
        return (1 - place, "c") if [*contract] == tokens and channels else None
    if len(shape) != 2 or min(shape) == 1 or len(contract) != 1:
        return None
    return contract[0], "c"


def _st_side(shape: tuple[int, ...], axis: Any) -> tuple[int, str]:
    return (0, "t") if shape[axis] == KEYS else (1, "s")
