"""One attention head split into blocks of queries and keys, and the records that hold the blocks."""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt32

from pejax._attention.core.dropout import Dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.reference import call_hook
from pejax._ops.bfloat16 import as_bits, from_bits
from pejax._ops.pytrees import Floats, wide
from pejax._tokens.positions import TokenPositions


class RelativeKeys(NamedTuple):
    """The relative-key bias of one head, `(q_i + v) · a[k_j - q_i] + u · k_j`, in blocks.

    Attributes:
        queries: blocks of `q + v`.
        a_transposed: one column of a per distance, ascending from `1 - T - (STRIP - 1)`. Distances are counted from
            that of the first pair; T and S are padded to full blocks.
        key_bias: blocks of `u · k`.
    """

    queries: Float[Array, "N T D"]
    a_transposed: Float[Array, "D R"]
    key_bias: Float[Array, "N S"]


class Terms(NamedTuple):
    """Terms of the encoding in the attention of one head.

    Attributes:
        hooks: the `bias`, unless one of the next two fields replaces it, and `relative_values`.
        diagonals: the bias per distance, ascending from `1 - T`, counted as in `RelativeKeys`. None = not this form.
        relative_keys: the bias by relative keys. None = not this form.
    """

    hooks: Hooks
    diagonals: Float[Array, " R"] | None = None
    relative_keys: RelativeKeys | None = None


class Queries(NamedTuple):
    """N blocks of queries, or one block without the axis N.

    Attributes:
        q: the queries.
        tokens: their positions.
        ids: their indices in the sequence, from which dropout is drawn.
    """

    q: Float[Array, "N T D"]
    tokens: TokenPositions
    ids: UInt32[Array, "N T"]


class Keys(NamedTuple):
    """N blocks of keys and values with their bias, or one block without the axis N; other fields as in `Queries`."""

    k: Float[Array, "N S D"]
    v: Float[Array, "N S D"]
    tokens: TokenPositions
    ids: UInt32[Array, "N S"]
    bias: Float[Array, "N S"] | None = None


class Head(NamedTuple):
    """One head, split into blocks."""

    queries: Queries
    keys: Keys
    terms: Terms
    dropout: Dropout | None


class Residuals(NamedTuple):
    """Residuals of the backward pass for N blocks of queries, or for one block without the axis N.

    Attributes:
        d_output: cotangent of the output.
        lse: log-sum-exp of each row, 0 for a query that sees no key.
        mean: `Σ_d do_id o_id - dlse_i` (`row_means`).
    """

    d_output: Float[Array, "N T D"]
    lse: Float[Array, "N T"]
    mean: Float[Array, "N T"]


class Gradients(NamedTuple):
    """Gradients of the blocks of one head; those of k and v are transposed.

    `q`, `k` and `v` are the gradients through the matmuls. `queries`, `keys` and `hooks` are those through the hooks,
    of the floating-point leaves of `Queries`, `Keys` and `Hooks`.
    """

    q: Float[Array, "N T D"]
    k: Float[Array, "N D S"]
    v: Float[Array, "N D S"]
    queries: Floats
    keys: Floats
    hooks: Floats
    diagonals: Float[Array, " R"] | None
    relative_keys: RelativeKeys | None


def block_size(largest: int, length: int) -> int:
    """Return the size of the fewest equal blocks no larger than `largest`; a multiple of 8 if there are several."""
    count = math.ceil(length / largest)
    return length if count == 1 else math.ceil(length / count / 8) * 8


def to_blocks(size: int, x: Array) -> Array:
    """Split the first axis into blocks, padded with zeros; a segment id of 0 masks its token."""
    padding = [(0, -len(x) % size)] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding).reshape(-1, size, *x.shape[1:])


def tokens_to_blocks(size: int, tokens: TokenPositions, length: int) -> TokenPositions:
    """Split tokens into blocks, with segment ids if there is padding that must be masked."""
    if tokens.segment_ids is None and length % size:
        tokens = tokens._replace(segment_ids=jnp.ones(length, jnp.int32))
    return jax.tree.map(functools.partial(to_blocks, size), tokens)


def head_to_blocks(
    sizes: tuple[int, int],
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    v: Float[Array, "S D"],
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Float[Array, " S"] | None,
    terms: Terms,
    dropout: Dropout | None,
) -> Head:
    """Split one head into blocks of `sizes[0]` queries and `sizes[1]` keys.

    The matmuls have bfloat16 operands if q, k and v are all bfloat16, else operands of at least 32 bits.
    """
    if any(x.dtype != jnp.bfloat16 for x in (q, k, v)):
        q, k, v = (x.astype(jnp.result_type(*map(wide, (q, k, v)))) for x in (q, k, v))
    rows, columns = (functools.partial(to_blocks, size) for size in sizes)
    q_ids, k_ids = (jnp.arange(len(x), dtype=jnp.uint32) for x in (q, k))
    queries = Queries(rows(q), tokens_to_blocks(sizes[0], q_tokens, len(q)), rows(q_ids))
    bias = None if key_bias is None else columns(key_bias)
    keys = Keys(columns(k), columns(v), tokens_to_blocks(sizes[1], k_tokens, len(k)), columns(k_ids), bias)
    return Head(queries, keys, terms, dropout)


