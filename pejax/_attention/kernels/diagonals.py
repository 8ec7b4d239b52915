"""The gradient of a bias by distance from sums of square tiles: along their diagonals, key - query is constant."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def along_diagonals(tiles: Float[Array, "H C B B"]) -> Float[Array, "H R"]:
    """Sum C tiles of side B along their diagonals, and add the sums that neighbors share: R = (C + 1)·B diagonals."""
    heads, count, size, _ = tiles.shape
    # Reading rows of 2B numbers as rows of 2B - 1 moves row i by i places to the right.
    skewed = jnp.pad(tiles[:, :, ::-1], ((0, 0), (0, 0), (0, 0), (0, size))).reshape(heads, count, -1)[..., :-size]
    sums = jnp.sum(skewed.reshape(heads, count, size, 2 * size - 1), axis=2)
    low, high = sums[..., :size], jnp.pad(sums[..., size:], ((0, 0), (0, 0), (0, 1)))
    ends = lambda x, before: jnp.pad(x, ((0, 0), (before, 1 - before), (0, 0)))
    return (ends(low, 0) + ends(high, 1)).reshape(heads, -1)
