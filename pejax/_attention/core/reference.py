"""The dense reference, in plain formulas: tests compare with it, and the tiled implementations share parts of it.

    logits_ij = cap·tanh((scale·q_i·k_j + bias_ij) / cap) + key_bias_j,   or -inf where query i does not see key j
    output_i  = Σ_j w_ij v_j + values(w)_i

w is the softmax of the logits, after dropout, cap is `soft_cap`, and `values` is the hook `relative_values`. Without a
soft cap the logits are `scale·q·k + bias + key_bias`. The bias of a hook, and the weights that `values` reads, count as
0 in every pair in which a token has no position. All arithmetic has at least 32 bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float

from pejax._attention.core.dropout import Dropout, apply_dropout, keep_pairs
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.masks import keep_hidden, visible
from pejax._attention.core.options import Options
from pejax._calls.hook_calls import check_returned, naming_hook
from pejax._ops.pytrees import wide
from pejax._tokens.positions import TokenPositions

Softmax = Callable[[Array], tuple[Array, Array]]
"""`logits (T, S) -> (weights (T, S), log-sum-exp (T,))`."""


class PairArrays(NamedTuple):
    """The mask and the bias that a caller gives as arrays, of one head; in `Operands`, both have N, K, G in front."""

    mask: Bool[Array, "T S"] | None = None
    bias: Float[Array, "T S"] | None = None


def placed_pairs(q_tokens: TokenPositions, k_tokens: TokenPositions) -> Bool[Array, "T S"] | None:
    """Return the mask of the pairs in which both tokens have a position; None = every pair."""
    if q_tokens.has_position is None and k_tokens.has_position is None:
        return None
    q_placed, k_placed = (
        jnp.ones(tokens.positions.shape[:1], bool) if tokens.has_position is None else tokens.has_position
        for tokens in (q_tokens, k_tokens)
    )
    return q_placed[:, None] & k_placed[None, :]


def tile_logits(
    options: Options,
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    hooks: Hooks,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Float[Array, " S"] | None,
    mask: Bool[Array, "T S"] | None,
    pair_arrays: PairArrays = PairArrays(),
) -> Float[Array, "T S"]:
    """Return the logits of one head, -inf where `mask` or `pair_arrays.mask` is False."""
    logits = options.scale * _products(q, k, options)
    if hooks.bias is not None:
        hook_bias = call_hook(hooks.bias, (q, k, q_tokens.positions, k_tokens.positions), "bias", "(T, S)", logits)
        placed = placed_pairs(q_tokens, k_tokens)
        logits = logits + (hook_bias if placed is None else jnp.where(placed, hook_bias, 0.0))
    if pair_arrays.bias is not None:
        logits = logits + pair_arrays.bias.astype(logits.dtype)
    if options.soft_cap is not None:
        logits = keep_hidden(options, logits, options.soft_cap * jnp.tanh(logits / options.soft_cap))
    logits = logits if key_bias is None else logits + key_bias
    for allowed in (mask, pair_arrays.mask):
        logits = logits if allowed is None else jnp.where(allowed, logits, -jnp.inf)
    return logits


def _products(q: Float[Array, "T D"], k: Float[Array, "S D"], options: Options) -> Float[Array, "T S"]:
    """Return q kᵀ; a single query is a vector, for which compilers need no transposed copy of k."""
    if q.shape[0] == 1:
        return lax.dot_general(q[0], k, (((0,), (1,)), ((), ())), precision=options.precision)[None]
    return jnp.matmul(q, k.T, precision=options.precision)


def tile_output(
    options: Options,
    weights: Float[Array, "T S"],
    v: Float[Array, "S D"],
    hooks: Hooks,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
) -> Float[Array, "T D"]:
    """Return the weighted sum of the values, plus the result of the relative_values hook if there is one."""
    output = jnp.matmul(weights, v, precision=options.precision)
    if hooks.relative_values is None:
        return output
    placed = placed_pairs(q_tokens, k_tokens)
    weights = weights if placed is None else jnp.where(placed, weights, 0.0)
    operands = (weights, q_tokens.positions, k_tokens.positions)
    return output + call_hook(hooks.relative_values, operands, "relative_values", "(T, D)", output)


def call_hook(
    hook: Partial, operands: tuple[Array, ...], name: str, letters: str, like: Array | jax.ShapeDtypeStruct
) -> Array:
    """Return the result of a hook in the type of `like`.

    Args:
        hook: the hook, bound to its parameters.
        operands: its other arguments: vectors or weights, and positions.
        name: name of the hook in errors.
        letters: names of the axes of `like` in errors.
        like: array whose shape the result must have, because broadcasting would hide a wrong hook.
    """
    with naming_hook(name, hook, hook.args[0], *operands):
        result = hook(*operands)
    relative = operands[0] if name == "distance_bias" else None
    check_returned(name, hook, letters, like.shape, result, relative)
    return jnp.asarray(result).astype(like.dtype)


def softmax(logits: Float[Array, "T S"]) -> tuple[Float[Array, "T S"], Float[Array, " T"]]:
    """Return the weights and the log-sum-exp of each row; if all its logits are -inf, zeros and -inf."""
    row_max = lax.stop_gradient(jnp.max(logits, axis=-1))
    row_max = jnp.where(jnp.isneginf(row_max), 0.0, row_max)  # -inf minus -inf is NaN
    exponentials = jnp.exp(logits - row_max[:, None])
    total = jnp.sum(exponentials, axis=-1)
    return exponentials / one_if_zero(total)[:, None], log_sum(row_max, total)


def one_if_zero(total: Float[Array, "*T"]) -> Float[Array, "*T"]:
    """Return the sum of each row's exponentials, but 1 where it is 0: a divisor also for rows that see nothing."""
    return jnp.where(total == 0, 1.0, total)


def log_sum(row_max: Float[Array, "*T"], total: Float[Array, "*T"]) -> Float[Array, "*T"]:
    """Return the log-sum-exp of each row, `row_max + log(total)`; -inf where the total is 0.

    Args:
        row_max: maximum of each row.
        total: sum of `exp(logit - row_max)` over each row.
    """
    return jnp.where(total == 0, -jnp.inf, row_max + jnp.log(one_if_zero(total)))


def dense_weights(
    options: Options,
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    hooks: Hooks,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Float[Array, " S"] | None,
    pair_arrays: PairArrays,
    softmax: Softmax = softmax,
) -> tuple[Float[Array, "T S"], Float[Array, " T"]]:
    """Return the weights of one head, before dropout, and each row's log-sum-exp."""
    mask = visible(options, q_tokens, k_tokens)
    return softmax(tile_logits(options, wide(q), wide(k), hooks, q_tokens, k_tokens, key_bias, mask, pair_arrays))


def dense_head(
    options: Options,
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    v: Float[Array, "S D"],
    hooks: Hooks,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Float[Array, " S"] | None,
    dropout: Dropout | None,
    pair_arrays: PairArrays,
    softmax: Softmax = softmax,
) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    """Return the output of one head and each row's log-sum-exp."""
    weights, lse = dense_weights(options, q, k, hooks, q_tokens, k_tokens, key_bias, pair_arrays, softmax)
    if dropout is not None:
        q_ids, k_ids = (jnp.arange(size, dtype=jnp.uint32) for size in weights.shape)
        weights = apply_dropout(weights, keep_pairs(dropout, q_ids, k_ids, options.dropout_rate), options.dropout_rate)
    return tile_output(options, weights, wide(v), hooks, q_tokens, k_tokens).astype(q.dtype), lse
