"""The order of tokens in causal self-attention where none is given: that of the arrays.

Positions say how far apart tokens are. They may restart (documents packed in a row) or repeat (padding), so where they
do not rise, they do not say which token comes first.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from pejax._ops.compile_time import are_known
from pejax._tokens.positions import Positions, TokenPositions, as_token_positions

LARGEST = 2.0**30
"""Bound of the numbers that count tokens: int32 holds them, and their sum in float32 is close enough to tell."""

SPARSEST = 4
"""Differences of known positions, over those of as many tokens that fill a grid, up to which all are computed."""


def follow_arrays(positions: Positions, shape: tuple[int, ...], *, causal: bool, spans: bool) -> TokenPositions:
    """Return tokens that attend to each other, with an order that never shows a token what follows it.

    Known positions that rise are returned as they are: their order is that of the arrays. Traced ones get an order.

    Args:
        positions: positions of the queries and of the keys.
        shape: `(*B, T)`.
        causal: whether keys after the query are masked; if not, the positions are returned as they are.
        spans: whether a mask reads distances in the order (`window`, `distance_range`). The order then is a count that
            grows as the positions do, and by 1 where they repeat or fall.

    Raises:
        ValueError: known positions that repeat or fall within a segment.
    """
    tokens = as_token_positions(positions, shape)
    if not causal or tokens.order is not None:
        return tokens
    countable = jnp.issubdtype(tokens.positions.dtype, jnp.signedinteger) and tokens.has_position is None
    if not countable or tokens.positions.shape not in (shape[-1:], shape):
        return tokens  # a mask refuses what has no order
    places, segments = tokens.positions, tokens.segment_ids
    if not are_known(places, segments):
        order = _count(places, segments) if spans else jnp.arange(shape[-1], dtype=jnp.int32)
        return tokens._replace(order=order)
    if fall := first_fall(np.asarray(places), np.ones(shape[-1:], int) if segments is None else np.asarray(segments)):
        rule = "positions must rise from token to token where keys after the query are masked"
        documents = "segment_ids keep documents and padding apart (packed_positions, segments_of_positions)"
        advice = "order=jnp.arange(T) makes them one sequence as it stands, order=positions one that was rearranged"
        raise ValueError(f"{rule}, got {fall}: {documents}, {advice}")
    return tokens


def count_from_zero(tokens: TokenPositions) -> bool:
    """Return whether tokens are known to be a sequence as it stands: at 0 ... T-1, in the order of the array."""
    places, *others = tokens
    if any(field is not None for field in others) or not are_known(places) or places.ndim != 1:
        return False
    return jnp.issubdtype(places.dtype, jnp.integer) and np.array_equal(np.asarray(places), np.arange(len(places)))


def first_fall(positions: Int[np.ndarray, "*#B T"], segments: Int[np.ndarray, "*#B T"]) -> str:
    """Return in words the first token with no higher position than the one of its segment before it; "" without one."""
    positions, segments = np.broadcast_arrays(positions, segments)
    by_segment = np.argsort(segments, axis=-1, kind="stable")
    places, ids = (np.take_along_axis(x, by_segment, axis=-1) for x in (positions, segments))
    falls = (places[..., 1:] <= places[..., :-1]) & (ids[..., 1:] == ids[..., :-1]) & (ids[..., 1:] != 0)
    if not falls.any():
        return ""
    at = tuple(np.argwhere(falls)[0])
    before, after = (*at[:-1], at[-1]), (*at[:-1], at[-1] + 1)
    return " and ".join(f"{places[index]} at token {by_segment[index]}" for index in (before, after))


def _count(positions: Int[Array, "*#B T"], segments: Int[Array, "*#B T"] | None) -> Int[Array, "*B T"]:
    """Return numbers that rise in every segment, by the differences of the positions, or by 1 where these do not rise.

    Positions that rise in every segment are returned as they are. Numbers that would exceed `LARGEST` become those of
    the slots.
    """
    if segments is None:
        rises = positions[..., 1:] > positions[..., :-1]
        return _counted(positions, rises, rises)

    def of_row(positions: Any, segments: Any) -> Any:
        by_segment = jnp.argsort(segments, stable=True)
        ordered, ids = positions[by_segment], segments[by_segment]
        same_segment, rises = ids[1:] == ids[:-1], ordered[1:] > ordered[:-1]
        count = _counted(ordered, same_segment & rises, rises | ~same_segment | (ids[1:] == 0))
        return jnp.zeros_like(count).at[by_segment].set(count)

    return jnp.vectorize(of_row, signature="(t),(t)->(t)")(positions, segments)


def _counted(
    positions: Int[Array, "*B T"], rises: Bool[Array, "*B T-1"], fits: Bool[Array, "*B T-1"]
) -> Int[Array, "*B T"]:
    """Return the numbers of `_count` for sorted tokens: positions where all pairs of neighbors fit, else a count.

    Args:
        positions: in tokens.
        rises: whether the count grows by the difference to the token before, else by 1.
        fits: whether a token is right beside the one before it as their positions are.
    """
    difference = lambda x: x[..., 1:] - x[..., :-1]
    steps = jnp.where(rises, difference(positions), 1)
    most = jnp.sum(jnp.where(rises, difference(positions.astype(jnp.float32)), 1.0), axis=-1, keepdims=True)
    count = jnp.cumsum(jnp.concatenate([jnp.zeros_like(positions[..., :1]), steps], axis=-1), axis=-1)
    slots = jnp.arange(positions.shape[-1], dtype=positions.dtype)
    return jnp.where(jnp.all(fits, axis=-1, keepdims=True), positions, jnp.where(most < LARGEST, count, slots))


def known_box(q: TokenPositions, k: TokenPositions) -> tuple[tuple[int, int], ...] | None:
    """Return the lowest and the highest position of queries and keys on each axis, where they are known.

    None = they are not known where the call is traced, not whole numbers that all examples share, not distinct, or so
    far apart that there would be far more differences between them than between as many tokens of a full grid.
    """
    lows, highs, count = [], [], 0
    for places, _, placed, _ in (q, k):
        if not are_known(places, placed) or not jnp.issubdtype(places.dtype, jnp.signedinteger):
            return None
        values = np.asarray(places).reshape(len(places), -1).astype(np.int64)
        values = values if placed is None else values[np.asarray(placed)]
        if not len(values) or len(np.unique(values, axis=0)) < len(values):
            return None
        lows, highs, count = [*lows, values.min(0)], [*highs, values.max(0)], max(count, len(values))
    low, high = np.stack(lows).min(0), np.stack(highs).max(0)
    differences = math.prod(int(side) for side in 2 * (high - low) + 1)
    if differences > SPARSEST * 2 ** len(low) * count:
        return None
    return tuple((int(least), int(most)) for least, most in zip(low, high, strict=True))


def count_unplaced(tokens: TokenPositions) -> int:
    """Return the number of tokens without a position, which are known."""
    return 0 if tokens.has_position is None else int(np.sum(~np.asarray(tokens.has_position)))
