"""Attention in tiles with an online softmax: memory linear in the length, forward and backward, for any bias.

Forward, for the queries of one tile, over the tiles of keys:

    m' = max(m, max_j s_ij)    l' = e^(m-m') l + Σ_j e^(s_ij-m')    a' = e^(m-m') a + output(e^(s-m'))

and `o = a / l`, `lse = m + log l`. Backward keeps only o and lse, and recomputes each tile: with w = e^(s-lse),

    ds_ij = w_ij (dw_ij - Σ_d do_id o_id + dlse_i)

from which the tile's own derivative gives the gradients of q, k, v, float positions and every hook's parameters.

Reference:
    Milakov & Gimelshein 2018 (arXiv 1805.02867), algorithm 3; Dao et al. 2022 (arXiv 2205.14135), appendix B.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt32

from pejax.attention.dropout import Dropout, apply_dropout, keep_pairs
from pejax.attention.operands import wide
from pejax.attention.tile import Hooks, Options, Pairs, log_sum, nonzero, tile_logits, tile_output, visible_pairs
from pejax.encoding import Tokens

Floats: TypeAlias = list[Array]
"""The leaves of a tree that have gradients, in at least 32 bits."""

BLOCK = 512
"""Queries, and keys, of a tile at most: its float32 scores take 1 MiB and stay in cache."""


class Queries(NamedTuple):
    """Blocks of queries, or one of them without the first letter N."""

    q: Float[Array, "N T D"]
    tokens: Tokens
    ids: UInt32[Array, "N T"]


class Keys(NamedTuple):
    """Blocks of keys, or one of them without the first letter N."""

    k: Float[Array, "N S D"]
    v: Float[Array, "N S D"]
    tokens: Tokens
    ids: UInt32[Array, "N S"]


def blockwise_head(
    options: Options,
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    v: Float[Array, "S D"],
    hooks: Hooks,
    q_tokens: Tokens,
    k_tokens: Tokens,
    dropout: Dropout | None,
    pairs: Pairs,
) -> tuple[Float[Array, "T D"], Float[Array, " T"]]:
    """Return the output of one head and each row's log-sum-exp, as `dense_head` does."""
    del pairs
    (t, d), s = q.shape, k.shape[0]
    blocks = functools.partial(_blocks, options.block)
    q_tokens, k_tokens = (_marked(options.block, *side) for side in ((q_tokens, t), (k_tokens, s)))
    queries = jax.tree.map(blocks, Queries(q, q_tokens, jnp.arange(t, dtype=jnp.uint32)))
    keys = jax.tree.map(blocks, Keys(k, v, k_tokens, jnp.arange(s, dtype=jnp.uint32)))
    output, lse = _attend(options, queries, keys, hooks, dropout)  # pyright: ignore[reportGeneralTypeIssues]
    return output.reshape(-1, d)[:t], lse.reshape(-1)[:t]


def _block(most: int, length: int) -> int:
    """Return the size of the fewest equal blocks of `most` at most, a multiple of 8 where there are several."""
    count = math.ceil(length / most)
    return length if count == 1 else math.ceil(length / count / 8) * 8


def _marked(most: int, tokens: Tokens, length: int) -> Tokens:
    """Return tokens with segments, where there will be padding to tell apart."""
    if tokens.segments is not None or length % _block(most, length) == 0:
        return tokens
    return tokens._replace(segments=jnp.ones(length, jnp.int32))