def row_means(
    output: Float[Array, "*B D"], d_output: Float[Array, "*B D"], d_lse: Float[Array, "*B"]
) -> Float[Array, "*B"]:
    """Return `Σ_d do_id o_id - dlse_i`, which the gradient of the softmax subtracts from row i.

    The sum is the mean, under the weights of row i, of their gradients `Σ_d do_id v_jd`.
    """
    # As a product of vectors, because XLA:CPU sums over the last axis up to ten times slower if the first has size 1.
    return jnp.einsum("...d,...d->...", wide(output), wide(d_output), precision="highest") - wide(d_lse)


def residuals_to_blocks(
    head: Head, d_output: Float[Array, "T D"], lse: Float[Array, " T"], mean: Float[Array, " T"]
) -> Residuals:
    """Split the residuals of the backward pass into the blocks of `head`."""
    residuals = Residuals(d_output.astype(head.keys.v.dtype), jnp.where(jnp.isneginf(lse), 0.0, lse), mean)
    return jax.tree.map(functools.partial(to_blocks, head.queries.ids.shape[1]), residuals)


def from_blocks(blocks: Float[Array, "N T *D"], length: int) -> Float[Array, "L *D"]:
    """Undo `to_blocks`: join the blocks and drop the padding beyond `length`."""
    return blocks.reshape(-1, *blocks.shape[2:])[:length]


def block_at(tree: Any, i: Int[Array, ""]) -> Any:
    """Return block i of every leaf."""

    def block(leaf: Array) -> Array:
        if len(leaf) == 1:
            return leaf[0]
        block = lax.dynamic_index_in_dim(as_bits(leaf), i, 0, keepdims=False)
        return from_bits(block) if leaf.dtype == jnp.bfloat16 else block

    return jax.tree.map(block, tree)


def add_to_block(i: Int[Array, ""], total: Array, part: Array) -> Array:
    """Return `total` with `part` added to block i."""
    if len(total) == 1:
        return total + part[None]
    return lax.dynamic_update_index_in_dim(total, block_at(total, i) + part, i, 0)


def gradients_from_blocks(part: Gradients, t: int, s: int) -> tuple[Floats, Floats]:
    """Return the gradients of the floating-point leaves of `Queries` and of `Keys`, with their blocks joined."""
    through_q, *d_q_tokens = (from_blocks(x, t) for x in part.queries)
    through_k, through_v, *d_k_tokens = (from_blocks(x, s) for x in part.keys)
    d_k, d_v = (from_blocks(x.swapaxes(1, 2), s) for x in (part.k, part.v))
    return [from_blocks(part.q, t) + through_q, *d_q_tokens], [d_k + through_k, d_v + through_v, *d_k_tokens]


def terms_from_hooks(hooks: Hooks, start: Int[Array, ""] | None, length: int, dtype: DTypeLike) -> Terms:
    """Return the terms of one head, with the distance bias evaluated once per diagonal if `start` is known.

    Args:
        hooks: hooks of this head.
        start: the smallest distance, if positions are consecutive. None = they are not, and the `bias` hook is kept.
        length: number of distances.
        dtype: type of the logits that the bias is added to.
    """
    if start is None or hooks.distance_bias is None:
        return Terms(replace(hooks, distance_bias=None, relative_keys=None))
    relative = start + jnp.arange(length, dtype=start.dtype)
    like = jax.ShapeDtypeStruct((length,), dtype)
    diagonals = call_hook(hooks.distance_bias, (relative,), "distance_bias", "(R,)", like)
    return Terms(_without_bias(hooks), diagonals)


def _without_bias(hooks: Hooks) -> Hooks:
    """Return the hooks without `bias`, `distance_bias` and `relative_keys`, which another field of `Terms` replaces."""
    return replace(hooks, bias=None, distance_bias=None, relative_keys=None)


def terms_from_relative_keys(
    hooks: Hooks,
    sizes: tuple[int, int],
    relative_keys: tuple[Float[Array, "D R"], Float[Array, " D"], Float[Array, " D"]],
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
) -> Terms:
    """Return the terms of one head, with its bias by relative keys: a transposed, v and u."""
    a_transposed, v, u = relative_keys
    return Terms(
        _without_bias(hooks),
        None,
        RelativeKeys(to_blocks(sizes[0], wide(q) + v), a_transposed, to_blocks(sizes[1], wide(k) @ u)),
    )
