"""Biases of key - query at consecutive positions: one number per distance, read along the diagonals.

    tile_ij = line[j - i + d]        gradient of line[r] = Σ_{j-i+d=r} gradient of tile_ij

with d the distance of the tile's first pair.

A tile reads a run of the line that is as long as its two sides together, and stays in the first cache.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BAND = 16
"""Rows of a tile that are added up together, before they are skewed."""


def toeplitz(line: Float[Array, " R"], start: Int[Array, ""], rows: int, columns: int) -> Float[Array, "T S"]:
    """Return the tile `line[start + j - i]`, i a row and j a column."""
    row = lambda i: lax.dynamic_slice_in_dim(line, start - i, columns)
    return jax.vmap(row)(jnp.arange(rows, dtype=jnp.int32))


def diagonal_sums(tile: Float[Array, "T S"]) -> Float[Array, " R"]:
    """Return the sum of each diagonal, that of `j - i = 1 - T` first: the transpose of `toeplitz` in its line.

    Bands of rows are added up, each moved on by its height; only the sum of the bands is skewed row by row.
    """
    rows, columns = tile.shape
    height = -rows % BAND + rows
    bands = jnp.pad(tile, ((0, height - rows), (0, 0))).reshape(-1, BAND, columns)

    def add(i: Array, total: Array) -> Array:
        place = (0, height - BAND - i * BAND)
        old = lax.dynamic_slice(total, place, (BAND, columns))
        return lax.dynamic_update_slice(total, old + bands[i][::-1], place)

    width = columns + height - BAND
    total = lax.fori_loop(0, len(bands), add, jnp.zeros((BAND, width), tile.dtype))
    skewed = jnp.pad(total, ((0, 0), (0, BAND))).reshape(-1)[: BAND * (width + BAND - 1)]
    return jnp.sum(skewed.reshape(BAND, -1), axis=0)[height - rows :]


def add_slice(whole: Float[Array, "*D R"], part: Float[Array, "*D W"], start: Int[Array, ""]) -> Float[Array, "*D R"]:
    """Add to the run of the last axis that begins at `start`, as what a tile found to the gradient of the line."""
    old = lax.dynamic_slice_in_dim(whole, start, part.shape[-1], -1)
    return lax.dynamic_update_slice_in_dim(whole, old + part, start, -1)
