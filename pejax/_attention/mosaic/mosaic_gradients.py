"""Gradients of attention, by kernels on Mosaic GPU that recompute the weights tile by tile; none adds atomically.

In `query_gradients`, a program owns 128 queries and loops over blocks of keys. In `key_gradients`, it owns 128 keys and
loops over blocks of the queries of every head that reads them; its tiles are transposed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pejax._attention.kernels.kernel_call import Rows
from pejax._attention.mosaic.mosaic_kernels import (
    OWNED,
    Inputs,
    Plan,
    call,
    fields,
    produce,
    window_for,
    window_of,
)
from pejax._attention.mosaic.mosaic_memory import (
    CONSUMERS,
    MANY,
    ROWS,
    TILE,
    Place,
    accumulated,
    in_layout,
    products,
    ring,
    spread,
    swizzled,
)
from pejax._attention.mosaic.mosaic_tile import TileGradients, across, scores, tile_gradients, weights_of
from pejax._attention.mosaic.mosaic_visits import Kind, Visits, visits

BLOCK = 64
"""Tokens in a block that a program loops over."""


def query_gradients(plan: Plan, inputs: Inputs, rows: Rows) -> Float[Array, "N T H D"]:
    """Return the gradient of q; `rows` has lse in base 2."""
    (n_count, length, heads, dim), dtype = inputs.q.shape, inputs.q.dtype
    count = length // OWNED

    def query_gradients(inputs: Any, rows: Any, dq_ref: Any, owned: Any, loaded: Any, keys: Any) -> None:
        n, head, warpgroup = (lax.axis_index(name) for name in ("example", "head", "warpgroup"))
        i = count - 1 - lax.axis_index("block")  # where causal, the blocks with the most work first
        see = lambda: visits(inputs.spans, n, i, inputs.lengths[1] // BLOCK, plan.far)

        def copy(x: Array, seen: Visits) -> None:
            first = seen.block(x) * BLOCK
            place = n, pl.ds(first, BLOCK), lax.div(head, jnp.int32(plan.group))
            window = window_of(inputs, head, i * OWNED, first, BLOCK, length)
            keys.fill(x, [inputs.k.at[place], inputs.v.at[place], *window])

        produce(warpgroup, see, copy)

        @pl.when(warpgroup < CONSUMERS)
        def _consume() -> None:
            plgpu.set_max_registers(MANY, action="increase")
            first = i * OWNED + warpgroup * ROWS
            queries = n, pl.ds(first, ROWS), head
            q, d_output = load_owned((inputs.q, rows.d_output), queries, owned, loaded, warpgroup)
            numbers = [plgpu.load(x.at[n, head, queries[1]], layout=TILE.reduce(1)) for x in (rows.lse, rows.mean)]

            def step(x: Array, j: Array, d_q: Array, kind: Kind) -> Array:
                keys.wait(x)
                k, v, *window = (buffer.at[keys.slot(x)] for buffer in keys.buffers)
                place = Place(n, head, (first, ROWS), (j * BLOCK, BLOCK))
                own_window = window_for(window, warpgroup, BLOCK)
                row = lambda x: across(x, place.shape, 0)
                gradients = gradients_of(
                    plan, inputs, place, ((q, k), (d_output, v)), (row, *numbers), own_window, kind
                )
                d_q = accumulated(d_q, gradients.d_scores.astype(dtype), k, interpret=plan.interpret)
                keys.release(x)
                return d_q

            d_q = see().loop(step, in_layout(jnp.zeros((ROWS, dim), jnp.float32)))
            q[...] = (d_q * plan.options.scale).astype(dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(q, dq_ref.at[queries])
            plgpu.wait_smem_to_gmem(0)

    block, window = jax.ShapeDtypeStruct((BLOCK, dim), dtype), _window(inputs)
    scratch = [
        (swizzled((CONSUMERS, ROWS, dim), dtype),) * 2,
        plgpu.Barrier(num_arrivals=2, num_barriers=CONSUMERS),
        ring(256 // dim, block, block, *window),
    ]
    outputs = [jax.ShapeDtypeStruct(inputs.q.shape, dtype)]
    grid = {"head": heads, "block": count, "example": n_count}
    return call(plan, query_gradients, grid, outputs, scratch, inputs, rows)[0]


def key_gradients(plan: Plan, inputs: Inputs, rows: Rows) -> list[Array]:
    """Return the gradients of k and v, `(N, S, K, D)`, and of the key bias where there is one, `(N, H, S)`."""
    (n_count, length, key_heads, dim), dtype = inputs.k.shape, inputs.k.dtype

    def key_gradients(inputs: Any, rows: Any, dk_ref: Any, dv_ref: Any, *refs: Any) -> None:
        *d_bias_refs, owned, loaded, queries, d_bias_buffers = refs
        n, key_head, warpgroup = (lax.axis_index(name) for name in ("example", "head", "warpgroup"))
        j = lax.axis_index("block")
        see = lambda: visits(inputs.spans, n, j, inputs.lengths[0] // BLOCK, plan.far, descending=True)

        def copy(x: Array, seen: Visits) -> None:
            head = key_head * plan.group + lax.div(x, seen.total)
            first = seen.block(lax.rem(x, seen.total)) * BLOCK
            block = pl.ds(first, BLOCK)
            window = window_of(inputs, head, j * OWNED, first, BLOCK, length)
            blocks = (ref.at[n, block, head] for ref in (inputs.q, rows.d_output))
            queries.fill(x, [*blocks, *(ref.at[n, head, block] for ref in (rows.lse, rows.mean)), *window])

        produce(warpgroup, see, copy, plan.group)

        @pl.when(warpgroup < CONSUMERS)
        def _consume() -> None:
            plgpu.set_max_registers(MANY, action="increase")
            first = j * OWNED + warpgroup * ROWS
            keys, seen = (n, pl.ds(first, ROWS), key_head), see()
            k, v = load_owned((inputs.k, inputs.v), keys, owned, loaded, warpgroup)

            def of_head(index: Array, carry: tuple[Array, Array]) -> tuple[Array, ...]:
                head = key_head * plan.group + index

                def step(x: Array, i: Array, carry: tuple[Array, ...], kind: Kind) -> tuple[Array, ...]:
                    d_k, d_v, *d_bias = carry  # d_bias: one array if there is a key bias, else none
                    queries.wait(x)
                    q, d_output, lse, mean, *window = (buffer.at[queries.slot(x)] for buffer in queries.buffers)
                    place = Place(n, head, (i * BLOCK, BLOCK), (first, ROWS), transposed=True)
                    own_window = window_for(window, warpgroup, BLOCK)
                    column = lambda ref: spread(ref, place.shape, 1)
                    pairs, numbers = ((k, q), (v, d_output)), (column, lse, mean)
                    gradients = gradients_of(plan, inputs, place, pairs, numbers, own_window, kind)
                    d_v = accumulated(d_v, gradients.weights.astype(dtype), d_output, interpret=plan.interpret)
                    d_k = accumulated(d_k, gradients.d_scores.astype(dtype), q, interpret=plan.interpret)
                    queries.release(x)
                    return d_k, d_v, *(x + jnp.sum(gradients.d_logits, axis=1) for x in d_bias)

                # Gradients of keys and values are summed over the heads that share them. A key bias differs by head, so
                # its gradient begins at 0 for each.
                zeros = [in_layout(jnp.zeros(ROWS, jnp.float32)) for _ in d_bias_refs]
                d_k, d_v, *d_bias = seen.loop(step, (*carry, *zeros), index * seen.total)
                for ref, buffer, x in zip(d_bias_refs, d_bias_buffers, d_bias, strict=True):
                    buffer.at[warpgroup][...] = x
                    plgpu.commit_smem()
                    plgpu.copy_smem_to_gmem(buffer.at[warpgroup], ref.at[n, head, pl.ds(first, ROWS)])
                    plgpu.wait_smem_to_gmem(0)
                return d_k, d_v

            zeros = in_layout(jnp.zeros((ROWS, dim), jnp.float32))
            d_k, d_v = lax.fori_loop(0, plan.group, of_head, (zeros, zeros))
            k[...], v[...] = (d_k * plan.options.scale).astype(dtype), d_v.astype(dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(k, dk_ref.at[keys])
            plgpu.copy_smem_to_gmem(v, dv_ref.at[keys])
            plgpu.wait_smem_to_gmem(0)

    block, window = jax.ShapeDtypeStruct((BLOCK, dim), dtype), _window(inputs)
    row = jax.ShapeDtypeStruct((BLOCK,), jnp.float32)
    biases = [] if inputs.key_bias is None else [jax.ShapeDtypeStruct(inputs.key_bias.shape, jnp.float32)]
    scratch = [
        (swizzled((CONSUMERS, ROWS, dim), dtype),) * 2,
        plgpu.Barrier(num_arrivals=2, num_barriers=CONSUMERS),
        ring(256 // dim, block, block, row, row, *window),
        [swizzled((CONSUMERS, ROWS), jnp.float32) for _ in biases],
    ]
    outputs = [*[jax.ShapeDtypeStruct(inputs.k.shape, dtype)] * 2, *biases]
    grid = {"head": key_heads, "block": length // OWNED, "example": n_count}
    return call(plan, key_gradients, grid, outputs, scratch, inputs, rows)


def load_owned(sources: tuple[Any, Any], place: Any, owned: tuple[Any, Any], loaded: Any, warpgroup: Array) -> Any:
    """Copy the rows that a warpgroup owns of two arrays to shared memory, and return references to them there."""
    buffers = [buffer.at[warpgroup] for buffer in owned]
    for source, buffer in zip(sources, buffers, strict=True):
        plgpu.copy_gmem_to_smem(source.at[place], buffer, loaded.at[warpgroup])
    plgpu.barrier_wait(loaded.at[warpgroup])
    return buffers


def gradients_of(
    plan: Plan, inputs: Any, place: Place, pairs: Any, numbers: Any, window: Any, kind: Kind
) -> TileGradients:
    """Return the weights and gradients of a tile.

    Args:
        plan: static settings.
        inputs: references to the inputs.
        place: place of the tile.
        pairs: two pairs of blocks in shared memory, whose products are q·k and the gradients of the weights.
        numbers: a function to arrays of the tile's shape, and what it makes the queries' lse, in base 2, and mean from.
        window: reference to the part of the diagonals that the tile is cut from; None without a bias.
        kind: what is known of the tile.
    """
    spread_out, lse, mean = numbers
    (logits,) = products(pairs[0])
    tile = scores(plan.options, logits, fields(plan, inputs, place, window, kind))
    weights = weights_of(tile, spread_out(lse))
    (d_weights,) = products(pairs[1])  # not before: with the logits, it would need the registers of two more tiles
    return tile_gradients(tile, weights, d_weights, spread_out(mean))


def _window(inputs: Inputs) -> list[Any]:
    """Return the block of a ring that holds a part of the diagonals; [] without a bias."""
    return [] if inputs.diagonals is None else [jax.ShapeDtypeStruct((OWNED + BLOCK,), jnp.float32)]
