"""Linear attention with rotated features (RoFormer): time and memory linear in the length.

    o_i = Σ_j (R_i φ(q_i))·(R_j φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j),   φ(x) = elu(x) + 1

Without a mask, the sum `Σ_j R_j φ(k_j) v_jᵀ` is the same for all queries. With a causal mask or segments, queries and
keys are sorted together by segment and order, each key before the queries that see it. A scan over chunks carries the
sums over earlier keys of the same segment; inside a chunk, all pairs are computed. The backward pass computes each
chunk again, from the sums at its start, which for chunks of D tokens or more are no larger than the keys.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt

from pejax._attention.core.hooks import Hooks
from pejax._attention.core.masks import check_orders
from pejax._attention.core.operands import Layout, Operands, check_arrays, clear_unused, prepare
from pejax._attention.core.order import follow_arrays
from pejax._attention.core.reference import one_if_zero
from pejax._attention.encoded import check_extent
from pejax._calls.arguments import checked
from pejax._ops.backend import vmap_or_map
from pejax._ops.open_sizes import are_open
from pejax._ops.pytrees import wide
from pejax._record import encoding as encodings
from pejax._record.encoding import Encoding, Extent, Params
from pejax._tokens.positions import Positions, TokenPositions, as_token_positions, in_one_type, rotary_positions

CHUNK = 64
"""Tokens per chunk; D tokens if the head dimension D is larger."""


Features = tuple[Array, Array]
"""Features φ of queries or keys: plain, and rotated."""

Places = tuple[Array, Array]
"""Segment ids and order of queries or keys."""


class SortedTokens(NamedTuple):
    """Sorted queries and keys of one key head, in chunks of C tokens. Queries and padding have value and weight 0."""

    features: Float[Array, "*N C D"]
    rotated: Float[Array, "*N C D"]
    values: Float[Array, "*N C D"]
    weights: Float[Array, "*N C"]
    segments: UInt[Array, "*N C"]


@functools.partial(checked, mask="padding is TokenPositions.segment_ids (packed_positions)")
def linear_attention(
    encoding: Encoding,
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    v: Float[Array, "*B S K D"],
    *,
    params: Params | None = None,
    positions: Positions | None = None,
    k_positions: Positions | None = None,
    extent: Extent | None = None,
    embedded: bool = False,
    causal: bool | None = None,
) -> Float[Array, "*B T H D"]:
    """Attend in time and memory linear in the length, with an encoding that rotates the features of q and k.

    `o_i = Σ_j (R_i φ(q_i))·(R_j φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j)` over the keys that i sees, `φ(x) = elu(x) + 1`. The
    rotation is in the numerator alone, so that the denominator stays positive; the weights may be negative, and do not
    sum to 1. A query that sees no key gives zeros. The arithmetic is float32. If the rotation also scales (by an
    attention factor or a temperature), the output is scaled too.

    Args:
        encoding: an encoding that rotates all pairs alike, or does nothing in attention.
        q: queries, not rotated.
        k: keys, not rotated; H must be a multiple of K, and query head h attends to key head `h // (H/K)`.
        v: values.
        params: parameters of the encoding, not yet adapted. None = it has none.
        positions: positions of the queries, as in `attend`. None = 0 ... T-1.
        k_positions: positions of the keys. None = `positions`.
        extent: one length or grid, in tokens, that the encoding adapts to. None = the number of keys; allowed for an
            encoding that adapts only if no positions are given.
        embedded: whether `encoding.embed` was applied to the input of the model.
        causal: whether keys after the query, by `TokenPositions.order`, are masked. None = as the encoding was made;
            one without dims must be told.

    Returns:
        The output in q's type.

    Raises:
        ValueError: an encoding with a bias, relative values or bands, one with an `unplaced_bias` where keys have no
            position, or arguments that `attend` refuses.
        NotImplementedError: sizes that `jax.export` leaves open, with a mask, whose sum runs over chunks.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 19; for φ and the running sum Katharopoulos et al. 2020,
        "Transformers are RNNs" (arXiv 2006.16236), sections 3.2 and 3.3.

    Examples:
        >>> import pejax
        >>> rope = pejax.encodings.rope(pejax.Dims(heads=8, head_dim=16, kv_heads=2, causal=True))
        >>> q, k = jnp.ones((2, 5, 8, 16)), jnp.ones((2, 5, 2, 16))
        >>> linear_attention(rope, q, k, k).shape
        (2, 5, 8, 16)
    """
    for hook in ("bias", "distance_bias", "relative_values", "bands"):
        if getattr(encoding, hook):
            raise ValueError(f"linear_attention takes an encoding that rotates all pairs alike, got one with {hook}")
    encodings.check_embedded(encoding, embedded)
    check_arrays(q, k, v)
    encodings.check_dims(encoding, q)
    check_extent(encoding, extent, positions)
    causal = encodings.causality(encoding, causal)
    params = encodings.adapt(encoding, {} if params is None else params, k.shape[-3] if extent is None else extent)
    if positions is not None and k_positions is None:
        positions = follow_arrays(positions, q.shape[:-2], causal=causal, spans=False)
    positions = jnp.arange(q.shape[-3]) if positions is None else positions
    given = positions, positions if k_positions is None else k_positions
    sides = as_token_positions(given[0], q.shape[:-2]), as_token_positions(given[1], k.shape[:-2])
    if encoding.unplaced_bias is not None and sides[1].has_position is not None:
        rule = "linear_attention has no bias of keys without a position, such as that of pi(proportional=True)"
        raise ValueError(f"{rule}: all keys must have positions, got k_positions with has_position")
    prepared = lambda q, k: prepare(q, k, v, positions, k_positions, Hooks(), None)
    prepared(q, k)  # refuses what attention refuses
    q, k, v = clear_unused((q, k, v), sides, None)
    features = positive(wide(q)), positive(wide(k))
    plain, layout = prepared(*features)
    if 0 in q.shape or 0 in k.shape:
        return jnp.zeros_like(q)
    at = [rotary_positions(tokens, x.shape[:-2]) for tokens, x in zip(sides, features, strict=True)]
    rotated_q = encodings.rotate_queries(encoding, params, features[0], at[0])
    rotated, _ = prepared(rotated_q, encodings.rotate_keys(encoding, params, features[1], at[1]))
    masked = causal or any(tokens.segment_ids is not None for tokens in sides)
    if masked and are_open(q, k):
        raise NotImplementedError(f"linear_attention with a mask needs known sizes, jax.export left open {q.shape}")
    places = _places(plain, layout, causal) if masked else None
    output = _attend((plain.q, rotated.q), (plain.k, rotated.k), wide(plain.v), places)
    return jnp.moveaxis(output, 3, 1).reshape(q.shape).astype(q.dtype)


def positive(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return `elu(x) + 1`, with full relative precision where it is close to 0."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


def _places(operands: Operands, layout: Layout, causal: bool) -> tuple[Places, Places]:
    """Return segment ids and order `(N, T)` of queries and of keys; without a causal mask, their order is 0."""

    def of_example(*sides: TokenPositions) -> list[Places]:
        if causal:  # raises if the tokens have no order
            check_orders(*sides)
        zeros = [jnp.zeros(len(side.positions), jnp.int32) for side in sides]
        orders = [side.positions if side.order is None else side.order for side in sides] if causal else zeros
        floats = [order.dtype for order in orders if jnp.issubdtype(order.dtype, jnp.floating)]
        kind = jnp.result_type(*floats) if floats else in_one_type(*orders)[0].dtype
        ids = [
            zero + 1 if side.segment_ids is None else side.segment_ids for side, zero in zip(sides, zeros, strict=True)
        ]
        unsigned = [array.astype(f"u{array.dtype}") for array in in_one_type(*ids)]  # padding, 0, is the smallest
        return [(array, order.astype(kind)) for array, order in zip(unsigned, orders, strict=True)]

    repeat: Any = lambda x, axis: x if x is None or axis == 0 else jnp.broadcast_to(x, (len(operands.q), *x.shape))
    sides = (operands.q_tokens, layout.q_axes), (operands.k_tokens, layout.k_axes)
    of_queries, of_keys = jax.vmap(of_example)(*(TokenPositions(*map(repeat, *side)) for side in sides))
    return of_queries, of_keys


@jax.jit
def _attend(
    q: Features, k: Features, v: Float[Array, "N K S D"], places: tuple[Places, Places] | None
) -> Float[Array, "N K G T D"]:
    if places is None:
        return vmap_or_map(vmap_or_map(_unmasked))(q, k, v)
    scan_example = lambda q, k, v, places: vmap_or_map(jax.checkpoint(lambda q, k, v: _scan(q, k, v, *places)))(q, k, v)
    return vmap_or_map(scan_example)(q, k, v, places)


def _unmasked(q: Features, k: Features, v: Float[Array, "S D"]) -> Float[Array, "G T D"]:
    """Attend from the queries of one key head to all keys."""
    return q[1] @ (k[1].T @ v) / one_if_zero(q[0] @ jnp.sum(k[0], axis=0))[..., None]


def _scan(q: Features, k: Features, v: Float[Array, "S D"], q_place: Places, k_place: Places) -> Float[Array, "G T D"]:
    """Attend from the queries of one key head to the keys of their segment, up to their order."""
    groups, length, dim = q[0].shape
    features, rotated = (jnp.concatenate([x.reshape(-1, dim), y]) for x, y in zip(q, k, strict=True))
    segments, order = (jnp.concatenate([jnp.tile(x, groups), y]) for x, y in zip(q_place, k_place, strict=True))
    is_query = jnp.arange(len(order)) < groups * length
    sort = jnp.lexsort((is_query, order, segments))
    is_key = ~is_query & (segments != 0)  # and not padding
    values = jnp.where(is_key[:, None], jnp.concatenate([jnp.zeros((groups * length, dim), v.dtype), v]), 0)
    tokens = SortedTokens(features, rotated, values, is_key.astype(v.dtype), segments)
    size = min(max(CHUNK, dim), len(sort))
    pad = lambda x: jnp.pad(x, [(0, -len(sort) % size), *[(0, 0)] * (x.ndim - 1)])
    chunks = jax.tree.map(lambda x: pad(x[sort]).reshape(-1, size, *x.shape[1:]), tokens)
    empty = jnp.zeros((dim, dim), v.dtype), jnp.zeros(dim, v.dtype), jnp.zeros((), segments.dtype)
    output = lax.scan(jax.checkpoint(_step), empty, chunks)[1].reshape(-1, dim)
    return output[jnp.argsort(sort)[: groups * length]].reshape(groups, length, dim)


def _step(
    state: tuple[Array, Array, Array], tokens: SortedTokens
) -> tuple[tuple[Array, Array, Array], Float[Array, "C D"]]:
    """Return the state after a chunk, and the output of its tokens.

    The state holds the sums of `R φ(k) vᵀ` and `φ(k)` over the keys of the last segment so far, and the segment's id.
    """
    products, features, segment = state
    sees = jnp.tri(len(tokens.segments), dtype=bool) & (tokens.segments[:, None] == tokens.segments)
    pairs = lambda x: jnp.where(sees, x @ x.T, 0)
    goes_on = tokens.segments == segment
    numerators = pairs(tokens.rotated) @ tokens.values + jnp.where(goes_on[:, None], tokens.rotated @ products, 0)
    denominators = pairs(tokens.features) @ tokens.weights + jnp.where(goes_on, tokens.features @ features, 0)
    last = tokens.segments[-1]
    in_last, of_segment = tokens.segments == last, lambda sum: jnp.where(segment == last, sum, 0)
    products = of_segment(products) + tokens.rotated.T @ jnp.where(in_last[:, None], tokens.values, 0)
    features = of_segment(features) + jnp.where(in_last, tokens.weights, 0) @ tokens.features
    return (products, features, last), numerators / one_if_zero(denominators)[:, None]
