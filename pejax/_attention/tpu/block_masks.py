"""Tokens as the TPU kernels read them: rows and columns of numbers, and which blocks can see which."""

import functools
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from pejax._attention.core.dropout import finalize
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.reference import Options
from pejax._attention.tpu.kernels import Spans
from pejax._attention.tpu.tile import bound, unsigned
from pejax._tokens import TokenPositions

Fields: TypeAlias = dict[str, Int32[Array, "M _"]]
"""What masks and biases read of the tokens of one side, over the M examples whose tokens differ: N or 1.

"order", "segment", "placed", and the positions on each axis, "axis0", "axis1" ...
"""


def fields_of(
    options: Options, layout: Layout, operands: Operands, padded: bool, located: bool
) -> tuple[Fields, Fields]:
    """Return what is to be known of the queries and of the keys; `located` asks for their positions."""
    tokens, lengths = (operands.q_tokens, operands.k_tokens), (operands.q.shape[3], operands.k.shape[2])
    ordered = options.causal or options.window is not None or options.distance_range is not None
    segmented = padded or any(side.segment_ids is not None for side in tokens)
    placing = operands.shared.distance_bias is not None and any(side.has_position is not None for side in tokens)

    def side(tokens: TokenPositions, axes: TokenPositions, length: int) -> Fields:
        positions = _one_or_all(tokens.positions, axes.positions, length)
        fields = {}
        if ordered:
            fields["order"] = positions if tokens.order is None else _one_or_all(tokens.order, axes.order, length)
        if segmented:
            fields["segment"] = _one_or_all(tokens.segment_ids, axes.segment_ids, length)
        if placing:
            fields["placed"] = _one_or_all(tokens.has_position, axes.has_position, length)
        if located:
            on_axes = [positions] if positions.ndim == 2 else jnp.unstack(positions, axis=2)
            fields |= {f"axis{a}": position for a, position in enumerate(on_axes)}
        return fields

    sides = [side(*each) for each in zip(tokens, (layout.q_axes, layout.k_axes), lengths, strict=True)]
    examples = max((leaf.shape[0] for leaf in jax.tree.leaves(sides)), default=1)
    q, k = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (examples, leaf.shape[1])), sides)
    return q, k


def _one_or_all(field: Array | None, axis: object, length: int) -> Int32[Array, "M T *A"]:
    """Return a field of tokens with its examples in front; one that is not given is 1 for all tokens."""
    if field is None:
        return jnp.ones((1, length), jnp.int32)
    field = field.astype(jnp.int32)
    return field[None] if axis is None else field


def spans_of(options: Options, q: Fields, k: Fields, count: tuple[int, int]) -> tuple[Spans, Spans]:
    """Return which key blocks each query block visits, and the reverse, given how many blocks there are."""
    q_blocks, k_blocks = (
        {name: x.reshape(x.shape[0], blocks, -1) for name, x in side.items()}
        for side, blocks in zip((q, k), count, strict=True)
    )
    tiles = [jnp.ones((1, *count), bool)]
    if "order" in q:
        (q_low, q_high), (k_low, k_high) = _ranges(q_blocks, k_blocks, "order")
        outside = (q_low > k_high) | (k_low > q_high)
        far = jnp.maximum(_apart(q_high, k_low), _apart(q_low, k_high))
        gap = jnp.minimum(_apart(q_low, k_high), _apart(k_low, q_high))
        gap = jnp.where(outside, gap, unsigned(jnp.int32(0)))
        if options.causal:
            tiles.append(q_high >= k_low)
        for low, high in ((0, options.window), options.distance_range or (0, None)):
            if low > 0:
                tiles.append(far > bound(low - 1))
            if high is not None:
                tiles.append(gap <= bound(high - 1))
    if "segment" in q:
        (q_low, q_high), (k_low, k_high) = _ranges(q_blocks, k_blocks, "segment")
        tiles += [q_low <= k_high, k_low <= q_high, q_low <= q_high, k_low <= k_high]
    visited = functools.reduce(jnp.logical_and, tiles)
    return _spans(visited), _spans(jnp.swapaxes(visited, 1, 2))


def _ranges(q: dict[str, Array], k: dict[str, Array], name: str) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the least and the largest number in each block, but for padding: `(M, I, 1)` twice, `(M, 1, J)` twice."""
    ends = np.iinfo(np.int32)

    def ends_of(side: dict[str, Array]) -> tuple[Array, Array]:
        counts = side["segment"] != 0 if "segment" in side else True
        low, high = (jnp.where(counts, side[name], end) for end in (ends.max, ends.min))
        return low.min(-1), high.max(-1)

    q_low, q_high, k_low, k_high = (*ends_of(q), *ends_of(k))
    return (q_low[:, :, None], q_high[:, :, None]), (k_low[:, None], k_high[:, None])


def _apart(a: Int32[Array, "..."], b: Int32[Array, "..."]) -> Int32[Array, "..."]:
    return unsigned(jnp.where(a >= b, a - b, b - a))


def _spans(visited: Bool[Array, "M I J"]) -> Spans:
    """Return the first and the last J that each I visits; 0 and -1 where it visits none."""
    last = visited.shape[2] - 1 - jnp.argmax(visited[:, :, ::-1], axis=2)
    last = jnp.where(visited.any(2), last, -1)
    return Spans(jnp.argmax(visited, axis=2).astype(jnp.int32).ravel(), last.astype(jnp.int32).ravel())


def drop_words(layout: Layout, operands: Operands, seed: UInt32[Array, "2"]) -> tuple[Array, Array]:
    """Return what the dropout's hash adds for each query, `(N, H, T)`, and for each key, `(S,)`."""
    (n, groups, shared, t, _), origin = operands.q.shape, operands.origin
    count = lambda size, start: jnp.arange(size, dtype=jnp.uint32) + start
    batch, head = count(n, origin.batch), count(groups * shared, origin.head)
    if layout.one_dropout:
        batch, head = jnp.zeros_like(batch), jnp.zeros_like(head)
    stream = finalize(finalize(seed[0] ^ batch)[:, None] + head)
    rows = finalize(stream[:, :, None] ^ finalize(count(t, origin.query) + seed[1]))
    return rows, finalize(finalize(count(operands.k.shape[2], origin.key) ^ seed[1]) + seed[0])
