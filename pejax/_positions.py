"""Positions of tokens, of the patches of a grid, and of packed sequences.

Tokens without a position (CLS, registers) are neither rotated nor embedded.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num

from pejax._encoding import Encoding, Params
from pejax._ops.checks import check_choice, check_ids, check_position_type


class TokenPositions(NamedTuple):
    """Positions, order and segments of tokens, in one pytree that is sharded, vmapped, tiled and cached as a whole.

    Attributes:
        positions: `(*B, T)` in tokens, or on A > 1 axes `(*B, T, A)` in patches; integer or float, always finite; 0 for
            tokens without a position.
        order: `(*B, T)`, the order of the tokens for causal masks and windows, in tokens. None = `positions`; masks
            and windows then need integer positions on one axis.
        has_position: `(*B, T)`; False = the token has no position (CLS, registers). None = every token has a position.
        segment_ids: `(*B, T)`; a token attends only to tokens with its own id; 0 = padding. None = one segment.

    Examples:
        >>> tokens = TokenPositions(jnp.asarray([0, 0, 1, 2]), has_position=jnp.arange(4) > 0)  # CLS, then 3 tokens
        >>> tokens.has_position.tolist()
        [False, True, True, True]
    """

    positions: Num[Array, "..."]
    order: Int[Array, "*B T"] | None = None
    has_position: Bool[Array, "*B T"] | None = None
    segment_ids: Int[Array, "*B T"] | None = None


def as_token_positions(tokens: TokenPositions | Array) -> TokenPositions:
    """Return `TokenPositions`, a plain array being the positions of all tokens, in one segment."""
    tokens = tokens if isinstance(tokens, TokenPositions) else TokenPositions(jnp.asarray(tokens))
    check_position_type(tokens.positions)
    if jnp.issubdtype(tokens.positions.dtype, jnp.integer) and tokens.positions.dtype.itemsize < 4:
        return tokens._replace(positions=tokens.positions.astype(jnp.int32))  # differences of 8 or 16 bits can overflow
    return tokens


def embed_tokens(
    embed: Callable[[Params, Array, Array], Array], params: Params, x: Array, tokens: TokenPositions | Array
) -> Array:
    """Embed x `(*B, T, C)` at these positions, or where these tokens are, leaving those without a position alone."""
    tokens = as_token_positions(tokens)
    embedded = embed(params, x, tokens.positions)
    if tokens.has_position is None:
        return embedded
    return jnp.where(jnp.broadcast_to(tokens.has_position[..., None], x.shape), embedded, x)


def rotary_positions(tokens: TokenPositions, shape: tuple[int, ...]) -> Num[Array, "..."]:
    """Return the positions by which tokens `(*B, T)` are rotated: 0, which rotates nothing, for those without one."""
    positions, has_position = tokens.positions, tokens.has_position
    if has_position is None:
        return positions
    axes = () if positions.shape in (shape[-1:], shape) else positions.shape[-1:]
    common = np.broadcast_shapes(positions.shape, has_position.shape + (1,) * len(axes))
    known = jnp.broadcast_to(has_position.reshape(has_position.shape + (1,) * len(axes)), common)
    return jnp.where(known, jnp.broadcast_to(positions, common), 0)


def embedding_tokens(encoding: Encoding) -> Encoding:
    """Return the encoding with an `embed` that takes `TokenPositions` in place of positions, too."""
    if encoding.embed is None:
        return encoding
    return encoding._replace(embed=functools.partial(embed_tokens, encoding.embed))


def grid_positions(height: int, width: int, *, indexing: str = "ij") -> Int[Array, "T 2"]:
    """Return the position of every patch of a grid, in raster order: `p_n = (⌊n / width⌋, n mod width)`.

    Args:
        height: number of rows, in patches.
        width: number of columns, in patches.
        indexing: "ij" gives (row, column), "xy" gives (column, row).

    Returns:
        T = height · width positions, in patches.

    Raises:
        ValueError: a side below 1, or an unknown indexing.

    Examples:
        >>> grid_positions(2, 3).tolist()
        [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    """
    check_choice("indexing", indexing, ("ij", "xy"))
    if min(height, width) < 1:
        raise ValueError(f"height and width must be at least 1, got {height} and {width}")
    row, column = jnp.divmod(jnp.arange(height * width, dtype=jnp.int32), width)
    return jnp.stack([row, column] if indexing == "ij" else [column, row], axis=-1)


def segment_positions(segment_ids: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Return the position of each token in its own segment: the number of earlier tokens with the same id.

    In sequences packed one after the other, positions restart at 0 in each. Other tokens between those of a segment,
    such as padding, do not change its positions. This function does not mask attention between segments:
    `TokenPositions.segment_ids` does, and `packed_positions` returns both.

    Args:
        segment_ids: any integers; 0, the id of padding, is counted like any other segment.

    Returns:
        int32, in tokens.

    Raises:
        TypeError: ids that are not integers.
    """
    check_ids("segment_ids", segment_ids)

    def one_sequence(ids: Int[Array, " T"]) -> Int[Array, " T"]:
        by_segment = jnp.argsort(ids, stable=True)
        ordered, rank = ids[by_segment], jnp.arange(len(ids), dtype=jnp.int32)
        starts = jnp.where(ordered != jnp.roll(ordered, 1), rank, 0)
        return jnp.zeros_like(rank).at[by_segment].set(rank - jax.lax.cummax(starts))

    return jnp.vectorize(one_sequence, signature="(t)->(t)")(segment_ids)


def packed_positions(segment_ids: Int[Array, "*B T"]) -> TokenPositions:
    """Return the `TokenPositions` of packed sequences: positions restart in each, and none attends to another.

    Args:
        segment_ids: the sequence that each token belongs to; 0 = padding, which no token attends to and whose position
            is 0.

    Examples:
        >>> packed_positions(jnp.asarray([1, 1, 1, 2, 2, 0])).positions.tolist()
        [0, 1, 2, 0, 1, 0]
    """
    order = jnp.broadcast_to(jnp.arange(segment_ids.shape[-1], dtype=jnp.int32), segment_ids.shape)
    positions = jnp.where(segment_ids != 0, segment_positions(segment_ids), 0)
    return TokenPositions(positions, order, segment_ids=segment_ids)
