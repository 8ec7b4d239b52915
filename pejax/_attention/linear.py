"""Linear attention with rotated features: a sum over keys that is kept as a state, so no pair is ever computed twice.

    o_i = Σ_j (R_i φ(q_i))·(R_j φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j),   φ(x) = elu(x) + 1

Without a mask `Σ_j R_j φ(k_j) v_jᵀ` serves every query. Where queries see their own segment, or keys up to their own,
the tokens come in order of segment and index; a scan over chunks of them keeps the sum so far and forgets it where a
segment ends, and within a chunk the pairs are computed as they are. Backward computes each chunk again: only the state
at the start of each is kept, which for chunks of D tokens or more is no larger than the keys.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, UInt32

from pejax._attention.core.hooks import Hooks
from pejax._attention.core.masks import check_orders
from pejax._attention.core.operands import Layout, Operands, check_arrays, check_partials, prepare
from pejax._attention.core.reference import nonzero
from pejax._ops.backend import each
from pejax._ops.pytrees import wide
from pejax._tokens import TokenPositions, as_token_positions

CHUNK = 64
"""Tokens of a chunk, or as many as a head has channels if those are more."""


class Head(NamedTuple):
    """The features of one key head and of the G query heads that read it."""

    q: Float[Array, "G T D"]
    k: Float[Array, "S D"]
    rotated_q: Float[Array, "G T D"]
    rotated_k: Float[Array, "S D"]
    v: Float[Array, "S D"]


class Line(NamedTuple):
    """Tokens sorted by (segment, order), each key before the queries that see it.

    Attributes:
        segments: never falling, but for 0 in between: tokens that neither see nor are seen.
        order: never falling within a segment; a query sees the keys of its segment up to its own.
    """

    segments: UInt32[Array, "*B T"]
    order: Int[Array, "*B T"]


def linear_attention(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    v: Float[Array, "*B S K D"],
    *,
    positions: TokenPositions | Array | None = None,
    k_positions: TokenPositions | Array | None = None,
    rotate: Partial | None = None,
    rotate_keys: Partial | None = None,
    causal: bool = False,
) -> Float[Array, "*B T H D"]:
    """Attend from q to k and v in time and memory linear in the length; position enters as a rotation of the features.

    `o_i = Σ_j (R_i φ(q_i))·(R_j φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j)` over the keys that i sees, `φ(x) = elu(x) + 1`. The
    rotation is in the numerator alone, so that the denominator stays positive; the weights may be negative, and do not
    sum to 1. A query that sees no key gives zeros. The arithmetic is float32.

    Tokens that do not come by segment and order are put in line first, which costs a sort, and twice the work.

    Args:
        q: queries, not rotated.
        k: keys, not rotated; H must be a multiple of K, and query head h attends to key head `h // (H/K)`.
        v: values.
        positions: of the queries, as in `dot_product_attention`. None = 0 ... T-1.
        k_positions: those of the keys. None = `positions`.
        rotate: `Partial(encoding.rotate, params)`, applied to the features φ; None = no position. What it multiplies by
            besides turning (an attention factor, a temperature) multiplies the output.
        rotate_keys: the same for keys, where the encoding has one. None = `rotate`.
        causal: keys after the query, by `TokenPositions.order`, are not seen.

    Returns:
        The output in q's type.

    Raises:
        ValueError: shapes that do not agree, or no order under `causal`.
        TypeError: an operand of another kind.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 19; for φ and the running sum Katharopoulos et al. 2020,
        "Transformers are RNNs" (arXiv 2006.16236), sections 3.2 and 3.3.
    """
    check_partials(rotate=rotate, rotate_keys=rotate_keys)
    check_arrays(q, k, v)
    positions = jnp.arange(q.shape[-3]) if positions is None else positions
    one_side = k_positions is None or k_positions is positions
    features = positive(wide(q)), positive(wide(k))
    prepared = lambda q, k: prepare(q, k, v, positions, k_positions, Hooks(), None)
    plain, layout = prepared(*features)
    if 0 in q.shape or 0 in k.shape:
        return jnp.zeros_like(q)
    sides = (
        as_token_positions(side).positions for side in (positions, positions if k_positions is None else k_positions)
    )
    hooks = rotate, rotate if rotate_keys is None else rotate_keys
    rotated, _ = prepared(
        *(x if hook is None else hook(x, at) for hook, x, at in zip(hooks, features, sides, strict=True))
    )
    output = _attend(Head(plain.q, plain.k, rotated.q, rotated.k, plain.v), plain, layout, causal, one_side)
    return jnp.moveaxis(output, 3, 1).reshape(q.shape).astype(q.dtype)


def positive(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return `elu(x) + 1`, to full precision where it is small."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _attend(heads: Head, operands: Operands, layout: Layout, causal: bool, one_side: bool) -> Float[Array, "N K G T D"]:
    """Attend from all queries; `one_side` says that queries and keys are the same tokens."""
    if not causal and operands.q_tokens.segment_ids is None and operands.k_tokens.segment_ids is None:
        return each(each(_see_all))(heads)
    lines = _lines(operands, layout, causal)

    def stand(heads: Head, line: Line) -> Array:
        return each(jax.checkpoint(lambda head: _scan(head, line)))(heads)

    def align(heads: Head, lines: tuple[Line, Line]) -> Array:
        place, line = _merged(*lines)
        return each(jax.checkpoint(lambda head: _aligned(head, place, line)))(heads)

    if not (causal and one_side):
        return each(align)(heads, lines)
    in_line = jnp.all(jax.vmap(_stands)(lines[0]))
    return lax.cond(in_line, lambda: each(stand)(heads, lines[0]), lambda: each(align)(heads, lines))


def _see_all(head: Head) -> Float[Array, "G T D"]:
    state, total = head.rotated_k.T @ wide(head.v), jnp.sum(head.k, axis=0)
    return _rows(head.rotated_q, state) / nonzero(_rows(head.q, total))[..., None]


def _rows(x: Float[Array, "G T D"], y: Float[Array, "D *E"]) -> Float[Array, "G T *E"]:
    """Multiply all rows by a matrix or a vector, in one product of two dimensions."""
    return (x.reshape(-1, x.shape[-1]) @ y).reshape(*x.shape[:-1], *y.shape[1:])


def _lines(operands: Operands, layout: Layout, causal: bool) -> tuple[Line, Line]:
    """Return the lines of queries and keys, `(N, T)` and `(N, S)`, as the tokens come."""

    def of_one(*sides: TokenPositions) -> tuple[Line, Line]:
        if causal:  # refuse tokens that have no order
            check_orders(*sides)
        orders = [
            (side.positions if side.order is None else side.order) if causal else jnp.zeros(len(side.positions), int)
            for side in sides
        ]
        kind = np.result_type(np.int32, *(order.dtype for order in orders))
        q_line, k_line = (Line(_segments(side), order.astype(kind)) for side, order in zip(sides, orders, strict=True))
        return q_line, k_line

    sides, axes = (operands.q_tokens, operands.k_tokens), (layout.q_axes, layout.k_axes)
    if any(axis is not None for side in axes for axis in side):
        return jax.vmap(of_one, axes)(*sides)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(operands.q), *x.shape)), of_one(*sides))


def _segments(tokens: TokenPositions) -> UInt32[Array, " T"]:
    """Return the segments as numbers of which 0 is the least, all 1 where there are none."""
    if tokens.segment_ids is None:
        return jnp.ones(len(tokens.positions), jnp.uint32)
    return tokens.segment_ids.astype(jnp.int32).astype(jnp.uint32)


def _stands(line: Line) -> Bool[Array, ""]:
    """Return whether tokens that are queries and keys at once stand in line as they come."""
    segments, order = line
    before = lax.cummax(segments)[:-1]
    follows = (segments[1:] == segments[:-1]) & (order[1:] > order[:-1])
    return jnp.all(follows | (segments[1:] > before) | (segments[1:] == 0))


def _merged(q_line: Line, k_line: Line) -> tuple[Int[Array, " N"], Line]:
    """Put queries and keys in one line; return which of `[*queries, *keys]` stands where, and the line."""
    segments, order = (jnp.concatenate(pair) for pair in zip(q_line, k_line, strict=True))
    is_query = jnp.arange(len(order)) < len(q_line.order)
    place = jnp.lexsort((is_query, order, segments))
    return place, Line(segments[place], order[place])


def _aligned(head: Head, place: Int[Array, " N"], line: Line) -> Float[Array, "G T D"]:
    """Scan queries and keys that stand in one line: a query has no key there, a key no query."""
    t, count = head.q.shape[1], len(place)
    key_place = jnp.where(place < t, count, place - t)
    queries = lambda x: jnp.take(x, place, axis=1, mode="fill", fill_value=0)
    keys = lambda x: jnp.take(x, key_place, axis=0, mode="fill", fill_value=0)
    both = Head(queries(head.q), keys(head.k), queries(head.rotated_q), keys(head.rotated_k), keys(head.v))
    return _scan(both, line)[:, jnp.argsort(place)[:t]]


def _scan(head: Head, line: Line) -> Float[Array, "G T D"]:
    """Attend from queries that stand in line to the keys that stand in the same places or before."""
    length, dim = head.k.shape
    size = min(max(CHUNK, dim), length)

    def cut(x: Array, axis: int) -> Array:
        padded = jnp.pad(x, [(0, -length % size if i == axis else 0) for i in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)

    chunks = Head(cut(head.q, 1), cut(head.k, 0), cut(head.rotated_q, 1), cut(head.rotated_k, 0), cut(head.v, 0))
    empty = State(jnp.zeros((dim, dim), head.k.dtype), jnp.zeros(dim, head.k.dtype), jnp.uint32(0))
    _, outputs = lax.scan(jax.checkpoint(_step), empty, (chunks, Line(*(cut(x, 0) for x in line))))
    return jnp.moveaxis(outputs, 0, 1).reshape(len(head.q), -1, dim)[:, :length]


class State(NamedTuple):
    """What a chunk knows of the keys before it.

    Attributes:
        products: the sum of k v^T over those of the last segment.
        features: the sum of k over the same.
        segment: the last one.
    """

    products: Float[Array, "D D"]
    features: Float[Array, " D"]
    segment: UInt32[Array, ""]


def _step(state: State, chunk: tuple[Head, Line]) -> tuple[State, Float[Array, "G C D"]]:
    """Return the state after a chunk, and the output of its queries."""
    (q, k, rotated_q, rotated_k, v), (segments, order) = chunk
    v, seen = wide(v), segments != 0
    sees = (segments[:, None] == segments) & seen & (order[:, None] >= order)
    goes_on = segments == state.segment
    pairs, turned_pairs = (jnp.where(sees, _rows(*x), 0) for x in ((q, k.T), (rotated_q, rotated_k.T)))
    sums = _rows(turned_pairs, v) + jnp.where(goes_on[:, None], _rows(rotated_q, state.products), 0)
    totals = jnp.sum(pairs, axis=-1) + jnp.where(goes_on, _rows(q, state.features), 0)
    last = jnp.maximum(state.segment, jnp.max(segments))
    stays = (seen & (segments == last))[:, None]
    kept = lambda x: jnp.where(state.segment == last, x, 0)
    products = kept(state.products) + jnp.where(stays, rotated_k, 0).T @ v
    features = kept(state.features) + jnp.sum(jnp.where(stays, k, 0), axis=0)
    return State(products, features, last), sums / nonzero(totals)[..., None]
