"""Where each token is. Tokens without a position (CLS, registers) are left as they are."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num

from pejax._encoding import Encoding, Params
from pejax._ops.checks import check_position_type


class TokenPositions(NamedTuple):
    """Where each token is: one pytree that shards, vmaps, tiles and is cached together.

    Attributes:
        positions: `(*B, T)`, or `(*B, T, A)` on A > 1 axes, integer or float, always finite; 0 where there is none.
        order: `(*B, T)` order for causal masks and windows; None = the positions, where they are 1-D integers.
        has_position: `(*B, T)`; False = the token has no position (CLS, registers); None = every token has one.
        segment_ids: `(*B, T)`; 0 = padding; tokens see their own segment only; None = one segment.
    """

    positions: Num[Array, "..."]
    order: Int[Array, "*B T"] | None = None
    has_position: Bool[Array, "*B T"] | None = None
    segment_ids: Int[Array, "*B T"] | None = None


def as_token_positions(tokens: TokenPositions | Array) -> TokenPositions:
    """Return `TokenPositions`, a plain array being the positions of all tokens, in one segment."""
    tokens = tokens if isinstance(tokens, TokenPositions) else TokenPositions(jnp.asarray(tokens))
    check_position_type(tokens.positions)
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
