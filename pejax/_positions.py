"""Positions of the patches of a grid, and of the tokens of packed sequences."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pejax._ops.checks import check_choice
from pejax._tokens import TokenPositions


def grid_positions(height: int, width: int, *, indexing: str = "ij") -> Int[Array, "T 2"]:
    """Return the position of every patch of a grid, in raster order: `p_n = (⌊n / width⌋, n mod width)`.

    Args:
        height: rows, patches.
        width: columns, patches.
        indexing: "ij" gives (row, column), "xy" gives (column, row).

    Returns:
        T = height · width positions, in patches.

    Raises:
        ValueError: a side below 1, or an unknown indexing.
    """
    check_choice("indexing", indexing, ("ij", "xy"))
    if min(height, width) < 1:
        raise ValueError(f"height and width must be at least 1, got {height} and {width}")
    row, column = jnp.divmod(jnp.arange(height * width, dtype=jnp.int32), width)
    return jnp.stack([row, column] if indexing == "ij" else [column, row], axis=-1)


def segment_positions(segment_ids: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Return the position of each token in its own segment: the number of earlier tokens with the same id.

    In sequences packed one after the other, positions restart at 0 in each. Padding between them and segments whose
    tokens alternate give the same positions. This does not mask attention between segments:
    `TokenPositions.segment_ids` does, and `packed_positions` returns both.

    Args:
        segment_ids: any integers; 0, the padding, is counted as a segment too.

    Returns:
        int32, in tokens.
    """

    def one_sequence(ids: Int[Array, " T"]) -> Int[Array, " T"]:
        by_segment = jnp.argsort(ids, stable=True)
        ordered, rank = ids[by_segment], jnp.arange(len(ids), dtype=jnp.int32)
        starts = jnp.where(ordered != jnp.roll(ordered, 1), rank, 0)
        return jnp.zeros_like(rank).at[by_segment].set(rank - jax.lax.cummax(starts))

    return jnp.vectorize(one_sequence, signature="(t)->(t)")(segment_ids)


def packed_positions(segment_ids: Int[Array, "*B T"]) -> TokenPositions:
    """Return the `TokenPositions` of packed sequences: positions restart in each, and none attends to another.

    Args:
        segment_ids: the sequence that each token belongs to; 0 = padding, at position 0, which no token attends to.
    """
    order = jnp.broadcast_to(jnp.arange(segment_ids.shape[-1], dtype=jnp.int32), segment_ids.shape)
    positions = jnp.where(segment_ids != 0, segment_positions(segment_ids), 0)
    return TokenPositions(positions, order, segment_ids=segment_ids)
