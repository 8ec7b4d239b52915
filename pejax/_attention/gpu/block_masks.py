"""Tokens as the kernels on GPUs read them: padded rows of 32-bit numbers, and which tiles see anything at all."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num

from pejax._attention.core.masks import visible
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.reference import Options
from pejax._tokens import TokenPositions


class Marks(NamedTuple):
    """What is known of the tokens of one side; N is 1 where all sequences share it, None means not needed.

    In a kernel the same of one block, as a row or a column.
    """

    order: Int[Array, "N T"] | None = None
    segment_ids: Int[Array, "N T"] | None = None
    has_position: Int[Array, "N T"] | None = None
    positions: tuple[Num[Array, "N T"], ...] = ()


def marks(
    options: Options, layout: Layout, operands: Operands, sizes: tuple[int, int], axes: int
) -> tuple[Marks, Marks]:
    """Return the marks of queries and keys, padded to `sizes` by tokens of segment 0.

    Args:
        options: say whether the order matters.
        layout: says what is batched.
        operands: hold the tokens.
        sizes: the padded T and S.
        axes: position axes that the bias reads; 0 for none.

    Raises:
        ValueError: an order is asked for and there is none.
    """
    sides = operands.q_tokens, operands.k_tokens
    fields: tuple[Any, Any] = layout.q_axes, layout.k_axes
    lengths = operands.q.shape[-2], operands.k.shape[-2]
    ordered = options.causal or options.window is not None or options.distance_range is not None
    if ordered:
        first = [
            TokenPositions(*(x if field is None else x[0] for x, field in zip(side, batched, strict=True)))  # pyright: ignore
            for side, batched in zip(sides, fields, strict=True)
        ]
        jax.eval_shape(
            lambda q, k: visible(
                q, k, causal=options.causal, window=options.window, distance_range=options.distance_range
            ),
            *first,
        )
    segmented = lengths != sizes or any(side.segment_ids is not None for side in sides)
    unplaced = axes > 0 and any(side.has_position is not None for side in sides)

    def of_side(side: TokenPositions, batched: Any, length: int, size: int) -> Marks:
        def row(x: Array, field: int | None, mode: str = "edge") -> Array:
            x = x if field is not None else x[None]
            return jnp.pad(x, ((0, 0), (0, size - length)), mode=mode)

        ones = jnp.ones(length, jnp.int32)
        take = lambda x, field: (ones, None) if x is None else (x.astype(jnp.int32), field)
        order = (side.positions, batched.positions) if side.order is None else (side.order, batched.order)
        positions = side.positions[..., None] if axes == 1 else side.positions
        if jnp.issubdtype(positions.dtype, jnp.integer):
            positions = positions.astype(jnp.int32)
        return Marks(
            order=row(order[0].astype(jnp.int32), order[1]) if ordered else None,
            segment_ids=row(*take(side.segment_ids, batched.segment_ids), mode="constant") if segmented else None,
            has_position=row(*take(side.has_position, batched.has_position)) if unplaced else None,
            positions=tuple(row(positions[..., a], batched.positions) for a in range(axes)),
        )

    q_marks, k_marks = (of_side(*each) for each in zip(sides, fields, lengths, sizes, strict=True))
    return q_marks, k_marks


def seen(options: Options, q: Marks, k: Marks) -> Bool[Array, "T S"] | None:
    """Return what `visible` says of the pairs of a row and a column; None where every pair is seen."""
    masks = []
    if q.order is not None and k.order is not None:
        if options.causal:
            masks.append(q.order >= k.order)
        if options.window is not None or options.distance_range is not None:
            apart = jnp.where(q.order >= k.order, q.order - k.order, k.order - q.order).astype(jnp.uint32)
            masks += [compare(apart) for compare in _limits(options)]
    if q.segment_ids is not None:
        masks += [q.segment_ids == k.segment_ids, k.segment_ids != 0]
    return None if not masks else _all(masks)


def _limits(options: Options) -> list[Callable[[Array], Array]]:
    """Return what a distance must satisfy."""
    found: list[Callable[[Array], Array]] = []
    for low, high in ((0, options.window), options.distance_range or (0, None)):
        if low > 0:
            found.append(lambda apart, low=_bound(low - 1): apart > low)
        if high is not None:
            found.append(lambda apart, high=_bound(high - 1): apart <= high)
    return found


def _bound(most: int) -> Array:
    return jnp.uint32(min(most, 2**32 - 1))


def _all(masks: list[Array]) -> Array:
    result = masks[0]
    for mask in masks[1:]:
        result = result & mask
    return result


class Tiles(NamedTuple):
    """Of which tiles a pair may be seen, and in which all are; N is 1 where all sequences agree."""

    some: Bool[Array, "N I J"]
    whole: Bool[Array, "N I J"]

    def transposed(self) -> "Tiles":
        """Return the tiles by blocks of keys."""
        return Tiles(*(x.mT for x in self))

    def diagonals(self) -> "Tiles":
        """Return the tiles by diagonal J - I, from the lowest, and I."""
        rows, columns = self.some.shape[1:]
        column = jnp.arange(rows + columns - 1)[:, None] - (rows - 1) + jnp.arange(rows)
        inside = (column >= 0) & (column < columns)
        return Tiles(*(x[:, jnp.arange(rows), column.clip(0, columns - 1)] & inside for x in self))


def tiles(options: Options, q: Marks, k: Marks, blocks: tuple[int, int]) -> Tiles | None:
    """Return which tiles are seen, by the least and the largest index and segment of each block; None = all, whole."""
    some, whole = [], []
    if q.order is not None and k.order is not None:
        (q_low, q_high), (k_low, k_high) = _extremes(q.order, k.order, blocks)
        if options.causal:
            some.append(q_high >= k_low)
            whole.append(q_low >= k_high)
        above = lambda a, b: jnp.where(a >= b, a - b, 0).astype(jnp.uint32)
        nearest = jnp.maximum(above(q_low, k_high), above(k_low, q_high))
        farthest = jnp.maximum(above(q_high, k_low), above(k_high, q_low))
        for low, high in ((0, options.window), options.distance_range or (0, None)):
            if low > 0:
                some.append(farthest > _bound(low - 1))
                whole.append(nearest > _bound(low - 1))
            if high is not None:
                some.append(nearest <= _bound(high - 1))
                whole.append(farthest <= _bound(high - 1))
    if q.segment_ids is not None and k.segment_ids is not None:
        (q_low, q_high), (k_low, k_high) = _extremes(q.segment_ids, k.segment_ids, blocks)
        some += [q_low <= k_high, k_low <= q_high, (q_low != 0) | (q_high != 0), (k_low != 0) | (k_high != 0)]
        whole += [q_low == q_high, k_low == k_high, q_low == k_low, k_low != 0]
    return None if not some else Tiles(_all(some), _all(whole))


def _extremes(q: Array, k: Array, blocks: tuple[int, int]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the least and largest number of each block, of queries `(N, I, 1)` and of keys `(N, 1, J)`."""
    q_blocks, k_blocks = (x.reshape(len(x), -1, size) for x, size in zip((q, k), blocks, strict=True))
    low_high = lambda x, axis: (jnp.expand_dims(x.min(-1), axis), jnp.expand_dims(x.max(-1), axis))
    return low_high(q_blocks, 2), low_high(k_blocks, 1)


def spans(tiles: Tiles) -> Int[Array, "N I 4"]:
    """Return, for each I, from which J to which tiles are seen, and between them a run of whole ones.

    The four numbers are (first seen, first whole, after the run of whole ones, after the last seen).
    """
    some, whole = tiles.some, tiles.whole & tiles.some
    count = some.shape[-1]
    place = jnp.arange(count)
    first, last = jnp.argmax(some, axis=-1), count - jnp.argmax(some[..., ::-1], axis=-1)
    first, last = (jnp.where(jnp.any(some, axis=-1), x, 0) for x in (first, last))
    begin = jnp.argmax(whole, axis=-1)
    after = jnp.min(jnp.where(whole | (place < begin[..., None]), count, place), axis=-1)
    begin, after = (jnp.where(jnp.any(whole, axis=-1), x, first) for x in (begin, after))
    return jnp.stack([first, begin, after, last], axis=-1).astype(jnp.int32)
