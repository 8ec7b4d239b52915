"""Attention in tiles for any device: one head as in `tiles`, lifted over heads by the caller.

Memory is linear in the length, forward and backward, for any bias. Kept for the backward pass are the operands, the
output and the log-sum-exps.
"""

import functools
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from pejax._attention.core.dropout import Dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.options import Options
from pejax._attention.core.reference import Pairs
from pejax._attention.xla.blocks import Terms, block_size, cut_head, cut_row, join, join_gradients, row_means
from pejax._attention.xla.tiles import backward, forward
from pejax._ops.pytrees import cotangent_of
from pejax._ops.remat import kept
from pejax._tokens import TokenPositions

BLOCK = 512
"""Queries, and keys, of a tile at most: its float32 scores take 1 MiB."""


class _Arrays(NamedTuple):
    q: Float[Array, "T D"]
    q_tokens: TokenPositions
    k: Float[Array, "S D"]
    v: Float[Array, "S D"]
    k_tokens: TokenPositions
    hooks: Hooks
    dropout: Dropout | None


def blockwise_head(
    options: Options,
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    v: Float[Array, "S D"],
    hooks: Hooks,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    dropout: Dropout | None,
    pairs: Pairs,
) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    """Return the output of one head and each row's log-sum-exp, as `dense_head` does."""
    del pairs
    hooks = hooks._replace(distance_bias=None, relative_keys=None)
    return _attend(options, _Arrays(q, q_tokens, k, v, k_tokens, hooks, dropout))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: Options, arrays: _Arrays) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    output, lse = _exact(options, arrays)
    return output.astype(arrays.q.dtype), lse


def _exact(options: Options, arrays: _Arrays) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    """Return the output in at least 32 bits, and each row's log-sum-exp."""
    output, lse = (join(x, len(arrays.q)) for x in forward(options, _head(options, arrays)))
    return output, lse


def _head(options: Options, arrays: _Arrays) -> Any:
    q, q_tokens, k, v, k_tokens, hooks, dropout = arrays
    sizes = block_size(options.block, len(q)), block_size(options.block, len(k))
    return cut_head(sizes, q, k, v, q_tokens, k_tokens, Terms(hooks), dropout)


def _attend_forward(options: Options, arrays: _Arrays) -> tuple[Any, Any]:
    output, lse = kept(_exact(options, arrays))
    rounded = output.astype(arrays.q.dtype)
    # The gradient of what a bias learns adds up over rows what the mean of a row is off: it wants the output unrounded.
    return (rounded, lse), (arrays, rounded if arrays.hooks.bias is None else output, lse)


def _attend_backward(options: Options, saved: Any, cotangents: tuple[Array, Array]) -> tuple[_Arrays]:
    arrays, output, lse = saved
    head = _head(options, arrays)
    part = backward(options, head, cut_row(head, cotangents[0], lse, row_means(output, *cotangents)))
    d_queries, d_keys = join_gradients(part, len(arrays.q), len(arrays.k))
    return (cotangent_of(arrays, [*d_queries, *d_keys, *part.hooks]),)


_attend.defvjp(_attend_forward, _attend_backward)
