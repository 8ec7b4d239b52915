"""One attention head in tiles, forward and backward, in the operations that XLA:CPU runs fastest.

Forward, for a block of queries, over the blocks of keys that it may see:

    m' = max(m, max_j s_ij)    l' = e^(m-m') l + Σ_j e^(s_ij-m')    a' = e^(m-m') a + output(e^(s-m'))

and `o = a / l`, `lse = m + log l`. Only o and lse are saved for the backward pass, which computes each tile again:

    w_ij = e^(s_ij-lse_i)    ds_ij = w_ij (dw_ij - Σ_d do_id o_id + dlse_i)

The matmuls have row-major operands. Logits s, mask and a bias by distance are fused into the loop that computes the
exponential, and never stored. A bias by relative keys costs one more matmul forward, and three backward.

The gradients of k and v are summed transposed, `dkᵀ = qᵀ ds`, because XLA:CPU multiplies `aᵀ b` as fast as `a b` if a
is the smaller one. This does not hold for 16-bit q and do, so their blocks are transposed in memory.

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
from pejax._attention.core.masks import keep_hidden, visible, visible_blocks
from pejax._attention.core.options import Options
from pejax._attention.core.reference import call_hook, log_sum, one_if_zero, placed_pairs
from pejax._attention.xla.blocks import Gradients, Head, Keys, Queries, Residuals, add_to_block, block_at
from pejax._attention.xla.consecutive_bias import add_consecutive_bias, consecutive_bias, relative_keys_backward
from pejax._ops.bfloat16 import rounded
from pejax._ops.pytrees import Floats, floats_of, wide, with_floats, zeros_of
from pejax._ops.toeplitz import diagonal_sums


def forward(options: Options, head: Head) -> tuple[Float[Array, "N T D"], Float[Array, "N T"]]:
    """Return the output of one head, in at least 32 bits, and the log-sum-exp of each row."""
    queries, keys, terms, dropout = head
    ranges = _visible_ranges(visible_blocks(options, queries.tokens, keys.tokens), len(queries.q), len(keys.k))

    def block(operands: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        c, first, end = operands
        query = block_at(queries, c)
        scaled = _scaled(options, query.q)

        def step(b: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            largest, total, sums = carry
            key = block_at(keys, b)
            logits = scaled(key.k)
            if any(x is not None for x in terms[1:]):
                bias = consecutive_bias(head, c, b)
                logits = logits + _where(placed_pairs(query.tokens, key.tokens), bias, 0.0)
            elif terms.hooks.bias is not None:
                logits = logits + _bias_of_hook(query, key, terms.hooks)
            if options.soft_cap is not None:
                logits = keep_hidden(options, logits, options.soft_cap * jnp.tanh(logits / options.soft_cap))
            logits = logits if key.bias is None else logits + key.bias
            logits = _where(visible(options, query.tokens, key.tokens), logits, -jnp.inf)
            new = jnp.maximum(largest, jnp.max(logits, axis=1))
            shift = jnp.where(jnp.isneginf(new), 0.0, new)
            weights, rescale = jnp.exp(logits - shift[:, None]), jnp.exp(largest - shift)
            dropped = _dropout_of_tile(options, dropout, query, key)(weights)
            part = _dot(options, dropped.astype(key.v.dtype), key.v)
            if terms.hooks.relative_values is not None:
                part = part + _relative_values(dropped, query, key, terms.hooks)
            return new, total * rescale + jnp.sum(weights, axis=1), sums * rescale[:, None] + part

        zeros = jnp.zeros_like(wide(query.q))
        largest, total, sums = lax.fori_loop(first, end, step, (zeros[:, 0] - jnp.inf, zeros[:, 0], zeros))
        return sums / one_if_zero(total)[:, None], log_sum(largest, total)

    return lax.map(block, (jnp.arange(len(queries.q), dtype=jnp.int32), *ranges))


def backward(options: Options, head: Head, residuals: Residuals) -> Gradients:
    """Return the gradients of the floating point leaves of one head."""
    queries, keys, terms, _ = head
    visible_queries = visible_blocks(options, queries.tokens, keys.tokens)
    ranges = _visible_ranges(None if visible_queries is None else visible_queries.T, len(keys.k), len(queries.q))
    transposed = _transposed(queries.q), _transposed(residuals.d_output)
    relative = terms.relative_keys
    relative_transposed = None if relative is None else (relative.queries.swapaxes(1, 2), relative.a_transposed.T)

    def key_block(carry: Any, operands: tuple[Any, ...]) -> tuple[Any, Any]:
        b, first, end = operands
        key = _materialized(block_at(keys, b))

        def step(c: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            (d_queries, d_hooks, *d_bias), d_key = carry
            query, row, sides = _materialized(block_at((queries, residuals, transposed), c))
            part = _tile_gradients(options, head, query, key, row, sides, (c, b), relative_transposed)
            d_queries = jax.tree.map(functools.partial(add_to_block, c), d_queries, (part.q, part.queries))
            d_bias = add_consecutive_bias(d_bias, head, part, c, b)
            return (d_queries, _add(d_hooks, part.hooks), *d_bias), _add(d_key, (part.k, part.v, part.keys))

        zeros = [jnp.zeros_like(wide(x)).T for x in (key.k, key.v)]
        return lax.fori_loop(first, end, step, (carry, (*zeros, zeros_of(key))))

    zeros = jax.tree.map(jnp.zeros_like, terms[1:])
    start = (jnp.zeros_like(wide(queries.q)), zeros_of(queries)), zeros_of(terms.hooks), *zeros
    operands = jnp.arange(len(keys.k), dtype=jnp.int32), *ranges
    ((d_q, d_queries), d_hooks, *d_bias), (d_k, d_v, d_keys) = lax.scan(key_block, start, operands)
    return Gradients(d_q, d_k, d_v, d_queries, d_keys, d_hooks, *d_bias)


def _tile_gradients(
    options: Options,
    head: Head,
    query: Queries,
    key: Keys,
    row: Residuals,
    transposed: tuple[Float[Array, "D T"] | None, Float[Array, "D T"] | None],
    index: tuple[Int[Array, ""], Int[Array, ""]],
    relative_transposed: tuple[Float[Array, "N D T"], Float[Array, "R D"]] | None,
) -> Gradients:
    """Return the contribution of one tile to the gradients.

    The tile is computed as in the forward pass, and each step keeps what its derivative needs: the soft cap its slope,
    the bias and relative_values hooks their pullbacks. The gradient of the logits reaches the key bias directly, and
    q, k and the bias through the cap. Hooks may read any float, so the gradients through them are lists of the
    floating point leaves of queries, keys and hooks.

    Args:
        options: settings of the attention.
        head: all blocks of the head.
        query: block of queries.
        key: block of keys.
        row: numbers of these queries for the backward pass.
        transposed: q and d_output of the block transposed, if they have 16 bits.
        index: indices of the block of queries and of the block of keys.
        relative_transposed: queries (by block) and a of the relative keys, transposed; None = no relative keys.
    """
    (q_transposed, d_output_transposed), hooks = transposed, head.terms.hooks
    placed, mask = placed_pairs(query.tokens, key.tokens), visible(options, query.tokens, key.tokens)
    through, pull = (zeros_of(query), zeros_of(key), zeros_of(hooks)), None
    logits = _scaled(options, query.q)(key.k)
    if any(x is not None for x in head.terms[1:]):
        logits = logits + _where(placed, consecutive_bias(head, *index), 0.0)
    elif hooks.bias is not None:
        bias, pull = _pullback(_bias_of_hook, query, key, hooks)
        logits = logits + bias
    slope = 1.0
    if options.soft_cap is not None:
        capped = options.soft_cap * jnp.tanh(logits / options.soft_cap)
        logits, slope = keep_hidden(options, logits, capped), 1.0 - jnp.square(capped / options.soft_cap)
    logits = logits if key.bias is None else logits + key.bias
    weights = jnp.exp(_where(mask, logits, -jnp.inf) - row.lse[:, None])
    drop = _dropout_of_tile(options, head.dropout, query, key)
    dropped, d_dropped = drop(weights), _dot(options, row.d_output, key.v, 1, 1)
    if hooks.relative_values is not None:
        values = lambda weights, *sides: _relative_values(*weights, *sides)
        _, pull_values = _pullback(values, [dropped], query, key, hooks)
        (d_through_hook,), *parts = pull_values(wide(row.d_output))
        through, d_dropped = _add(through, tuple(parts)), d_dropped + d_through_hook
    d_capped = weights * (drop(d_dropped) - row.mean[:, None])
    d_logits = d_capped * slope
    if pull is not None:
        through = _add(through, tuple(pull(d_logits)))
    if key.bias is not None:  # the last of the floats of `Keys`
        through[1][-1] += jnp.sum(d_capped, axis=0)
    narrow, d_bias = rounded(d_logits, query.q.dtype), _where(placed, d_logits, 0.0)
    return Gradients(
        q=options.scale * _dot(options, narrow, key.k),
        k=options.scale * _over_rows(options, query.q, q_transposed, narrow),
        v=_over_rows(options, row.d_output, d_output_transposed, rounded(dropped, key.v.dtype)),
        queries=through[0],
        keys=through[1],
        hooks=through[2],
        diagonals=None if head.terms.diagonals is None else diagonal_sums(d_bias),
        relative_keys=None
        if relative_transposed is None
        else relative_keys_backward(head, d_bias, index, *relative_transposed),
    )


def _bias_of_hook(query: Queries, key: Keys, hooks: Hooks) -> Float[Array, "T S"]:
    """Return the bias hook's result for a tile, 0 in pairs with a token that has no position."""
    q, k = wide(query.q), wide(key.k)
    like = jax.ShapeDtypeStruct((len(q), len(k)), jnp.result_type(q))
    operands = q, k, query.tokens.positions, key.tokens.positions
    term = call_hook(hooks.bias, operands, "bias", "(T, S)", like)
    return _where(placed_pairs(query.tokens, key.tokens), term, 0.0)


