"""Lookup and summation by clipped relative position, with a fast form for CPUs at consecutive positions.

    pick      out[i, j] = scores[i, clip(k_j - q_i) + m]           clip: to -m ... m
    collect   out[i, r] = Σ_j weights[i, j] · [clip(k_j - q_i) + m = r]

Each is the transpose of the other. Lookups of single elements are slow on CPUs. So on CPUs, all pairs at or beyond the
clip read one of two columns, and at consecutive positions the other pairs of a query are read as one slice.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pejax._ops.backward import with_backward
from pejax._ops.relative import are_consecutive, relative_positions
from pejax._ops.varying import zeros_varying

STRIP = 32
"""Queries per strip, whose pairs closer than the clip are read together."""

GENERAL, ALL_BEFORE, ALL_AFTER, CONSECUTIVE = range(4)
"""Forms of lookup: any positions; every key at least m before, or after, every query; consecutive positions."""


def gather_rows(scores: Float[Array, "T R"], rows: Int[Array, "T S"]) -> Float[Array, "T S"]:
    """Return `scores[i, rows[i, j]]`."""
    return jnp.take_along_axis(scores, rows, axis=1, mode="promise_in_bounds")


def scatter_rows(weights: Float[Array, "T S"], rows: Int[Array, "T S"], count: int) -> Float[Array, "T R"]:
    """Return `Σ_j weights[i, j] · [rows[i, j] = r]`."""
    return jax.vmap(lambda rows, weights: jnp.zeros(count, jnp.float32).at[rows].add(weights))(rows, weights)


def _pick_general(
    scores: Float[Array, "T R"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T S"]:
    """Return `scores[i, clip(k_j - q_i) + m]` at any positions."""
    return gather_rows(scores, _rows(q_positions, k_positions, scores.shape[1]))


def _are_read(q_positions: Int[Array, " T"], k_positions: Int[Array, " S"], rows: int) -> Bool[Array, "T S R"]:
    """Return which row of the table each pair reads."""
    read = _rows(q_positions, k_positions, rows)
    return read[..., None] == jnp.arange(rows, dtype=read.dtype)


def _pick_by_comparing(
    scores: Float[Array, "T R"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T S"]:
    """Return the same, by a sum over all rows: TPUs are slow to look up single elements, and their kernels cannot."""
    return jnp.sum(jnp.where(_are_read(q_positions, k_positions, scores.shape[1]), scores[:, None], 0.0), axis=2)


def _collect_by_comparing(
    rows: int, weights: Float[Array, "T S"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T R"]:
    """Return the sums of `collect`, by a sum over all keys."""
    return jnp.sum(jnp.where(_are_read(q_positions, k_positions, rows), weights[..., None], 0.0), axis=1)


@jax.jit
def _pick_fast(
    scores: Float[Array, "T R"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T S"]:
    """Return the same; on a CPU by the fastest form for these positions."""
    rows = scores.shape[1]
    m = (rows - 1) // 2
    general = lambda scores: _pick_general(scores, q_positions, k_positions)
    if 0 in (len(q_positions), len(k_positions)):
        return general(scores)

    def one_row(row: int) -> Callable[[Array], Array]:
        return lambda scores: jnp.broadcast_to(scores[:, row, None], (len(scores), len(k_positions)))

    def consecutive(scores: Array) -> Array:
        height, width, count, corner_of = _strips(q_positions, k_positions, m)
        repeated = lambda column: jnp.broadcast_to(column, (len(scores), width))
        padded = jnp.concatenate([repeated(scores[:, :1]), scores, repeated(scores[:, -1:])], axis=1)

        def strip(i: Array, total: Array) -> Array:
            top, left, distance = corner_of(i)
            first = jnp.clip(distance + m + width - jnp.arange(height, dtype=jnp.int32), 0, rows + width)
            block = lax.dynamic_slice_in_dim(padded, top, height)
            block = jax.vmap(lambda row, first: lax.dynamic_slice_in_dim(row, first, width))(block, first)
            return lax.dynamic_update_slice(total, block, (top, left))

        far = jnp.where(relative_positions(q_positions, k_positions) < 0, scores[:, :1], scores[:, -1:])
        return lax.fori_loop(0, count, strip, far)

    forms = (general, one_row(0), one_row(-1), consecutive)
    fastest = functools.partial(lax.switch, _fastest_form(q_positions, k_positions, m), forms)
    return lax.platform_dependent(scores, cpu=fastest, default=general)


def _collect_general(
    rows: int, weights: Float[Array, "T S"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T R"]:
    """Return the sums of `collect` at any positions."""
    return scatter_rows(weights, _rows(q_positions, k_positions, rows), rows)


@functools.partial(jax.jit, static_argnums=0)
def _collect_fast(
    rows: int, weights: Float[Array, "T S"], q_positions: Int[Array, " T"], k_positions: Int[Array, " S"]
) -> Float[Array, "T R"]:
    """Return the same; on a CPU by the fastest form for these positions."""
    m = (rows - 1) // 2
    general = lambda weights: _collect_general(rows, weights, q_positions, k_positions)
    if 0 in weights.shape:
        return general(weights)

    def one_row(row: int) -> Callable[[Array], Array]:
        return lambda weights: jnp.zeros((len(weights), rows), jnp.float32).at[:, row].set(jnp.sum(weights, axis=1))

    def consecutive(weights: Array) -> Array:
        height, width, count, corner_of = _strips(q_positions, k_positions, m)

        def strip(i: Array, total: Array) -> Array:
            top, left, distance = corner_of(i)
            first = jnp.clip(jnp.arange(height, dtype=jnp.int32) - distance - m + rows, 0, width + rows)
            block = jnp.pad(lax.dynamic_slice(weights, (top, left), (height, width)), ((0, 0), (rows, rows)))
            block = jax.vmap(lambda row, first: lax.dynamic_slice_in_dim(row, first, rows))(block, first)
            return lax.dynamic_update_slice_in_dim(total, block, top, 0)

        zeros = zeros_varying((len(weights), rows), jnp.float32, weights, q_positions, k_positions)
        inner = lax.fori_loop(0, count, strip, zeros)
        relative = relative_positions(q_positions, k_positions)
        ends = [jnp.sum(jnp.where(far, weights, 0.0), axis=1)[:, None] for far in (relative <= -m, relative >= m)]
        return jnp.concatenate([ends[0], inner[:, 1:-1], ends[1]], axis=1)

    forms = (general, one_row(0), one_row(-1), consecutive)
    fastest = functools.partial(lax.switch, _fastest_form(q_positions, k_positions, m), forms)
    return lax.platform_dependent(weights, cpu=fastest, default=general)


pick = with_backward(
    _pick_fast,
    _pick_general,
    lambda operands, d_output: _collect_fast(operands[0].shape[1], d_output, *operands[1:]),
    tpu=_pick_by_comparing,
)


@functools.cache
def _collector(rows: int) -> Callable[..., Float[Array, "T R"]]:
    """Return `collect` for tables of this many rows, differentiable."""
    forms = (_collect_fast, _collect_general, _collect_by_comparing)
    run, plain, tpu = (functools.partial(function, rows) for function in forms)
    return with_backward(run, plain, lambda operands, d_output: _pick_fast(d_output, *operands[1:]), tpu=tpu)


def collect(rows: int, weights: Float[Array, "T S"], *positions: Int[Array, "..."]) -> Float[Array, "T R"]:
    """Return, per query, the sum of the weights of the pairs that read each row of the table: the transpose of `pick`.

    Args:
        rows: R = 2m + 1, rows of the table.
        weights: attention weights of all pairs.
        *positions: of the queries, then of the keys.
    """
    return _collector(rows)(weights, *positions)


def _rows(q_positions: Int[Array, " T"], k_positions: Int[Array, " S"], rows: int) -> Int[Array, "T S"]:
    """Return the row of the table that each pair reads."""
    m = (rows - 1) // 2
    return jnp.clip(relative_positions(q_positions, k_positions), -m, m) + m


def _fastest_form(q_positions: Int[Array, " T"], k_positions: Int[Array, " S"], m: int) -> Int[Array, ""]:
    """Return which form of lookup is fastest at these positions."""
    before = relative_positions(jnp.min(q_positions)[None], jnp.max(k_positions)[None])[0, 0] <= -m
    after = relative_positions(jnp.max(q_positions)[None], jnp.min(k_positions)[None])[0, 0] >= m
    consecutive = are_consecutive(q_positions) & are_consecutive(k_positions)
    return jnp.select([before, after, consecutive], [ALL_BEFORE, ALL_AFTER, CONSECUTIVE], GENERAL)


def _strips(
    q_positions: Int[Array, " T"], k_positions: Int[Array, " S"], m: int
) -> tuple[int, int, int, Callable[[Array], tuple[Array, Array, Array]]]:
    """Return the height, width and number of windows that cover the pairs closer than the clip, and their corners.

    Positions must be consecutive. The last value is a function from the number of a window to its top row, its left
    column, and key - query at that corner.
    """
    t, s = len(q_positions), len(k_positions)
    offset = relative_positions(q_positions[:1], k_positions[:1])[0, 0].astype(jnp.int32)
    height = min(STRIP, t)
    width = min(height + 2 * m, s)

    def corner_of(i: Array) -> tuple[Array, Array, Array]:
        top = jnp.minimum(i * height, t - height).astype(jnp.int32)
        left = jnp.clip(top - offset - m, 0, s - width)
        return top, left, offset + left - top

    return height, width, math.ceil(t / height), corner_of
