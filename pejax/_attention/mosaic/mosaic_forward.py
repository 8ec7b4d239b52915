"""Attention by a kernel on Mosaic GPU: a program owns 128 queries and loops over blocks of keys."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pejax._attention.mosaic.mosaic_kernels import (
    FORWARD,
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
    Place,
    accumulated,
    in_layout,
    products,
    ring,
    swizzled,
)
from pejax._attention.mosaic.mosaic_tile import across, ends_of_rows, scores, softmax_step
from pejax._attention.mosaic.mosaic_visits import Kind, Visits, visits


def forward(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "N T H D"], Float[Array, "N H T"]]:
    """Return the output and each query's log-sum-exp."""
    (n_count, length, heads, dim), dtype, size = inputs.q.shape, inputs.q.dtype, FORWARD
    count = length // OWNED

    def forward(inputs: Any, o_ref: Any, lse_ref: Any, q_buffer: Any, lse_buffer: Any, loaded: Any, k_ring: Any,
                v_ring: Any) -> None:  # fmt: skip
        n, head, warpgroup = (lax.axis_index(name) for name in ("example", "head", "warpgroup"))
        i = count - 1 - lax.axis_index("block")  # where causal, the blocks with the most work first
        see = lambda: visits(inputs.spans, n, i, inputs.lengths[1] // size, plan.far)

        def copy(x: Array, seen: Visits) -> None:
            keys = seen.block(x) * size
            place = n, pl.ds(keys, size), lax.div(head, jnp.int32(plan.group))
            window = window_of(inputs, head, i * OWNED, keys, size, length)
            k_ring.fill(x, [inputs.k.at[place], *window])
            v_ring.fill(x, [inputs.v.at[place]])

        produce(warpgroup, see, copy)

        @pl.when(warpgroup < CONSUMERS)
        def _consume() -> None:
            plgpu.set_max_registers(MANY, action="increase")
            first = i * OWNED + warpgroup * ROWS
            queries, q = pl.ds(first, ROWS), q_buffer.at[warpgroup]
            plgpu.copy_gmem_to_smem(inputs.q.at[n, queries, head], q, loaded.at[warpgroup])
            plgpu.barrier_wait(loaded.at[warpgroup])

            def step(x: Array, j: Array, carry: Any, kind: Kind) -> Any:
                row_max, total, value_sums = carry
                slot = k_ring.slot(x)
                k_ring.wait(x)
                (logits,) = products((q, k_ring.buffers[0].at[slot]))
                window = window_for([buffer.at[slot] for buffer in k_ring.buffers[1:]], warpgroup, size)
                place = Place(n, head, (first, ROWS), (j * size, size))
                tile = scores(plan.options, logits, fields(plan, inputs, place, window, kind))
                k_ring.release(x)
                row_max, total, weights, shrink = softmax_step(tile, row_max, total)
                value_sums = value_sums * across(shrink, value_sums.shape, 0)
                v_ring.wait(x)
                values = v_ring.buffers[0].at[slot]
                value_sums = accumulated(value_sums, weights.astype(dtype), values, interpret=plan.interpret)
                v_ring.release(x)
                return row_max, total, value_sums

            row = jnp.zeros(ROWS, jnp.float32)
            zeros = map(in_layout, (row - jnp.inf, row, jnp.zeros((ROWS, dim), jnp.float32)))
            row_max, total, value_sums = see().loop(step, tuple(zeros))
            divisor, lse = ends_of_rows(row_max, total)
            q[...] = (value_sums / across(divisor, value_sums.shape, 0)).astype(dtype)
            lse_buffer.at[warpgroup][...] = lse
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(q, o_ref.at[n, queries, head])
            plgpu.copy_smem_to_gmem(lse_buffer.at[warpgroup], lse_ref.at[n, head, queries])
            plgpu.wait_smem_to_gmem(0)

    block, stages = jax.ShapeDtypeStruct((size, dim), dtype), 256 // dim
    window = [] if inputs.diagonals is None else [jax.ShapeDtypeStruct((OWNED + size,), jnp.float32)]
    scratch = [
        swizzled((CONSUMERS, ROWS, dim), dtype),
        swizzled((CONSUMERS, ROWS), jnp.float32),
        plgpu.Barrier(num_barriers=CONSUMERS),
        ring(stages, block, *window),
        ring(stages, block),
    ]
    outputs = [
        jax.ShapeDtypeStruct(inputs.q.shape, dtype),
        jax.ShapeDtypeStruct((n_count, heads, length), jnp.float32),
    ]
    grid = {"head": heads, "block": count, "example": n_count}
    output, lse = call(plan, forward, grid, outputs, scratch, inputs)
    return output, lse
