"""Shaw: a learned vector for each clipped relative position, added to keys and to values after their projection.

    logits[h, i, j] += scale · q_i · key_table[clip(p_j - p_i)]
    output[h, i]    += Σ_j w_ij · value_table[clip(p_j - p_i)]          clip: to -m ... m

The tables are shared by the heads. q meets the 2m + 1 rows of the table first and the pairs pick from that, so nothing
is ever T x S x D. On CPUs, where each such pick is slow, pairs beyond the clip share two columns, and the others are
read a row at a time where positions count on by one.

Reference:
    Shaw et al. 2018, "Self-Attention with Relative Position Representations" (arXiv 1803.02155), equations 3 to 5;
    code: tensor2tensor `common_attention.py:_generate_relative_positions_matrix`.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from pejax.backward import with_backward
from pejax.encoding import Dims, Encoding, Params, relative_positions
from pejax.relative import axes_of, axis_shape, check_axes, check_table, sum_over_axes

STRIP = 32
"""Queries of a strip, whose pairs closer than the clip are picked together."""


def shaw_logits(
    q: Float[Array, "T H D"],
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    key_table: Float[Array, "*A R D"],
    *,
    scale: float | None = None,
) -> Float[Array, "H T S"]:
    """Return `scale · q_i · key_table[clip(p_j - p_i) + m]`, on A > 1 axes the sum of one such term per axis.

    Args:
        q: queries, unscaled.
        q_positions: in tokens, `(T,)` or `(T, A)`; a fractional difference interpolates linearly between two rows.
        k_positions: likewise.
        key_table: rows for -m ... m, R = 2m + 1.
        scale: what multiplies q·k; None = D^-0.5.

    Raises:
        ValueError: an even number of rows, fewer than 3, or a table without the axes of the positions.
    """
    axes = _check_tables(key_table, q_positions)
    scale = float(q.shape[-1] ** -0.5) if scale is None else scale
    return jax.vmap(lambda q: scale * _key_term(key_table, q, q_positions, k_positions, axes), in_axes=1)(q)


def shaw_values(
    weights: Float[Array, "H T S"],
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    value_table: Float[Array, "*A R D"],
) -> Float[Array, "T H D"]:
    """Return `Σ_j w_ij · value_table[clip(p_j - p_i) + m]`, on A > 1 axes the sum of one such term per axis.

    Args:
        weights: of attention.
        q_positions: in tokens, `(T,)` or `(T, A)`; a fractional difference interpolates linearly between two rows.
        k_positions: likewise.
        value_table: rows for -m ... m, R = 2m + 1.

    Raises:
        ValueError: as in `shaw_logits`.
    """
    axes = _check_tables(value_table, q_positions)
    head = lambda weights: _value_term(value_table, weights, q_positions, k_positions, axes)  # noqa: E731
    return jax.vmap(head, out_axes=1)(weights)


def _check_tables(table: Float[Array, "*A R D"], positions: Num[Array, "T *A"]) -> int:
    axes = axes_of(positions)
    check_table("shaw's table", table.shape[:-2], axes)
    if table.shape[-2] < 3 or table.shape[-2] % 2 == 0:
        raise ValueError(f"shaw's table must have 2m + 1 rows with m at least 1, got {table.shape[-2]}")
    return axes


def _key_term(table: Array, q: Float[Array, "T D"], q_positions: Array, k_positions: Array, axes: int) -> Array:
    def term(table: Array, q_positions: Num[Array, " T"], k_positions: Num[Array, " S"]) -> Float[Array, "T S"]:
        scores = q.astype(jnp.float32) @ table.astype(jnp.float32).T
        if _whole(q_positions, k_positions):
            return _pick(scores, q_positions, k_positions)
        parts = _between(relative_positions(q_positions, k_positions), len(table))
        return functools.reduce(jnp.add, (part * _gather(scores, rows) for rows, part in parts))

    return sum_over_axes(term, axes, table, q_positions, k_positions)


def _value_term(table: Array, weights: Float[Array, "T S"], q_positions: Array, k_positions: Array, axes: int) -> Array:
    weights = weights.astype(jnp.float32)

    def term(table: Array, q_positions: Num[Array, " T"], k_positions: Num[Array, " S"]) -> Float[Array, "T D"]:
        if _whole(q_positions, k_positions):
            by_row = _collect(len(table), weights, q_positions, k_positions)
        else:
            parts = _between(relative_positions(q_positions, k_positions), len(table))
            by_row = functools.reduce(jnp.add, (_scatter(part * weights, rows, len(table)) for rows, part in parts))
        return by_row @ table.astype(jnp.float32)

    return sum_over_axes(term, axes, table, q_positions, k_positions)


def _whole(*positions: Array) -> bool:
    return all(jnp.issubdtype(x.dtype, jnp.integer) for x in positions)


def _between(relative: Float[Array, "T S"], rows: int) -> list[tuple[Int[Array, "T S"], Float[Array, "T S"]]]:
    """Return the two rows of the table that each pair reads, and with what weights."""
    m = (rows - 1) // 2
    place = jnp.clip(relative, -m, m) + m
    below = jnp.minimum(jnp.floor(place), 2 * m - 1)
    above = (place - below).astype(jnp.float32)
    row = below.astype(jnp.int32)
    return [(row, 1.0 - above), (row + 1, above)]


def _gather(scores: Float[Array, "T R"], rows: Int[Array, "T S"]) -> Float[Array, "T S"]:
    return jnp.take_along_axis(scores, rows, axis=1, mode="promise_in_bounds")


def _scatter(weights: Float[Array, "T S"], rows: Int[Array, "T S"], count: int) -> Float[Array, "T R"]:
    return jax.vmap(lambda rows, weights: jnp.zeros(count, jnp.float32).at[rows].add(weights))(rows, weights)


def _pick_any(
    scores: Float[Array, "T R"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T S"]:
    """Return `scores[i, clip(p_j - p_i) + m]`, wherever the positions are."""
    return _gather(scores, _rows(q_positions, k_positions, scores.shape[1]))


@jax.jit
def _pick_fast(
    scores: Float[Array, "T R"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T S"]:
    """Return the same, on a CPU by what the positions are."""
    rows = scores.shape[1]
    m = (rows - 1) // 2
    anywhere = lambda scores: _pick_any(scores, q_positions, k_positions)  # noqa: E731

    def one_row(row: int) -> Callable[[Array], Array]:
        return lambda scores: jnp.broadcast_to(scores[:, row, None], (len(scores), len(k_positions)))

    def counting(scores: Array) -> Array:
        height, width, count, place = _strips(q_positions, k_positions, m)
        ends = lambda column: jnp.broadcast_to(column, (len(scores), width))  # noqa: E731
        lines = jnp.concatenate([ends(scores[:, :1]), scores, ends(scores[:, -1:])], axis=1)

        def strip(i: Array, total: Array) -> Array:
            top, left, corner = place(i)
            first = jnp.clip(corner + m + width - jnp.arange(height, dtype=jnp.int32), 0, rows + width)
            near = lax.dynamic_slice_in_dim(lines, top, height)
            near = jax.vmap(lambda line, first: lax.dynamic_slice_in_dim(line, first, width))(near, first)
            return lax.dynamic_update_slice(total, near, (top, left))

        far = jnp.where(relative_positions(q_positions, k_positions) < 0, scores[:, :1], scores[:, -1:])
        return lax.fori_loop(0, count, strip, far)

    cases = (anywhere, one_row(0), one_row(-1), counting)
    by_case = functools.partial(lax.switch, _case(q_positions, k_positions, m), cases)
    return lax.platform_dependent(scores, cpu=by_case, default=anywhere)


def _collect_any(
    rows: int, weights: Float[Array, "T S"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T R"]:
    """Return what `_collect` does, wherever the positions are."""
    return _scatter(weights, _rows(q_positions, k_positions, rows), rows)


@functools.partial(jax.jit, static_argnums=0)
def _collect_fast(
    rows: int, weights: Float[Array, "T S"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T R"]:
    """Return the same, on a CPU by what the positions are."""
    m = (rows - 1) // 2
    anywhere = lambda weights: _collect_any(rows, weights, q_positions, k_positions)  # noqa: E731

    def one_row(row: int) -> Callable[[Array], Array]:
        return lambda weights: jnp.zeros((len(weights), rows), jnp.float32).at[:, row].set(jnp.sum(weights, axis=1))

    def counting(weights: Array) -> Array:
        height, width, count, place = _strips(q_positions, k_positions, m)

        def strip(i: Array, total: Array) -> Array:
            top, left, corner = place(i)
            first = jnp.clip(jnp.arange(height, dtype=jnp.int32) - corner - m + rows, 0, width + rows)
            near = jnp.pad(lax.dynamic_slice(weights, (top, left), (height, width)), ((0, 0), (rows, rows)))
            near = jax.vmap(lambda line, first: lax.dynamic_slice_in_dim(line, first, rows))(near, first)
            return lax.dynamic_update_slice_in_dim(total, near, top, 0)

        between = lax.fori_loop(0, count, strip, jnp.zeros((len(weights), rows), jnp.float32))
        relative = relative_positions(q_positions, k_positions)
        ends = [jnp.sum(jnp.where(far, weights, 0.0), axis=1)[:, None] for far in (relative <= -m, relative >= m)]
        return jnp.concatenate([ends[0], between[:, 1:-1], ends[1]], axis=1)

    cases = (anywhere, one_row(0), one_row(-1), counting)
    by_case = functools.partial(lax.switch, _case(q_positions, k_positions, m), cases)
    return lax.platform_dependent(weights, cpu=by_case, default=anywhere)


_pick = with_backward(
    _pick_fast, _pick_any, lambda operands, d_output: _collect_fast(operands[0].shape[1], d_output, *operands[1:])
)


@functools.cache
def _collector(rows: int) -> Callable[..., Float[Array, "T R"]]:
    run, plain = (functools.partial(function, rows) for function in (_collect_fast, _collect_any))
    return with_backward(run, plain, lambda operands, d_output: _pick_fast(d_output, *operands[1:]))


def _collect(rows: int, weights: Float[Array, "T S"], *positions: Int[Array, "..."]) -> Float[Array, "T R"]:
    """Return the sum of the weights of the pairs that read each row: the transpose of `_pick`."""
    return _collector(rows)(weights, *positions)


def _rows(q_positions: Int[Array, " T"], k_positions: Int[Array, " S"], rows: int) -> Int[Array, "T S"]:
    """Return the row of the table that each pair reads."""
    m = (rows - 1) // 2
    return jnp.clip(relative_positions(q_positions, k_positions), -m, m) + m


def _case(q_positions: Int[Array, " T"], k_positions: Int[Array, " S"], m: int) -> Int[Array, ""]:
    """Return 1 or 2 where every key is m before or after every query at least, 3 where positions count on, else 0."""
    before = relative_positions(jnp.min(q_positions)[None], jnp.max(k_positions)[None])[0, 0] <= -m
    after = relative_positions(jnp.max(q_positions)[None], jnp.min(k_positions)[None])[0, 0] >= m
    counts = jnp.all(jnp.diff(q_positions) == 1) & jnp.all(jnp.diff(k_positions) == 1)
    return jnp.select([before, after, counts], [1, 2, 3], 0)


def _strips(
    q_positions: Int[Array, " T"], k_positions: Int[Array, " S"], m: int
) -> tuple[int, int, int, Callable[[Array], tuple[Array, Array, Array]]]:
    """Return the height, width and number of windows that hold the pairs closer than the clip, and where each begins.

    That is a row, a column and the key's position - the query's there, for positions that count on by one.
    """
    t, s = len(q_positions), len(k_positions)
    distance = relative_positions(q_positions[:1], k_positions[:1])[0, 0].astype(jnp.int32)
    height = min(STRIP, t)
    width = min(height + 2 * m, s)

    def place(i: Array) -> tuple[Array, Array, Array]:
        top = jnp.minimum(i * height, t - height).astype(jnp.int32)
        left = jnp.clip(top - distance - m, 0, s - width)
        return top, left, distance + left - top

    return height, width, math.ceil(t / height), place


def shaw(dims: Dims, *, clip: int = 16, values: bool = True) -> Encoding:
    """Make Shaw's encoding for these dims, with tables for each axis in every layer, their terms summed.

    The tables are uniform within `sqrt(6 / (2m + 1 + D))` at the start (Glorot), as in tensor2tensor.

    Args:
        dims: D, `axes` and `scale`.
        clip: m, the distance from which on all share a row, in tokens.
        values: whether values have a table too; without it only the logits know positions.

    Raises:
        ValueError: a clip below 1.
    """
    if clip < 1:
        raise ValueError(f"shaw's clip must be at least 1, got {clip}")
    shape = (*axis_shape(dims.axes), 2 * clip + 1, dims.head_dim)
    bound = (6.0 / (shape[-2] + shape[-1])) ** 0.5

    def init_layer(key: Array) -> Params:
        names = ("key_table", "value_table")[: 1 + values]
        draw = lambda key: jax.random.uniform(key, shape, jnp.float32, -bound, bound)  # noqa: E731
        return {"all": {name: draw(one) for name, one in zip(names, jax.random.split(key, len(names)), strict=True)}}

    def bias(params: Params, q: Array, k: Array, q_positions: Array, k_positions: Array) -> Array:
        del k
        check_axes("shaw", q_positions, dims.axes)
        return dims.scale * _key_term(params["key_table"], q, q_positions, k_positions, dims.axes)

    def add_values(params: Params, weights: Array, q_positions: Array, k_positions: Array) -> Array:
        check_axes("shaw", q_positions, dims.axes)
        return _value_term(params["value_table"], weights, q_positions, k_positions, dims.axes)

    return Encoding(init_layer=init_layer, bias=bias, values=add_values if values else None, shift_invariant=True)
