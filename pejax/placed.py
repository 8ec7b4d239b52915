"""What position does to tokens that have none (CLS, registers): nothing."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from pejax.encoding import Params, Tokens, as_tokens


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
