"""The gradient of a bias by distance, by a kernel on Mosaic GPU.

A program owns the tiles (I, I + c) for one c: elements at the same place in these have the same difference j - i of key
and query, so it sums whole tiles, and a bias with one number per diagonal gets its gradient without atomics.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pejax._attention.kernels.constant_ends import Ends
from pejax._attention.kernels.diagonals import gradients_of_diagonals, visited_diagonals
from pejax._attention.kernels.kernel_call import Rows
from pejax._attention.mosaic.mosaic_gradients import BLOCK, gradients_of
from pejax._attention.mosaic.mosaic_kernels import Inputs, Plan, call
from pejax._attention.mosaic.mosaic_memory import CONSUMERS, FEW, MANY, Place, in_layout, ring, spread, swizzled
from pejax._attention.mosaic.mosaic_visits import Kind, Visits, visits

PROGRAMS = 1024
"""Number of programs that is enough to keep a GPU busy; where there would be more, several examples share a program."""


def diagonal_gradients(plan: Plan, inputs: Inputs, rows: Rows, derived: Ends) -> Float[Array, "H R"]:
    """Return the gradients of the bias by distance, at index `j - i + T - 1`, summed over the batch.

    The consumers take turns at tiles.

    Args:
        plan: static settings.
        inputs: inputs of the kernel, with spans of the diagonals of square tiles of side `BLOCK`.
        rows: one row per query, with lse in base 2.
        derived: as `derived_end` returns it.
    """
    (n_count, _, heads, dim), dtype = inputs.q.shape, inputs.q.dtype
    q_count, _ = counts = inputs.lengths[0] // BLOCK, inputs.lengths[1] // BLOCK
    start, count = visited_diagonals(derived, BLOCK, counts)
    parts = min(n_count, max(1, PROGRAMS // (count * heads)))

    def diagonal_gradients(inputs: Any, rows: Any, sums_ref: Any, window: Any, loaded: Any, tiles: Any,
                           other_sums: Any, added: Any) -> None:  # fmt: skip
        index, head, part, warpgroup = (lax.axis_index(x) for x in ("block", "head", "example", "warpgroup"))
        diagonal = index + start
        offset = diagonal - (q_count - 1)

        def over_examples(of_example: Callable, carry: Any) -> Any:
            """Return the carry after all examples of this part; it begins with the number of steps before."""

            def step(t: Array, carry: Any) -> Any:
                n = part + t * parts
                seen = visits(inputs.spans, n, diagonal, q_count)
                return carry[0] + seen.total, *of_example(n, seen, *carry)

            return lax.fori_loop(0, lax.div(n_count - 1 - part, jnp.int32(parts)) + 1, step, (jnp.int32(0), *carry))

        @pl.when(warpgroup == CONSUMERS)
        def _produce() -> None:
            plgpu.set_max_registers(FEW, action="decrease")

            def of_example(n: Array, seen: Visits, begun: Array) -> tuple[()]:
                @pl.loop(0, seen.total)
                def _copy(x: Array) -> None:
                    i = seen.block(x)
                    queries, keys = (pl.ds(block * BLOCK, BLOCK) for block in (i, i + offset))
                    of_queries = [ref.at[n, queries, head] for ref in (inputs.q, rows.d_output)]
                    numbers = [ref.at[n, head, queries] for ref in (rows.lse, rows.mean)]
                    key_head = lax.div(head, jnp.int32(plan.group))
                    tiles.fill(begun + x, [*of_queries, *(ref.at[n, keys, key_head] for ref in (inputs.k, inputs.v)),
                                           *numbers])  # fmt: skip

                return ()

            over_examples(of_example, ())

        @pl.when(warpgroup < CONSUMERS)
        def _consume() -> None:
            plgpu.set_max_registers(MANY, action="increase")
            source = inputs.diagonals.at[head, pl.ds(diagonal * BLOCK, 2 * BLOCK)]
            plgpu.copy_gmem_to_smem(source, window.at[warpgroup], loaded.at[warpgroup])
            plgpu.barrier_wait(loaded.at[warpgroup])

            def of_example(n: Array, seen: Visits, begun: Array, total: Array) -> tuple[Array]:
                def step(x: Array, i: Array, total: Array, kind: Kind) -> Array:
                    tiles.wait(x)
                    q, d_output, k, v, lse, mean = (buffer.at[tiles.slot(x)] for buffer in tiles.buffers)
                    place = Place(n, head, (i * BLOCK, BLOCK), ((i + offset) * BLOCK, BLOCK))
                    row = lambda ref: spread(ref, place.shape, 0)
                    pairs, numbers = ((q, k), (d_output, v)), (row, lse, mean)
                    gradients = gradients_of(plan, inputs, place, pairs, numbers, window.at[warpgroup], kind)
                    tiles.release(x)
                    return total + gradients.d_bias

                return (seen.loop(step, total, begun, (warpgroup, CONSUMERS)),)

            _, total = over_examples(of_example, (in_layout(jnp.zeros((BLOCK, BLOCK), jnp.float32)),))

            @pl.when(warpgroup == 1)
            def _hand_over() -> None:
                other_sums[...] = total
                plgpu.barrier_arrive(added)

            @pl.when(warpgroup == 0)
            def _write() -> None:
                plgpu.barrier_wait(added)
                sums_ref[part, head, index] = total + other_sums[...]

    block, row = jax.ShapeDtypeStruct((BLOCK, dim), dtype), jax.ShapeDtypeStruct((BLOCK,), jnp.float32)
    scratch = [
        swizzled((CONSUMERS, 2 * BLOCK), jnp.float32),
        plgpu.Barrier(num_barriers=CONSUMERS),
        ring(256 // dim, block, block, block, block, row, row, consumers=1),
        swizzled((BLOCK, BLOCK), jnp.float32),
        plgpu.Barrier(),
    ]
    outputs = [jax.ShapeDtypeStruct((parts, heads, count, BLOCK, BLOCK), jnp.float32)]
    grid = {"head": heads, "block": count, "example": parts}
    (sums,) = call(plan, diagonal_gradients, grid, outputs, scratch, inputs, rows)
    return gradients_of_diagonals(jnp.sum(sums, axis=0), counts, derived, rows.d_lse)
