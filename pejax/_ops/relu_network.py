"""A small ReLU network of the distance for every pair of query and key (FIRE's), with a fast form for CPUs.

    y_ij = Σ_k w_k relu(a_k x_ij + b_k),    x_ij = log(|c d| + 1) · min(1/n_i, 1/n_j),    d = p_j - p_i

It is piecewise linear in x: unit k has its kink at x = -b_k / a_k. On a CPU it is computed in blocks of pairs, in which
few units have their kink, since x varies little; the others are linear there. Elsewhere every pair computes every unit.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from pejax._ops.backward import with_backward
from pejax._ops.relative import LONGEST, are_consecutive, float_differences, relative_positions
from pejax._ops.toeplitz import toeplitz
from pejax._ops.varying import zeros_varying

BLOCK = 128
"""Maximum number of queries, and of keys, per block of pairs."""

SLACK = 1e-5
"""Relative widening of the bounds of x, against rounding."""


class Side(NamedTuple):
    """Queries or keys: their positions, and the inverse of their normalizer; a pair uses the smaller inverse."""

    positions: Num[Array, "*N T"]
    inverse: Float[Array, "*N T"]


class Units(NamedTuple):
    """The weights of the W hidden units: `Σ_k w_k relu(a_k x + b_k)`."""

    a: Float[Array, " W"]
    b: Float[Array, " W"]
    w: Float[Array, " W"]


class _DiagonalLogs(NamedTuple):
    """log(|c d| + 1) for every distance d of consecutive integer positions, one per diagonal of the pairs.

    Attributes:
        logs: starting with the smallest distance; R is the number of tokens of both sides, padded to full blocks,
            minus one.
        slopes: their derivatives in c.
        consecutive: whether the positions of both sides are consecutive, without which the logs must not be used.
    """

    logs: Float[Array, " R"]
    slopes: Float[Array, " R"]
    consecutive: Bool[Array, ""]


class _BlockUnits(NamedTuple):
    """Per block of pairs: the units whose kink lies inside it, and those active throughout.

    Attributes:
        first: the first unit whose kink lies inside, in the order of kinks.
        end: one after the last such unit.
        on: 1 for units outside that range that are active throughout the block, else 0.
    """

    first: Int[Array, "N M"]
    end: Int[Array, "N M"]
    on: Float[Array, "N M W"]


@jax.jit
def _network(queries: Side, keys: Side, c: Float[Array, ""], units: Units) -> Float[Array, "T S"]:
    """Return `Σ_k w_k relu(a_k x + b_k)` of `x = log(|c d| + 1) · min(inverse_i, inverse_j)`."""
    return lax.platform_dependent(queries, keys, c, units, cpu=_by_blocks, default=pair_by_pair)


def pair_by_pair(queries: Side, keys: Side, c: Float[Array, ""], units: Units) -> Float[Array, "T S"]:
    """Return the same, computing every unit for every pair."""
    return jax.nn.relu(units.a * _measured(queries, keys, c)[..., None] + units.b) @ units.w


def _by_blocks(queries: Side, keys: Side, c: Float[Array, ""], units: Units) -> Float[Array, "T S"]:
    """Return the same by blocks of pairs, which CPUs keep in cache.

    The units that are active throughout a block sum to one linear function of x; only units whose kink lies inside the
    block are computed for every pair.
    """
    shape = len(queries.positions), len(keys.positions)
    diagonal, queries, keys = _diagonal_logs(queries, keys, c), _to_blocks(queries), _to_blocks(keys)
    units = _by_kink(units)[0]
    in_block = _block_units(queries, keys, c, units)
    slope, intercept = (in_block.on @ (units.w * x) for x in (units.a, units.b))

    def block(number: Array, total: Array) -> Array:
        i, j = index = jnp.divmod(number, in_block.on.shape[1])
        query, key = _block(queries, i), _block(keys, j)
        x = _logs(query, key, c, diagonal, _start(queries, keys, index)) * _smaller(query.inverse, key.inverse)
        add_unit = lambda k, y: y + units.w[k] * jax.nn.relu(units.a[k] * x + units.b[k])
        y = lax.fori_loop(in_block.first[index], in_block.end[index], add_unit, slope[index] * x + intercept[index])
        return lax.dynamic_update_slice(total, y, (i * x.shape[0], j * x.shape[1]))

    total = zeros_varying((queries.positions.size, keys.positions.size), jnp.float32, queries, keys)
    return lax.fori_loop(0, in_block.first.size, block, total)[: shape[0], : shape[1]]


@jax.jit
def _network_backward(operands: Any, d_output: Float[Array, "T S"]) -> tuple[list[Array], list[Array], Array, Units]:
    """Return the gradients of the floating point fields of both sides, of c and of the units."""
    by_pair = lambda *operands: _pullback(pair_by_pair, *operands[:-1])[1](operands[-1])
    return lax.platform_dependent(*operands, d_output, cpu=_blocks_backward, default=by_pair)


def _blocks_backward(
    queries: Side, keys: Side, c: Float[Array, ""], units: Units, d_output: Float[Array, "T S"]
) -> tuple[list[Array], list[Array], Array, Units]:
    """Return the gradients by blocks; those of unit k are sums of dy and of dy·x over the pairs where it is active."""
    t, s = d_output.shape
    diagonal, queries, keys = _diagonal_logs(queries, keys, c), _to_blocks(queries), _to_blocks(keys)
    (units, order), unsorted = _by_kink(units), units
    in_block = _block_units(queries, keys, c, units)
    slope = in_block.on @ (units.w * units.a)
    height, width = queries.positions.shape[1], keys.positions.shape[1]
    d_output = jnp.pad(d_output, ((0, -t % height), (0, -s % width)))

    def block(number: Array, carry: Any) -> Any:
        sums, (d_queries, d_keys, d_c) = carry
        i, j = index = jnp.divmod(number, in_block.on.shape[1])
        dy = lax.dynamic_slice(d_output, (i * height, j * width), (height, width))
        query, key, start = _block(queries, i), _block(keys, j), _start(queries, keys, index)
        logs = _logs(query, key, c, diagonal, start)
        smaller = _smaller(query.inverse, key.inverse)
        x = logs * smaller
        sums_of = lambda dy: jnp.stack([jnp.sum(dy), jnp.sum(_summed(dy * x))])  # over dy, and over dy·x

        def add_unit(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            sums, slopes = carry
            on = units.a[k] * x + units.b[k] > 0
            active = sums_of(jnp.where(on, dy, 0.0))
            return sums.at[k].add(active), slopes + jnp.where(on, units.w[k] * units.a[k], 0.0)

        sums = sums + in_block.on[index][:, None] * sums_of(dy)
        first, end = in_block.first[index], in_block.end[index]
        sums, slopes = lax.fori_loop(first, end, add_unit, (sums, jnp.full_like(x, slope[index])))
        d_x = dy * slopes
        d_query, d_key, d_c_of_block = _logs_backward(query, key, c, diagonal, start, d_x * smaller)
        d_inverses = _smaller_backward(query.inverse, key.inverse, d_x * logs)
        for d_side, d_inverse in zip((d_query, d_key), d_inverses, strict=True):
            d_side[-1] = d_side[-1] + d_inverse
        add = lambda totals, parts, i: [x.at[i].add(y) for x, y in zip(totals, parts, strict=True)]
        return sums, (add(d_queries, d_query, i), add(d_keys, d_key, j), d_c + d_c_of_block)

    zeros = lambda side: [jnp.zeros_like(x) for x in _floats(side)]
    sums = zeros_varying((len(order), 2), jnp.float32, queries, keys)
    start = sums, (zeros(queries), zeros(keys), jnp.zeros_like(c))
    sums, (d_queries, d_keys, d_c) = lax.fori_loop(0, in_block.first.size, block, start)
    sum_dy, sum_dy_x = jnp.zeros_like(sums).at[order].set(sums).T
    d_units = Units(unsorted.w * sum_dy_x, unsorted.w * sum_dy, unsorted.a * sum_dy_x + unsorted.b * sum_dy)
    join = lambda parts, length: [x.reshape(-1)[:length] for x in parts]
    return join(d_queries, t), join(d_keys, s), d_c, d_units


network = with_backward(_network, pair_by_pair, _network_backward)


def _measured(query: Side, key: Side, c: Array) -> Float[Array, "T S"]:
    """Return x of each pair, the network's input."""
    return _pair_logs(query, key, c) * _smaller(query.inverse, key.inverse)


