"""Attention on a grid as attention along the line of its slots, for kernels that cut a bias from diagonals.

Every token moves to its slot (`slots`), where its neighbors on the last axis are still its neighbors, and what is empty
is padding. Then key - query is a function of j - i, and kernels for sequences serve. Tokens without a position follow
the line. It is up to 2^(A-1) times as long as the tokens are many: on a grid, four times as many tiles.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Int, UInt32

from pejax._attention.core.operands import Layout, Operands
from pejax._attention.kernels import kernel_call
from pejax._attention.kernels.kernel_call import Kernels, Static, primals_of
from pejax._attention.kernels.slots import Box, slot_count, slot_distances, slots_of
from pejax._attention.kernels.ways import DIAGONALS, SLOTS, Way
from pejax._record.encoding import Params
from pejax._tokens.positions import TokenPositions


@dataclass(frozen=True)
class _DistanceOfSlots:
    """The distance_bias hook of a line: that of the grid at the difference of two slots; equal for equal hooks."""

    distance: Callable[[Params, Array], Array]
    box: Box

    def __call__(self, params: Params, relative: Int[Array, " R"]) -> Array:
        distances = jnp.asarray(slot_distances(self.box))
        middle = len(distances) // 2
        return self.distance(params, distances[(relative + middle).clip(0, 2 * middle)])


def attention(kernels: Kernels, static: Static, operands: Operands) -> tuple[Array, Array]:
    """Return the output and the log-sum-exps by kernels; along the line of its slots if that is the way to the bias.

    Args:
        kernels: the kernels of a device, which cut a bias from diagonals.
        static: its layout has the `box` of known positions.
        operands: operands that the kernels take.
    """
    if static.layout.box is None or kernels.ways(static, operands) != SLOTS:
        return kernel_call.attention(kernels, static, primals_of(operands), operands)
    line, q_slots = _on_line(static.layout, operands)
    static = static._replace(layout=static.layout._replace(box=None, in_order=False, by_place=False))
    along_line = kernels._replace(ways=_diagonals)
    output, lse = kernel_call.attention(along_line, static, primals_of(line), line)
    return jnp.take(output, q_slots, axis=3), jnp.take(lse, q_slots, axis=3)


def _diagonals(static: Static, operands: Operands) -> tuple[Way, ...]:
    """Return the way to the bias of a line, which is known to allow diagonals."""
    del static, operands
    return DIAGONALS[:1]


def _on_line(layout: Layout, operands: Operands) -> tuple[Operands, Int[Array, " T"]]:
    """Return the operands of the line, and the place of every query on it.

    For dropout, their `Origin` has a number for every query and key, which added to its place tells where it was.
    """
    box = layout.box or ()
    (q_slots, q_places), (_, k_places) = (
        _moved(box, tokens, unplaced)
        for tokens, unplaced in zip((operands.q_tokens, operands.k_tokens), layout.unplaced, strict=True)
    )
    distance = operands.shared.distance_bias
    line = operands._replace(
        q=_taken(operands.q, q_places, 3),
        k=_taken(operands.k, k_places, 2),
        v=_taken(operands.v, k_places, 2),
        shared=replace(operands.shared, distance_bias=Partial(_DistanceOfSlots(distance.func, box), *distance.args)),
        q_tokens=_tokens(box, operands.q_tokens, layout.q_axes, q_places),
        k_tokens=_tokens(box, operands.k_tokens, layout.k_axes, k_places),
        key_bias=None if operands.key_bias is None else _taken(operands.key_bias, k_places, 3),
        origin=operands.origin._replace(
            query=operands.origin.query + _places_left(q_places), key=operands.origin.key + _places_left(k_places)
        ),
    )
    return line, q_slots


def _moved(box: Box, tokens: TokenPositions, unplaced: int) -> tuple[Int[Array, " T"], Int[Array, " L"]]:
    """Return the place of every token on the line, and for every place on it the token, T where there is none."""
    count, slots = slot_count(box), slots_of(box, tokens.positions)
    if tokens.has_position is not None:
        following = count + jnp.cumsum(~tokens.has_position, dtype=jnp.int32) - 1
        slots = jnp.where(tokens.has_position, slots, following)
    places = jnp.full(count + unplaced, len(slots), jnp.int32)
    return slots, places.at[slots].set(jnp.arange(len(slots), dtype=jnp.int32))


def _tokens(box: Box, tokens: TokenPositions, axes: TokenPositions, places: Int[Array, " L"]) -> TokenPositions:
    """Return the tokens of the line."""
    line = jnp.arange(len(places), dtype=jnp.int32)
    segments = tokens.segment_ids
    segments = jnp.ones(tokens.positions.shape[0], jnp.int32) if segments is None else segments
    along = lambda x, axis: _taken(x, places, 0 if axis is None else 1)
    return TokenPositions(
        positions=line,
        order=None if tokens.order is None else along(tokens.order, axes.order),
        has_position=None if tokens.has_position is None else line < slot_count(box),
        segment_ids=along(segments, axes.segment_ids),
    )


def _places_left(places: Int[Array, " L"]) -> UInt32[Array, " L"]:
    """Return where each token was minus where it is now, modulo 2^32."""
    return places.astype(jnp.uint32) - jnp.arange(len(places), dtype=jnp.uint32)


def _taken(x: Any, places: Int[Array, " L"], axis: int) -> Array:
    """Return the entries of an axis at these places, 0 where there is none."""
    return jnp.take(x, places, axis=axis, mode="fill", fill_value=0)
