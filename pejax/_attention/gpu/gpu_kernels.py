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
from jaxtyping import Array, Float

from pejax._attention.gpu.gpu_math import exp2
from pejax._attention.gpu.gpu_tile import (
    Inputs,
    Place,
    Plan,
    dot,
    end_biases,
    exponentials,
    logit_scale,
    scores,
    scores_gradient,
    tile_tokens,
)
from pejax._attention.gpu.shared_memory import STAGES
from pejax._attention.gpu.triton_params import KernelParams
from pejax._attention.kernels.block_masks import TokenRows
from pejax._attention.kernels.kernel_call import Rows
from pejax._attention.kernels.tokens_first import LOG2_E
from pejax._ops.varying import shape_varying, varying_axes


def call(plan: Plan, kernel: Callable, grid: tuple[int, ...], outputs: Any, *operands: Any, name: str) -> Any:
    """Return the outputs of a kernel that runs over a grid, with more warps for heads of more bytes.

    Args:
        plan: static settings.
        kernel: `(*references to operands, *references to outputs) -> None`.
        grid: number of programs along each axis.
        outputs: shapes and types of the outputs, a pytree.
        *operands: the `Inputs`, then what else the kernel reads.
        name: name of the kernel in profiles.
    """
    dim, itemsize = operands[0].q.shape[-1], operands[0].q.dtype.itemsize
    axes = varying_axes(operands)
    kernel_call = pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=jax.tree.map(lambda x: shape_varying(x.shape, x.dtype, axes), outputs),
        interpret=plan.interpret,
        compiler_params=KernelParams(num_warps=8 if dim * itemsize > 128 else 4, num_stages=STAGES),
        name=f"pejax_{name}",
    )
    return jax.jit(kernel_call)(*operands)  # JAX removes an unused jit, but not an unused pallas_call


def loop(inputs: Inputs, n: Array, block: Array, count: int, step: Callable, carry: Any, ends: Any = None) -> Any:
    """Return the carry after the tiles of one block: first those whose pairs are all visible, then the others.

    Args:
        inputs: hold the spans of the tiles to visit.
        n: index of the example.
        block: index of the block of queries, of keys, or of the diagonal.
        count: number of tiles to visit if there are no spans; all their pairs are visible.
        step: `(index of the other block, carry, masked, constant) -> carry`, where `masked` says whether the tile may
            have masked pairs, and `constant` is the bias of all its pairs, or None where they may differ.
        carry: carry before the first tile.
        ends: the constant bias of far tiles, before the near ones and after them. None = there are no far tiles.
    """
    if inputs.spans is None:
        return lax.fori_loop(0, count, lambda j, carry: step(j, carry, False, None), carry)
    example = n if inputs.spans.shape[0] > 1 else 0
    first, full_start, near_start, near_end, full_end, end = (inputs.spans[example, block, i] for i in range(6))
    if ends is None:
        near_start, near_end = full_start, full_end
    else:
        carry = _around(
            full_start, near_start, near_end, full_end, ends, lambda *at: step(*at[:2], False, at[2]), carry
        )
    carry = lax.fori_loop(near_start, near_end, lambda j, carry: step(j, carry, False, None), carry)
    masked_step = lambda j, carry, _: step(j, carry, True, None)
    return _around(first, full_start, full_end, end, (None, None), masked_step, carry)


def _around(first: Array, start: Array, after: Array, end: Array, ends: Any, step: Callable, carry: Any) -> Any:
    """Return the carry after the tiles from `first` on before `start`, and then those from `after` on before `end`.

    Args:
        first: first index of all.
        start: index behind the last of the first tiles.
        after: first index of the others.
        end: index behind the last.
        ends: a number for the first tiles, and one for the others.
        step: `(index, carry, number) -> carry`.
        carry: carry before the first tile.
    """
    before = start - first  # one loop for both, since every loop has the code of a tile

    def one(index: Array, carry: Any) -> Any:
        is_first = index < before
        number = None if ends[0] is None else jnp.where(is_first, *ends)
        return step(jnp.where(is_first, first + index, after + index - before), carry, number)

    return lax.fori_loop(0, before + end - after, one, carry)


def load_block(ref: Any, n: Array, head: Array, block: Array, size: int) -> Array:
    """Load the rows of one block of one head, of an array `(N, T, H, D)`."""
    return ref[n, pl.ds(block * size, size), head]


