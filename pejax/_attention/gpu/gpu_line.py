"""The inputs of a kernel with their tokens moved to slots, where key - query is constant along every diagonal.

The other kernels look a bias up by the difference of two slots. The gradient of that vector is the sum over the pairs
of each difference: on the line of slots, a sum along a diagonal of tiles, as it is for a sequence. A line is up to
2^(A-1) times as long as its tokens are many, and what is between them is padding.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from pejax._attention.gpu.gpu_tile import Inputs, Plan
from pejax._attention.kernels.block_masks import TokenRows, all_tiles, spans, tiles
from pejax._attention.kernels.kernel_call import Rows


class Line(NamedTuple):
    """The arguments of a kernel whose tokens are at their slots."""

    plan: Plan
    inputs: Inputs
    rows: Rows


def on_line(plan: Plan, inputs: Inputs, rows: Rows, lengths: tuple[int, int]) -> Line:
    """Return the arguments of `diagonal_gradients` with every token that has a position moved to its slot.

    Args:
        plan: plan of square tiles.
        inputs: inputs with slots.
        rows: rows of the backward pass.
        lengths: numbers of queries and of keys, without padding.
    """
    size = plan.blocks[0]
    count = -(-plan.slots // size)
    q, q_tokens = _moved(inputs.q_tokens, lengths[0], count * size)
    k, k_tokens = _moved(inputs.k_tokens, lengths[1], count * size)
    padding = count * size - plan.slots
    plan = plan._replace(counts=(count, count), slots=0)
    visible = tiles(plan.options, q_tokens, k_tokens, plan.blocks)
    moved = Inputs(
        q=_taken(inputs.q, q, 1),
        k=_taken(inputs.k, k, 1),
        v=_taken(inputs.v, k, 1),
        q_tokens=q_tokens,
        k_tokens=k_tokens,
        diagonals=jnp.pad(jnp.asarray(inputs.diagonals), ((0, 0), (padding, padding + 1))),
        dropout_words=inputs.dropout_words,
        key_bias=None if inputs.key_bias is None else _taken(inputs.key_bias, k, 2),
        spans=spans((all_tiles(plan.counts) if visible is None else visible).diagonals()),
    )
    numbers = (_taken(x, q, 2) for x in (rows.lse, rows.mean, rows.d_lse))
    return Line(plan, moved, Rows(_taken(rows.d_output, q, 1), *numbers))


def _moved(tokens: TokenRows, length: int, size: int) -> tuple[Int[Array, " M"], TokenRows]:
    """Return where the token of each of `size` slots was, and what masks read of it; empty slots are in segment 0."""
    slots = jnp.ravel(jnp.asarray(tokens.slots))
    place = jnp.arange(len(slots), dtype=jnp.int32)
    is_placed = place < length
    if tokens.has_position is not None:
        is_placed &= tokens.has_position[0] != 0
    # An index beyond the tokens, where a slot is empty: `_taken` reads 0 there.
    places = jnp.full(size, len(slots), jnp.int32).at[jnp.where(is_placed, slots, size)].set(place, mode="drop")
    segments = jnp.ones((1, len(slots)), jnp.int32) if tokens.segment_ids is None else tokens.segment_ids
    order = None if tokens.order is None else _taken(tokens.order, places, 1)
    return places, TokenRows(order=order, segment_ids=_taken(segments, places, 1), place=places[None])


def _taken(x: Array, places: Int[Array, " M"], axis: int) -> Array:
    """Return the entries of an axis at these places, 0 where there is none."""
    return jnp.take(x, places, axis=axis, mode="fill", fill_value=0)
