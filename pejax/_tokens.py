"""Where each token is, and what position does to tokens that have none (CLS, registers): nothing."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num

from pejax._encoding import Params
from pejax._ops.checks import check_position_type


class Tokens(NamedTuple):
    """Where each token is: one pytree that shards, vmaps, tiles and is cached together.

    Attributes:
        positions: `(*B, T)`, or `(*B, T, A)` on A > 1 axes, integer or float, always finite; 0 where not placed.
        index: `(*B, T)` order for causal masks and windows; None = the positions, where they are 1-D integers.
        placed: `(*B, T)`; False = the token has no position (CLS, registers); None = all are placed.
        segments: `(*B, T)`; 0 = padding; tokens see their own segment only; None = one segment.
    """

    positions: Num[Array, "..."]
    index: Int[Array, "*B T"] | None = None  # type: ignore[assignment]  # a field, not tuple.index
    placed: Bool[Array, "*B T"] | None = None
    segments: Int[Array, "*B T"] | None = None


def as_tokens(tokens: Tokens | Array) -> Tokens:
    """Return `Tokens`, a plain array being the positions of tokens that are all placed, in one segment."""
    tokens = tokens if isinstance(tokens, Tokens) else Tokens(jnp.asarray(tokens))
    check_position_type(tokens.positions)
    return tokens


def embed_tokens(
    embed: Callable[[Params, Array, Array], Array], params: Params, x: Array, tokens: Tokens | Array
) -> Array:
    """Embed x `(*B, T, C)` at these positions, or where these tokens are, those without a position left alone."""
    tokens = as_tokens(tokens)
    embedded = embed(params, x, tokens.positions)
    if tokens.placed is None:
        return embedded
    return jnp.where(jnp.broadcast_to(tokens.placed[..., None], x.shape), embedded, x)


def rotary_positions(tokens: Tokens, shape: tuple[int, ...]) -> Num[Array, "..."]:
    """Return the positions by which tokens `(*B, T)` turn: 0, which turns nothing, for those that are not placed."""
    positions, placed = tokens.positions, tokens.placed
    if placed is None:
        return positions
    axes = () if positions.shape in (shape[-1:], shape) else positions.shape[-1:]
    common = np.broadcast_shapes(positions.shape, placed.shape + (1,) * len(axes))
    known = jnp.broadcast_to(placed.reshape(placed.shape + (1,) * len(axes)), common)
    return jnp.where(known, jnp.broadcast_to(positions, common), 0)