def _relative_values(weights: Float[Array, "T S"], query: Queries, key: Keys, hooks: Hooks) -> Float[Array, "T D"]:
    """Return the relative_values hook's result for a tile, with weights of 0 for tokens that have no position."""
    weights = _where(placed_pairs(query.tokens, key.tokens), weights, 0.0)
    like = jax.ShapeDtypeStruct(query.q.shape, weights.dtype)
    operands = weights, query.tokens.positions, key.tokens.positions
    return call_hook(hooks.relative_values, operands, "relative_values", "(T, D)", like)


def _visible_ranges(
    visible: Bool[Array, "N M"] | None, count: int, others: int
) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """Return, for each of N blocks, the first and the end of the range of M blocks that contains all visible ones.

    Args:
        visible: which blocks see each other; None = all.
        count: N.
        others: M.
    """
    if visible is None:
        return jnp.zeros(count, jnp.int32), jnp.full(count, others, jnp.int32)
    has_visible = jnp.any(visible, axis=1)
    first, after = (jnp.argmax(x, axis=1).astype(jnp.int32) for x in (visible, visible[:, ::-1]))
    return jnp.where(has_visible, first, 0), jnp.where(has_visible, others - after, 0)


def _dot(
    options: Options, a: Float[Array, "..."], b: Float[Array, "..."], a_axis: int = 1, b_axis: int = 0
) -> Float[Array, "M N"]:
    """Return the product of matrices, summed over one axis of each, in at least 32 bits."""
    kind = jnp.float32 if a.dtype == jnp.bfloat16 else a.dtype
    return jnp.tensordot(a, b, ((a_axis,), (b_axis,)), precision=options.precision, preferred_element_type=kind)


