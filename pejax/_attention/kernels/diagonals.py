"""The gradient of a bias by distance from sums of square tiles: along their diagonals, key - query is constant.

The gradients of a query's logits have the sum `Rows.d_lse`. So that of an end of the diagonals, whose biases are one
and the same function of the parameters, is that sum minus the gradients of the others, and its tiles are not visited.
Where the gradient stands within the end does not matter: it is at the outermost diagonal.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._attention.core.options import Options
from pejax._attention.kernels.block_masks import TokenRows
from pejax._attention.kernels.constant_ends import Ends


def derived_end(options: Options, tokens: TokenRows, ends: Ends) -> Ends:
    """Return the end of the diagonals whose gradient follows from those of the others; (0, 0) = none.

    Args:
        options: settings of the attention.
        tokens: tokens of the queries.
        ends: how many of the first, and of the last, diagonals are the same function of the parameters.
    """
    if options.soft_cap is not None or tokens.has_position is not None:
        return Ends(0, 0)
    return Ends(ends.first, 0) if options.causal or ends.first >= ends.last else Ends(0, ends.last)


def visited_diagonals(derived: Ends, size: int, counts: tuple[int, int]) -> tuple[int, int]:
    """Return the first of the diagonals of tiles that are visited, and their number.

    Args:
        derived: the end whose gradient is derived.
        size: side of the tiles.
        counts: numbers of tiles along the queries and along the keys.
    """
    start = max(0, (derived.first + 1) // size - 1)  # tile c has the diagonals c·size ... (c + 2)·size - 2
    return start, min(sum(counts) - 1, sum(counts) - derived.last // size) - start


def gradients_of_diagonals(
    sums: Float[Array, "H C B B"], counts: tuple[int, int], derived: Ends, d_lse: Float[Array, "N H T"]
) -> Float[Array, "H R"]:
    """Return the gradient of each diagonal.

    Args:
        sums: sums of the tiles on the diagonals that were visited.
        counts: numbers of tiles along the queries and along the keys.
        derived: the end whose gradient is derived.
        d_lse: that of `Rows`.
    """
    size = sums.shape[-1]
    count, (start, _) = size * sum(counts), visited_diagonals(derived, size, counts)
    near = along_diagonals(sums)
    gradients = jnp.pad(near, ((0, 0), (start * size, count - start * size - near.shape[1])))
    if derived == (0, 0):
        return gradients
    place = np.arange(count)
    is_derived = (place < derived.first) | (place >= count - derived.last)
    others = jnp.where(is_derived, 0.0, gradients)
    rest = jnp.sum(d_lse, axis=(0, 2)) - jnp.sum(others, axis=1)
    return others.at[:, 0 if derived.first else -1].add(rest)


def along_diagonals(tiles: Float[Array, "H C B B"]) -> Float[Array, "H R"]:
    """Sum C tiles of side B along their diagonals, and add the sums that neighbors share: R = (C + 1)·B diagonals."""
    heads, count, size, _ = tiles.shape
    # Reading rows of 2B numbers as rows of 2B - 1 moves row i by i places to the right.
    skewed = jnp.pad(tiles[:, :, ::-1], ((0, 0), (0, 0), (0, 0), (0, size))).reshape(heads, count, -1)[..., :-size]
    sums = jnp.sum(skewed.reshape(heads, count, size, 2 * size - 1), axis=2)
    low, high = sums[..., :size], jnp.pad(sums[..., size:], ((0, 0), (0, 0), (0, 1)))
    ends = lambda x, before: jnp.pad(x, ((0, 0), (before, 1 - before), (0, 0)))
    return (ends(low, 0) + ends(high, 1)).reshape(heads, -1)
