"""A small ReLU network of the distance for every query and key, as FIRE has it, fast on a CPU.

    y_ij = Σ_k w_k relu(a_k x_ij + b_k),    x_ij = log(|c d| + 1) · min(1/n_i, 1/n_j),    d = p_j - p_i

It is piecewise linear in x. A CPU goes through blocks of pairs, in which few of the units bend; elsewhere each pair
goes through every unit.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from pejax._ops.backward import with_backward
from pejax._ops.relative import relative_positions
from pejax._ops.toeplitz import toeplitz

SIDE = 128
"""Queries and keys of a block of pairs at most."""

SLACK = 1e-5
"""By how much, in relation to them, the bounds of x are widened against rounding."""


class Side(NamedTuple):
    """Queries or keys: positions, and the inverse of the normaliser, of which a pair takes the smaller one."""

    positions: Num[Array, "*N T"]
    inverse: Float[Array, "*N T"]


class Units(NamedTuple):
    """The hidden layer and what reads it: `Σ_k w_k relu(a_k x + b_k)`."""

    a: Float[Array, " W"]
    b: Float[Array, " W"]
    w: Float[Array, " W"]


class _Line(NamedTuple):
    """log(|c d| + 1) of every distance d between two sides, for whole positions.

    Attributes:
        logs: the smallest distance first; R is the tokens of both sides, filled up to whole blocks, less one.
        slopes: how they grow with c.
        steady: whether positions count on by one on both sides, so that a block reads its own along the diagonals.
    """

    logs: Float[Array, " R"]
    slopes: Float[Array, " R"]
    steady: Bool[Array, ""]


class _Runs(NamedTuple):
    """Which units bend within each block of pairs, in the order of their knots, and which others are on there.

    Attributes:
        first: of those that bend.
        end: after the last of them.
        on: 1 for the others that are on throughout the block, else 0.
    """

    first: Int[Array, "N M"]
    end: Int[Array, "N M"]
    on: Float[Array, "N M W"]


@jax.jit
def _network(queries: Side, keys: Side, c: Float[Array, ""], units: Units) -> Float[Array, "T S"]:
    """Return `Σ_k w_k relu(a_k x + b_k)` of `x = log(|c d| + 1) · min(inverse_i, inverse_j)`."""
    return lax.platform_dependent(queries, keys, c, units, cpu=_by_blocks, default=pair_by_pair)


def pair_by_pair(queries: Side, keys: Side, c: Float[Array, ""], units: Units) -> Float[Array, "T S"]:
    """Return the same by every unit for every pair."""
    return jax.nn.relu(units.a * _measured(queries, keys, c)[..., None] + units.b) @ units.w


def _by_blocks(queries: Side, keys: Side, c: Float[Array, ""], units: Units) -> Float[Array, "T S"]:
    """Go through blocks of pairs, which CPUs keep in cache.

    x spans little within a block of pairs. Most units are on or off throughout, and add up to one line; only those that
    bend there are gone through pair by pair.
    """
    shape = len(queries.positions), len(keys.positions)
    line, queries, keys, units = _line(queries, keys, c), _cut(queries), _cut(keys), _in_order(units)[0]
    runs = _runs(queries, keys, c, units)
    slope, start = (runs.on @ (units.w * x) for x in (units.a, units.b))

    def block(z: Array, total: Array) -> Array:
        at = i, j = jnp.divmod(z, runs.on.shape[1])
        query, key = _at(queries, i), _at(keys, j)
        x = _logs(query, key, c, line, _start(queries, keys, at)) * _smaller(query.inverse, key.inverse)
        bend = lambda k, y: y + units.w[k] * jax.nn.relu(units.a[k] * x + units.b[k])
        y = lax.fori_loop(runs.first[at], runs.end[at], bend, slope[at] * x + start[at])
        return lax.dynamic_update_slice(total, y, (i * x.shape[0], j * x.shape[1]))

    total = jnp.zeros((queries.positions.size, keys.positions.size), jnp.float32)
    return lax.fori_loop(0, runs.first.size, block, total)[: shape[0], : shape[1]]


@jax.jit
def _network_backward(operands: Any, d_output: Float[Array, "T S"]) -> tuple[list[Array], list[Array], Array, Units]:
    """Return the gradients of the floats of both sides, of c and of the units."""
    by_pair = lambda *operands: _pullable(pair_by_pair, *operands[:-1])[1](operands[-1])
    return lax.platform_dependent(*operands, d_output, cpu=_blocks_backward, default=by_pair)


def _blocks_backward(
    queries: Side, keys: Side, c: Float[Array, ""], units: Units, d_output: Float[Array, "T S"]
) -> tuple[list[Array], list[Array], Array, Units]:
    """Return the gradients; those of unit k are sums over the pairs where it is on, of dy and of dy x."""
    t, s = d_output.shape
    line, queries, keys, given = _line(queries, keys, c), _cut(queries), _cut(keys), units
    units, order = _in_order(units)
    runs = _runs(queries, keys, c, units)
    slope = runs.on @ (units.w * units.a)
    height, width = queries.positions.shape[1], keys.positions.shape[1]
    d_output = jnp.pad(d_output, ((0, -t % height), (0, -s % width)))

    def block(z: Array, carry: Any) -> Any:
        sums, (d_queries, d_keys, d_c) = carry
        at = i, j = jnp.divmod(z, runs.on.shape[1])
        dy = lax.dynamic_slice(d_output, (i * height, j * width), (height, width))
        query, key, start = _at(queries, i), _at(keys, j), _start(queries, keys, at)
        logs = _logs(query, key, c, line, start)
        smaller = _smaller(query.inverse, key.inverse)
        x = logs * smaller
        both = lambda dy: jnp.stack([jnp.sum(dy), jnp.sum(_summed(dy * x))])

        def bend(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            sums, slopes = carry
            on = units.a[k] * x + units.b[k] > 0
            return sums.at[k].add(both(jnp.where(on, dy, 0.0))), slopes + jnp.where(on, units.w[k] * units.a[k], 0.0)

        sums = sums + runs.on[at][:, None] * both(dy)
        sums, slopes = lax.fori_loop(runs.first[at], runs.end[at], bend, (sums, jnp.full_like(x, slope[at])))
        d_x = dy * slopes
        d_query, d_key, d_c_here = _logs_backward(query, key, c, line, start, d_x * smaller)
        d_inverses = _smaller_backward(query.inverse, key.inverse, d_x * logs)
        for d_side, more in zip((d_query, d_key), d_inverses, strict=True):
            d_side[-1] = d_side[-1] + more
        add = lambda whole, part, i: [x.at[i].add(y) for x, y in zip(whole, part, strict=True)]
        return sums, (add(d_queries, d_query, i), add(d_keys, d_key, j), d_c + d_c_here)

    zeros = lambda side: [jnp.zeros_like(x) for x in _floats(side)]
    start = jnp.zeros((len(order), 2), jnp.float32), (zeros(queries), zeros(keys), jnp.zeros_like(c))
    sums, (d_queries, d_keys, d_c) = lax.fori_loop(0, runs.first.size, block, start)
    on, on_x = jnp.zeros_like(sums).at[order].set(sums).T
    d_units = Units(given.w * on_x, given.w * on, given.a * on_x + given.b * on)
    join = lambda parts, length: [x.reshape(-1)[:length] for x in parts]
    return join(d_queries, t), join(d_keys, s), d_c, d_units


network = with_backward(_network, pair_by_pair, _network_backward)


def _measured(query: Side, key: Side, c: Array) -> Float[Array, "T S"]:
    """Return x of each pair: its distance as the network reads it."""
    return _pair_logs(query, key, c) * _smaller(query.inverse, key.inverse)


def _smaller(query_inverse: Float[Array, " T"], key_inverse: Float[Array, " S"]) -> Float[Array, "T S"]:
    return jnp.minimum(query_inverse[:, None], key_inverse)


def _summed(x: Float[Array, "T S"], axis: int = 1) -> Float[Array, "..."]:
    """Return sums as products with ones: XLA:CPU takes three times longer for a reduction of what it multiplies."""
    return jnp.tensordot(x, jnp.ones(x.shape[axis], x.dtype), (axis, 0), precision="highest")


def _smaller_backward(
    query_inverse: Float[Array, " T"], key_inverse: Float[Array, " S"], d_smaller: Float[Array, "T S"]
) -> tuple[Float[Array, " T"], Float[Array, " S"]]:
    """Return the gradients through `_smaller`; of two that are equal, each has half."""
    less, equal = query_inverse[:, None] < key_inverse, query_inverse[:, None] == key_inverse
    of_query = jnp.where(equal, 0.5, less.astype(d_smaller.dtype))
    return _summed(of_query * d_smaller), _summed((1.0 - of_query) * d_smaller, 0)


def log_distance(distance: Num[Array, "*T"], c: Float[Array, ""]) -> Float[Array, "*T"]:
    """Return log(|c d| + 1)."""
    return jnp.log1p(jnp.abs(c * distance.astype(jnp.float32)))


def _pair_logs(query: Side, key: Side, c: Float[Array, ""]) -> Float[Array, "T S"]:
    return log_distance(relative_positions(query.positions, key.positions), c)


def _line(queries: Side, keys: Side, c: Float[Array, ""]) -> _Line | None:
    """Return one logarithm per distance; None for fractional positions."""
    sides = queries.positions, keys.positions
    if not all(jnp.issubdtype(x.dtype, jnp.integer) for x in sides):
        return None
    counts = [jnp.all(relative_positions(x[:1], x)[0] == jnp.arange(len(x))) for x in sides]
    of_c = functools.partial(_line_logs, _cut(queries), _cut(keys))
    logs, slopes = jax.jvp(of_c, (c,), (jnp.ones_like(c),))
    return _Line(logs, slopes, counts[0] & counts[1])


def _line_logs(queries: Side, keys: Side, c: Float[Array, ""]) -> Float[Array, " R"]:
    first = relative_positions(queries.positions[0, :1], keys.positions[0, :1])[0, 0] - (queries.positions.size - 1)
    return log_distance(first + jnp.arange(queries.positions.size + keys.positions.size - 1, dtype=first.dtype), c)


def _start(queries: Side, keys: Side, at: tuple[Array, Array]) -> Int[Array, ""]:
    """Return where the line has the first pair of a block."""
    return at[1] * keys.positions.shape[1] - at[0] * queries.positions.shape[1] + queries.positions.size - 1


def _logs(query: Side, key: Side, c: Array, line: _Line | None, start: Int[Array, ""]) -> Float[Array, "T S"]:
    """Return log(|c d| + 1) of a block, along the diagonals where there are such."""
    by_pair = lambda: _pair_logs(query, key, c)
    if line is None:
        return by_pair()
    along = lambda: toeplitz(line.logs, start, len(query.positions), len(key.positions))
    return lax.cond(line.steady, along, by_pair)


def _logs_backward(
    query: Side, key: Side, c: Array, line: _Line | None, start: Int[Array, ""], d_logs: Float[Array, "T S"]
) -> tuple[list[Array], list[Array], Array]:
    """Return the gradients of the floats of both sides and of c, through the logarithms of a block."""
    by_pair = lambda: _pullable(_pair_logs, query, key, c)[1](d_logs)
    if line is None:
        return by_pair()

    def along() -> tuple[list[Array], list[Array], Array]:
        nothing = [[jnp.zeros_like(x) for x in _floats(side)] for side in (query, key)]
        return nothing[0], nothing[1], jnp.sum(_summed(d_logs * toeplitz(line.slopes, start, *d_logs.shape)))

    return lax.cond(line.steady, along, by_pair)


def _pullable(function: Callable[..., Array], query: Side, key: Side, *others: Any) -> tuple[Array, Any]:
    """Return `function(query, key, *others)` and the way back to the floats of both sides and to the others."""

    def of_floats(query_floats: list[Array], key_floats: list[Array], *others: Any) -> Array:
        return function(_with_floats(query, query_floats), _with_floats(key, key_floats), *others)

    return jax.vjp(of_floats, _floats(query), _floats(key), *others)


def _floats(side: Side) -> list[Array]:
    return [x for x in side if jnp.issubdtype(x.dtype, jnp.floating)]


def _with_floats(side: Side, floats: list[Array]) -> Side:
    return Side(*side[: 2 - len(floats)], *floats)


def _cut(side: Side) -> Side:
    """Cut a side into blocks, the last one filled up with its last token."""
    size = min(SIDE, len(side.positions))
    return jax.tree.map(lambda x: jnp.pad(x, (0, -len(x) % size), mode="edge").reshape(-1, size), side)


def _at(blocks: Side, i: Int[Array, ""]) -> Side:
    return jax.tree.map(lambda x: x[i], blocks)


def _in_order(units: Units) -> tuple[Units, Int[Array, " W"]]:
    """Return the units in the order of the x where they bend, and that order; those that never do come last."""
    order = jnp.argsort(jnp.where(units.a == 0, jnp.inf, -units.b / jnp.where(units.a == 0, 1.0, units.a)))
    return jax.tree.map(lambda x: x[order], units), order


def _runs(queries: Side, keys: Side, c: Array, units: Units) -> _Runs:
    """Find the units that bend in each block, from bounds of x there."""
    ends = lambda x: (jnp.min(x, axis=1), jnp.max(x, axis=1))
    (q_low, q_high), (k_low, k_high) = ends(queries.positions), ends(keys.positions)
    before, after = relative_positions(q_high, k_low), relative_positions(q_low, k_high)
    nearest, farthest = jnp.maximum(jnp.maximum(before, -after), 0), jnp.maximum(-before, after)
    (i_low, i_high), (j_low, j_high) = ends(queries.inverse), ends(keys.inverse)
    x = lambda d, i, j: log_distance(d, c) * _smaller(i, j)
    low, high = (1.0 - SLACK) * x(nearest, i_low, j_low), (1.0 + SLACK) * x(farthest, i_high, j_high)
    low_on, high_on = (units.a * x[..., None] + units.b > 0 for x in (low, high))
    bends, last = low_on != high_on, len(units.a)
    first = jnp.argmax(bends, axis=-1)
    end = jnp.where(jnp.any(bends, axis=-1), last - jnp.argmax(bends[..., ::-1], axis=-1), 0)
    k = jnp.arange(last)
    on = low_on & ((k < first[..., None]) | (k >= end[..., None]))
    return _Runs(first, end, on.astype(jnp.float32))
