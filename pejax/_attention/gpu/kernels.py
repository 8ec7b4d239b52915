"""Attention kernels for GPUs, in Pallas on Triton: forward, and the gradients of queries, keys and values.

In `forward` and `query_gradients`, a program owns a block of queries and loops over the keys. In `key_gradients`, it
owns a block of keys and loops over the queries of every head that reads them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from pejax._attention.gpu.block_masks import TokenRows
from pejax._attention.gpu.shared_memory import STAGES
from pejax._attention.gpu.tile import Inputs, Place, Plan, dot, scores, scores_gradient, tile_tokens
from pejax._attention.kernels.kernel_call import Rows
from pejax._ops.varying import shape_varying, varying_axes


def call(plan: Plan, kernel: Callable, grid: tuple[int, ...], outputs: Any, *operands: Any, name: str) -> Any:
    """Return the outputs of a kernel that runs over a grid, with more warps for heads of more bytes."""
    dim, itemsize = operands[0].q.shape[-1], operands[0].q.dtype.itemsize
    axes = varying_axes(operands)
    kernel_call = pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=jax.tree.map(lambda x: shape_varying(x.shape, x.dtype, axes), outputs),
        interpret=plan.interpret,
        compiler_params=triton.CompilerParams(num_warps=8 if dim * itemsize > 128 else 4, num_stages=STAGES),
        name=f"pejax_{name}",
    )
    return jax.jit(kernel_call)(*operands)  # JAX removes an unused jit, but not an unused pallas_call


def loop(inputs: Inputs, n: Array, block: Array, count: int, step: Callable, carry: Any) -> Any:
    """Run `step(j, carry, masked)` over the blocks that `block` sees: first the fully visible ones, then the others.

    `n` is the example, and `count` the number of blocks where all are visible, without spans.
    """
    if inputs.spans is None:
        return lax.fori_loop(0, count, lambda j, carry: step(j, carry, False), carry)
    example = n if inputs.spans.shape[0] > 1 else 0
    first, full_start, full_end, end = (inputs.spans[example, block, i] for i in range(4))
    carry = lax.fori_loop(full_start, full_end, lambda j, carry: step(j, carry, False), carry)
    before = full_start - first  # number of the partly visible blocks before the fully visible ones; the others follow

    def masked_step(t: Array, carry: Any) -> Any:
        return step(jnp.where(t < before, first + t, full_end + t - before), carry, True)

    return lax.fori_loop(0, before + end - full_end, masked_step, carry)


def load_block(ref: Any, n: Array, head: Array, block: Array, size: int) -> Array:
    """Load the rows of one block of one head."""
    return ref[n, head, pl.ds(block * size, size)]


def forward(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "N H T D"], Float[Array, "N H T"]]:
    """Return the output and each query's log-sum-exp."""
    (n, heads, length, dim), (q_size, k_size) = inputs.q.shape, plan.blocks

    def kernel(inputs: Inputs, o_ref: Any, lse_ref: Any) -> None:
        reverse, head, n = (pl.program_id(axis) for axis in range(3))
        i = plan.counts[0] - 1 - reverse  # where causal, the blocks with the most work first
        key_head = lax.div(head, plan.group)
        q = load_block(inputs.q, n, head, i, q_size)

        def step(j: Array, carry: tuple[Array, Array, Array], masked: bool) -> tuple[Array, Array, Array]:
            top, total, sums = carry
            at = Place(n, head, i, j)
            k = load_block(inputs.k, n, key_head, j, k_size)
            tile = scores(plan, inputs, at, dot(plan, q, k, b_transposed=True), *tile_tokens(plan, inputs, at), masked)
            new_top = jnp.maximum(top, jnp.max(tile.logits, axis=1))
            shift = jnp.where(new_top == -jnp.inf, 0.0, new_top)
            # All sums so far are relative to the maximum so far: they shrink where the tile has a larger one.
            weights, shrink = jnp.exp(tile.logits - shift[:, None]), jnp.exp(top - shift)
            total = total * shrink + jnp.sum(weights, axis=1)  # before dropout, which does not change the divisor
            weights = weights if tile.keep is None else weights * tile.keep
            part = dot(plan, weights.astype(q.dtype), load_block(inputs.v, n, key_head, j, k_size))
            return new_top, total, sums * shrink[:, None] + part

        zeros = jnp.zeros(q_size, jnp.float32)
        carry = (zeros - jnp.inf, zeros, jnp.zeros((q_size, dim), jnp.float32))
        top, total, sums = loop(inputs, n, i, plan.counts[1], step, carry)
        blind = total == 0
        divisor = jnp.where(blind, 1.0, total)
        o_ref[n, head, pl.ds(i * q_size, q_size)] = (sums / divisor[:, None]).astype(q.dtype)
        lse_ref[n, head, pl.ds(i * q_size, q_size)] = jnp.where(blind, -jnp.inf, top + jnp.log(divisor))

    outputs = (
        jax.ShapeDtypeStruct((n, heads, length, dim), inputs.q.dtype),
        jax.ShapeDtypeStruct((n, heads, length), jnp.float32),
    )
    return call(plan, kernel, (plan.counts[0], heads, n), outputs, inputs, name="forward")


class TileGradients(NamedTuple):
    """The weights and gradients of a tile, arrays of its shape, and its tokens.

    Attributes:
        weights: weights after dropout.
        d_scores: gradient of scale·q·k + bias.
        d_logits: gradient of the logits after the cap.
        tokens: tokens of the tile's queries and keys.
    """

    weights: Array
    d_scores: Array
    d_logits: Array
    tokens: tuple[TokenRows, TokenRows]


