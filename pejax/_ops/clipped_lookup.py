"""Reads and sums the rows of a table by clipped relative position, fast where positions count on by one.

    pick      out[i, j] = scores[i, clip(k_j - q_i) + m]           clip: to -m ... m
    collect   out[i, r] = Σ_j weights[i, j] · [clip(k_j - q_i) + m = r]

Each is the other's transpose. On CPUs, where each such pick is slow, pairs beyond the clip share two columns, and the
others are read a row at a time where positions count on by one.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pejax._ops.backward import with_backward
from pejax._ops.relative import relative_positions

STRIP = 32
"""Queries of a strip, whose pairs closer than the clip are picked together."""


def gather_rows(scores: Float[Array, "T R"], rows: Int[Array, "T S"]) -> Float[Array, "T S"]:
    """Return `scores[i, rows[i, j]]`."""
    return jnp.take_along_axis(scores, rows, axis=1, mode="promise_in_bounds")


def scatter_rows(weights: Float[Array, "T S"], rows: Int[Array, "T S"], count: int) -> Float[Array, "T R"]:
    """Return `Σ_j weights[i, j] · [rows[i, j] = r]`."""
    return jax.vmap(lambda rows, weights: jnp.zeros(count, jnp.float32).at[rows].add(weights))(rows, weights)


def _pick_any(
    scores: Float[Array, "T R"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T S"]:
    """Return `scores[i, clip(p_j - p_i) + m]`, wherever the positions are."""
    return gather_rows(scores, _rows(q_positions, k_positions, scores.shape[1]))


@jax.jit
def _pick_fast(
    scores: Float[Array, "T R"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T S"]:
    """Return the same, on a CPU by what the positions are."""
    rows = scores.shape[1]
    m = (rows - 1) // 2
    anywhere = lambda scores: _pick_any(scores, q_positions, k_positions)

    def one_row(row: int) -> Callable[[Array], Array]:
        return lambda scores: jnp.broadcast_to(scores[:, row, None], (len(scores), len(k_positions)))

    def counting(scores: Array) -> Array:
        height, width, count, place = _strips(q_positions, k_positions, m)
        ends = lambda column: jnp.broadcast_to(column, (len(scores), width))
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
    """Return what `collect` does, wherever the positions are."""
    return scatter_rows(weights, _rows(q_positions, k_positions, rows), rows)


@functools.partial(jax.jit, static_argnums=0)
def _collect_fast(
    rows: int, weights: Float[Array, "T S"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T R"]:
    """Return the same, on a CPU by what the positions are."""
    m = (rows - 1) // 2
    anywhere = lambda weights: _collect_any(rows, weights, q_positions, k_positions)

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


pick = with_backward(
    _pick_fast, _pick_any, lambda operands, d_output: _collect_fast(operands[0].shape[1], d_output, *operands[1:])
)


@functools.cache
def _collector(rows: int) -> Callable[..., Float[Array, "T R"]]:
    run, plain = (functools.partial(function, rows) for function in (_collect_fast, _collect_any))
    return with_backward(run, plain, lambda operands, d_output: _pick_fast(d_output, *operands[1:]))


def collect(rows: int, weights: Float[Array, "T S"], *positions: Int[Array, "..."]) -> Float[Array, "T R"]:
    """Return the sum of the weights of the pairs that read each row: the transpose of `pick`."""
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
