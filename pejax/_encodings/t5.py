"""T5: a learned bias for each head and bucket of key - query; buckets get wider with the distance.

    logits[h, i, j] += table[h, bucket(p_j - p_i)]

T5 itself does not scale q·k: with T5's public weights, use `scale=1`.

Reference:
    Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (arXiv 1910.10683), section 2.1; code:
    mesh `transformer_layers.py:_relative_position_bucket`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Num

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._ops.checks import check_position_type
from pejax._ops.relative import (
    axes_of,
    axis_shape,
    check_axes,
    check_table,
    limited,
    relative_positions,
    sum_over_axes,
)
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, from_distance, shared_or_per_layer
from pejax._record.specs import Extension


@checked
def t5_bucket(
    relative: Num[Array, "*R"], *, bidirectional: bool, buckets: int = 32, max_distance: int = 128
) -> Int[Array, "*R"]:
    """Return the bucket of each relative position.

    With N buckets per side and n the distance, `bucket = n` for `n < N/2`, and beyond that

    `bucket = N/2 + floor(log(n / (N/2)) / log(max_distance / (N/2)) · (N - N/2))`, at most N - 1

    Bidirectional: N = buckets/2, n = |relative|, and N is added for keys after the query. Causal: N = buckets and
    n = max(-relative, 0). The edges of the buckets are computed once, exactly, so that no logarithm is rounded.

    Args:
        relative: key - query, in tokens. Fractional distances use the same formula, rounded down; less than one token
            on either side is bucket 0.
        bidirectional: whether keys after the query have buckets of their own.
        buckets: total number of buckets; must be even with `bidirectional`.
        max_distance: in tokens; all distances from here on share the last bucket.

    Returns:
        int32, from 0 to buckets - 1.

    Raises:
        ValueError: odd or too few buckets, a max_distance of at most N/2, or a NaN that is not traced.

    Examples:
        >>> import jax.numpy as jnp
        >>> t5_bucket(jnp.asarray([-200, -16, -1, 0, 1, 16]), bidirectional=True).tolist()
        [15, 10, 1, 0, 17, 26]
    """
    check_position_type(relative, "relative")
    _refuse_nan(relative)
    side = _buckets_per_side(bidirectional, buckets, max_distance)
    exact, edges = _log_edges(side, max_distance)
    relative = limited(relative)
    distance = jnp.abs(relative) if bidirectional else jnp.maximum(-relative, 0)
    if jnp.issubdtype(distance.dtype, jnp.integer):
        edges = [math.ceil(edge) for edge in edges]
    bucket = jnp.minimum(distance, exact).astype(jnp.int32)
    bucket = sum(((distance >= edge).astype(jnp.int32) for edge in edges), bucket)
    return bucket + side * (relative >= 1).astype(jnp.int32) if bidirectional else bucket


def _refuse_nan(relative: Num[Array, "..."]) -> None:
    if isinstance(relative, Tracer) or jnp.issubdtype(relative.dtype, jnp.integer):
        return
    if np.isnan(np.asarray(relative)).any():
        raise ValueError("relative must have no NaN, whose bucket is unknown, got nan")


def _buckets_per_side(bidirectional: bool, buckets: int, max_distance: int) -> int:
    least = 4 if bidirectional else 2
    if buckets < least or (bidirectional and buckets % 2):
        rule = "even and at least 4" if bidirectional else "at least 2"
        raise ValueError(f"t5's buckets must be {rule} when bidirectional={bidirectional}, got {buckets}")
    side = buckets // 2 if bidirectional else buckets
    if max_distance <= side // 2:
        raise ValueError(f"t5's max_distance must be above {side // 2} with {buckets} buckets, got {max_distance}")
    return side


def _log_edges(side: int, max_distance: int) -> tuple[int, list[float]]:
    """Return the first logarithmic bucket and the distances at which each bucket after it begins.

    Edge k is `exact · (max_distance / exact)^(k / steps)`; one that is a whole number is that number.
    """
    exact = side // 2
    steps = side - exact
    edges = []
    for k in range(1, steps):
        edge = exact * (max_distance / exact) ** (k / steps)
        nearest = round(edge)
        edges.append(float(nearest) if nearest**steps * exact**k == max_distance**k * exact**steps else edge)
    return exact, edges


@checked
def t5_bias(
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    table: Float[Array, "H *A N"],
    *,
    bidirectional: bool,
    max_distance: int = 128,
) -> Float[Array, "H T S"]:
    """Return `table[h, bucket(p_j - p_i)]` for every head and pair, on A > 1 axes the sum of one such term per axis.

    Args:
        q_positions: positions of the queries in tokens, `(T,)` or `(T, A)`.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        table: logits, `(H, N)` or `(H, A, N)`; here N is the total number of buckets.
        bidirectional: whether keys after the query have buckets of their own.
        max_distance: in tokens; all distances from here on share the last bucket.

    Returns:
        Logits.

    Raises:
        ValueError: as in `t5_bucket`, or a table that does not have the axes of the positions.

    Examples:
        >>> table = jnp.arange(32.0)[None]  # one head, in which the bias of a bucket is its number
        >>> t5_bias(jnp.arange(3), jnp.arange(3), table, bidirectional=True)[0].tolist()
        [[0.0, 17.0, 18.0], [1.0, 0.0, 17.0], [2.0, 1.0, 0.0]]
    """
    axes = axes_of(q_positions)
    check_table("t5's table", table.shape[1:-1], axes)
    relative = relative_positions(q_positions, k_positions)
    return jax.vmap(lambda table: _look_up(table, relative, axes, bidirectional, max_distance))(table)


def _look_up(table: Array, relative: Array, axes: int, bidirectional: bool, max_distance: int) -> Array:
    def term(table: Float[Array, " N"], relative: Num[Array, "*R"]) -> Float[Array, "*R"]:
        bucket = t5_bucket(relative, bidirectional=bidirectional, buckets=len(table), max_distance=max_distance)
        return table[bucket].astype(jnp.float32)

    return sum_over_axes(term, axes, table, relative)


@encoding_factory()
def t5(
    dims: Dims, *, buckets: int = 32, max_distance: int = 128, share: str = "model", extend: Extension | None = None
) -> Encoding:
    """Make T5's bias for these dims: `bias[h, i, j] = table[h, bucket(p_j - p_i)]`, one table per axis, summed.

    The table is drawn from a normal distribution of standard deviation `width^-0.5`.

    Args:
        dims: with `causal`, all buckets are for keys up to the query; else half of them are for keys after it.
        buckets: total number of buckets.
        max_distance: in tokens; all distances from here on share the last bucket.
        share: "model": one table for all layers, as in T5; "layer": one per layer.
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: odd or too few buckets, a max_distance that is too small (`t5_bucket`), or an unknown `share`.
    """
    _buckets_per_side(not dims.causal, buckets, max_distance)

    def init(key: Array) -> Params:
        table = jax.random.normal(key, (dims.heads, *axis_shape(dims.axes), buckets), jnp.float32)
        return {"heads": {"table": dims.width**-0.5 * table}}

    def distance(params: Params, relative: Array) -> Array:
        check_axes("t5", relative, dims.axes)
        return _look_up(params["table"], relative, dims.axes, not dims.causal, max_distance)

    hooks = shared_or_per_layer(share, init)
    bias = from_distance(distance)
    return Encoding(**hooks, bias=bias, distance_bias=distance, shift_invariant=True, tabulate=dims.axes > 1)
