"""Positions of grids, of packed sequences and of stretched contexts; and which token sees which.

    visible_ij = [q_i - k_j ≥ 0] · [|q_i - k_j| < window] · [lo ≤ |q_i - k_j| < hi] · [s_i = s_j ≠ 0]

with q and k the order (`Tokens.index`) of queries and keys and s their segments; what is not asked for drops out.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, UInt

from pejax.checks import check_position_type
from pejax.encoding import Tokens


def grid_positions(height: int, width: int, *, order: str = "ij") -> Int[Array, "T 2"]:
    """Return the position of every patch of a grid, in raster order: `p_n = (⌊n / width⌋, n mod width)`.

    Args:
        height: rows, patches.
        width: columns, patches.
        order: "ij" gives (row, column), "xy" gives (column, row).

    Returns:
        T = height · width positions, in patches.

    Raises:
        ValueError: a side below 1 or an unknown order.
    """
    if order not in ("ij", "xy"):
        raise ValueError(f"order must be one of ij, xy, got {order!r}")
    if min(height, width) < 1:
        raise ValueError(f"height and width must be at least 1, got {height} and {width}")
    row, column = jnp.divmod(jnp.arange(height * width, dtype=jnp.int32), width)
    return jnp.stack([row, column] if order == "ij" else [column, row], axis=-1)


def packed_positions(segment_ids: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Return the position of each token in its own segment: how many earlier tokens have the same id.

    For sequences packed one after the other they restart at 0 with each; padding in between, or the tokens of two
    segments taking turns, change nothing. That no sequence sees another is said by `Tokens.segments` alone:
    `packed_tokens` says both.

    Args:
        segment_ids: any integers; padding, 0, counts as a segment like any other.

    Returns:
        int32, in tokens.
    """

    def one(ids: Int[Array, " T"]) -> Int[Array, " T"]:
        by_segment = jnp.argsort(ids, stable=True)
        ordered, rank = ids[by_segment], jnp.arange(len(ids), dtype=jnp.int32)
        starts = jnp.where(ordered != jnp.roll(ordered, 1), rank, 0)
        return jnp.zeros_like(rank).at[by_segment].set(rank - jax.lax.cummax(starts))

    return jnp.vectorize(one, signature="(t)->(t)")(segment_ids)


def packed_tokens(segment_ids: Int[Array, "*B T"]) -> Tokens:
    """Return sequences packed one after the other as tokens: positions restart with each, and none sees another.

    Args:
        segment_ids: which sequence each token belongs to; 0 = padding, which nothing sees, at position 0.
    """
    order = jnp.broadcast_to(jnp.arange(segment_ids.shape[-1], dtype=jnp.int32), segment_ids.shape)
    positions = jnp.where(segment_ids != 0, packed_positions(segment_ids), 0)
    return Tokens(positions, order, segments=segment_ids)


def interpolate_positions(
    positions: Num[Array, "..."],
    trained_length: int | tuple[int, ...],
    length: int | Int[Array, ""] | tuple[int, ...],
) -> Num[Array, "..."]:
    """Squeeze the positions of a longer sequence or larger grid into the trained one (position interpolation).

    `p'_a = p_a · min(1, L_a / L'_a)` on every axis a: what is no longer than the trained length is left as it is.

    The product rounds: p' is exact to p' · 2^-23, and for powers of two. Rotary encodings do better to scale their
    frequencies.

    Args:
        positions: `(*B, T)` in tokens; `(*B, T, A)` in patches where the lengths are tuples of A.
        trained_length: L, or the trained grid.
        length: L', which may be traced, or the grid at hand.

    Returns:
        Positions in trained tokens or patches, float32 (float64 where they were). The positions themselves where
        lengths known beforehand leave nothing to squeeze.

    Raises:
        ValueError: a length below 1, a grid and a number, or grids and positions of different axes.
        TypeError: positions that are neither integers nor floats of at least 32 bits.

    Reference:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"
        (arXiv 2306.15595), equation 3.
    """
    trained, sizes = (one if isinstance(one, tuple) else (one,) for one in (trained_length, length))
    if len(trained) != len(sizes) or isinstance(trained_length, tuple) != isinstance(length, tuple):
        raise ValueError(f"trained_length and length must have the same axes, got {trained_length} and {length}")
    if isinstance(length, tuple) and positions.shape[-1:] != (len(sizes),):
        raise ValueError(f"positions must end in the {len(sizes)} axes of length={length}, got {positions.shape}")
    if any(isinstance(size, int) and size < 1 for size in trained + sizes):
        raise ValueError(f"lengths must be at least 1, got trained_length={trained_length}, length={length}")
    check_position_type(positions)
    if all(isinstance(size, int) and size <= most for size, most in zip(sizes, trained, strict=True)):
        return positions
    wide = jnp.float64 if positions.dtype == jnp.float64 else jnp.float32
    ratios = [jnp.asarray(most, wide) / jnp.asarray(size, wide) for size, most in zip(sizes, trained, strict=True)]
    factors = jnp.minimum(1.0, jnp.stack(ratios))
    return positions.astype(wide) * (factors if isinstance(length, tuple) else factors[0])


