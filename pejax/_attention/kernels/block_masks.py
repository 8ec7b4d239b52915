"""Tokens as padded rows of 32-bit numbers, and masks of the tiles with visible pairs, for kernels on GPUs."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num

from pejax._attention.core.masks import Sides, all_of, block_masks
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._tokens.positions import TokenPositions


class TokenRows(NamedTuple):
    """The fields of `TokenPositions` that a call needs, for queries or keys; None or () = not needed.

    N is 1 if all sequences share a field. Inside a kernel, each field holds one block, as a row or a column.
    """

    order: Int[Array, "N T"] | None = None
    segment_ids: Int[Array, "N T"] | None = None
    has_position: Int[Array, "N T"] | None = None
    positions: tuple[Num[Array, "N T"], ...] = ()


def token_rows(
    options: Options, layout: Layout, operands: Operands, sizes: tuple[int, int], axes: int
) -> tuple[TokenRows, TokenRows]:
    """Return the tokens of queries and keys, padded to `sizes` by tokens of segment 0.

    Args:
        options: settings of the attention, which determine whether the order is needed.
        layout: which fields of the tokens are batched.
        operands: hold the tokens; T and S are the lengths of q and k.
        sizes: padded T and S.
        axes: number of position axes that the bias reads; 0 for none.
    """
    sides = operands.q_tokens, operands.k_tokens
    fields: tuple[Any, Any] = layout.q_axes, layout.k_axes
    lengths = operands.q.shape[-2], operands.k.shape[-2]
    segmented = lengths != sizes or any(side.segment_ids is not None for side in sides)
    unplaced = axes > 0 and any(side.has_position is not None for side in sides)

    def of_side(side: TokenPositions, batched: Any, length: int, size: int) -> TokenRows:
        def row(x: Array, field: int | None, mode: str = "edge") -> Array:
            x = x if field is not None else x[None]
            return jnp.pad(x, ((0, 0), (0, size - length)), mode=mode)

        ones = jnp.ones(length, jnp.int32)
        take = lambda x, field: (ones, None) if x is None else (x.astype(jnp.int32), field)
        order = (side.positions, batched.positions) if side.order is None else (side.order, batched.order)
        positions = side.positions[..., None] if axes == 1 else side.positions
        if jnp.issubdtype(positions.dtype, jnp.integer):
            positions = positions.astype(jnp.int32)
        return TokenRows(
            order=row(order[0].astype(jnp.int32), order[1]) if options.uses_order else None,
            segment_ids=row(*take(side.segment_ids, batched.segment_ids), mode="constant") if segmented else None,
            has_position=row(*take(side.has_position, batched.has_position)) if unplaced else None,
            positions=tuple(row(positions[..., a], batched.positions) for a in range(axes)),
        )

    q_tokens, k_tokens = (of_side(*side) for side in zip(sides, fields, lengths, sizes, strict=True))
    return q_tokens, k_tokens


class Tiles(NamedTuple):
    """Masks of the tiles with some visible pair, and with all pairs visible. N is 1 if all sequences agree."""

    some: Bool[Array, "N I J"]
    whole: Bool[Array, "N I J"]

    def transposed(self) -> "Tiles":
        """Return the masks with axes (J, I) in place of (I, J)."""
        return Tiles(*(x.mT for x in self))

    def diagonals(self) -> "Tiles":
        """Return the masks with axes (diagonal J - I, from the lowest; I) in place of (I, J)."""
        rows, columns = self.some.shape[1:]
        column = jnp.arange(rows + columns - 1)[:, None] - (rows - 1) + jnp.arange(rows)
        inside = (column >= 0) & (column < columns)
        return Tiles(*(x[:, jnp.arange(rows), column.clip(0, columns - 1)] & inside for x in self))


def tiles(options: Options, q: TokenRows, k: TokenRows, blocks: tuple[int, int]) -> Tiles | None:
    """Return the masks of visible tiles; None = every pair is visible."""

    def cut(q: Array | None, k: Array | None) -> Sides:
        if q is None or k is None:
            return None
        q_blocks, k_blocks = (x.reshape(len(x), -1, size) for x, size in zip((q, k), blocks, strict=True))
        return q_blocks[:, :, None], k_blocks[:, None]

    fields = cut(q.order, k.order), cut(q.segment_ids, k.segment_ids)
    some, whole = (all_of(block_masks(options, *fields, whole=whole)) for whole in (False, True))
    return None if some is None or whole is None else Tiles(some, whole)


def spans(tiles: Tiles) -> Int[Array, "N I 4"]:
    """Return, for each query block I, the range of visible key blocks, and within it a range of fully visible ones.

    The four numbers are (first, full start, full end, end): both ends are exclusive.
    """
    some, whole = tiles.some, tiles.whole & tiles.some
    count = some.shape[-1]
    place = jnp.arange(count)
    first, end = jnp.argmax(some, axis=-1), count - jnp.argmax(some[..., ::-1], axis=-1)
    first, end = (jnp.where(jnp.any(some, axis=-1), x, 0) for x in (first, end))
    full_start = jnp.argmax(whole, axis=-1)
    full_end = jnp.min(jnp.where(whole | (place < full_start[..., None]), count, place), axis=-1)
    full_start, full_end = (jnp.where(jnp.any(whole, axis=-1), x, first) for x in (full_start, full_end))
    return jnp.stack([first, full_start, full_end, end], axis=-1).astype(jnp.int32)