def _smaller(query_inverse: Float[Array, " T"], key_inverse: Float[Array, " S"]) -> Float[Array, "T S"]:
    """Return the smaller inverse normalizer of each pair."""
    return jnp.minimum(query_inverse[:, None], key_inverse)


def _summed(x: Float[Array, "T S"], axis: int = 1) -> Float[Array, "..."]:
    """Return sums over an axis, as a product with ones: XLA:CPU takes three times longer to sum a product."""
    return jnp.tensordot(x, jnp.ones(x.shape[axis], x.dtype), (axis, 0), precision="highest")


def _smaller_backward(
    query_inverse: Float[Array, " T"], key_inverse: Float[Array, " S"], d_smaller: Float[Array, "T S"]
) -> tuple[Float[Array, " T"], Float[Array, " S"]]:
    """Return the gradients through `_smaller`; where the two are equal, each gets half."""
    less, equal = query_inverse[:, None] < key_inverse, query_inverse[:, None] == key_inverse
    to_query = jnp.where(equal, 0.5, less.astype(d_smaller.dtype))
    return _summed(to_query * d_smaller), _summed((1.0 - to_query) * d_smaller, 0)


def log_distance(distance: Num[Array, "*T"], c: Float[Array, ""]) -> Float[Array, "*T"]:
    """Return log(|c d| + 1)."""
    return jnp.log1p(jnp.abs(c * distance.astype(jnp.float32)))


