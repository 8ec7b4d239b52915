"""Toeplitz tiles, for biases of key - query at consecutive positions: one number per diagonal.

    tile_ij = diagonals[j - i + d]        gradient of diagonals[r] = Σ_{j-i+d=r} gradient of tile_ij

with d the index of the tile's first pair. A tile of T x S pairs reads T + S - 1 numbers, which stay in the L1 cache.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pejax._ops.varying import zeros_varying

BAND = 16
"""Rows per band: the bands of a tile are added up first, and only their sum is skewed row by row."""


def toeplitz(diagonals: Float[Array, " R"], start: Int[Array, ""], rows: int, columns: int) -> Float[Array, "T S"]:
    """Return the tile with `diagonals[start + j - i]` in row i and column j."""
    row = lambda i: lax.dynamic_slice_in_dim(diagonals, start - i, columns)
    return jax.vmap(row)(jnp.arange(rows, dtype=jnp.int32))


def diagonal_sums(tile: Float[Array, "T S"]) -> Float[Array, " R"]:
    """Return the sum of each diagonal, starting with `j - i = 1 - T`: the transpose of `toeplitz` in `diagonals`.

    Bands of rows are added up, each shifted by its height. Only the sum of the bands is skewed row by row.
    """
    rows, columns = tile.shape
    height = -rows % BAND + rows
    bands = jnp.pad(tile, ((0, height - rows), (0, 0))).reshape(-1, BAND, columns)

    def add(i: Array, total: Array) -> Array:
        corner = (0, height - BAND - i * BAND)
        old = lax.dynamic_slice(total, corner, (BAND, columns))
        return lax.dynamic_update_slice(total, old + bands[i][::-1], corner)

    width = columns + height - BAND
    total = lax.fori_loop(0, len(bands), add, zeros_varying((BAND, width), tile.dtype, tile))
    skewed = jnp.pad(total, ((0, 0), (0, BAND))).reshape(-1)[: BAND * (width + BAND - 1)]
    return jnp.sum(skewed.reshape(BAND, -1), axis=0)[height - rows :]


def add_slice(total: Float[Array, "*D R"], part: Float[Array, "*D W"], start: Int[Array, ""]) -> Float[Array, "*D R"]:
    """Return `total` with `part` added to the slice of its last axis that begins at `start`."""
    old = lax.dynamic_slice_in_dim(total, start, part.shape[-1], -1)
    return lax.dynamic_update_slice_in_dim(total, old + part, start, -1)
