"""The dense reference: the whole matrix of one head at once, in float32. The oracle, and the fastest when short."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pejax.attention.dropout import Dropout, apply_dropout, keep_pairs
from pejax.attention.operands import wide
from pejax.attention.tile import Hooks, Options, Pairs, softmax, tile_logits, tile_output, visible_pairs
from pejax.encoding import Tokens


def dense_weights(
    options: Options,
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    hooks: Hooks,
    q_tokens: Tokens,
    k_tokens: Tokens,
    pairs: Pairs,
) -> tuple[Float[Array, "T S"], Float[Array, " T"]]:
    """Return the weights of one head, before dropout, and each row's log-sum-exp."""
    mask = visible_pairs(options, q_tokens, k_tokens)
    return softmax(tile_logits(options, wide(q), wide(k), hooks, q_tokens, k_tokens, mask, pairs))


def dense_head(
    options: Options,
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    v: Float[Array, "S D"],
    hooks: Hooks,
    q_tokens: Tokens,
    k_tokens: Tokens,
    dropout: Dropout | None,
    pairs: Pairs,
) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    """Return the output of one head and each row's log-sum-exp."""
    weights, lse = dense_weights(options, q, k, hooks, q_tokens, k_tokens, pairs)
    if dropout is not None:
        queries, keys = (jnp.arange(size, dtype=jnp.uint32) for size in weights.shape)
        weights = apply_dropout(weights, keep_pairs(dropout, queries, keys, options.dropout_rate), options.dropout_rate)
    return tile_output(options, weights, wide(v), hooks, q_tokens, k_tokens).astype(q.dtype), lse