def _pair_logs(query: Side, key: Side, c: Float[Array, ""]) -> Float[Array, "T S"]:
    """Return log(|c d| + 1) of every pair."""
    return log_distance(float_differences(query.positions, key.positions), c)


def _diagonal_logs(queries: Side, keys: Side, c: Float[Array, ""]) -> _DiagonalLogs | None:
    """Return one logarithm per diagonal and whether it may be used; None for positions of a float type."""
    sides = queries.positions, keys.positions
    if not all(jnp.issubdtype(x.dtype, jnp.integer) for x in sides):
        return None
    is_near = jnp.abs(float_differences(sides[0][:1], sides[1][:1])[0, 0]) < LONGEST
    consecutive = is_near & are_consecutive(sides[0]) & are_consecutive(sides[1])
    of_c = functools.partial(_logs_by_distance, _to_blocks(queries), _to_blocks(keys))
    logs, slopes = jax.jvp(of_c, (c,), (jnp.ones_like(c),))
    return _DiagonalLogs(logs, slopes, consecutive)


def _logs_by_distance(queries: Side, keys: Side, c: Float[Array, ""]) -> Float[Array, " R"]:
    """Return log(|c d| + 1) of the distances d between blocks of consecutive positions, the smallest first."""
    first = relative_positions(queries.positions[0, :1], keys.positions[0, :1])[0, 0] - (queries.positions.size - 1)
    return log_distance(first + jnp.arange(queries.positions.size + keys.positions.size - 1, dtype=first.dtype), c)


def _start(queries: Side, keys: Side, index: tuple[Array, Array]) -> Int[Array, ""]:
    """Return the diagonal, counted from the smallest distance, of the first pair of a block."""
    return index[1] * keys.positions.shape[1] - index[0] * queries.positions.shape[1] + queries.positions.size - 1


def _logs(
    query: Side, key: Side, c: Array, diagonal: _DiagonalLogs | None, start: Int[Array, ""]
) -> Float[Array, "T S"]:
    """Return log(|c d| + 1) of a block, read by diagonal if positions are consecutive."""
    by_pair = lambda: _pair_logs(query, key, c)
    if diagonal is None:
        return by_pair()
    from_diagonals = lambda: toeplitz(diagonal.logs, start, len(query.positions), len(key.positions))
    return lax.cond(diagonal.consecutive, from_diagonals, by_pair)


