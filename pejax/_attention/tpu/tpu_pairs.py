"""A bias of pairs inside a Mosaic kernel: the programs of `kernels.pairs`, run on arrays that Mosaic lowers well.

Every value is kept in two dimensions, by the tokens that it has: S keys go down the sublanes, T queries along the lanes.

    of a pair       (S, T), one array for each of its channels
    of a query      (C, T)
    of a key        (S, C)
    of neither      (1, C), or (C1, C2)

C counts all channels. An axis along which a value does not vary may have size 1, so that broadcasts cost nothing.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal
from jaxtyping import Array

from pejax._attention.kernels.pairs import ELEMENTWISE, KEYS, QUERIES, TYPES, Pairs, Program, shape_of

BLOCK = 256
"""Largest number of queries, and of keys, in a tile, where no value of a pair has channels."""
MOST_PARTS = 128
"""Largest number of channels that a value of a pair may have."""
MOST_CHANNELS = 4096
"""Largest number of channels of a value of a query or of a key."""
REDUCTIONS = {"reduce_sum": jnp.add, "reduce_max": jnp.maximum, "reduce_min": jnp.minimum}
SIZES = {QUERIES: "t", KEYS: "s"}

Load = Callable[[int, str], Array]
"""`(index of an operand of the program, "row", "column" or "matrix") -> (1, C), (C, 1) or (C1, C2)`."""


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


def run(program: Program, load: Load, tile: Sequence[Array], sizes: tuple[int, int], *, sums: bool) -> list[Array]:
    """Run a program on a tile; return its outputs as full arrays.

    Args:
        program: a program of `Pairs`.
        load: reads an operand.
        tile: its other inputs, arrays of the forms above.
        sizes: S and T.
        sums: whether the program may sum over tokens: gradients do, a bias may not.

    Raises:
        NotImplementedError: an operation that kernels cannot run.
    """
    jaxpr, emitter = program.tile, _Emitter(sizes)
    count = len(jaxpr.invars) - len(tile)
    values: dict[Any, Any] = {
        variable: Operand(shape_of(variable), variable.aval.dtype, functools.partial(load, i))
        for i, variable in enumerate(jaxpr.invars[:count])
    }
    for variable, array in zip(jaxpr.invars[count:], tile, strict=True):
        values[variable] = _of_tile(shape_of(variable), variable.aval.dtype, array)
    read = lambda atom: _literal(atom) if isinstance(atom, Literal) else values[atom]
    for equation in jaxpr.eqns:
        before, after = ({*"".join(map(kind_of, map(shape_of, side)))} for side in (equation.invars, equation.outvars))
        if not (sums or before <= after):
            raise NotImplementedError(f"combines tokens by {equation.primitive.name}: a pair must not depend on others")
        results = emitter.results(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [emitter.whole(read(atom)) for atom in jaxpr.outvars]


def _of_tile(shape: tuple[int, ...], dtype: Any, array: Array) -> Value:
    if kind_of(shape) != "st":
        return Value(shape, dtype, array)
    return Value(shape, dtype, _parts([array], ()))


def _literal(atom: Literal) -> Value:
    dtype = atom.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    return Value((), dtype, jnp.full((1, 1), atom.val, _kept(dtype)))


def _parts(arrays: Sequence[Array], channels: tuple[int, ...]) -> np.ndarray:
    """Return arrays of pairs, one per channel, as an object array."""
    parts = np.empty(len(arrays), object)
    for i, array in enumerate(arrays):
        parts[i] = array
    return parts.reshape(channels)


def _map(function: Callable[..., Array], *operands: Any) -> Any:
    """Apply a function to arrays, or to each part of values of pairs, once where the parts are the same."""
    if not isinstance(operands[0], np.ndarray):
        return function(*operands)
    results: dict[tuple[int, ...], Array] = {}
    pairs = [*zip(*(x.ravel() for x in operands), strict=True)]
    for arrays in pairs:
        key = (*map(id, arrays),)
        results[key] = results[key] if key in results else function(*arrays)
    return _parts([results[(*map(id, arrays),)] for arrays in pairs], operands[0].shape)


def _broadcast(x: Array, size: tuple[int, ...]) -> Array:
    """Return an array with this size; Mosaic does not broadcast truth values."""
    if x.dtype != bool or x.shape == size:
        return jnp.broadcast_to(x, size)
    return jnp.broadcast_to(x.astype(jnp.int32), size) != 0


def _kept(dtype: Any) -> Any:
    """Return the type in which values are kept: narrow floats, which not every TPU computes in, as float32."""
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else dtype


def _rounded(data: Array, dtype: Any) -> Array:
    """Return data as kept, rounded to a narrow type."""
    return data.astype(dtype).astype(_kept(dtype))


class _Emitter:
    """Runs equations for tiles of S keys and T queries."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        self.sizes = dict(zip((KEYS, QUERIES), sizes, strict=True))

    def results(self, equation: JaxprEqn, operands: list[Any]) -> list[Value]:
        """Return the results of an equation."""
        name, params = equation.primitive.name, equation.params
        shapes, dtypes = zip(*((shape_of(x), x.aval.dtype) for x in equation.outvars), strict=True)
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
            return [self.dot(equation, *operands, dtypes[0])]
        if name == "concatenate":
            return [self.concatenate(operands, params["dimension"], shapes[0])]
        if name == "broadcast_in_dim":
            return [self.broadcast(operands[0], shapes[0], params["broadcast_dimensions"])]
        if name == "pad":
            return [self.pad(*operands, params["padding_config"], shapes[0])]
        indices = self.indices(name, params, operands[0].shape)
        return [self.take(operands[0], index, shape) for index, shape in zip(indices, shapes, strict=True)]

    def most(self, shape: tuple[int, ...]) -> int:
        """Return how many channels a value may have."""
        return {"st": MOST_PARTS, "": 2**31}.get(kind_of(shape), MOST_CHANNELS)

    def indices(self, name: str, params: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
        """Return, for each result of an operation that moves channels, which of the operand's channels it takes."""
        # Axes of tokens have size 1 in `grid`: what happens to the others is done to the numbers of the channels.
        grid = _numbered(shape)
        tokens = [axis for axis, size in enumerate(shape) if size in SIZES]
        if name == "transpose":
            return [np.transpose(grid, params["permutation"]).ravel()]
        if name == "rev" and not {*tokens}.intersection(params["dimensions"]):
            return [np.flip(grid, params["dimensions"]).ravel()]
        if name in ("squeeze", "expand_dims"):
            return [grid.ravel()]
        if name == "reshape" and params["dimensions"] is None and _keeps_tokens(shape, params["new_sizes"]):
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
        grid = _numbered(value.shape).transpose(np.argsort(dims))
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
            return Value(shape, value.dtype, _parts([parts[i] for i in index.tolist()], channels_of(shape)))
        axis = "ts".index(kind)
        return Value(shape, value.dtype, _select(self.along(value, axis), index, axis))

    def part(self, value: Any, i: int) -> Array:
        """Return channel i of a value as an array of pairs."""
        kind = kind_of(value.shape)
        if kind == "st":
            return value.data.ravel()[i]
        axis = 0 if kind == "t" else 1
        data = self.along(value, axis)
        return data if data.shape[axis] == 1 else lax.slice_in_dim(data, i, i + 1, axis=axis)

    def along(self, value: Any, axis: int) -> Array:
        """Return the data of a value of a query (0) or key (1), or of one without tokens with channels along an axis."""
        if isinstance(value, Operand):
            return value.load("row" if axis or math.prod(value.shape) == 1 else "column")
        if kind_of(value.shape) or value.data.size == 1 or (axis == 1 and value.data.shape[0] == 1):
            return value.data
        if value.data.shape[0] == 1:
            return _to_column(value.data)
        raise NotImplementedError("combines tokens with sums over tokens")

    def neither(self, value: Any, index: np.ndarray, shape: tuple[int, ...]) -> Array:
        """Return the channels `index` of a value without tokens."""
        data = self.data(value)
        wide = tuple(size for size in channels_of(shape) if size > 1)
        if data.size == 1 or (data.shape[0] == 1 and len(wide) < 2):
            return _select(data, index, 1)
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
                return arrays[0].astype(dtype).astype(_kept(dtype))
            result = equation.primitive.bind(*(_broadcast(x, size) for x in arrays), **equation.params)
            return _rounded(result, dtype)

        alike = [x if x.shape == shape else self.broadcast(x, shape, range(len(x.shape))) for x in operands]
        return Value(shape, dtype, _map(apply, *map(self.data, alike)))

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
        grid = np.moveaxis(_numbered(value.shape), axes, range(len(axes)))
        groups = grid.reshape(-1, math.prod(channels_of(kept)))
        if kind_of(kept) in ("s", "t") and groups.shape[1] == 1:
            data, axis = self.full(value).data, 1 if kind_of(kept) == "s" else 0
            operation = getattr(jnp, {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}[name])
            return Value(kept, value.dtype, _rounded(operation(data, axis=axis, keepdims=True), value.dtype))
        taken = [self.take(value, group, kept).data for group in groups]
        return Value(kept, value.dtype, functools.reduce(functools.partial(_map, REDUCTIONS[name]), taken))

    def reduce_tokens(self, combine: Any, value: Value, size: int) -> Value:
        """Sum over the keys or the queries."""
        if combine is not jnp.add:
            raise NotImplementedError("takes the largest or smallest over tokens")
        shape = tuple(x for x in value.shape if x != size)
        value = self.full(value)
        axis = "st".index(SIZES[size])
        if kind_of(value.shape) != "st":  # a column of channels for queries, a row for keys
            data = jnp.sum(value.data, axis=axis, keepdims=True)
            return Value(shape, value.dtype, _folded(_to_row(data) if axis else data, shape))
        sums = [jnp.sum(x, axis=axis, keepdims=True) for x in value.data.ravel()]
        return Value(shape, value.dtype, _packed(sums, 1 - (kind_of(shape) == "t")))

    def full(self, value: Any) -> Value:
        """Return a value with all of its elements."""
        kind, count = kind_of(value.shape), math.prod(channels_of(value.shape))
        s, t = self.sizes[KEYS], self.sizes[QUERIES]
        if kind == "st":
            return value._replace(data=_map(lambda x: _broadcast(x, (s, t)), value.data))
        wide = [size for size in value.shape if size > 1]
        size = {"s": (s, count), "t": (count, t)}.get(kind, (1, count) if len(wide) < 2 else tuple(wide))
        return Value(value.shape, value.dtype, _broadcast(self.data(value), size))

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
        grids = [_numbered(x.shape) + start for x, start in zip(operands, starts[:-1], strict=True)]
        order = np.concatenate(grids, axis).ravel()
        joined = self.broadcast_operands(operands, shape, axis)
        if kind == "st":
            parts = [part for x in joined for part in x.data.ravel()]
            return Value(shape, dtype, _parts([parts[i] for i in order], channels_of(shape)))
        along = 1 if kind == "s" else 0
        if kind == "":
            raise NotImplementedError("joins sums over tokens")
        data = jnp.concatenate([self.full(x).data for x in joined], axis=along)
        return Value(shape, dtype, _select(data, order, along))

    def broadcast_operands(self, operands: list[Any], shape: tuple[int, ...], axis: int) -> list[Value]:
        """Return the operands of a concatenation as values with the tokens of the result."""
        like = lambda x: tuple(x.shape[axis] if i == axis else size for i, size in enumerate(shape))
        return [self.broadcast(x, like(x), range(len(shape))) for x in operands]

    def pad(self, value: Any, fill: Any, config: Any, shape: tuple[int, ...]) -> Value:
        """Add channels, or take some away."""
        if any(tuple(config[axis]) != (0, 0, 0) for axis, size in enumerate(value.shape) if size in SIZES):
            raise NotImplementedError("does pad along the tokens")
        count = math.prod(channels_of(value.shape))
        padded = _padded(_numbered(value.shape), config, count).ravel()
        one = (*(size for size in value.shape if size in SIZES), count + 1)
        flat = (*one[:-1], count)
        filled = self.concatenate(
            [self.take(value, np.arange(count), flat), self.broadcast(fill, (*one[:-1], 1), ())], len(one) - 1, one
        )
        return self.take(filled, padded, shape)

    def dot(self, equation: JaxprEqn, a: Any, b: Any, dtype: Any) -> Value:
        """Multiply matrices where two are; else numbers one by one."""
        (contract, batch), shape = equation.params["dimension_numbers"], shape_of(equation.outvars[0])
        if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in (a, b)):
            raise NotImplementedError("multiplies matrices of integers")
        sides = [] if any(batch) else [_as_matrix(x, axes) for x, axes in zip((a, b), contract, strict=True)]
        roles = [side[1] for side in sides if side]
        aligned = len(contract[0]) == 1 or all([*axes] == sorted(axes) for axes in contract)
        if len(roles) < 2 or not aligned or (roles[0] == roles[1] and roles[0] != "c") or (
            roles == ["c", "c"] and len([size for size in shape if size > 1]) != 2
        ):  # fmt: skip
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
        product = _rounded(product, dtype)
        return Value(shape, dtype, _parts([product], ()) if kind_of(shape) == "st" else product)

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
        product = Value(joint, jnp.float32, _map(jnp.multiply, *(x.data for x in placed)))
        total = self.reduce("reduce_sum", product, range(len(shape), len(joint))) if summed else product
        return Value(shape, dtype, _map(lambda x: _rounded(x, dtype), total.data))


