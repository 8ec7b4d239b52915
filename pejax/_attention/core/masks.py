"""Masks: which key each query sees.

    visible_ij = [q_i - k_j ≥ 0] · [|q_i - k_j| < window] · [lo ≤ |q_i - k_j| < hi] · [s_i = s_j ≠ 0]

with q and k the order (`TokenPositions.order`) of queries and keys and s their segment ids; what is not asked for drops
out.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt

from pejax._tokens import TokenPositions


def visible(
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    *,
    causal: bool = False,
    window: int | None = None,
    distance_range: tuple[int, int] | None = None,
) -> Bool[Array, "T S"] | None:
    """Return which key each query of one sequence sees, None where nothing hides any.

    Order and distance are those of `TokenPositions.order`, not of positions, which may be interpolated or on a grid.

    Args:
        q_tokens: T tokens.
        k_tokens: S tokens. Where one side has no segments, all of it is segment 1.
        causal: hide keys after the query.
        window: tokens; keep `0 ≤ q - k < window` when causal, else `|q - k| < window`.
        distance_range: (lo, hi), tokens; keep `lo ≤ |q - k| < hi`.

    Raises:
        ValueError: an order is asked for and there is neither an order nor 1-D integer positions of all tokens.
    """
    masks = []
    if causal or window is not None or distance_range is not None:
        orders = [_order("positions", q_tokens)[:, None], _order("k_positions", k_tokens)[None, :]]
        q, k = (order.astype(np.result_type(np.int32, *(one.dtype for one in orders))) for order in orders)
        apart = _distance(q, k)
        bound = lambda most: apart.dtype.type(min(most, np.iinfo(apart.dtype).max))
        if causal:
            masks.append(q >= k)
        for low, high in ((0, window), distance_range or (0, None)):
            if low > 0:
                masks.append(apart > bound(low - 1))
            if high is not None:
                masks.append(apart <= bound(high - 1))
    if q_tokens.segment_ids is not None or k_tokens.segment_ids is not None:
        q, k = (_segments(tokens) for tokens in (q_tokens, k_tokens))
        masks.append((q[:, None] == k[None, :]) & (k != 0)[None, :])
    return functools.reduce(operator.and_, masks) if masks else None


def visible_blocks(
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    *,
    causal: bool = False,
    window: int | None = None,
    distance_range: tuple[int, int] | None = None,
) -> Bool[Array, "N M"] | None:
    """Return which blocks of keys hold a key that some query of each block of queries may see, None where all do.

    True where `visible` is True of any pair, by the least and largest index and segment of each block; it may be True
    of a block in which nothing is seen.

    Args:
        q_tokens: N blocks of tokens, every field `(N, T)`.
        k_tokens: M blocks of tokens, every field `(M, S)`.
        causal: as in `visible`.
        window: likewise.
        distance_range: likewise.
    """
    masks = []
    seen = [None if tokens.segment_ids is None else tokens.segment_ids != 0 for tokens in (q_tokens, k_tokens)]
    if causal or window is not None or distance_range is not None:
        orders = [jax.vmap(functools.partial(_order, name))(tokens) for name, tokens in
                  (("positions", q_tokens), ("k_positions", k_tokens))]  # fmt: skip
        kind = np.result_type(np.int32, *(order.dtype for order in orders))
        (q_low, q_high), (k_low, k_high) = (_span(x.astype(kind), mask) for x, mask in zip(orders, seen, strict=True))
        q_low, q_high, k_low, k_high = q_low[:, None], q_high[:, None], k_low[None], k_high[None]
        if causal:
            masks.append(k_low <= q_high)
        nothing = jnp.zeros((), _unsigned(kind))
        nearest = jnp.where(k_low > q_high, _distance(k_low, q_high), nothing)
        nearest = jnp.where(q_low > k_high, _distance(q_low, k_high), nearest)
        farthest = jnp.maximum(_distance(q_low, k_high), _distance(q_high, k_low))
        bound = lambda most: nothing.dtype.type(min(most, np.iinfo(nothing.dtype).max))
        for low, high in ((0, window), distance_range or (0, None)):
            if low > 0:
                masks.append(farthest > bound(low - 1))
            if high is not None:
                masks.append(nearest <= bound(high - 1))
    if q_tokens.segment_ids is not None or k_tokens.segment_ids is not None:
        spans = (
            _span(jax.vmap(_segments)(tokens), mask) for tokens, mask in zip((q_tokens, k_tokens), seen, strict=True)
        )
        (q_low, q_high), (k_low, k_high) = spans
        masks.append((k_low[None] <= q_high[:, None]) & (q_low[:, None] <= k_high[None]))
    return functools.reduce(operator.and_, masks) if masks else None


def _span(x: Int[Array, "N T"], mask: Bool[Array, "N T"] | None) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """Return the least and the largest of each row where `mask` is True: where it never is, the one above the other."""
    least, most = (x.dtype.type(limit) for limit in (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max))
    low, high = (x, x) if mask is None else (jnp.where(mask, x, most), jnp.where(mask, x, least))
    return jnp.min(low, axis=1), jnp.max(high, axis=1)


def _order(name: str, tokens: TokenPositions) -> Int[Array, " T"]:
    """Return the order, or the positions where they are one."""
    if tokens.order is not None:
        index = tokens.order
    elif tokens.has_position is not None:
        rule = "with tokens that have no position must have an order under causal, window or distance_range"
        raise ValueError(f"{name} {rule}, got None")
    else:
        index = tokens.positions
    if index.ndim != 1 or not jnp.issubdtype(index.dtype, jnp.signedinteger):
        rule = "must have an order, or 1-D signed integer positions, under causal, window or distance_range"
        raise ValueError(f"{name} {rule}, got {index.dtype}{list(index.shape)}")
    return index


def _distance(q: Int[Array, "#T #S"], k: Int[Array, "#T #S"]) -> UInt[Array, "T S"]:
    """Return `|q - k|`, unsigned: exact for any two of their type."""
    return jnp.where(q >= k, q - k, k - q).astype(_unsigned(q.dtype))


def _unsigned(kind: np.dtype) -> np.dtype:
    return np.dtype(f"uint{8 * kind.itemsize}")


def _segments(tokens: TokenPositions) -> Int[Array, " T"]:
    """Return the segments, all 1 where there are none, in 32 bits: ids that fit them stay apart."""
    ids = tokens.segment_ids
    return jnp.ones(len(tokens.positions), jnp.int32) if ids is None else ids.astype(jnp.int32)
