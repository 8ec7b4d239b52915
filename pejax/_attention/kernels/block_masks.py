"""Tokens as padded rows of 32-bit numbers, and masks of the tiles with visible pairs, for kernels of GPUs."""

from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num

from pejax._attention.core.masks import Sides, all_of, block_masks
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.kernels.constant_ends import Ends
from pejax._attention.kernels.elementwise import Elementwise
from pejax._attention.kernels.ways import position_axes
from pejax._tokens.positions import TokenPositions

Position: TypeAlias = tuple[Array, ...]
"""Positions on one axis, `(N, T)`: in one part, or, whole numbers as floats, in multiples of 2^16 and the rest."""


class TokenRows(NamedTuple):
    """The fields of `TokenPositions` that a call needs, for queries or keys; None or () = not needed.

    N is 1 if all sequences share a field. Inside a kernel, each field holds one block, as a row or a column. `slots`
    are those of the positions (`slots_of`), and `place` is where each token was before it moved to its slot.
    """

    order: Int[Array, "N T"] | None = None
    segment_ids: Int[Array, "N T"] | None = None
    has_position: Int[Array, "N T"] | None = None
    positions: tuple[Position, ...] = ()
    slots: Int[Array, "1 T"] | None = None
    place: Int[Array, "1 T"] | None = None


def are_masks_known(options: Options, layout: Layout, operands: Operands) -> bool:
    """Return whether all that masks read is known where the call is traced."""
    segmented = any(side.segment_ids is not None for side in (operands.q_tokens, operands.k_tokens))
    return not segmented and (layout.in_order or not options.uses_order)


def mask_rows(
    options: Options, layout: Layout, operands: Operands, sizes: tuple[int, int]
) -> tuple[TokenRows, TokenRows]:
    """Return the fields of queries and keys that masks read, padded to `sizes` by tokens of segment 0.

    Args:
        options: settings of the attention, which determine whether the order is needed.
        layout: which fields of the tokens are batched.
        operands: hold the tokens; T and S are the lengths of q and k.
        sizes: padded T and S.
    """
    sides = operands.q_tokens, operands.k_tokens
    segmented = _lengths(operands) != sizes or any(side.segment_ids is not None for side in sides)

    def of_side(side: TokenPositions, batched: Any, length: int, size: int) -> TokenRows:
        order, axis = (side.positions, batched.positions) if side.order is None else (side.order, batched.order)
        if layout.in_order:
            order, axis = jnp.arange(length), None
        ids, ids_axis = side.segment_ids, batched.segment_ids
        ids, ids_axis = (jnp.ones(length, jnp.int32), None) if ids is None else (ids, ids_axis)
        return TokenRows(
            order=_row(order.astype(jnp.int32), axis, size) if options.uses_order else None,
            segment_ids=_row(ids.astype(jnp.int32), ids_axis, size, mode="constant") if segmented else None,
        )

    q_tokens, k_tokens = map(of_side, sides, (layout.q_axes, layout.k_axes), _lengths(operands), sizes)
    return q_tokens, k_tokens


def bias_rows(
    layout: Layout, operands: Operands, sizes: tuple[int, int], bias: Elementwise | None
) -> tuple[TokenRows, TokenRows]:
    """Return the fields of queries and keys that a bias reads, padded to `sizes` by their last token.

    Args:
        layout: which fields of the tokens are batched.
        operands: hold the tokens; T and S are the lengths of q and k.
        sizes: padded T and S.
        bias: elementwise bias that reads positions. None = nothing reads them.
    """
    sides = operands.q_tokens, operands.k_tokens
    unplaced = operands.shared.distance_bias is not None and any(side.has_position is not None for side in sides)
    axes = 0 if bias is None else position_axes(layout, operands)

    def parts(x: Array) -> tuple[Array, ...]:
        if jnp.issubdtype(x.dtype, jnp.floating):
            return (x,)
        x = x.astype(jnp.int32)
        if bias is None or not bias.takes_floats:
            return (x,)
        if layout.in_order and x.shape[-1] <= 2**24:
            return (x.astype(jnp.float32),)
        low = x & 0xFFFF
        return (x - low).astype(jnp.float32), low.astype(jnp.float32)

    def of_side(side: TokenPositions, batched: Any, length: int, size: int) -> TokenRows:
        placed, axis = side.has_position, batched.has_position
        placed, axis = (jnp.ones(length, jnp.int32), None) if placed is None else (placed, axis)
        positions, positions_axis = side.positions, batched.positions
        if layout.in_order:  # the same numbers, but known
            positions, positions_axis = jnp.arange(length), None
        positions = positions[..., None] if axes == 1 else positions
        return TokenRows(
            has_position=_row(placed.astype(jnp.int32), axis, size) if unplaced else None,
            positions=tuple(
                tuple(_row(part, positions_axis, size) for part in parts(positions[..., a])) for a in range(axes)
            ),
        )

    q_tokens, k_tokens = map(of_side, sides, (layout.q_axes, layout.k_axes), _lengths(operands), sizes)
    return q_tokens, k_tokens