def _scaled(options: Options, q: Float[Array, "T D"]) -> Callable[[Float[Array, "S D"]], Float[Array, "T S"]]:
    """Return the function `k -> scale · q kᵀ`. It scales q, or the product if q has 16 bits and would be rounded."""
    if q.dtype.itemsize < 4:
        return lambda k: options.scale * _dot(options, q, k, 1, 1)
    scaled = options.scale * q
    return lambda k: _dot(options, scaled, k, 1, 1)


def _transposed(blocks: Float[Array, "N T D"]) -> Float[Array, "N D T"] | None:
    """Return blocks of a 16-bit type transposed in memory; None for other types."""
    return blocks.swapaxes(1, 2) if blocks.dtype.itemsize < 4 else None


def _over_rows(
    options: Options, x: Float[Array, "T D"], transposed: Float[Array, "D T"] | None, y: Float[Array, "T S"]
) -> Float[Array, "D S"]:
    """Return `xᵀ y`; `transposed` is what `_transposed` returned for x."""
    return _dot(options, x, y, 0, 0) if transposed is None else _dot(options, transposed, y)


def _dropout_of_tile(options: Options, dropout: Dropout | None, query: Queries, key: Keys) -> Callable[[Array], Array]:
    """Return the dropout of a tile's weights, a linear map that equals its transpose."""
    if dropout is None:
        return lambda weights: weights
    keep = keep_pairs(dropout, query.ids, key.ids, options.dropout_rate)
    return lambda weights: apply_dropout(weights, keep, options.dropout_rate)


def _where(mask: Bool[Array, "T S"] | None, x: Float[Array, "T S"], otherwise: float) -> Float[Array, "T S"]:
    """Return `jnp.where(mask, x, otherwise)`; mask = None is all True."""
    return x if mask is None else jnp.where(mask, x, otherwise)


def _materialized(tree: Any) -> Any:
    """Return slices behind an optimization barrier: without it, XLA:CPU slices again for each matmul."""
    return lax.optimization_barrier(tree)


def _pullback(function: Callable[..., Array], *trees: Any) -> tuple[Array, Callable[[Array], tuple[Floats, ...]]]:
    """Return `function(*trees)` and its VJP to the floating point leaves of each tree."""
    inner = lambda *floats: function(*(with_floats(*pair) for pair in zip(trees, floats, strict=True)))
    return jax.vjp(inner, *(floats_of(tree) for tree in trees))


def _add(a: Any, b: Any) -> Any:
    """Return the sum of two pytrees, leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)
