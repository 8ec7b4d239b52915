"""One head cut into blocks."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt32

from pejax._attention.core.dropout import Dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.reference import checked
from pejax._ops.pytrees import Floats, wide
from pejax._tokens import TokenPositions


class Vectors(NamedTuple):
    """The bias `met_i · transposed[:, distance] + row_j` of one head.

    Attributes:
        met: blocks of `q + v`.
        transposed: a column for each distance, `STRIP - 1` before that of `1 - T` first; T and S padded.
        row: blocks of `u · k`.
    """

    met: Float[Array, "N T D"]
    transposed: Float[Array, "D R"]
    row: Float[Array, "N S"]


class Terms(NamedTuple):
    """What position adds to one head.

    Attributes:
        hooks: the bias, unless there is a line or there are vectors, and the values.
        line: the bias of each distance, that of `1 - T` first, T and S padded; None = it is not of that kind.
        vectors: None = the bias is not of that kind either.
    """

    hooks: Hooks
    line: Float[Array, " R"] | None = None
    vectors: Vectors | None = None


class Queries(NamedTuple):
    """Blocks of queries, or one of them without the letter N."""

    q: Float[Array, "N T D"]
    tokens: TokenPositions
    ids: UInt32[Array, "N T"]


class Keys(NamedTuple):
    """Blocks of keys, or one of them without the letter N."""

    k: Float[Array, "N S D"]
    v: Float[Array, "N S D"]
    tokens: TokenPositions
    ids: UInt32[Array, "N S"]


class Head(NamedTuple):
    """One head, cut into blocks."""

    queries: Queries
    keys: Keys
    terms: Terms
    dropout: Dropout | None


class Row(NamedTuple):
    """What the backward pass knows of blocks of queries, or of one of them without the letter N.

    Attributes:
        d_output: cotangent of the output.
        lse: log-sum-exp, 0 where nothing is seen.
        mean: `Σ_d do_id o_id - dlse_i`.
    """

    d_output: Float[Array, "N T D"]
    lse: Float[Array, "N T"]
    mean: Float[Array, "N T"]


class Gradients(NamedTuple):
    """Gradients of one head's blocks, k and v transposed; of the floats in `Queries`, `Keys`, `Hooks` by the hooks."""

    q: Float[Array, "N T D"]
    k: Float[Array, "N D S"]
    v: Float[Array, "N D S"]
    queries: Floats
    keys: Floats
    hooks: Floats
    line: Float[Array, " R"] | None
    vectors: Vectors | None


def block_size(most: int, length: int) -> int:
    """Return the size of the fewest equal blocks of `most` at most, a multiple of 8 where there are several."""
    count = math.ceil(length / most)
    return length if count == 1 else math.ceil(length / count / 8) * 8


def cut(size: int, x: Array) -> Array:
    """Cut the first axis into blocks, padded by zeros: tokens of segment 0, which see nothing and are not seen."""
    padding = [(0, -len(x) % size)] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding).reshape(-1, size, *x.shape[1:])


def cut_tokens(size: int, tokens: TokenPositions, length: int) -> TokenPositions:
    """Cut tokens, with segments where there is padding to tell apart."""
    if tokens.segment_ids is None and length % size:
        tokens = tokens._replace(segment_ids=jnp.ones(length, jnp.int32))
    return jax.tree.map(functools.partial(cut, size), tokens)


def cut_head(
    sizes: tuple[int, int],
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    v: Float[Array, "S D"],
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    terms: Terms,
    dropout: Dropout | None,
) -> Head:
    """Cut one head into blocks of so many queries and so many keys; the products are of bfloat16 if all arrays are."""
    if any(x.dtype != jnp.bfloat16 for x in (q, k, v)):
        q, k, v = (x.astype(jnp.result_type(*map(wide, (q, k, v)))) for x in (q, k, v))
    rows, columns = (functools.partial(cut, size) for size in sizes)
    q_ids, k_ids = (jnp.arange(len(x), dtype=jnp.uint32) for x in (q, k))
    queries = Queries(rows(q), cut_tokens(sizes[0], q_tokens, len(q)), rows(q_ids))
    keys = Keys(columns(k), columns(v), cut_tokens(sizes[1], k_tokens, len(k)), columns(k_ids))
    return Head(queries, keys, terms, dropout)


def row_means(
    output: Float[Array, "*B D"], d_output: Float[Array, "*B D"], d_lse: Float[Array, "*B"]
) -> Float[Array, "*B"]:
    """Return `Σ_d do_id o_id - dlse_i`."""
    # A product of vectors: XLA:CPU's sum over the last axis takes up to ten times longer where the first has one entry.
    return jnp.einsum("...d,...d->...", wide(output), wide(d_output), precision="highest") - wide(d_lse)


def cut_row(head: Head, d_output: Float[Array, "T D"], lse: Float[Array, " T"], mean: Float[Array, " T"]) -> Row:
    """Cut what the backward pass knows of the queries of one head."""
    row = Row(d_output.astype(head.keys.v.dtype), jnp.where(jnp.isneginf(lse), 0.0, lse), mean)
    return jax.tree.map(functools.partial(cut, head.queries.ids.shape[1]), row)


def join(blocks: Float[Array, "N T *D"], length: int) -> Float[Array, "L *D"]:
    """Undo `cut`."""
    return blocks.reshape(-1, *blocks.shape[2:])[:length]


def join_gradients(part: Gradients, t: int, s: int) -> tuple[Floats, Floats]:
    """Return the gradients of the floats in `Queries` and in `Keys`, in one piece each."""
    through_q, *d_q_tokens = (join(x, t) for x in part.queries)
    through_k, through_v, *d_k_tokens = (join(x, s) for x in part.keys)
    d_k, d_v = (join(x.swapaxes(1, 2), s) for x in (part.k, part.v))
    return [join(part.q, t) + through_q, *d_q_tokens], [d_k + through_k, d_v + through_v, *d_k_tokens]


def terms_of(hooks: Hooks, start: Int[Array, ""] | None, length: int, dtype: DTypeLike) -> Terms:
    """Return the terms of one head: with a line of `length` distances from `start` on, or the hooks alone.

    The line has the type of the logits it is added to.
    """
    if start is None or hooks.distance_bias is None:
        return Terms(hooks._replace(distance_bias=None, relative_keys=None))
    relative = start + jnp.arange(length, dtype=start.dtype)
    like = jax.ShapeDtypeStruct((length,), dtype)
    line = checked(hooks.distance_bias, (relative,), "distance_bias", "(R,)", like)
    return Terms(Hooks(None, hooks.relative_values), line)


def terms_of_vectors(
    hooks: Hooks,
    sizes: tuple[int, int],
    vectors: tuple[Float[Array, "D R"], Float[Array, " D"], Float[Array, " D"]],
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
) -> Terms:
    """Return the terms of one head, the bias by its vectors: those transposed, v and u."""
    transposed, v, u = vectors
    return Terms(
        Hooks(None, hooks.relative_values),
        None,
        Vectors(cut(sizes[0], wide(q) + v), transposed, cut(sizes[1], wide(k) @ u)),
    )