def forward(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "N T H D"], Float[Array, "N H T"]]:
    """Return the output and each query's log-sum-exp."""
    (n, length, heads, dim), (q_size, k_size) = inputs.q.shape, plan.blocks
    unit = logit_scale(plan, inputs)

    def kernel(inputs: Inputs, o_ref: Any, lse_ref: Any) -> None:
        reverse, head, n = (pl.program_id(axis) for axis in range(3))
        i = plan.counts[0] - 1 - reverse  # where causal, the blocks with the most work first
        key_head = lax.div(head, plan.group)
        q = load_block(inputs.q, n, head, i, q_size)

        def step(j: Array, carry: tuple[Array, ...], masked: bool, constant: Array | None) -> tuple[Array, ...]:
            row_max, total, value_sums = carry
            place = Place(n, head, i, j, constant=constant)
            k = load_block(inputs.k, n, key_head, j, k_size)
            products = dot(plan, q, k, b_transposed=True)
            tile = scores(plan, inputs, place, products, *tile_tokens(plan, inputs, place), masked)
            new_max = jnp.maximum(row_max, jnp.max(tile.logits, axis=1))
            finite_max = jnp.where(new_max == -jnp.inf, 0.0, new_max)
            weights = exponentials(plan, inputs, tile.logits, (unit * LOG2_E * finite_max)[:, None])
            # All sums so far are relative to the maximum so far: they shrink where the tile has a larger one.
            shrink = exp2(unit * LOG2_E * (row_max - finite_max), plan.inline)
            total = total * shrink + jnp.sum(weights, axis=1)  # before dropout, which does not change the divisor
            weights = weights if tile.keep is None else weights * tile.keep
            tile_sums = dot(plan, weights.astype(q.dtype), load_block(inputs.v, n, key_head, j, k_size))
            return new_max, total, value_sums * shrink[:, None] + tile_sums

        zeros = jnp.zeros(q_size, jnp.float32)
        carry = (zeros - jnp.inf, zeros, jnp.zeros((q_size, dim), jnp.float32))
        row_max, total, value_sums = loop(inputs, n, i, plan.counts[1], step, carry, end_biases(plan, inputs, head))
        sees_nothing = total == 0
        divisor = jnp.where(sees_nothing, 1.0, total)
        o_ref[n, pl.ds(i * q_size, q_size), head] = (value_sums / divisor[:, None]).astype(q.dtype)
        lse = unit * row_max + jnp.log(divisor)
        lse_ref[n, head, pl.ds(i * q_size, q_size)] = jnp.where(sees_nothing, -jnp.inf, lse)

    outputs = (
        jax.ShapeDtypeStruct(inputs.q.shape, inputs.q.dtype),
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
    """One block of queries, and the entries of `Rows` for them, which the backward pass reads.

    Attributes:
        q: the queries, `(size, D)`.
        d_output: gradient of the output, `(size, D)`.
        lse: log-sum-exp of each query over ln 2, 0 for -inf; `(size, 1)`, or `(1, size)` if the tile is transposed.
        mean: `Rows.mean` of each query, in the shape of `lse`.
    """

    q: Array
    d_output: Array
    lse: Array
    mean: Array


def load_query_block(inputs: Inputs, rows: Rows, place: Place, size: int) -> QueryBlock:
    """Load one block of queries; lse and mean get an axis that broadcasts over the keys of the tile."""
    q, d_output = (load_block(x, place.n, place.head, place.i, size) for x in (inputs.q, rows.d_output))
    lse, mean = (x[place.n, place.head, pl.ds(place.i * size, size)] for x in (rows.lse, rows.mean))
    with_key_axis = lambda x: x[None, :] if place.transposed else x[:, None]
    return QueryBlock(q, d_output, with_key_axis(lse), with_key_axis(mean))


def tile_gradients(
    plan: Plan, inputs: Inputs, place: Place, queries: QueryBlock, k: Array, v: Array, masked: bool
) -> TileGradients:
    """Return the weights, gradients and tokens of a tile.

    Args:
        plan: static settings.
        inputs: references to the inputs.
        place: place of the tile.
        queries: its block of queries.
        k: its keys, `(size, D)`.
        v: its values, `(size, D)`.
        masked: whether the tile may have masked pairs.
    """
    factors = ((k, queries.q), (v, queries.d_output)) if place.transposed else ((queries.q, k), (queries.d_output, v))
    products, d_weights = (dot(plan, *pair, b_transposed=True) for pair in factors)
    tokens = tile_tokens(plan, inputs, place)
    tile = scores(plan, inputs, place, products, *tokens, masked)
    weights = exponentials(plan, inputs, tile.logits, queries.lse)
    return TileGradients(*scores_gradient(tile, weights, d_weights, queries.mean), tokens)


def query_gradients(plan: Plan, inputs: Inputs, rows: Rows) -> Float[Array, "N T H D"]:
    """Return the gradient of q."""
    (n, _, heads, dim), (q_size, k_size) = inputs.q.shape, plan.blocks

    def kernel(inputs: Inputs, rows: Rows, dq_ref: Any) -> None:
        reverse, head, n = (pl.program_id(axis) for axis in range(3))
        i = plan.counts[0] - 1 - reverse  # where causal, the blocks with the most work first
        key_head = lax.div(head, plan.group)
        queries = load_query_block(inputs, rows, Place(n, head, i, i), q_size)

        def step(j: Array, d_q: Array, masked: bool, constant: Array | None) -> Array:
            k, v = (load_block(x, n, key_head, j, k_size) for x in (inputs.k, inputs.v))
            place = Place(n, head, i, j, constant=constant)
            gradients = tile_gradients(plan, inputs, place, queries, k, v, masked)
            return d_q + dot(plan, gradients.d_scores.astype(k.dtype), k)

        zeros = jnp.zeros((q_size, dim), jnp.float32)
        d_q = loop(inputs, n, i, plan.counts[1], step, zeros, end_biases(plan, inputs, head))
        dq_ref[n, pl.ds(i * q_size, q_size), head] = (d_q * plan.options.scale).astype(dq_ref.dtype)

    output = jax.ShapeDtypeStruct(inputs.q.shape, inputs.q.dtype)
    return call(plan, kernel, (plan.counts[0], heads, n), output, inputs, rows, name="query_gradients")


def key_gradients(plan: Plan, inputs: Inputs, rows: Rows) -> Sequence[Array]:
    """Return the gradients of k and v, `(N, S, K, D)`, and of the key bias where there is one, `(N, H, S)`."""
    (n, _, key_heads, dim), (q_size, k_size) = inputs.k.shape, plan.blocks
    biases = [] if inputs.key_bias is None else [inputs.key_bias]

    def kernel(inputs: Inputs, rows: Rows, dk_ref: Any, dv_ref: Any, *d_bias_refs: Any) -> None:
        j, key_head, n = (pl.program_id(axis) for axis in range(3))
        k, v = (load_block(x, n, key_head, j, k_size) for x in (inputs.k, inputs.v))

        def head_step(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            head = key_head * plan.group + index

            def step(i: Array, carry: tuple[Array, ...], masked: bool, constant: Array | None) -> tuple[Array, ...]:
                d_k, d_v, *d_bias = carry  # d_bias: one array if there is a key bias, else none
                place = Place(n, head, i, j, transposed=True, constant=constant)
                queries = load_query_block(inputs, rows, place, q_size)
                gradients = tile_gradients(plan, inputs, place, queries, k, v, masked)
                d_v = d_v + dot(plan, gradients.weights.astype(v.dtype), queries.d_output)
                d_k = d_k + dot(plan, gradients.d_scores.astype(k.dtype), queries.q)
                return d_k, d_v, *(x + jnp.sum(gradients.d_logits, axis=1) for x in d_bias)

            # Gradients of keys and values are summed over the heads that share them. A key bias differs by head, so its
            # gradient begins at 0 for each.
            bias_zeros = [jnp.zeros(k_size, jnp.float32) for _ in d_bias_refs]
            zeros = *carry, *bias_zeros
            ends = end_biases(plan, inputs, head)
            # The first queries see the key far after them.
            ends = None if ends is None else ends[::-1]
            d_k, d_v, *d_bias = loop(inputs, n, j, plan.counts[0], step, zeros, ends)
            for ref, x in zip(d_bias_refs, d_bias, strict=True):
                ref[n, head, pl.ds(j * k_size, k_size)] = x
            return d_k, d_v

        zeros = jnp.zeros((k_size, dim), jnp.float32)
        d_k, d_v = lax.fori_loop(0, plan.group, head_step, (zeros, zeros))
        dk_ref[n, pl.ds(j * k_size, k_size), key_head] = (d_k * plan.options.scale).astype(dk_ref.dtype)
        dv_ref[n, pl.ds(j * k_size, k_size), key_head] = d_v.astype(dv_ref.dtype)

    output = jax.ShapeDtypeStruct(inputs.k.shape, inputs.k.dtype)
    outputs = [output, output, *(jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in biases)]
    return call(plan, kernel, (plan.counts[1], key_heads, n), outputs, inputs, rows, name="key_gradients")
