"""Operations on the values of `tpu_values`, as those of the programs of a `bias` hook."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn
from jaxtyping import Array

from pejax._attention.kernels.programs import ELEMENTWISE, KEYS, QUERIES, TYPES, dtype_of, shape_of
from pejax._attention.tpu.tpu_values import (
    SIZES,
    Operand,
    Value,
    as_matrix,
    as_parts,
    broadcast,
    channels_of,
    folded,
    keeps_tokens,
    kept_type,
    kind_of,
    map_parts,
    numbered,
    packed,
    padded,
    rounded,
    select,
    to_column,
    to_row,
)

MOST_PARTS = 256
"""Largest number of channels that a value of a pair may have."""
MOST_CHANNELS = 4096
"""Largest number of channels of a value of a query or of a key."""
REDUCTIONS = {"reduce_sum": jnp.add, "reduce_max": jnp.maximum, "reduce_min": jnp.minimum}


class Operations:
    """Runs equations for tiles of S keys and T queries."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        self.sizes = dict(zip((KEYS, QUERIES), sizes, strict=True))

    def results(self, equation: JaxprEqn, operands: list[Any]) -> list[Value]:
        """Return the results of an equation."""
        name, params = equation.primitive.name, equation.params
        shapes, dtypes = zip(*((shape_of(x), dtype_of(x)) for x in equation.outvars), strict=True)
        if name in TYPES:
            return [operands[0]]
        if any(shape.count(size) > 1 for shape in shapes for size in SIZES):
            raise NotImplementedError(f"pairs queries with queries or keys with keys, by {name}")
        if any(math.prod(channels_of(shape)) > self.most(shape) for shape in shapes):
            raise NotImplementedError(
                f"keeps {math.prod(channels_of(shapes[0])):,} numbers per token or pair, by {name}"
            )
        if name in ELEMENTWISE:
            return [self.elementwise(equation, operands, shapes[0], dtypes[0])]
        if name in REDUCTIONS:
            return [self.reduce(name, operands[0], params["axes"])]
        if name == "dot_general":
            return [self.dot(equation, operands[0], operands[1], dtypes[0])]
        if name == "concatenate":
            return [self.concatenate(operands, params["dimension"], shapes[0])]
        if name == "broadcast_in_dim":
            return [self.broadcast(operands[0], shapes[0], params["broadcast_dimensions"])]
        if name == "pad":
            return [self.pad(operands[0], operands[1], params["padding_config"], shapes[0])]
        indices = self.indices(name, params, operands[0].shape)
        return [self.take(operands[0], index, shape) for index, shape in zip(indices, shapes, strict=True)]

    def most(self, shape: tuple[int, ...]) -> int:
        """Return how many channels a value may have."""
        return {"st": MOST_PARTS, "": 2**31}.get(kind_of(shape), MOST_CHANNELS)

    def indices(self, name: str, params: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
        """Return, for each result of an operation that moves channels, which of the operand's channels it takes."""
        # Axes of tokens have size 1 in `grid`: what happens to the others is done to the numbers of the channels.
        grid = numbered(shape)
        tokens = [axis for axis, size in enumerate(shape) if size in SIZES]
        if name == "transpose":
            return [np.transpose(grid, params["permutation"]).ravel()]
        if name == "rev" and not {*tokens}.intersection(params["dimensions"]):
            return [np.flip(grid, params["dimensions"]).ravel()]
        if name in ("squeeze", "expand_dims"):
            return [grid.ravel()]
        if name == "reshape" and params["dimensions"] is None and keeps_tokens(shape, params["new_sizes"]):
            return [grid.ravel()]
        if name == "split" and params["axis"] not in tokens:
            return [x.ravel() for x in np.split(grid, np.cumsum(params["sizes"])[:-1], params["axis"])]
        if name == "slice":
            steps = params["strides"] or (1,) * len(shape)
            bounds = [*zip(params["start_indices"], params["limit_indices"], steps, strict=True)]
            if all(bounds[axis] == (0, shape[axis], 1) for axis in tokens):
                cuts = tuple(slice(None) if axis in tokens else slice(*bound) for axis, bound in enumerate(bounds))
                return [grid[cuts].ravel()]
        raise NotImplementedError(f"does {name} along the tokens")

    def broadcast(self, value: Any, shape: tuple[int, ...], dims: Sequence[Any]) -> Value:
        """Return a value with another shape, its axis i at `dims[i]`."""
        grid = numbered(value.shape).transpose(np.argsort(dims))
        sizes = [1] * len(shape)
        for axis, size in zip(sorted(dims), grid.shape, strict=True):
            sizes[axis] = size
        target = tuple(1 if size in SIZES else size for size in shape)
        return self.take(value, np.broadcast_to(grid.reshape(sizes), target).ravel(), shape)

    def take(self, value: Any, index: np.ndarray, shape: tuple[int, ...]) -> Value:
        """Return the channels `index` of a value, as one with this shape."""
        kind, before = kind_of(shape), kind_of(value.shape)
        if kind == "":
            return Value(shape, value.dtype, self.neither(value, index, shape))
        if not set(before) <= set(kind):
            raise NotImplementedError("turns values of tokens into others")
        if kind == "st":
            parts = {i: self.part(value, i) for i in {*index.tolist()}}
            return Value(shape, value.dtype, as_parts([parts[i] for i in index.tolist()], channels_of(shape)))
        axis = "ts".index(kind)
        return Value(shape, value.dtype, select(self.along(value, axis), index, axis))

    def part(self, value: Any, i: int) -> Array:
        """Return channel i of a value as an array of pairs."""
        kind = kind_of(value.shape)
        if kind == "st":
            return value.data.ravel()[i]
        axis = 0 if kind == "t" else 1
        data = self.along(value, axis)
        return data if data.shape[axis] == 1 else lax.slice_in_dim(data, i, i + 1, axis=axis)

    def along(self, value: Any, axis: int) -> Array:
        """Return the data of a value of a query (0) or key (1), or of neither, with its channels along an axis."""
        if isinstance(value, Operand):
            return value.load("row" if axis or math.prod(value.shape) == 1 else "column")
        if kind_of(value.shape) or value.data.size == 1 or (axis == 1 and value.data.shape[0] == 1):
            return value.data
        if value.data.shape[0] == 1:
            return to_column(value.data)
        raise NotImplementedError("combines tokens with sums over tokens")

    def neither(self, value: Any, index: np.ndarray, shape: tuple[int, ...]) -> Array:
        """Return the channels `index` of a value without tokens."""
        data = self.data(value)
        wide = tuple(size for size in channels_of(shape) if size > 1)
        if data.size == 1 or (data.shape[0] == 1 and len(wide) < 2):
            return select(data, index, 1)
        source = np.arange(data.size).reshape(data.shape)
        if index.size == data.size and data.shape == wide and (index == source.ravel()).all():
            return data
        if index.size == data.size and data.shape[::-1] == wide and (index == source.T.ravel()).all():
            return data.T
        raise NotImplementedError("rearranges sums over tokens")

    def data(self, value: Any) -> Any:
        """Return the data of a value; of an operand, as that of a value without tokens."""
        if not isinstance(value, Operand):
            return value.data
        wide = [size for size in value.shape if size > 1]
        if len(wide) > 2:
            raise NotImplementedError(f"multiplies an array of {len(wide)} axes")
        return value.load("matrix" if len(wide) == 2 else "row")

    def elementwise(self, equation: JaxprEqn, operands: list[Any], shape: tuple[int, ...], dtype: Any) -> Value:
        """Apply an operation to each number."""

        def apply(*arrays: Array) -> Array:
            size = np.broadcast_shapes(*(x.shape for x in arrays))
            if equation.primitive.name == "convert_element_type":
                return arrays[0].astype(dtype).astype(kept_type(dtype))
            result = equation.primitive.bind(*(broadcast(x, size) for x in arrays), **equation.params)
            return rounded(result, dtype)

        alike = [x if x.shape == shape else self.broadcast(x, shape, range(len(x.shape))) for x in operands]
        return Value(shape, dtype, map_parts(apply, *map(self.data, alike)))

    def reduce(self, name: str, value: Any, axes: Sequence[Any]) -> Value:
        """Reduce channels first, then keys, then queries."""
        combine, shape = REDUCTIONS[name], value.shape
        tokens = [shape[axis] for axis in axes if shape[axis] in SIZES]
        channel_axes = tuple(axis for axis in axes if shape[axis] not in SIZES)
        if channel_axes:
            value = self.reduce_channels(name, value, channel_axes)
        for size in sorted(tokens, reverse=True):
            value = self.reduce_tokens(combine, value, size)
        rest = tuple(size for axis, size in enumerate(shape) if axis not in axes)
        return value._replace(shape=rest)

    def reduce_channels(self, name: str, value: Any, axes: tuple[Any, ...]) -> Value:
        """Reduce axes of channels."""
        kept = tuple(size for axis, size in enumerate(value.shape) if axis not in axes)
        grid = np.moveaxis(numbered(value.shape), axes, range(len(axes)))
        groups = grid.reshape(-1, math.prod(channels_of(kept)))
        if kind_of(kept) in ("s", "t") and groups.shape[1] == 1:
            data, axis = self.full(value).data, 1 if kind_of(kept) == "s" else 0
            operation = getattr(jnp, {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}[name])
            return Value(kept, value.dtype, rounded(operation(data, axis=axis, keepdims=True), value.dtype))
        taken = [self.take(value, group, kept).data for group in groups]
        return Value(kept, value.dtype, functools.reduce(functools.partial(map_parts, REDUCTIONS[name]), taken))

    def reduce_tokens(self, combine: Any, value: Value, size: int) -> Value:
        """Sum over the keys or the queries."""
        if combine is not jnp.add:
            raise NotImplementedError("takes the largest or smallest over tokens")
        shape = tuple(x for x in value.shape if x != size)
        value = self.full(value)
        axis = "st".index(SIZES[size])
        if kind_of(value.shape) != "st":  # a column of channels for queries, a row for keys
            data = jnp.sum(value.data, axis=axis, keepdims=True)
            return Value(shape, value.dtype, folded(to_row(data) if axis else data, shape))
        sums = [jnp.sum(x, axis=axis, keepdims=True) for x in value.data.ravel()]
        return Value(shape, value.dtype, packed(sums, 1 - (kind_of(shape) == "t")))

    def full(self, value: Any) -> Value:
        """Return a value with all of its elements."""
        kind, count = kind_of(value.shape), math.prod(channels_of(value.shape))
        s, t = self.sizes[KEYS], self.sizes[QUERIES]
        if kind == "st":
            return value._replace(data=map_parts(lambda x: broadcast(x, (s, t)), value.data))
        wide = [size for size in value.shape if size > 1]
        size = {"s": (s, count), "t": (count, t)}.get(kind, (1, count) if len(wide) < 2 else tuple(wide))
        return Value(value.shape, value.dtype, broadcast(self.data(value), size))

    def whole(self, value: Any) -> Array:
        """Return an output: an array of pairs, of a query, of a key, or of neither."""
        data = self.full(value).data
        return data[()] if kind_of(value.shape) == "st" else data

    def concatenate(self, operands: list[Any], axis: int, shape: tuple[int, ...]) -> Value:
        """Join channels."""
        if shape[axis] in SIZES or any(size in SIZES for x in operands for size in (x.shape[axis],)):
            raise NotImplementedError("does concatenate along the tokens")
        dtype, kind = operands[0].dtype, kind_of(shape)
        starts = [0, *itertools.accumulate(math.prod(channels_of(x.shape)) for x in operands)]
        grids = [numbered(x.shape) + start for x, start in zip(operands, starts[:-1], strict=True)]
        order = np.concatenate(grids, axis).ravel()
        joined = self.broadcast_operands(operands, shape, axis)
        if kind == "st":
            parts = [part for x in joined for part in x.data.ravel()]
            return Value(shape, dtype, as_parts([parts[i] for i in order], channels_of(shape)))
        along = 1 if kind == "s" else 0
        if kind == "":
            raise NotImplementedError("joins sums over tokens")
        data = jnp.concatenate([self.full(x).data for x in joined], axis=along)
        return Value(shape, dtype, select(data, order, along))

    def broadcast_operands(self, operands: list[Any], shape: tuple[int, ...], axis: int) -> list[Value]:
        """Return the operands of a concatenation as values with the tokens of the result."""
        like = lambda x: tuple(x.shape[axis] if i == axis else size for i, size in enumerate(shape))
        return [self.broadcast(x, like(x), range(len(shape))) for x in operands]

    def pad(self, value: Any, fill: Any, config: Any, shape: tuple[int, ...]) -> Value:
        """Add channels, or take some away."""
        if any(tuple(config[axis]) != (0, 0, 0) for axis, size in enumerate(value.shape) if size in SIZES):
            raise NotImplementedError("does pad along the tokens")
        count = math.prod(channels_of(value.shape))
        index = padded(numbered(value.shape), config, count).ravel()
        one = (*(size for size in value.shape if size in SIZES), count + 1)
        flat = (*one[:-1], count)
        filled = self.concatenate(
            [self.take(value, np.arange(count), flat), self.broadcast(fill, (*one[:-1], 1), ())], len(one) - 1, one
        )
        return self.take(filled, index, shape)

    def dot(self, equation: JaxprEqn, a: Any, b: Any, dtype: Any) -> Value:
        """Multiply matrices where two are; else numbers one by one."""
        (contract, batch), shape = equation.params["dimension_numbers"], shape_of(equation.outvars[0])
        if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in (a, b)):
            raise NotImplementedError("multiplies matrices of integers")
        sides = [side for x, axes in zip((a, b), contract, strict=True) if (side := as_matrix(x, axes)) is not None]
        roles = [role for _, role in sides]
        is_sorted = all([*axes] == sorted(axes) for axes in contract)
        is_wide = roles != ["c", "c"] or len([size for size in shape if size > 1]) == 2
        if any(batch) or len(roles) < 2 or roles in (["s", "s"], ["t", "t"]) or not (is_sorted and is_wide):
            return self.dot_of_numbers(a, b, contract, batch, shape, dtype)
        precision = equation.params["precision"]
        precision = precision[0] if isinstance(precision, tuple) and precision[0] == precision[1] else precision
        if precision not in (None, lax.Precision.DEFAULT, lax.Precision.HIGHEST):
            raise NotImplementedError(f"multiplies with precision {precision}")
        narrow = all(x.dtype == jnp.bfloat16 for x in (a, b))
        data = [self.whole(x).astype(jnp.bfloat16 if narrow else jnp.float32) for x in (a, b)]
        first, last = (0, 1) if "sct".index(roles[0]) <= "sct".index(roles[1]) else (1, 0)
        dimensions = (((sides[first][0],), (sides[last][0],)), ((), ()))
        product = lax.dot_general(
            data[first], data[last], dimensions, precision=precision, preferred_element_type=jnp.float32
        )
        product = rounded(product, dtype)
        return Value(shape, dtype, as_parts([product], ()) if kind_of(shape) == "st" else product)

    def dot_of_numbers(self, a: Any, b: Any, contract: Any, batch: Any, shape: tuple[int, ...], dtype: Any) -> Value:
        """Return the product as a sum of products of numbers."""
        free = [
            [axis for axis in range(len(x.shape)) if axis not in (*c, *g)]
            for x, c, g in zip((a, b), contract, batch, strict=True)
        ]
        summed = tuple(a.shape[axis] for axis in contract[0])
        joint = (*shape, *summed)
        if math.prod(channels_of(joint)) > self.most(joint):
            raise NotImplementedError(f"sums {math.prod(channels_of(joint)):,} products per token or pair")
        starts = len(batch[0]), len(batch[0]) + len(free[0])
        placed = []
        for x, c, g, f, start in zip((a, b), contract, batch, free, starts, strict=True):
            dims = [0] * len(x.shape)
            for axes, first in ((g, 0), (f, start), (c, len(shape))):
                for i, axis in enumerate(axes):
                    dims[axis] = first + i
            placed.append(self.broadcast(x, joint, dims))
        product = Value(joint, jnp.float32, map_parts(jnp.multiply, *(x.data for x in placed)))
        total = self.reduce("reduce_sum", product, range(len(shape), len(joint))) if summed else product
        return Value(shape, dtype, map_parts(lambda x: rounded(x, dtype), total.data))