def _lengths(operands: Operands) -> tuple[int, int]:
    return operands.q.shape[-2], operands.k.shape[-2]


def _row(x: Array, axis: int | None, size: int, mode: str = "edge") -> Num[Array, "N P"]:
    """Return a field of tokens, with an axis of examples, padded to P = `size`."""
    x = x if axis is not None else x[None]
    return jnp.pad(x, ((0, 0), (0, size - x.shape[1])), mode=mode)


class Tiles(NamedTuple):
    """Masks of the tiles with some visible pair, and with all pairs visible. N is 1 if all sequences agree.

    Attributes:
        visible: whether some pair is visible.
        full: whether all pairs are visible.
        near: whether the bias differs from pair to pair; where it does not, all keys are far before the queries, or
            far after them. None = everywhere.
    """

    visible: Bool[Array, "N I J"]
    full: Bool[Array, "N I J"]
    near: Bool[Array, "1 I J"] | None = None

    def transposed(self) -> "Tiles":
        """Return the masks with axes (J, I) in place of (I, J)."""
        return Tiles(self.visible.mT, self.full.mT, None if self.near is None else self.near.mT)

    def diagonals(self) -> "Tiles":
        """Return the masks with axes (diagonal J - I, from the lowest; I) in place of (I, J)."""
        rows, columns = self.visible.shape[1:]
        column = jnp.arange(rows + columns - 1)[:, None] - (rows - 1) + jnp.arange(rows)
        inside = (column >= 0) & (column < columns)
        along = lambda x: x[:, jnp.arange(rows), column.clip(0, columns - 1)] & inside
        return Tiles(along(self.visible), along(self.full))


def tiles(options: Options, q: TokenRows, k: TokenRows, blocks: tuple[int, int]) -> Tiles | None:
    """Return the masks of visible tiles; None = every pair is visible."""

    def cut(q: Array | None, k: Array | None) -> Sides:
        if q is None or k is None:
            return None
        q_blocks, k_blocks = (x.reshape(len(x), -1, size) for x, size in zip((q, k), blocks, strict=True))
        return q_blocks[:, :, None], k_blocks[:, None]

    fields = cut(q.order, k.order), cut(q.segment_ids, k.segment_ids)
    visible, full = (all_of(block_masks(options, *fields, whole=whole)) for whole in (False, True))
    return None if visible is None or full is None else Tiles(visible, full)


def all_tiles(counts: tuple[int, int]) -> Tiles:
    """Return the masks of tiles where every pair is visible."""
    every_tile = jnp.ones((1, *counts), bool)
    return Tiles(every_tile, every_tile)


def near_tiles(ends: Ends, blocks: tuple[int, int], counts: tuple[int, int]) -> Bool[Array, "1 I J"]:
    """Return the mask of the tiles with a difference j - i that is not one of the ends, or of both of them.

    Args:
        ends: numbers of the lowest and of the highest differences of padded tokens that share one bias.
        blocks: numbers of queries and of keys in a tile.
        counts: numbers of tiles along the queries and along the keys.
    """
    (q_size, k_size), (q_count, k_count) = blocks, counts
    corner = jnp.arange(k_count) * k_size - jnp.arange(q_count)[:, None] * q_size  # j - i of the first query and key
    lowest, highest = corner - (q_size - 1), corner + k_size - 1
    far_before = highest < ends.first - (q_size * q_count - 1)
    return ~(far_before | (lowest > k_size * k_count - 1 - ends.last))[None]


def spans(tiles: Tiles) -> Int[Array, "N I 6"]:
    """Return, for each query block I, the range of visible key blocks, and within it ranges of fully visible ones.

    The six numbers are (first, full start, near start, near end, full end, end), where ends are exclusive. Between full
    start and full end, blocks are fully visible, and of these the ones from near start to near end are near.
    """
    visible, full = tiles.visible, tiles.full & tiles.visible
    count = visible.shape[-1]
    place = jnp.arange(count)
    first, end = _range(visible)
    first, end = (jnp.where(jnp.any(visible, axis=-1), x, 0) for x in (first, end))
    full_start = jnp.argmax(full, axis=-1)
    full_end = jnp.min(jnp.where(full | (place < full_start[..., None]), count, place), axis=-1)
    full_start, full_end = (jnp.where(jnp.any(full, axis=-1), x, first) for x in (full_start, full_end))
    near_start, near_end = full_start, full_end
    if tiles.near is not None:
        near_start, near_end = (jnp.clip(x, full_start, full_end) for x in _range(tiles.near))
    return jnp.stack([first, full_start, near_start, near_end, full_end, end], axis=-1).astype(jnp.int32)


def _range(mask: Bool[Array, "N I J"]) -> tuple[Int[Array, "N I"], Int[Array, "N I"]]:
    """Return the place of the first True of each row, and the place behind the last; where there is none, both ends."""
    count = mask.shape[-1]
    return jnp.argmax(mask, axis=-1), count - jnp.argmax(mask[..., ::-1], axis=-1)
