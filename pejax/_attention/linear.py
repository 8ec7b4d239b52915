"""Linear attention with rotated features (RoFormer): time and memory linear in the length.

    o_i = Σ_j (R_i φ(q_i))·(R_j φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j),   φ(x) = elu(x) + 1

Without a mask, the sum `Σ_j R_j φ(k_j) v_jᵀ` is the same for all queries. With a causal mask or segments, the tokens
are sorted by segment and order, and a scan over chunks carries the sum over earlier keys of the same segment; inside a
chunk, all pairs are computed. The backward pass computes each chunk again. Only the sums at the start of each chunk are
saved, which for chunks of D tokens or more are no larger than the keys.
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
from pejax._positions import TokenPositions, as_token_positions

CHUNK = 64
"""Tokens per chunk; D tokens if the head dimension D is larger."""


class Head(NamedTuple):
    """The features φ of one key head and of its G query heads, plain and rotated, and the values."""

    q: Float[Array, "G T D"]
    k: Float[Array, "S D"]
    rotated_q: Float[Array, "G T D"]
    rotated_k: Float[Array, "S D"]
    v: Float[Array, "S D"]


class SortKeys(NamedTuple):
    """The sort keys of tokens: segment, then order.

    Attributes:
        segments: segment ids; 0 = padding, which is masked.
        order: order within the segment; a causal query sees the keys of its segment up to its own order.
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

    Tokens that are not sorted by segment and order are sorted first, which doubles the work and adds that of a sort.

    Args:
        q: queries, not rotated.
        k: keys, not rotated; H must be a multiple of K, and query head h attends to key head `h // (H/K)`.
        v: values.
        positions: positions of the queries, as in `dot_product_attention`. None = 0 ... T-1.
        k_positions: positions of the keys. None = `positions`.
        rotate: `Partial(encoding.rotate, params)`, applied to the features φ; None = no position. If it also scales (by
            an attention factor or a temperature), the output is scaled too.
        rotate_keys: the same for keys, if the encoding has `rotate_keys`. None = `rotate`.
        causal: whether keys after the query, by `TokenPositions.order`, are masked.

    Returns:
        The output in q's type.

    Raises:
        ValueError: shapes that do not match, or tokens without an order under `causal`.
        TypeError: an operand that is not an array, or `rotate` that is not a `Partial`.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 19; for φ and the running sum Katharopoulos et al. 2020,
        "Transformers are RNNs" (arXiv 2006.16236), sections 3.2 and 3.3.

    Examples:
        >>> q, k = jnp.ones((2, 5, 8, 16)), jnp.ones((2, 5, 2, 16))  # 8 query heads, 2 key/value heads
        >>> linear_attention(q, k, k, causal=True).shape
        (2, 5, 8, 16)
    """
    check_partials(rotate=rotate, rotate_keys=rotate_keys)
    check_arrays(q, k, v)
    positions = jnp.arange(q.shape[-3]) if positions is None else positions
    same_tokens = k_positions is None or k_positions is positions
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
    output = _attend(Head(plain.q, plain.k, rotated.q, rotated.k, plain.v), plain, layout, causal, same_tokens)
    return jnp.moveaxis(output, 3, 1).reshape(q.shape).astype(q.dtype)


def positive(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return `elu(x) + 1`, with full relative precision where it is close to 0."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _attend(
    heads: Head, operands: Operands, layout: Layout, causal: bool, same_tokens: bool
) -> Float[Array, "N K G T D"]:
    """Attend from all queries of all heads; `same_tokens`: whether queries and keys are the same tokens."""
    if not causal and operands.q_tokens.segment_ids is None and operands.k_tokens.segment_ids is None:
        return each(each(_unmasked))(heads)
    sort_keys = _sort_keys(operands, layout, causal)

    def sorted_tokens(heads: Head, order: SortKeys) -> Array:
        return each(jax.checkpoint(lambda head: _scan(head, order)))(heads)

    def any_tokens(heads: Head, sort_keys: tuple[SortKeys, SortKeys]) -> Array:
        permutation, order = _merge_sorted(*sort_keys)
        return each(jax.checkpoint(lambda head: _scan_merged(head, permutation, order)))(heads)

    if not (causal and same_tokens):
        return each(any_tokens)(heads, sort_keys)
    are_sorted = jnp.all(jax.vmap(_is_sorted)(sort_keys[0]))
    return lax.cond(
        are_sorted, lambda: each(sorted_tokens)(heads, sort_keys[0]), lambda: each(any_tokens)(heads, sort_keys)
    )


def _unmasked(head: Head) -> Float[Array, "G T D"]:
    """Attend from all queries of one key head to all keys."""
    state, total = head.rotated_k.T @ wide(head.v), jnp.sum(head.k, axis=0)
    return _rows(head.rotated_q, state) / nonzero(_rows(head.q, total))[..., None]


def _rows(x: Float[Array, "G T D"], y: Float[Array, "D *E"]) -> Float[Array, "G T *E"]:
    """Multiply all rows by a matrix or a vector, in one two-dimensional matmul."""
    return (x.reshape(-1, x.shape[-1]) @ y).reshape(*x.shape[:-1], *y.shape[1:])


def _sort_keys(operands: Operands, layout: Layout, causal: bool) -> tuple[SortKeys, SortKeys]:
    """Return the sort keys of queries `(N, T)` and of keys `(N, S)`, in the order of the operands."""

    def of_entry(*sides: TokenPositions) -> tuple[SortKeys, SortKeys]:
        if causal:  # raises if the tokens have no order
            check_orders(*sides)
        orders = [
            (side.positions if side.order is None else side.order) if causal else jnp.zeros(len(side.positions), int)
            for side in sides
        ]
        kind = np.result_type(np.int32, *(order.dtype for order in orders))
        of_q, of_k = (SortKeys(_segments(side), order.astype(kind)) for side, order in zip(sides, orders, strict=True))
        return of_q, of_k

    sides, axes = (operands.q_tokens, operands.k_tokens), (layout.q_axes, layout.k_axes)
    if any(axis is not None for side in axes for axis in side):
        return jax.vmap(of_entry, axes)(*sides)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(operands.q), *x.shape)), of_entry(*sides))


def _segments(tokens: TokenPositions) -> UInt32[Array, " T"]:
    """Return the segment ids as unsigned integers, of which 0 is the smallest; all 1 if there are none."""
    if tokens.segment_ids is None:
        return jnp.ones(len(tokens.positions), jnp.uint32)
    return tokens.segment_ids.astype(jnp.int32).astype(jnp.uint32)


def _is_sorted(sort_keys: SortKeys) -> Bool[Array, ""]:
    """Return whether tokens that are both queries and keys are already sorted, apart from padding in between."""
    segments, order = sort_keys
    before = lax.cummax(segments)[:-1]
    follows = (segments[1:] == segments[:-1]) & (order[1:] > order[:-1])
    return jnp.all(follows | (segments[1:] > before) | (segments[1:] == 0))


def _merge_sorted(q_keys: SortKeys, k_keys: SortKeys) -> tuple[Int[Array, " N"], SortKeys]:
    """Sort queries and keys together, with each key before the queries that see it.

    Returns:
        The indices into `[*queries, *keys]` in sorted order, and the sorted sort keys.
    """
    segments, order = (jnp.concatenate(pair) for pair in zip(q_keys, k_keys, strict=True))
    is_query = jnp.arange(len(order)) < len(q_keys.order)
    permutation = jnp.lexsort((is_query, order, segments))
    return permutation, SortKeys(segments[permutation], order[permutation])


def _scan_merged(head: Head, permutation: Int[Array, " N"], sort_keys: SortKeys) -> Float[Array, "G T D"]:
    """Scan the merged sequence of queries and keys: each row is a query or a key, and its other half is zero."""
    t, count = head.q.shape[1], len(permutation)
    key_index = jnp.where(permutation < t, count, permutation - t)
    queries = lambda x: jnp.take(x, permutation, axis=1, mode="fill", fill_value=0)
    keys = lambda x: jnp.take(x, key_index, axis=0, mode="fill", fill_value=0)
    merged = Head(queries(head.q), keys(head.k), queries(head.rotated_q), keys(head.rotated_k), keys(head.v))
    return _scan(merged, sort_keys)[:, jnp.argsort(permutation)[:t]]


def _scan(head: Head, sort_keys: SortKeys) -> Float[Array, "G T D"]:
    """Attend from sorted queries to the keys of their segment, at the same index or before, by a scan over chunks."""
    length, dim = head.k.shape
    size = min(max(CHUNK, dim), length)

    def to_chunks(x: Array, axis: int) -> Array:
        padded = jnp.pad(x, [(0, -length % size if i == axis else 0) for i in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)

    chunks = Head(*(to_chunks(x, axis) for x, axis in zip(head, (1, 0, 1, 0, 0), strict=True)))
    empty = State(jnp.zeros((dim, dim), head.k.dtype), jnp.zeros(dim, head.k.dtype), jnp.uint32(0))
    _, outputs = lax.scan(jax.checkpoint(_step), empty, (chunks, SortKeys(*(to_chunks(x, 0) for x in sort_keys))))
    return jnp.moveaxis(outputs, 0, 1).reshape(len(head.q), -1, dim)[:, :length]


class State(NamedTuple):
    """The carry of the scan: sums over the earlier keys of the last segment.

    Attributes:
        products: the sum of k v^T, with k rotated.
        features: the sum of k, not rotated.
        segment: id of that segment.
    """

    products: Float[Array, "D D"]
    features: Float[Array, " D"]
    segment: UInt32[Array, ""]


def _step(state: State, chunk: tuple[Head, SortKeys]) -> tuple[State, Float[Array, "G C D"]]:
    """Return the state after a chunk, and the output of its queries."""
    (q, k, rotated_q, rotated_k, v), (segments, order) = chunk
    v, not_padding = wide(v), segments != 0
    visible_pairs = (segments[:, None] == segments) & not_padding & (order[:, None] >= order)
    continues = segments == state.segment
    pairs, rotated_pairs = (jnp.where(visible_pairs, _rows(*x), 0) for x in ((q, k.T), (rotated_q, rotated_k.T)))
    sums = _rows(rotated_pairs, v) + jnp.where(continues[:, None], _rows(rotated_q, state.products), 0)
    totals = jnp.sum(pairs, axis=-1) + jnp.where(continues, _rows(q, state.features), 0)
    last = jnp.maximum(state.segment, jnp.max(segments))
    in_last = (not_padding & (segments == last))[:, None]
    if_continued = lambda x: jnp.where(state.segment == last, x, 0)
    products = if_continued(state.products) + jnp.where(in_last, rotated_k, 0).T @ v
    features = if_continued(state.features) + jnp.sum(jnp.where(in_last, k, 0), axis=0)
    return State(products, features, last), sums / nonzero(totals)[..., None]
