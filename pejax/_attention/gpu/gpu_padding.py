"""Operands as the kernels on GPUs read them, padded to whole tiles, and the sizes of tiles that fit a GPU."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pejax._attention.gpu.shared_memory import BACKWARD, fitting_blocks


class PaddedPrimals(NamedTuple):
    """The `Primals` as the kernels read them: padded, with the parameters of the bias as `numbers` or `diagonals`.

    Attributes:
        q: queries.
        k: keys.
        v: values.
        numbers: as in `Inputs`.
        diagonals: as in `Inputs`.
        q_positions: positions of the queries, one array `(N, T)` per axis; () unless the bias reads float positions.
        k_positions: positions of the keys, one array `(N, S)` per axis; () likewise.
        key_bias: as in `Inputs`.
    """

    q: Float[Array, "N T H D"]
    k: Float[Array, "N S K D"]
    v: Float[Array, "N S K D"]
    numbers: tuple[Array, ...]
    diagonals: Float[Array, "H R"] | None
    q_positions: tuple[Array, ...]
    k_positions: tuple[Array, ...]
    key_bias: Float[Array, "N H S"] | None


def tile_sizes(row_bytes: int, available: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the numbers of queries and keys in a tile, for the forward pass and for the backward pass.

    Args:
        row_bytes: bytes of one token's channels in a head, padded.
        available: bytes of shared memory available to a program.

    Raises:
        NotImplementedError: no tile fits.
    """
    # (queries, keys) forward and backward. Tokens of more bytes leave room for fewer of them.
    large, medium, small = ((128, 64), (64, 64)), ((64, 32), (32, 32)), ((32, 16), (32, 16))
    forward_blocks, backward_blocks = large if row_bytes <= 256 else medium if row_bytes <= 512 else small
    forward_blocks = fitting_blocks(("forward",), forward_blocks, row_bytes, available)
    return forward_blocks, fitting_blocks(BACKWARD, backward_blocks, row_bytes, available)


def summed_positions(gradients: tuple[Array, ...], positions: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return gradients of positions `(N, T)` on each axis, summed over the batch where positions are `(1, T)`."""
    axes = zip(gradients, positions, strict=True)
    return tuple(d_x if d_x.shape == x.shape else jnp.sum(d_x, axis=0, keepdims=True) for d_x, x in axes)


def padded_size(size: int) -> int:
    """Return the smallest power of two that is at least `size` and 16, the smallest side of a product on GPUs."""
    return max(16, pl.next_power_of_2(size))