def _logs_backward(
    query: Side, key: Side, c: Array, diagonal: _DiagonalLogs | None, start: Int[Array, ""], d_logs: Float[Array, "T S"]
) -> tuple[list[Array], list[Array], Array]:
    """Return the gradients of the floating point fields of both sides and of c, through the logarithms of a block."""
    by_pair = lambda: _pullback(_pair_logs, query, key, c)[1](d_logs)
    if diagonal is None:
        return by_pair()

    def from_diagonals() -> tuple[list[Array], list[Array], Array]:
        zeros = [[jnp.zeros_like(x) for x in _floats(side)] for side in (query, key)]
        return zeros[0], zeros[1], jnp.sum(_summed(d_logs * toeplitz(diagonal.slopes, start, *d_logs.shape)))

    return lax.cond(diagonal.consecutive, from_diagonals, by_pair)


def _pullback(function: Callable[..., Array], query: Side, key: Side, *operands: Any) -> tuple[Array, Any]:
    """Return `function(query, key, *others)` and its VJP to the floating point fields of both sides and the others."""

    def of_floats(query_floats: list[Array], key_floats: list[Array], *operands: Any) -> Array:
        return function(_with_floats(query, query_floats), _with_floats(key, key_floats), *operands)

    return jax.vjp(of_floats, _floats(query), _floats(key), *operands)


def _floats(side: Side) -> list[Array]:
    """Return the floating point fields of a side: the inverse, and before it the positions if they are floats."""
    return [x for x in side if jnp.issubdtype(x.dtype, jnp.floating)]


def _with_floats(side: Side, floats: list[Array]) -> Side:
    """Return the side with its floating point fields replaced by `floats`."""
    return Side(*side[: 2 - len(floats)], *floats)


def _to_blocks(side: Side) -> Side:
    """Split a side into blocks of equal size; the last block is padded with copies of the last token."""
    size = min(BLOCK, len(side.positions))
    return jax.tree.map(lambda x: jnp.pad(x, (0, -len(x) % size), mode="edge").reshape(-1, size), side)


def _block(blocks: Side, i: Int[Array, ""]) -> Side:
    """Return block i of a side."""
    return jax.tree.map(lambda x: x[i], blocks)


def _by_kink(units: Units) -> tuple[Units, Int[Array, " W"]]:
    """Return the units sorted by the x of their kink, and the order; units without a kink (a = 0) come last."""
    order = jnp.argsort(jnp.where(units.a == 0, jnp.inf, -units.b / jnp.where(units.a == 0, 1.0, units.a)))
    return jax.tree.map(lambda x: x[order], units), order


def _block_units(queries: Side, keys: Side, c: Array, units: Units) -> _BlockUnits:
    """Return the units with a kink inside each block, and those active throughout, from bounds of x in the block."""
    ends = lambda x: (jnp.min(x, axis=1), jnp.max(x, axis=1))
    (q_low, q_high), (k_low, k_high) = ends(queries.positions), ends(keys.positions)
    before, after = float_differences(q_high, k_low), float_differences(q_low, k_high)
    nearest, farthest = jnp.maximum(jnp.maximum(before, -after), 0), jnp.maximum(-before, after)
    (i_low, i_high), (j_low, j_high) = ends(queries.inverse), ends(keys.inverse)
    x = lambda d, i, j: log_distance(d, c) * _smaller(i, j)
    low, high = (1.0 - SLACK) * x(nearest, i_low, j_low), (1.0 + SLACK) * x(farthest, i_high, j_high)
    low_on, high_on = (units.a * x[..., None] + units.b > 0 for x in (low, high))
    has_kink, count = low_on != high_on, len(units.a)
    first = jnp.argmax(has_kink, axis=-1)
    end = jnp.where(jnp.any(has_kink, axis=-1), count - jnp.argmax(has_kink[..., ::-1], axis=-1), 0)
    k = jnp.arange(count)
    on = low_on & ((k < first[..., None]) | (k >= end[..., None]))
    return _BlockUnits(first, end, on.astype(jnp.float32))
