"""Masks: which key each query sees.

    visible_ij = [q_i - k_j ≥ 0] · [|q_i - k_j| < window] · [lo ≤ |q_i - k_j| < hi] · [s_i = s_j ≠ 0]

with q and k the order (`TokenPositions.order`) of queries and keys and s their segment ids. The factors are those of
`causal`, `window`, `distance_range` = (lo, hi) and packed sequences; one that is not in use is left out. That of a
window (before, after) is [-after ≤ q_i - k_j ≤ before]. `pair_masks` applies the rule to pairs, in every
implementation; `block_masks` to blocks of queries and keys.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from pejax._attention.core.options import Options
from pejax._tokens.positions import TokenPositions, in_one_type

Sides: TypeAlias = tuple[Array, Array] | None
"""One field of the queries' and the keys' `TokenPositions`, in shapes that broadcast; None = no mask reads it."""


def unsigned(distance: Shaped[Any, "..."]) -> Shaped[Any, "..."]:
    """Return `|q - k|` of signed integers, which may have wrapped, as unsigned integers, in which it is exact."""
    return distance.astype(f"uint{8 * distance.dtype.itemsize}")


def pair_masks(
    options: Options, orders: Sides, segments: Sides, comparable: Callable[[Any], Any] = unsigned
) -> list[Bool[Array, "..."]]:
    """Return the masks of the factors of the rule: a query sees a key where all of them are True.

    Args:
        options: `causal`, `window` and `distance_range`.
        orders: order of queries and keys, signed integers of one type; None unless `options.uses_order`.
        segments: the segment ids of queries and keys, or None.
        comparable: maps `|q - k|`, which may have wrapped, to numbers in the order of the true distances.
    """
    masks = []
    if orders is not None:
        q, k = orders
        if options.causal:
            masks.append(q >= k)
        if options.uses_distance:
            distance = comparable(_distance(q, k))
            masks += _distance_masks(options, distance, distance, q.dtype, comparable)
            if isinstance(options.window, tuple):
                before, after = options.window
                nearer, farther = (_limit(side, q.dtype, comparable) for side in sorted(options.window))
                on_far_side = q > k if before > after else q < k
                masks += [distance <= farther, on_far_side | (distance <= nearer)]
    if segments is not None:
        q, k = segments
        masks.append((q == k) & (k != 0))
    return masks


def block_masks(options: Options, orders: Sides, segments: Sides, *, whole: bool = False) -> list[Bool[Array, "..."]]:
    """Return masks over pairs of blocks: where all are True, some query of the first may see some key of the second.

    They compare the smallest and largest order and segment id of each block. So they are all True for each pair of
    blocks in which a query sees a key, and may also be for one in which none does.

    Args:
        options: as in `pair_masks`.
        orders: as in `pair_masks`; the last axis is that of the tokens in a block, the others broadcast.
        segments: as `orders`.
        whole: if True, all masks are True only where every query of the first block sees every key of the second. Not
            every such pair of blocks is found.
    """
    masks = []
    # Padding (segment 0) neither sees nor is seen. It does not widen the range of a block that may be visible in part,
    # but it counts where blocks must be visible as a whole: one with padding is not.
    are_tokens = (None, None) if segments is None or whole else tuple(ids != 0 for ids in segments)
    if orders is not None:
        (q_low, q_high), (k_low, k_high) = map(_smallest_and_largest, orders, are_tokens)
        if options.causal:
            masks.append(q_low >= k_high if whole else q_high >= k_low)
        if options.uses_distance:
            gap = jnp.where(k_low > q_high, k_low - q_high, 0)
            nearest = unsigned(jnp.where(q_low > k_high, q_low - k_high, gap))
            farthest = jnp.maximum(unsigned(_distance(q_low, k_high)), unsigned(_distance(q_high, k_low)))
            # Some pair may pass if the nearest and the farthest do; all pass if these do with their roles swapped.
            bounds = (farthest, nearest) if whole else (nearest, farthest)
            masks += _distance_masks(options, *bounds, q_low.dtype, unsigned)
            if isinstance(options.window, tuple):
                pairs = ((q_high, k_low), (k_high, q_low)) if whole else ((q_low, k_high), (k_low, q_high))
                for limit, (later, earlier) in zip(options.window, pairs, strict=True):
                    ahead = unsigned(jnp.where(later > earlier, later - earlier, 0))
                    masks.append(ahead <= _limit(limit, q_low.dtype, unsigned))
    if segments is not None:
        (q_low, q_high), (k_low, k_high) = map(_smallest_and_largest, segments, are_tokens)
        if whole:
            masks += [q_low == q_high, k_low == k_high, q_low == k_low, k_low != 0]
        else:
            masks += [q_low <= k_high, k_low <= q_high]
    return masks


def all_of(masks: list[Bool[Array, "..."]]) -> Bool[Array, "..."] | None:
    """Return the elementwise AND of the masks; None if the list is empty."""
    return functools.reduce(operator.and_, masks) if masks else None


def visible(options: Options, q_tokens: TokenPositions, k_tokens: TokenPositions) -> Bool[Array, "T S"] | None:
    """Return the mask of the keys that each query of one sequence sees; None = every query sees every key.

    Order and distance are those of `TokenPositions.order`, not of positions, which may be interpolated or on a grid.

    Args:
        options: `causal` hides keys after the query; `window` keeps `0 ≤ q - k < window` when causal, else
            `|q - k| < window`, or `-after ≤ q - k ≤ before`; `distance_range` = (lo, hi) keeps `lo ≤ |q - k| < hi`.
        q_tokens: T tokens.
        k_tokens: S tokens. Where one side has no segments, all of it is segment 1.

    Raises:
        ValueError: a mask depends on an order that is not given, and some tokens have no 1-D integer position.
    """
    return all_of(pair_masks(options, *_fields(options, q_tokens, k_tokens)))


def visible_blocks(options: Options, q_tokens: TokenPositions, k_tokens: TokenPositions) -> Bool[Array, "N M"] | None:
    """Return, for each block of queries, which blocks of keys may hold a key that it sees; None = all.

    Args:
        options: as in `visible`.
        q_tokens: N blocks of tokens, every field `(N, T)`.
        k_tokens: M blocks of tokens, every field `(M, S)`.
    """
    return all_of(block_masks(options, *_fields(options, q_tokens, k_tokens, jax.vmap)))


def keep_hidden(options: Options, logits: Float[Array, "*T"], capped: Float[Array, "*T"]) -> Float[Array, "*T"]:
    """Return the capped logits, but -inf where a logit was -inf: a soft cap must not show keys that the bias hides.

    Args:
        options: `hides` says whether the bias may be -inf.
        logits: logits before the cap.
        capped: logits after the cap, which makes -inf a finite number.
    """
    return jnp.where(logits == -jnp.inf, -jnp.inf, capped) if options.hides else capped


def check_orders(q_tokens: TokenPositions, k_tokens: TokenPositions) -> None:
    """Raise ValueError, as `visible` does, for tokens of one sequence that have no order."""
    _order("positions", q_tokens)
    _order("k_positions", k_tokens)


def _fields(
    options: Options, q_tokens: TokenPositions, k_tokens: TokenPositions, lift: Callable = lambda f: f
) -> tuple[Sides, Sides]:
    """Return the orders and the segments that the rule reads, the queries' with an axis for the keys and vice versa.

    `lift` makes a function of the given tokens from a function of one sequence: `jax.vmap` for blocks.
    """
    orders, segments = None, None
    if options.uses_order:
        sides = ("positions", q_tokens), ("k_positions", k_tokens)
        q, k = (lift(functools.partial(_order, name))(tokens) for name, tokens in sides)
        dtype = np.result_type(np.int32, q.dtype, k.dtype)
        orders = q[:, None].astype(dtype), k[None].astype(dtype)
    if q_tokens.segment_ids is not None or k_tokens.segment_ids is not None:
        q, k = in_one_type(*(lift(_segments)(tokens) for tokens in (q_tokens, k_tokens)))
        segments = q[:, None], k[None]
    return orders, segments


def _order(name: str, tokens: TokenPositions) -> Int[Array, " T"]:
    """Return the order of the tokens: `order` if there is one, else their positions."""
    if tokens.order is not None:
        index = tokens.order
    elif tokens.has_position is not None:
        rule = "must have an order if some tokens have no position, with causal, window or distance_range"
        raise ValueError(f"{name} {rule}, got None")
    else:
        index = tokens.positions
    if index.ndim != 1 or not jnp.issubdtype(index.dtype, jnp.signedinteger):
        rule = "must have an order, or 1-D signed integer positions, with causal, window or distance_range"
        way = "order=jnp.arange(T) is that of the arrays"
        raise ValueError(f"{name} {rule}, got {index.dtype}{list(index.shape)}: {way}")
    return index


def _segments(tokens: TokenPositions) -> Int[Array, " T"]:
    """Return the segment ids, all 1 if there are none."""
    return jnp.ones(tokens.positions.shape[:1], jnp.int32) if tokens.segment_ids is None else tokens.segment_ids


def _distance_masks(
    options: Options, nearest: Array, farthest: Array, dtype: np.dtype, comparable: Callable[[Any], Any]
) -> list[Bool[Array, "..."]]:
    """Return masks for `window` and `distance_range`: the farthest pair must reach lo, the nearest must stay below hi.

    Args:
        options: `distance_range`, and `window` where it is one number.
        nearest: distance of the nearest pair of a block, `comparable`; for a single pair, its distance.
        farthest: distance of the farthest pair; for a single pair, the same as `nearest`.
        dtype: type of the order.
        comparable: as in `pair_masks`.
    """
    masks, window = [], None if isinstance(options.window, tuple) else options.window
    for low, high in ((0, window), options.distance_range or (0, None)):
        if low > 0:
            masks.append(farthest > _limit(low - 1, dtype, comparable))
        if high is not None:
            masks.append(nearest <= _limit(high - 1, dtype, comparable))
    return masks


def _limit(distance: int, dtype: np.dtype, comparable: Callable[[Any], Any]) -> Any:
    """Return a distance, `comparable`; one beyond the type of the order is cut to the largest distance in it."""
    unsigned_type = np.iinfo(f"uint{8 * dtype.itemsize}")
    return comparable(unsigned_type.dtype.type(min(distance, unsigned_type.max)).astype(dtype))


def _distance(q: Int[Array, "..."], k: Int[Array, "..."]) -> Int[Array, "..."]:
    """Return `|q - k|` in the type of q and k; it wraps if it does not fit."""
    return jnp.where(q >= k, q - k, k - q)


def _smallest_and_largest(
    x: Int[Array, "... T"], is_token: Bool[Array, "... T"] | None
) -> tuple[Int[Array, "..."], Int[Array, "..."]]:
    """Return minimum and maximum over the tokens where `is_token` is True; where none is, minimum > maximum."""
    if is_token is None:
        return jnp.min(x, axis=-1), jnp.max(x, axis=-1)
    type_min, type_max = (x.dtype.type(limit) for limit in (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max))
    smallest = jnp.min(jnp.where(is_token, x, type_max), axis=-1)
    return smallest, jnp.max(jnp.where(is_token, x, type_min), axis=-1)