def visible(
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    causal: bool = False,
    window: int | None = None,
    distance_range: tuple[int, int] | None = None,
) -> Bool[Array, "T S"] | None:
    """Return which key each query of one sequence sees, None where nothing hides any.

    Order and distance are those of `Tokens.index`, not of positions, which may be interpolated or on a grid.

    Args:
        q_tokens: T tokens.
        k_tokens: S tokens. Where one side has no segments, all of it is segment 1.
        causal: hide keys after the query.
        window: tokens; keep `0 ≤ q - k < window` when causal, else `|q - k| < window`.
        distance_range: (lo, hi), tokens; keep `lo ≤ |q - k| < hi`.

    Raises:
        ValueError: an order is asked for and there is neither an index nor 1-D integer positions that are all placed.
    """
    masks = []
    if causal or window is not None or distance_range is not None:
        orders = [_order("q_tokens", q_tokens)[:, None], _order("k_tokens", k_tokens)[None, :]]
        q, k = (order.astype(np.result_type(np.int32, *(one.dtype for one in orders))) for order in orders)
        apart = _distance(q, k)
        bound = lambda most: apart.dtype.type(min(most, np.iinfo(apart.dtype).max))  # noqa: E731
        if causal:
            masks.append(q >= k)
        for low, high in ((0, window), distance_range or (0, None)):
            if low > 0:
                masks.append(apart > bound(low - 1))
            if high is not None:
                masks.append(apart <= bound(high - 1))
    if q_tokens.segments is not None or k_tokens.segments is not None:
        q, k = (_segments(tokens) for tokens in (q_tokens, k_tokens))
        masks.append((q[:, None] == k[None, :]) & (k != 0)[None, :])
    return functools.reduce(operator.and_, masks) if masks else None


def visible_blocks(
    q_tokens: Tokens,
    k_tokens: Tokens,
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
    seen = [None if tokens.segments is None else tokens.segments != 0 for tokens in (q_tokens, k_tokens)]
    if causal or window is not None or distance_range is not None:
        orders = [jax.vmap(functools.partial(_order, name))(tokens) for name, tokens in
                  (("q_tokens", q_tokens), ("k_tokens", k_tokens))]  # fmt: skip
        kind = np.result_type(np.int32, *(order.dtype for order in orders))
        (q_low, q_high), (k_low, k_high) = (_span(x.astype(kind), mask) for x, mask in zip(orders, seen, strict=True))
        q_low, q_high, k_low, k_high = q_low[:, None], q_high[:, None], k_low[None], k_high[None]
        if causal:
            masks.append(k_low <= q_high)
        nothing = jnp.zeros((), _unsigned(kind))
        nearest = jnp.where(k_low > q_high, _distance(k_low, q_high), nothing)
        nearest = jnp.where(q_low > k_high, _distance(q_low, k_high), nearest)
        farthest = jnp.maximum(_distance(q_low, k_high), _distance(q_high, k_low))
        bound = lambda most: nothing.dtype.type(min(most, np.iinfo(nothing.dtype).max))  # noqa: E731
        for low, high in ((0, window), distance_range or (0, None)):
            if low > 0:
                masks.append(farthest > bound(low - 1))
            if high is not None:
                masks.append(nearest <= bound(high - 1))
    if q_tokens.segments is not None or k_tokens.segments is not None:
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


def _order(name: str, tokens: Tokens) -> Int[Array, " T"]:
    """Return the index, or the positions where they are one."""
    if tokens.index is not None:
        index = tokens.index
    elif tokens.placed is not None:
        rule = "with unplaced tokens must have an index under causal, window or distance_range"
        raise ValueError(f"{name} {rule}, got None")
    else:
        index = tokens.positions
    if index.ndim != 1 or not jnp.issubdtype(index.dtype, jnp.signedinteger):
        rule = "must have an index, or 1-D signed integer positions, under causal, window or distance_range"
        raise ValueError(f"{name} {rule}, got {index.dtype}{list(index.shape)}")
    return index


def _distance(q: Int[Array, "#T #S"], k: Int[Array, "#T #S"]) -> UInt[Array, "T S"]:
    """Return `|q - k|`, unsigned: exact for any two of their type."""
    return jnp.where(q >= k, q - k, k - q).astype(_unsigned(q.dtype))


def _unsigned(kind: np.dtype) -> np.dtype:
    return np.dtype(f"uint{8 * kind.itemsize}")


def _segments(tokens: Tokens) -> Int[Array, " T"]:
    """Return the segments, all 1 where there are none, in 32 bits: ids that fit them stay apart."""
    return jnp.ones(len(tokens.positions), jnp.int32) if tokens.segments is None else tokens.segments.astype(jnp.int32)
