"""What the TPU kernels are told of the tokens: rows and columns of numbers, and which blocks can see which."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, Int32, UInt32

from pejax.attention.dropout import _finalise
from pejax.attention.operands import Layout, Operands
from pejax.attention.tile import Options
from pejax.attention.tpu_kernels import Spans
from pejax.attention.tpu_tile import Plan, bound, unsigned
from pejax.encoding import Tokens


class Fields(NamedTuple):
    """What masks and biases read of the tokens of one side, over the examples whose tokens differ; None = nothing."""

    order: Int32[Array, "M T"] | None
    segment: Int32[Array, "M T"] | None
    placed: Int32[Array, "M T"] | None


def fields_of(options: Options, layout: Layout, operands: Operands, padded: bool) -> tuple[Fields, Fields]:
    """Return what is to be known of the queries and of the keys; M = N where the tokens are batched, else 1."""
    q, k = operands.q_tokens, operands.k_tokens
    ordered = options.causal or options.window is not None or options.distance_range is not None
    segmented = padded or q.segments is not None or k.segments is not None
    placing = operands.shared.distance is not None and (q.placed is not None or k.placed is not None)
    orders = [tokens.positions if tokens.index is None else tokens.index for tokens in (q, k)]
    lengths = operands.q.shape[3], operands.k.shape[2]

    def side(tokens: Tokens, axes: Tokens, order: Array, length: int) -> Fields:
        order_axis = axes.positions if tokens.index is None else axes.index
        return Fields(
            _one_or_all(order, order_axis, length) if ordered else None,
            _one_or_all(tokens.segments, axes.segments, length) if segmented else None,
            _one_or_all(tokens.placed, axes.placed, length) if placing else None,
        )

    sides = [
        side(*each) for each in zip((q, k), (layout.q_axes, layout.k_axes), orders, lengths, strict=True)
    ]
    examples = max((leaf.shape[0] for leaf in jax.tree.leaves(sides)), default=1)
    widen = lambda leaf: jnp.broadcast_to(leaf, (examples, *leaf.shape[1:]))  # noqa: E731
    q_fields, k_fields = jax.tree.map(widen, sides)
    return q_fields, k_fields


def _one_or_all(field: Array | None, axis: object, length: int) -> Int32[Array, "M T"]:
    """Return a field of tokens with its examples in front; one that is not given is 1 for all tokens."""
    if field is None:
        return jnp.ones((1, length), jnp.int32)
    field = field.astype(jnp.int32)
    return field[None] if axis is None else field


def aligned(
    layout: Layout, operands: Operands, sides: tuple[Fields, Fields]
) -> tuple[Bool[Array, ""], Int32[Array, ""]]:
    """Return whether `p_j - p_i = j - i + shift` for every pair that sees each other and is placed, and the shift."""
    offsets, groups = [], []
    for tokens, axes, fields in zip(
        (operands.q_tokens, operands.k_tokens), (layout.q_axes, layout.k_axes), sides, strict=True
    ):
        offset = _one_or_all(tokens.positions, axes.positions, tokens.positions.shape[-1])
        offset = offset - jnp.arange(offset.shape[1], dtype=jnp.int32)
        group = jnp.ones_like(offset) if fields.segment is None else fields.segment
        group = group if fields.placed is None else jnp.where(fields.placed != 0, group, 0)
        examples = max(len(offset), len(group))
        offsets.append(jnp.broadcast_to(offset, (examples, offset.shape[1])))
        groups.append(jnp.broadcast_to(group, (examples, offset.shape[1])))
    examples = max(map(len, offsets))
    firsts = [offset.ravel()[jnp.argmax(group.ravel() != 0)] for offset, group in zip(offsets, groups, strict=True)]
    shift = firsts[1] - firsts[0]
    offset, group = (
        jnp.concatenate([jnp.broadcast_to(x, (examples, x.shape[1])) for x in both], axis=1)
        for both in ((offsets[0] + shift, offsets[1]), groups)
    )
    if sides[0].segment is None:
        known = group != 0
        first = offset.ravel()[jnp.argmax(known.ravel())]
        return jnp.all((offset == first) | ~known), shift
    group, offset = lax.sort((group, offset), dimension=1, num_keys=1)
    same = (group[:, 1:] == group[:, :-1]) & (group[:, 1:] != 0)
    return jnp.all((offset[:, 1:] == offset[:, :-1]) | ~same), shift


def spans_of(plan: Plan, q: Fields, k: Fields, key_blocks: int) -> tuple[Spans, Spans]:
    """Return which key blocks each query block visits, and the reverse; fields are padded to whole blocks."""
    options, tiles = plan.options, [jnp.ones((1, plan.query_blocks, key_blocks), bool)]
    present = lambda side, size: None if side.segment is None else _blocks(side.segment, size) != 0  # noqa: E731
    seen = present(q, plan.queries), present(k, plan.keys)
    if q.order is not None and k.order is not None:
        (q_low, q_high), (k_low, k_high) = _ranges(q.order, k.order, seen, plan)
        far = jnp.maximum(_apart(q_high, k_low), _apart(q_low, k_high))
        outside = (q_low > k_high) | (k_low > q_high)
        gap = jnp.minimum(_apart(q_low, k_high), _apart(k_low, q_high))
        gap = jnp.where(outside, gap, unsigned(jnp.int32(0)))
        if options.causal:
            tiles.append(q_high >= k_low)
        for low, high in ((0, options.window), options.distance_range or (0, None)):
            if low > 0:
                tiles.append(far > bound(low - 1))
            if high is not None:
                tiles.append(gap <= bound(high - 1))
    if q.segment is not None and k.segment is not None:
        (q_low, q_high), (k_low, k_high) = _ranges(q.segment, k.segment, seen, plan)
        tiles += [q_low <= k_high, k_low <= q_high, q_low <= q_high, k_low <= k_high]
    visited = tiles[0]
    for tile in tiles[1:]:
        visited = visited & tile
    return _spans(visited), _spans(jnp.swapaxes(visited, 1, 2))


def _ranges(
    q: Int32[Array, "M T"], k: Int32[Array, "M S"], seen: tuple[Array | None, Array | None], plan: Plan
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the least and the largest number in each block, but for padding: `(M, I, 1)` twice, `(M, 1, J)` twice."""
    ends = np.iinfo(np.int32)

    def ends_of(x: Array, present: Array | None) -> tuple[Array, Array]:
        if present is None:
            return x.min(-1), x.max(-1)
        return jnp.where(present, x, ends.max).min(-1), jnp.where(present, x, ends.min).max(-1)

    q_ends = ends_of(_blocks(q, plan.queries), seen[0])
    k_ends = ends_of(_blocks(k, plan.keys), seen[1])
    return (q_ends[0][:, :, None], q_ends[1][:, :, None]), (k_ends[0][:, None], k_ends[1][:, None])


def _blocks(field: Int[Array, "M T"], size: int) -> Int[Array, "M I size"]:
    return field.reshape(field.shape[0], -1, size)


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
    count = lambda size, start: jnp.arange(size, dtype=jnp.uint32) + start  # noqa: E731
    batch, head = count(n, origin.batch), count(groups * shared, origin.head)
    if layout.one_dropout:
        batch, head = jnp.zeros_like(batch), jnp.zeros_like(head)
    stream = _finalise(_finalise(seed[0] ^ batch)[:, None] + head)
    rows = _finalise(stream[:, :, None] ^ _finalise(count(t, origin.query) + seed[1]))
    return rows, _finalise(_finalise(count(operands.k.shape[2], origin.key) ^ seed[1]) + seed[0])