class QueryBlock(NamedTuple):
    """One block of queries with its rows of `Rows`, which the backward pass reads.

    Attributes:
        q: the queries, `(size, D)`.
        d_output: gradient of the output, `(size, D)`.
        lse: log-sum-exp of each query, 0 for -inf; `(size, 1)`, or `(1, size)` if the tile is transposed.
        mean: `Rows.mean` of each query, in the shape of `lse`.
    """

    q: Array
    d_output: Array
    lse: Array
    mean: Array


def load_query(inputs: Inputs, rows: Rows, at: Place, size: int) -> QueryBlock:
    """Load one block of queries; lse and mean get an axis that broadcasts over the keys of the tile."""
    q, d_output, lse, mean = (load_block(x, at.n, at.head, at.i, size) for x in (inputs.q, *rows))
    across = lambda x: x[None, :] if at.transposed else x[:, None]
    return QueryBlock(q, d_output, across(lse), across(mean))


def gradients(
    plan: Plan, inputs: Inputs, at: Place, query: QueryBlock, k: Array, v: Array, masked: bool
) -> TileGradients:
    """Return the weights, gradients and tokens of a tile."""
    factors = ((k, query.q), (v, query.d_output)) if at.transposed else ((query.q, k), (query.d_output, v))
    products, d_weights = (dot(plan, *pair, b_transposed=True) for pair in factors)
    tokens = tile_tokens(plan, inputs, at)
    tile = scores(plan, inputs, at, products, *tokens, masked)
    return TileGradients(*scores_gradient(tile, query.lse, d_weights, query.mean), tokens)


def query_gradients(plan: Plan, inputs: Inputs, rows: Rows) -> Float[Array, "N H T D"]:
    """Return the gradient of q."""
    (n, heads, length, dim), (q_size, k_size) = inputs.q.shape, plan.blocks

    def kernel(inputs: Inputs, rows: Rows, dq_ref: Any) -> None:
        reverse, head, n = (pl.program_id(axis) for axis in range(3))
        i = plan.counts[0] - 1 - reverse  # where causal, the blocks with the most work first
        key_head = lax.div(head, plan.group)
        query = load_query(inputs, rows, Place(n, head, i, i), q_size)

        def step(j: Array, d_q: Array, masked: bool) -> Array:
            k, v = (load_block(x, n, key_head, j, k_size) for x in (inputs.k, inputs.v))
            tile = gradients(plan, inputs, Place(n, head, i, j), query, k, v, masked)
            return d_q + dot(plan, tile.d_scores.astype(k.dtype), k)

        d_q = loop(inputs, n, i, plan.counts[1], step, jnp.zeros((q_size, dim), jnp.float32))
        dq_ref[n, head, pl.ds(i * q_size, q_size)] = (d_q * plan.options.scale).astype(dq_ref.dtype)

    output = jax.ShapeDtypeStruct((n, heads, length, dim), inputs.q.dtype)
    return call(plan, kernel, (plan.counts[0], heads, n), output, inputs, rows, name="query_gradients")


def key_gradients(plan: Plan, inputs: Inputs, rows: Rows) -> Sequence[Array]:
    """Return the gradients of k and v, `(N, K, S, D)`, and of the key bias where there is one, `(N, H, S)`."""
    (n, key_heads, length, dim), (q_size, k_size) = inputs.k.shape, plan.blocks
    biases = [] if inputs.key_bias is None else [inputs.key_bias]

    def kernel(inputs: Inputs, rows: Rows, dk_ref: Any, dv_ref: Any, *d_bias_refs: Any) -> None:
        j, key_head, n = (pl.program_id(axis) for axis in range(3))
        k, v = (load_block(x, n, key_head, j, k_size) for x in (inputs.k, inputs.v))

        def of_head(g: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            head = key_head * plan.group + g

            def step(i: Array, carry: tuple[Array, ...], masked: bool) -> tuple[Array, ...]:
                d_k, d_v, *d_bias = carry
                at = Place(n, head, i, j, transposed=True)
                query = load_query(inputs, rows, at, q_size)
                tile = gradients(plan, inputs, at, query, k, v, masked)
                d_v = d_v + dot(plan, tile.weights.astype(v.dtype), query.d_output)
                d_k = d_k + dot(plan, tile.d_scores.astype(k.dtype), query.q)
                return d_k, d_v, *(x + jnp.sum(tile.d_logits, axis=1) for x in d_bias)

            # Keys and values sum over the heads that share them; a key bias differs by head, so each begins at 0.
            bias_zeros = [jnp.zeros(k_size, jnp.float32) for _ in d_bias_refs]
            d_k, d_v, *d_bias = loop(inputs, n, j, plan.counts[0], step, (*carry, *bias_zeros))
            for ref, x in zip(d_bias_refs, d_bias, strict=True):
                ref[n, head, pl.ds(j * k_size, k_size)] = x
            return d_k, d_v

        zeros = jnp.zeros((k_size, dim), jnp.float32)
        d_k, d_v = lax.fori_loop(0, plan.group, of_head, (zeros, zeros))
        dk_ref[n, key_head, pl.ds(j * k_size, k_size)] = (d_k * plan.options.scale).astype(dk_ref.dtype)
        dv_ref[n, key_head, pl.ds(j * k_size, k_size)] = d_v.astype(dv_ref.dtype)

    output = jax.ShapeDtypeStruct((n, key_heads, length, dim), inputs.k.dtype)
    outputs = [output, output, *(jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in biases)]
    return call(plan, kernel, (plan.counts[1], key_heads, n), outputs, inputs, rows, name="key_gradients")