def _numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Return the numbers of the channels, axes of tokens with size 1."""
    sizes = [1 if size in SIZES else size for size in shape]
    return np.arange(math.prod(sizes)).reshape(sizes)


def _padded(grid: np.ndarray, config: Sequence[Any], fill: int) -> np.ndarray:
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


def _keeps_tokens(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether the channels between axes of tokens are the same in number, so that no token moves."""

    def sections(shape: tuple[int, ...]) -> list[int]:
        result = [1]
        for size in shape:
            result = [*result, size, 1] if size in SIZES else [*result[:-1], result[-1] * size]
        return result

    return sections(before) == sections(after)


def _select(data: Array, index: np.ndarray, axis: int) -> Array:
    """Return entries of data along an axis, by slices of those that follow each other."""
    if data.shape[axis] == 1 or (len(index) == data.shape[axis] and (index == np.arange(len(index))).all()):
        return data
    runs = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    slices = [lax.slice_in_dim(data, int(run[0]), int(run[-1]) + 1, axis=axis) for run in runs]
    return slices[0] if len(slices) == 1 else jnp.concatenate(slices, axis=axis)


def _packed(arrays: list[Array], axis: int) -> Array:
    """Return arrays of size 1 along an axis, side by side on it."""
    if len(arrays) == 1:
        return arrays[0]
    size = [*arrays[0].shape]
    size[axis] = len(arrays)
    place = lax.broadcasted_iota(jnp.int32, size, axis)
    parts = [jnp.where(place == i, jnp.broadcast_to(x, size), 0) for i, x in enumerate(arrays)]
    return functools.reduce(jnp.add, parts)


