"""Tokens as the TPU kernels read them: rows and columns of numbers, and the range of blocks that each block sees."""

import functools
import operator
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt32

from pejax._attention.core.dropout import finalize
from pejax._attention.core.masks import Sides, block_masks
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.tpu.tpu_kernels import Spans
from pejax._tokens.positions import TokenPositions

Fields: TypeAlias = dict[str, Int32[Array, "M _"]]
"""Numbers of the queries, or of the keys, that masks and biases read, one per token, by name.

The names are "order", "segment", "placed" (1 = the token has a position), and for the positions "axis0", "axis1", ...
M is 1 if all examples have the same tokens, else N.
"""


def fields_of(
    options: Options, layout: Layout, operands: Operands, padded: bool, with_positions: bool
) -> tuple[Fields, Fields]:
    """Return the fields of the queries and of the keys.

    Args:
        options: settings of the attention, which determine whether the order is needed.
        layout: which fields of the tokens are batched.
        operands: hold the tokens.
        padded: whether padding follows, so that segments are needed.
        with_positions: whether positions are needed.
    """
    tokens, lengths = (operands.q_tokens, operands.k_tokens), (operands.q.shape[3], operands.k.shape[2])
    segmented = padded or any(side.segment_ids is not None for side in tokens)
    hooks = operands.shared.bias, operands.shared.relative_values
    has_unplaced = any(x is not None for x in hooks) and any(side.has_position is not None for side in tokens)

    def side(tokens: TokenPositions, axes: TokenPositions, length: int) -> Fields:
        positions = _with_examples(tokens.positions, axes.positions, length)
        fields = {}
        if options.uses_order:
            fields["order"] = positions if tokens.order is None else _with_examples(tokens.order, axes.order, length)
        if segmented:
            fields["segment"] = _with_examples(tokens.segment_ids, axes.segment_ids, length)
        if has_unplaced:
            fields["placed"] = _with_examples(tokens.has_position, axes.has_position, length)
        if with_positions:
            on_axes = [positions] if positions.ndim == 2 else jnp.unstack(positions, axis=2)
            fields |= {f"axis{a}": position for a, position in enumerate(on_axes)}
        return fields

    sides = [side(*arguments) for arguments in zip(tokens, (layout.q_axes, layout.k_axes), lengths, strict=True)]
    examples = max((leaf.shape[0] for leaf in jax.tree.leaves(sides)), default=1)
    q, k = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (examples, leaf.shape[1])), sides)
    return q, k


def _with_examples(field: Array | None, axis: object, length: int) -> Int32[Array, "M T *A"]:
    """Return a field of tokens with a leading axis of examples; a field that is None is 1 for all tokens."""
    if field is None:
        return jnp.ones((1, length), jnp.int32)
    field = field.astype(jnp.int32)
    return field[None] if axis is None else field


def spans_of(options: Options, q: Fields, k: Fields, count: tuple[int, int]) -> tuple[Spans, Spans]:
    """Return the spans of key blocks that query blocks visit, and of query blocks that key blocks visit.

    Args:
        options: settings of the attention.
        q: fields of the queries, padded to whole blocks.
        k: fields of the keys, padded to whole blocks.
        count: numbers of query blocks and of key blocks.
    """

    def cut(name: str) -> Sides:
        if name not in q:
            return None
        q_blocks, k_blocks = (
            x[name].reshape(len(x[name]), blocks, -1) for x, blocks in zip((q, k), count, strict=True)
        )
        return q_blocks[:, :, None], k_blocks[:, None]

    masks = block_masks(options, cut("order"), cut("segment"))
    visited = functools.reduce(operator.and_, masks, jnp.ones((1, *count), bool))
    return _spans(visited), _spans(jnp.swapaxes(visited, 1, 2))


def _spans(visited: Bool[Array, "M I J"]) -> Spans:
    """Return the first and the last block J that each block I visits; 0 and -1 where it visits none."""
    last = visited.shape[2] - 1 - jnp.argmax(visited[:, :, ::-1], axis=2)
    last = jnp.where(visited.any(2), last, -1)
    return Spans(jnp.argmax(visited, axis=2).astype(jnp.int32).ravel(), last.astype(jnp.int32).ravel())


def dropout_words(layout: Layout, operands: Operands, seed: UInt32[Array, "2"]) -> tuple[Array, Array]:
    """Return the words of `keep_pairs` before their sum: one per query, `(N, H, T)`, and one per key, `(S,)`."""
    (n, groups, shared, t, _), origin = operands.q.shape, operands.origin
    count = lambda size, start: jnp.arange(size, dtype=jnp.uint32) + start
    batch, head = count(n, origin.batch), count(groups * shared, origin.head)
    if layout.one_dropout:
        batch, head = jnp.zeros_like(batch), jnp.zeros_like(head)
    stream = finalize(finalize(seed[0] ^ batch)[:, None] + head)
    rows = finalize(stream[:, :, None] ^ finalize(count(t, origin.query) + seed[1]))
    return rows, finalize(finalize(count(operands.k.shape[2], origin.key) ^ seed[1]) + seed[0])