def _blocks(most: int, x: Array) -> Array:
    """Cut the first axis into blocks, padded by zeros: tokens of segment 0, which see nothing and are not seen."""
    size = _block(most, x.shape[0])
    padding = [(0, -x.shape[0] % size)] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding).reshape(-1, size, *x.shape[1:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    options: Options, queries: Queries, keys: Keys, hooks: Hooks, dropout: Dropout | None
) -> tuple[Float[Array, "N T D"], Float[Array, "N T"]]:
    def block(query: Queries) -> tuple[Array, Array]:
        def step(carry: tuple[Array, Array, Array], key: Keys) -> tuple[tuple[Array, Array, Array], None]:
            mask = visible_pairs(options, query.tokens, key.tokens)

            def compute() -> tuple[Array, Array, Array]:
                top, total, sums = carry
                logits = tile_logits(options, wide(query.q), wide(key.k), hooks, query.tokens, key.tokens, mask)
                new = jnp.maximum(top, jnp.max(logits, axis=-1))
                shift = jnp.where(jnp.isneginf(new), 0.0, new)
                weights, shrink = jnp.exp(logits - shift[:, None]), jnp.exp(top - shift)
                kept = _drop(options, dropout, query, key)(weights)
                part = tile_output(options, kept, wide(key.v), hooks, query.tokens, key.tokens)
                return new, total * shrink + jnp.sum(weights, axis=-1), sums * shrink[:, None] + part

            return _if_any(mask, compute, carry), None

        zeros = jnp.zeros_like(wide(query.q))
        (top, total, sums), _ = lax.scan(step, (zeros[:, 0] - jnp.inf, zeros[:, 0], zeros), keys)
        return (sums / nonzero(total)[:, None]).astype(query.q.dtype), log_sum(top, total)

    return lax.map(block, queries)


def _attend_forward(
    options: Options, queries: Queries, keys: Keys, hooks: Hooks, dropout: Dropout | None
) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    output, lse = _attend(options, queries, keys, hooks, dropout)  # pyright: ignore[reportGeneralTypeIssues]
    return (output, lse), (queries, keys, hooks, dropout, output, lse)


def _attend_backward(options: Options, saved: tuple[Any, ...], cotangents: tuple[Array, Array]) -> tuple[Any, ...]:
    queries, keys, hooks, dropout, output, lse = saved
    d_output, d_lse = (wide(x) for x in cotangents)
    mean = jnp.sum(d_output * wide(output), axis=-1) - d_lse
    rows = (d_output, jnp.where(jnp.isneginf(lse), 0.0, lse), mean)

    def key_block(carry: tuple[Floats, Floats], key: Keys) -> tuple[tuple[Floats, Floats], Floats]:
        d_queries, d_hooks = carry

        def query_block(carry: tuple[Floats, Floats], block: tuple[Any, ...]) -> tuple[Any, Floats]:
            query, row, d_query = block
            mask = visible_pairs(options, query.tokens, key.tokens)

            def compute() -> tuple[tuple[Floats, Floats], Floats]:
                d_query_part, *rest = _tile_gradients(options, query, key, hooks, dropout, mask, row)
                return _add(carry, tuple(rest)), _add(d_query, d_query_part)

            return _if_any(mask, compute, (carry, d_query))

        (d_key, d_hooks), d_queries = lax.scan(query_block, (_zeros(key), d_hooks), (queries, rows, d_queries))
        return (d_queries, d_hooks), d_key

    (d_queries, d_hooks), d_keys = lax.scan(key_block, (_zeros(queries), _zeros(hooks)), keys)
    return *(_cotangent(*pair) for pair in ((queries, d_queries), (keys, d_keys), (hooks, d_hooks))), None


_attend.defvjp(_attend_forward, _attend_backward)


def _tile_gradients(
    options: Options,
    query: Queries,
    key: Keys,
    hooks: Hooks,
    dropout: Dropout | None,
    mask: Array | None,
    row: tuple[Array, Array, Array],
) -> tuple[Floats, ...]:
    """Return one tile's part of the gradients of the floats in `query`, `key` and `hooks`."""
    d_output, lse, mean = row
    trees = (query, key, hooks)

    def logits_of(*floats: Floats) -> Array:
        query, key, hooks = (_with_floats(*pair) for pair in zip(trees, floats, strict=True))
        return tile_logits(options, query.q, key.k, hooks, query.tokens, key.tokens, mask)

    def output_of(weights: Array, *floats: Floats) -> Array:
        query, key, hooks = (_with_floats(*pair) for pair in zip(trees, floats, strict=True))
        return tile_output(options, weights, key.v, hooks, query.tokens, key.tokens)

    floats = [_floats(tree) for tree in trees]
    drop = _drop(options, dropout, query, key)
    logits, logits_pull = jax.vjp(logits_of, *floats)
    weights = jnp.exp(logits - lse[:, None])
    _, output_pull = jax.vjp(output_of, drop(weights), *floats)
    d_weights, *through_output = output_pull(d_output)
    through_logits = logits_pull(weights * (drop(d_weights) - mean[:, None]))
    return tuple(_add(through_output, list(through_logits)))


def _drop(options: Options, dropout: Dropout | None, query: Queries, key: Keys) -> Callable[[Array], Array]:
    """Return the tile's dropout: a linear map that is its own transpose."""
    if dropout is None:
        return lambda weights: weights
    keep = keep_pairs(dropout, query.ids, key.ids, options.dropout_rate)
    return lambda weights: apply_dropout(weights, keep, options.dropout_rate)


def _if_any(mask: Array | None, compute: Callable[[], Any], otherwise: Any) -> Any:
    """Skip a tile in which no query sees a key."""
    return compute() if mask is None else lax.cond(jnp.any(mask), compute, lambda: otherwise)


def _is_float(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _floats(tree: Any) -> Floats:
    """Return the leaves that have gradients, in at least 32 bits."""
    return [wide(leaf) for leaf in jax.tree.leaves(tree) if _is_float(leaf)]


def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def _zeros(tree: Any) -> Floats:
    return [jnp.zeros_like(leaf) for leaf in _floats(tree)]


def _with_floats(tree: Any, floats: Floats) -> Any:
    """Return the tree with these leaves for its floating point ones."""
    following = iter(floats)
    return jax.tree.map(lambda leaf: next(following) if _is_float(leaf) else leaf, tree)


def _cotangent(tree: Any, floats: Floats) -> Any:
    """Return the tree of gradients, in the leaves' own types; None where there is none."""
    following = iter(floats)
    return jax.tree.map(lambda leaf: next(following).astype(leaf.dtype) if _is_float(leaf) else None, tree)