def _to_row(column: Array) -> Array:
    """Return a column as a row: the sums down the columns of a matrix that has it on its diagonal."""
    return jnp.sum(_on_diagonal(column), axis=0, keepdims=True)


def _to_column(row: Array) -> Array:
    return jnp.sum(_on_diagonal(row), axis=1, keepdims=True)


def _folded(row: Array, shape: Sequence[int]) -> Array:
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


def _as_matrix(value: Any, contract: Sequence[Any]) -> tuple[int, str] | None:
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


class TilePairs:
    """A hook's programs in kernels, and the forms in which these read the programs' operands, found by a trial."""

    def __init__(self, pairs: Pairs, dim: int, axes: int) -> None:
        """Try the programs.

        Args:
            pairs: the hook.
            dim: D.
            axes: A.

        Raises:
            NotImplementedError: an operation that kernels cannot run.
        """
        self.pairs, self.most_parts = pairs, 1
        self.gradients: dict[str, tuple[int, int]] = {}
        self._forms: dict[str, list[tuple[int, str]]] = {}
        s, t = TRIAL
        floats, ints = (functools.partial(jax.ShapeDtypeStruct, dtype=dtype) for dtype in (jnp.float32, jnp.int32))
        tile = [floats((dim, t)), floats((s, dim)), ints((axes, t)), ints((s, axes)), floats((s, t))]
        for name in PROGRAMS:
            if (program := getattr(pairs, name)) is not None:
                forms: dict[tuple[int, str], None] = {}
                jax.eval_shape(functools.partial(self._try, program, forms), *tile[: 4 if name == "bias" else 5])
                self._forms[name] = [*forms]
        for i, shape in pairs.learned.items():
            self.gradients[f"number{i}"] = gradient_shape(shape)

    def largest_block(self, lanes: int) -> int:
        """Return the largest number of queries, and of keys, in a tile whose values fit into vector memory."""
        return lanes if self.most_parts > 1 else BLOCK

    def _try(self, program: Program, forms: dict[tuple[int, str], None], *tile: Array) -> list[Array]:
        def load(i: int, form: str) -> Array:
            forms[i, form] = None
            variable = program.tile.invars[i]
            return jnp.zeros(form_shape(shape_of(variable), form), _kept(variable.aval.dtype))

        for equation in program.tile.eqns:
            shapes = [shape_of(x) for x in equation.outvars if kind_of(shape_of(x)) == "st"]
            self.most_parts = max([self.most_parts, *(math.prod(channels_of(shape)) for shape in shapes)])
        return run(program, load, tile, TRIAL, sums=program is not self.pairs.bias)

    def operands(self, name: str, numbers: list[Array], heads: int) -> dict[str, Array]:
        """Return the operands `(H, R, C)` of a program by name, from the numbers of all heads."""
        if name not in self._forms:
            return {}
        arrays, results = jax.vmap(getattr(self.pairs, name).outside, axis_size=heads)(numbers), {}
        for i, form in self._forms[name]:
            array = arrays[i].astype(jnp.int32 if arrays[i].dtype == bool else _kept(arrays[i].dtype))
            results[f"{name} {i} {form}"] = array.reshape(len(array), *form_shape(array.shape[1:], form))
        return results

    def run(self, name: str, refs: dict[str, Any], tile: Sequence[Array], sizes: tuple[int, int]) -> list[Array]:
        """Run a program in a kernel."""
        program = getattr(self.pairs, name)

        def load(i: int, form: str) -> Array:
            data = refs[f"{name} {i} {form}"][0]
            return data != 0 if program.tile.invars[i].aval.dtype == bool else data

        return run(program, load, tile, sizes, sums=program is not self.pairs.bias)


PROGRAMS = ("bias", "query_gradients", "key_gradients")
"""The programs of `Pairs`."""
TRIAL = (8, 128)
"""Keys and queries of the tile on which programs are tried."""


def form_shape(shape: Sequence[int], form: str) -> tuple[int, int]:
    """Return the size of an array without tokens in one form."""
    wide, size = [x for x in shape if x > 1], math.prod(shape)
    return {"row": (1, size), "column": (size, 1)}.get(form) or (wide[0], wide[1])


def gradient_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the size in which kernels return the gradient of a number of this shape."""
    return form_shape(shape, "matrix" if len([x for x in shape if x > 1]) > 1 else "row")
