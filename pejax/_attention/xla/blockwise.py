"""Attention in tiles for any device: one head at a time, by the loops of `tiles`.

Memory is linear in the length, forward and backward, for any bias. The operands, the output and the log-sum-exps are
saved for the backward pass.
"""

from dataclasses import replace
from typing import NamedTuple

from jaxtyping import Array, Float

from pejax._attention.core.derivatives import tiled_rules
from pejax._attention.core.dropout import Dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.options import Options
from pejax._attention.core.reference import PairArrays
from pejax._attention.xla.blocks import (
    Head,
    Terms,
    block_size,
    from_blocks,
    gradients_from_blocks,
    head_to_blocks,
    residuals_to_blocks,
    row_means,
)
from pejax._attention.xla.tiles import backward, forward
from pejax._ops.derivatives import differentiable
from pejax._ops.pytrees import cotangent_of, floats_of, with_floats
from pejax._tokens.positions import TokenPositions

BLOCK = 512
"""Maximum number of queries, and of keys, per tile; the float32 logits of such a tile take 1 MiB."""


class _Arrays(NamedTuple):
    """The operands of one head that may have gradients."""

    q: Float[Array, "T D"]
    q_tokens: TokenPositions
    k: Float[Array, "S D"]
    v: Float[Array, "S D"]
    k_tokens: TokenPositions
    key_bias: Float[Array, " S"] | None
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
    key_bias: Float[Array, " S"] | None,
    dropout: Dropout | None,
    pair_arrays: PairArrays,
) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    """Return the output of one head and the log-sum-exp of each row, as `dense_head` does."""
    del pair_arrays  # None: `refuse_pair_arrays` comes first
    # `bias` is the same bias for any positions; the other two are its faster forms, which this loop does not use.
    hooks = replace(hooks, distance_bias=None, relative_keys=None)
    arrays = _Arrays(q, q_tokens, k, v, k_tokens, key_bias, hooks, dropout)
    output, lse = differentiable(RULES, options, arrays)
    return output.astype(q.dtype), lse


def _unrounded(options: Options, arrays: _Arrays) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    """Return the output in at least 32 bits, and the log-sum-exp of each row."""
    output, lse = (from_blocks(x, len(arrays.q)) for x in forward(options, _head(options, arrays)))
    return output, lse


def _wide(options: Options, arrays: _Arrays) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    """Return the same of operands in at least 32 bits; of narrower ones, loops read bits, which have no derivative."""
    return _unrounded(options, with_floats(arrays, floats_of(arrays)))


def _head(options: Options, arrays: _Arrays) -> Head:
    """Split the operands of the head into blocks."""
    q, q_tokens, k, v, k_tokens, key_bias, hooks, dropout = arrays
    sizes = block_size(options.block, len(q)), block_size(options.block, len(k))
    return head_to_blocks(sizes, q, k, v, q_tokens, k_tokens, key_bias, Terms(hooks), dropout)


def _save(options: Options, arrays: _Arrays, outputs: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return output and log-sum-exps for the backward pass."""
    del options
    output, lse = outputs
    # Gradients of a bias's parameters sum the errors of the row means over all rows, so they need the unrounded output.
    return output.astype(arrays.q.dtype) if arrays.hooks.bias is None else output, lse


def _pull(options: Options, arrays: _Arrays, saved: tuple[Array, Array], cotangents: tuple[Array, Array]) -> _Arrays:
    """Return the gradients of the operands."""
    output, lse = saved
    d_output, d_lse = cotangents[0].astype(arrays.q.dtype), cotangents[1]  # it was rounded after these rules
    head = _head(options, arrays)
    part = backward(options, head, residuals_to_blocks(head, d_output, lse, row_means(output, d_output, d_lse)))
    d_queries, d_keys = gradients_from_blocks(part, len(arrays.q), len(arrays.k))
    return cotangent_of(arrays, [*d_queries, *d_keys, *part.hooks])


RULES = tiled_rules(run=_unrounded, plain=_wide, save=_save, pull=_pull)
