"""The ways in which hand-written kernels obtain the bias of a tile.

A bias `distance(p_j - p_i)` gets into a tile in one of three ways:

    tile        an elementwise bias is computed inside the kernel, tile by tile, for any positions on any axes.
    diagonals   any other bias, such as a table, is evaluated once per distance, O(T + S) numbers per head, and every
                tile is cut from these. This requires `p_j - p_i = j - i + shift` for every two tokens of one segment
                that have a position: a sequence, packed sequences, queries that follow cached keys.
    slots       so is a bias on a grid, whose vector has a number for each difference of two positions (`slots`). This
                requires positions that are known where the call is traced.

A `bias` hook of pairs is run in every tile, by kernels that can (`pairs`).

Whether the positions allow diagonals may be known only at run time. If they do not, the same program computes the bias
in every tile, or attends without kernels.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pejax._attention.core.operands import Layout, Operands
from pejax._attention.kernels.elementwise import Elementwise, cut


class Way(NamedTuple):
    """How the call obtains its bias; `bias` is set for "tile", and `pairs` for "pairs", as the device needs it.

    "none": there is no bias; "tile": computed in each tile; "diagonals": looked up by distance; "slots": looked up by
    the difference of slots; "pairs": hooks of pairs run in each tile; "blockwise": the call runs `Kernels.blockwise` in
    place of kernels.
    """

    name: str
    bias: Elementwise | None = None
    pairs: Any = None


DIAGONALS, SLOTS = (Way("diagonals"), Way("blockwise")), (Way("slots"),)


def ways_to_bias(
    layout: Layout, operands: Operands, *, lookup: tuple[Way, ...], most_numbers: int | None = None
) -> tuple[Way, ...]:
    """Return the ways in which kernels can obtain the bias, for `Kernels.ways`.

    Args:
        layout: says how many axes positions have.
        operands: hold the distance_bias hook, its parameters and the positions.
        lookup: ways in which the kernels can look up a bias of these operands: `DIAGONALS`, `SLOTS` or none.
        most_numbers: how many numbers derived from parameters a tile can read; None = any number.

    Raises:
        NotImplementedError: there is no way.
    """
    distance = operands.shared.distance_bias
    if distance is None:
        return (Way("none"),)
    dtype = operands.q_tokens.positions.dtype
    dtype = jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else dtype
    per_head = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), operands.per_head["distance_bias"])
    # Shapes alone, so that in `shard_map` all parameters are of one kind, varying over its axes or not.
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), {**distance.args[0], **per_head})
    try:
        bias = cut(distance.func, params, position_axes(layout, operands), dtype)
        if most_numbers is not None and len(jax.eval_shape(bias.outside, params)) > most_numbers:
            raise NotImplementedError(f"the bias must read at most {most_numbers} numbers")
    except NotImplementedError:
        if not lookup:
            raise
        return lookup
    if bias.cheap or not lookup:
        return (Way("tile", bias),)
    return lookup if lookup == SLOTS else (lookup[0], Way("tile", bias))


def position_axes(layout: Layout, operands: Operands) -> int:
    """Return A, the number of position axes."""
    positions = operands.q_tokens.positions
    return positions.shape[-1] if positions.ndim == (2 if layout.q_axes.positions is None else 3) else 1
