"""One head in tiles, forward and backward, for XLA:CPU: plain products of row-major matrices and little between them.

Forward, for a block of queries, over the blocks of keys that it may see:

    m' = max(m, max_j s_ij)    l' = e^(m-m') l + Σ_j e^(s_ij-m')    a' = e^(m-m') a + output(e^(s-m'))

and `o = a / l`, `lse = m + log l`. Backward keeps o and lse alone and computes each tile again:

    w_ij = e^(s_ij-lse_i)    ds_ij = w_ij (dw_ij - Σ_d do_id o_id + dlse_i)

The logits s, the mask and a bias of the distance are part of the loop that takes the exponential; none is stored.
A bias by vectors is a product more forward, and three backward.

The gradients of k and v add up transposed, `dkᵀ = qᵀ ds`: XLA:CPU multiplies `aᵀ b` as fast as `a b` where a is the
smaller. That of 16-bit q and do is the exception, so their blocks are transposed in memory.

Reference:
    Milakov & Gimelshein 2018 (arXiv 1805.02867), algorithm 3; Dao et al. 2022 (arXiv 2205.14135), appendix B.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pejax._attention.core.dropout import Dropout, apply_dropout, keep_pairs
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.masks import visible, visible_blocks
from pejax._attention.core.options import Options
from pejax._attention.core.reference import checked, log_sum, nonzero, placed_pairs
from pejax._attention.xla.blocks import Gradients, Head, Keys, Queries, Row, Vectors
from pejax._attention.xla.relative_keys import STRIP, against_vectors, through_vectors
from pejax._ops.bfloat16 import as_bits, from_bits, rounded
from pejax._ops.pytrees import Floats, floats_of, wide, with_floats, zeros_of
from pejax._ops.toeplitz import add_slice, diagonal_sums, toeplitz


def forward(options: Options, head: Head) -> tuple[Float[Array, "N T D"], Float[Array, "N T"]]:
    """Return the output of one head, in float32, and each row's log-sum-exp."""
    queries, keys, terms, dropout = head
    runs = _runs(visible_blocks(options, queries.tokens, keys.tokens), len(queries.q), len(keys.k))

    def block(operands: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        c, first, end = operands
        query = _at(queries, c)
        scaled = _scaled(options, query.q)

        def step(b: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            top, total, sums = carry
            key = _at(keys, b)
            logits = scaled(key.k)
            if any(x is not None for x in terms[1:]):
                bias = _steady_bias(head, c, b)
                logits = logits + _where(placed_pairs(query.tokens, key.tokens), bias, 0.0)
            elif terms.hooks.bias is not None:
                logits = logits + _inline_bias(query, key, terms.hooks)
            if options.soft_cap is not None:
                logits = options.soft_cap * jnp.tanh(logits / options.soft_cap)
            logits = _where(visible(options, query.tokens, key.tokens), logits, -jnp.inf)
            new = jnp.maximum(top, jnp.max(logits, axis=1))
            shift = jnp.where(jnp.isneginf(new), 0.0, new)
            weights, shrink = jnp.exp(logits - shift[:, None]), jnp.exp(top - shift)
            kept = _drop(options, dropout, query, key)(weights)
            part = _dot(options, kept.astype(key.v.dtype), key.v)
            if terms.hooks.relative_values is not None:
                part = part + _values(kept, query, key, terms.hooks)
            return new, total * shrink + jnp.sum(weights, axis=1), sums * shrink[:, None] + part

        zeros = jnp.zeros_like(wide(query.q))
        top, total, sums = lax.fori_loop(first, end, step, (zeros[:, 0] - jnp.inf, zeros[:, 0], zeros))
        return sums / nonzero(total)[:, None], log_sum(top, total)

    return lax.map(block, (jnp.arange(len(queries.q), dtype=jnp.int32), *runs))


def backward(options: Options, head: Head, rows: Row) -> Gradients:
    """Return the gradients of one head's floats."""
    queries, keys, terms, _ = head
    seen = visible_blocks(options, queries.tokens, keys.tokens)
    runs = _runs(None if seen is None else seen.T, len(keys.k), len(queries.q))
    transposed = _transposed(queries.q), _transposed(rows.d_output)
    vectors_transposed = (
        None if terms.vectors is None else (terms.vectors.met.swapaxes(1, 2), terms.vectors.transposed.T)
    )

    def key_block(carry: Any, operands: tuple[Any, ...]) -> tuple[Any, Any]:
        b, first, end = operands
        key = _once(_at(keys, b))

        def step(c: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            (d_queries, d_hooks, *d_steady), d_key = carry
            query, row, sides = _once(_at((queries, rows, transposed), c))
            part = _tile_gradients(options, head, query, key, row, sides, (c, b), vectors_transposed)
            d_queries = jax.tree.map(functools.partial(_add_at, c), d_queries, (part.q, part.queries))
            d_steady = _add_steady(d_steady, head, part, c, b)
            return (d_queries, _add(d_hooks, part.hooks), *d_steady), _add(d_key, (part.k, part.v, part.keys))

        zeros = [jnp.zeros_like(wide(x)).T for x in (key.k, key.v)]
        return lax.fori_loop(first, end, step, (carry, (*zeros, zeros_of(key))))

    steady = jax.tree.map(jnp.zeros_like, terms[1:])
    start = (jnp.zeros_like(wide(queries.q)), zeros_of(queries)), zeros_of(terms.hooks), *steady
    operands = jnp.arange(len(keys.k), dtype=jnp.int32), *runs
    ((d_q, d_queries), d_hooks, *d_steady), (d_k, d_v, d_keys) = lax.scan(key_block, start, operands)
    return Gradients(d_q, d_k, d_v, d_queries, d_keys, d_hooks, *d_steady)


def _tile_gradients(
    options: Options,
    head: Head,
    query: Queries,
    key: Keys,
    row: Row,
    transposed: tuple[Float[Array, "D T"] | None, Float[Array, "D T"] | None],
    place: tuple[Int[Array, ""], Int[Array, ""]],
    vectors_transposed: tuple[Float[Array, "N D T"], Float[Array, "R D"]] | None,
) -> Gradients:
    """Return one tile's part."""
    (q_transposed, d_output_transposed), hooks = transposed, head.terms.hooks
    placed, mask = placed_pairs(query.tokens, key.tokens), visible(options, query.tokens, key.tokens)
    through, pull = (zeros_of(query), zeros_of(key), zeros_of(hooks)), None
    logits = _scaled(options, query.q)(key.k)
    if any(x is not None for x in head.terms[1:]):
        logits = logits + _where(placed, _steady_bias(head, *place), 0.0)
    elif hooks.bias is not None:
        bias, pull = _pullable(_inline_bias, query, key, hooks)
        logits = logits + bias
    slope = 1.0
    if options.soft_cap is not None:
        logits = options.soft_cap * jnp.tanh(logits / options.soft_cap)
        slope = 1.0 - jnp.square(logits / options.soft_cap)
    weights = jnp.exp(_where(mask, logits, -jnp.inf) - row.lse[:, None])
    drop = _drop(options, head.dropout, query, key)
    kept, d_kept = drop(weights), _dot(options, row.d_output, key.v, 1, 1)
    if hooks.relative_values is not None:
        values = lambda weights, *sides: _values(*weights, *sides)
        _, pull_values = _pullable(values, [kept], query, key, hooks)
        (d_own,), *parts = pull_values(wide(row.d_output))
        through, d_kept = _add(through, tuple(parts)), d_kept + d_own
    d_logits = weights * (drop(d_kept) - row.mean[:, None]) * slope
    if pull is not None:
        through = _add(through, tuple(pull(d_logits)))
    narrow, d_bias = rounded(d_logits, query.q.dtype), _where(placed, d_logits, 0.0)
    return Gradients(
        q=options.scale * _dot(options, narrow, key.k),
        k=options.scale * _over_rows(options, query.q, q_transposed, narrow),
        v=_over_rows(options, row.d_output, d_output_transposed, rounded(kept, key.v.dtype)),
        queries=through[0],
        keys=through[1],
        hooks=through[2],
        line=None if head.terms.line is None else diagonal_sums(d_bias),
        vectors=None if vectors_transposed is None else _through_vectors(head, d_bias, place, *vectors_transposed),
    )


def _steady_bias(head: Head, c: Int[Array, ""], b: Int[Array, ""]) -> Float[Array, "T S"]:
    """Return the bias of a tile by the line or by the vectors."""
    (_, line, vectors), start = head.terms, _start(head, c, b)
    rows, columns = head.queries.ids.shape[1], head.keys.ids.shape[1]
    if vectors is None:
        return toeplitz(line, start, rows, columns)  # pyright: ignore[reportArgumentType]
    return against_vectors(_at(vectors.met, c), vectors.transposed, start, columns) + _at(vectors.row, b)


def _through_vectors(
    head: Head,
    d_bias: Float[Array, "T S"],
    place: tuple[Int[Array, ""], Int[Array, ""]],
    met_transposed: Float[Array, "N D T"],
    vectors: Float[Array, "R D"],
) -> Vectors:
    """Return a tile's part of the gradients of `Vectors`."""
    d_met, d_transposed = through_vectors(d_bias, _at(met_transposed, place[0]), vectors, _start(head, *place))
    return Vectors(d_met, d_transposed, jnp.sum(d_bias, axis=0))


def _add_steady(whole: list[Any], head: Head, part: Gradients, c: Int[Array, ""], b: Int[Array, ""]) -> list[Any]:
    """Add a tile's part to the gradients of the line and of the vectors."""
    (line, vectors), start, before = whole, _start(head, c, b), head.queries.ids.shape[1] - 1
    if part.line is not None:
        line = add_slice(line, part.line, start - before)
    if part.vectors is not None:
        d_met, d_transposed, d_row = part.vectors
        transposed = add_slice(vectors.transposed, d_transposed, start - before // STRIP * STRIP)
        vectors = Vectors(_add_at(c, vectors.met, d_met), transposed, _add_at(b, vectors.row, d_row))
    return [line, vectors]


def _inline_bias(query: Queries, key: Keys, hooks: Hooks) -> Float[Array, "T S"]:
    """Return what the bias hook gives for a tile, 0 in pairs with an unplaced token."""
    q, k = wide(query.q), wide(key.k)
    like = jax.ShapeDtypeStruct((len(q), len(k)), jnp.result_type(q))
    operands = q, k, query.tokens.positions, key.tokens.positions
    term = checked(hooks.bias, operands, "bias", "(T, S)", like)  # pyright: ignore[reportArgumentType]
    return _where(placed_pairs(query.tokens, key.tokens), term, 0.0)


def _values(weights: Float[Array, "T S"], query: Queries, key: Keys, hooks: Hooks) -> Float[Array, "T D"]:
    """Return what the relative_values hook makes of a tile's weights, those of unplaced tokens being 0."""
    weights = _where(placed_pairs(query.tokens, key.tokens), weights, 0.0)
    like = jax.ShapeDtypeStruct(query.q.shape, weights.dtype)
    operands = weights, query.tokens.positions, key.tokens.positions
    return checked(hooks.relative_values, operands, "relative_values", "(T, D)", like)  # pyright: ignore[reportArgumentType]


def _runs(seen: Bool[Array, "N M"] | None, count: int, others: int) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """Return the first and the end of the run of blocks that holds all that each block sees."""
    if seen is None:
        return jnp.zeros(count, jnp.int32), jnp.full(count, others, jnp.int32)
    ever = jnp.any(seen, axis=1)
    first, after = (jnp.argmax(x, axis=1).astype(jnp.int32) for x in (seen, seen[:, ::-1]))
    return jnp.where(ever, first, 0), jnp.where(ever, others - after, 0)


def _start(head: Head, c: Int[Array, ""], b: Int[Array, ""]) -> Int[Array, ""]:
    """Return where the line has the distance of the first pair of a tile."""
    (count, rows), columns = head.queries.ids.shape, head.keys.ids.shape[1]
    return b * columns - c * rows + count * rows - 1


def _dot(
    options: Options, a: Float[Array, "..."], b: Float[Array, "..."], a_axis: int = 1, b_axis: int = 0
) -> Float[Array, "M N"]:
    """Multiply matrices, summed over an axis of each, in at least 32 bits."""
    kind = jnp.float32 if a.dtype == jnp.bfloat16 else a.dtype
    return jnp.tensordot(a, b, ((a_axis,), (b_axis,)), precision=options.precision, preferred_element_type=kind)


def _scaled(options: Options, q: Float[Array, "T D"]) -> Callable[[Float[Array, "S D"]], Float[Array, "T S"]]:
    """Return the way to `scale · q kᵀ`: q is scaled, or the product where q has 16 bits and would be rounded."""
    if q.dtype.itemsize < 4:
        return lambda k: options.scale * _dot(options, q, k, 1, 1)
    scaled = options.scale * q
    return lambda k: _dot(options, scaled, k, 1, 1)


def _transposed(blocks: Float[Array, "N T D"]) -> Float[Array, "N D T"] | None:
    """Return blocks of 16 bits transposed in memory, None for others."""
    return blocks.swapaxes(1, 2) if blocks.dtype.itemsize < 4 else None


def _over_rows(
    options: Options, x: Float[Array, "T D"], transposed: Float[Array, "D T"] | None, y: Float[Array, "T S"]
) -> Float[Array, "D S"]:
    """Return `xᵀ y`, x given transposed too where `_transposed` does."""
    return _dot(options, x, y, 0, 0) if transposed is None else _dot(options, transposed, y)


def _drop(options: Options, dropout: Dropout | None, query: Queries, key: Keys) -> Callable[[Array], Array]:
    """Return the tile's dropout: a linear map that is its own transpose."""
    if dropout is None:
        return lambda weights: weights
    keep = keep_pairs(dropout, query.ids, key.ids, options.dropout_rate)
    return lambda weights: apply_dropout(weights, keep, options.dropout_rate)


def _where(mask: Bool[Array, "T S"] | None, x: Float[Array, "T S"], otherwise: float) -> Float[Array, "T S"]:
    return x if mask is None else jnp.where(mask, x, otherwise)


def _once(tree: Any) -> Any:
    """Return slices that several products read: XLA:CPU would take each from the whole for every one of them."""
    return lax.optimization_barrier(tree)


def _at(tree: Any, i: Int[Array, ""]) -> Any:
    def one(leaf: Array) -> Array:
        if len(leaf) == 1:
            return leaf[0]
        found = lax.dynamic_index_in_dim(as_bits(leaf), i, 0, keepdims=False)
        return from_bits(found) if leaf.dtype == jnp.bfloat16 else found

    return jax.tree.map(one, tree)


def _add_at(i: Int[Array, ""], whole: Array, part: Array) -> Array:
    if len(whole) == 1:
        return whole + part[None]
    return lax.dynamic_update_index_in_dim(whole, _at(whole, i) + part, i, 0)


def _pullable(function: Callable[..., Array], *trees: Any) -> tuple[Array, Callable[[Array], tuple[Floats, ...]]]:
    """Return `function(*trees)` and the way back to the floats of each tree."""
    inner = lambda *floats: function(*(with_floats(*pair) for pair in zip(trees, floats, strict=True)))
    return jax.vjp(inner, *(floats_of(tree) for tree in trees))


def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)
