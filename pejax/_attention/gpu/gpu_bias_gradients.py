"""Gradients with respect to the inputs of a bias, on GPUs, by separate kernels: XLA removes them if they are unused.

A program of `diagonal_gradients` owns the tiles (I, I + c) for one c. Elements at the same place in these tiles have
the same difference j - i of key and query, so it sums whole tiles, and a bias with one number per diagonal gets its
gradient without atomics.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pejax._attention.gpu.gpu_kernels import call, load_block, load_query_block, loop, tile_gradients
from pejax._attention.gpu.gpu_tile import Inputs, Place, Plan, bias_gradient, placed_only
from pejax._attention.kernels.constant_ends import Ends
from pejax._attention.kernels.diagonals import gradients_of_diagonals, visited_diagonals
from pejax._attention.kernels.kernel_call import Rows

PROGRAMS = 1024
"""Number of programs that is enough to keep a GPU busy; where there would be more, several examples share a program."""


def diagonal_gradients(plan: Plan, inputs: Inputs, rows: Rows, derived: Ends) -> Float[Array, "H R"]:
    """Return the gradients of `Inputs.diagonals`, summed over the batch; blocks must be square.

    Args:
        plan: static settings.
        inputs: inputs of the kernel.
        rows: rows of the backward pass.
        derived: as `derived_end` returns it.
    """
    (n, _, heads, _), size, q_count = inputs.q.shape, plan.blocks[0], plan.counts[0]
    start, count = visited_diagonals(derived, size, plan.counts)
    parts = min(n, max(1, PROGRAMS // (count * heads)))

    def kernel(inputs: Inputs, rows: Rows, sums_ref: Any) -> None:
        index, head, part = (pl.program_id(axis) for axis in range(3))
        diagonal = index + start
        key_head = lax.div(head, plan.group)

        def of_example(t: Array, sums: Array) -> Array:
            n = part + t * parts

            def step(i: Array, sums: Array, masked: bool, _: Array | None) -> Array:
                place = Place(n, head, i, i + diagonal - (q_count - 1))
                queries = load_query_block(inputs, rows, place, size)
                k, v = (load_block(x, n, key_head, place.j, size) for x in (inputs.k, inputs.v))
                gradients = tile_gradients(plan, inputs, place, queries, k, v, masked)
                return sums + placed_only(gradients.d_scores, *gradients.tokens)

            return loop(inputs, n, diagonal, q_count, step, sums)

        zeros = jnp.zeros((size, size), jnp.float32)
        sums_ref[part, head, index] = lax.fori_loop(0, lax.div(n - 1 - part, parts) + 1, of_example, zeros)

    output = jax.ShapeDtypeStruct((parts, heads, count, size, size), jnp.float32)
    sums = call(plan, kernel, (count, heads, parts), output, inputs, rows, name="diagonal_gradients")
    return gradients_of_diagonals(jnp.sum(sums, axis=0), plan.counts, derived, rows.d_lse)


def bias_gradients_by_queries(
    plan: Plan, inputs: Inputs, rows: Rows
) -> tuple[tuple[Float[Array, " H"], ...], tuple[Float[Array, "N T"], ...]]:
    """Return the gradients of `Inputs.numbers`, and of the queries' positions if they are floats.

    Each program owns a block of queries and loops over the keys.
    """
    (n, length, heads, _), (q_size, k_size) = inputs.q.shape, plan.blocks
    numbers, axes = len(inputs.numbers), plan.float_axes

    def kernel(inputs: Inputs, rows: Rows, number_refs: tuple[Any, ...], position_refs: tuple[Any, ...]) -> None:
        i, head, n = (pl.program_id(axis) for axis in range(3))
        key_head = lax.div(head, plan.group)
        queries = load_query_block(inputs, rows, Place(n, head, i, i), q_size)

        def step(j: Array, carry: Any, masked: bool, _: Array | None) -> Any:
            place = Place(n, head, i, j)
            k, v = (load_block(x, n, key_head, j, k_size) for x in (inputs.k, inputs.v))
            gradients = tile_gradients(plan, inputs, place, queries, k, v, masked)
            d_numbers, d_positions = bias_gradient(plan, inputs, place, gradients.d_scores, *gradients.tokens)[:2]
            return jax.tree.map(jnp.add, carry, (tuple(d_numbers), d_positions))

        zeros = (jnp.float32(0),) * numbers, (jnp.zeros((q_size, 1), jnp.float32),) * axes
        d_numbers, d_positions = loop(inputs, n, i, plan.counts[1], step, zeros)
        for ref, x in zip(number_refs, d_numbers, strict=True):
            ref[n, head, i] = x
        for ref, x in zip(position_refs, d_positions, strict=True):
            ref[n, head, pl.ds(i * q_size, q_size)] = jnp.sum(x, axis=1)

    outputs = (
        (jax.ShapeDtypeStruct((n, heads, plan.counts[0]), jnp.float32),) * numbers,
        (jax.ShapeDtypeStruct((n, heads, length), jnp.float32),) * axes,
    )
    gradients = call(plan, kernel, (plan.counts[0], heads, n), outputs, inputs, rows, name="bias_gradients_by_queries")
    return tuple(jnp.sum(x, axis=(0, 2)) for x in gradients[0]), tuple(jnp.sum(x, axis=1) for x in gradients[1])


def bias_gradients_by_keys(plan: Plan, inputs: Inputs, rows: Rows) -> tuple[Float[Array, "N S"], ...]:
    """Return the gradients of the keys' positions, which must be floats.

    Each program owns a block of keys and loops over the queries.
    """
    (n, _, heads, _), length, (q_size, k_size) = inputs.q.shape, inputs.k.shape[1], plan.blocks
    axes = plan.float_axes

    def kernel(inputs: Inputs, rows: Rows, *position_refs: Any) -> None:
        j, head, n = (pl.program_id(axis) for axis in range(3))
        key_head = lax.div(head, plan.group)
        k, v = (load_block(x, n, key_head, j, k_size) for x in (inputs.k, inputs.v))

        def step(i: Array, carry: Any, masked: bool, _: Array | None) -> Any:
            place = Place(n, head, i, j, transposed=True)
            queries = load_query_block(inputs, rows, place, q_size)
            gradients = tile_gradients(plan, inputs, place, queries, k, v, masked)
            return jax.tree.map(
                jnp.add, carry, bias_gradient(plan, inputs, place, gradients.d_scores, *gradients.tokens)[2]
            )

        zeros = (jnp.zeros((k_size, 1), jnp.float32),) * axes
        for ref, x in zip(position_refs, loop(inputs, n, j, plan.counts[0], step, zeros), strict=True):
            ref[n, head, pl.ds(j * k_size, k_size)] = jnp.sum(x, axis=1)

    outputs = (jax.ShapeDtypeStruct((n, heads, length), jnp.float32),) * axes
    gradients = call(plan, kernel, (plan.counts[1], heads, n), outputs, inputs, rows, name="bias_gradients_by_keys")
    return tuple(jnp.sum(x, axis=1) for x in gradients)
