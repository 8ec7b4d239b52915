"""Detects consecutive positions, for which key - query is constant along every diagonal.

    p_j - p_i = j - i + shift

p_i is the position of query i, p_j that of key j.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from pejax._attention.core.operands import Layout, Operands
from pejax._ops.relative import LONGEST
from pejax._tokens.positions import TokenPositions, in_one_type


def may_be_consecutive(tokens: TokenPositions, batched: bool) -> bool:
    """Return whether positions can be consecutive: signed integers on one axis."""
    return tokens.positions.ndim == 1 + batched and jnp.issubdtype(tokens.positions.dtype, jnp.signedinteger)


def constant_shift(q_tokens: TokenPositions, k_tokens: TokenPositions) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Return the shift in `p_j - p_i = j - i + shift`, for queries i and keys j of one segment, and whether it exists.

    It exists for consecutive positions from any start, and for packed sequences that restart at the same tokens in
    queries and keys. Padding and tokens without a position do not matter.
    """
    shifts_and_masks = [_shifts(tokens) for tokens in (q_tokens, k_tokens)]
    first_shifts = [shifts[0] if mask is None else shifts[jnp.argmax(mask)] for shifts, mask in shifts_and_masks]
    zero_elsewhere = lambda x, mask: x if mask is None else jnp.where(mask, x, 0)
    relative_shifts = [
        zero_elsewhere(shifts - first, mask)
        for (shifts, mask), first in zip(shifts_and_masks, first_shifts, strict=True)
    ]
    is_constant = jnp.all(relative_shifts[0] == 0) & jnp.all(relative_shifts[1] == 0)
    given_ids = [tokens.segment_ids for tokens in (q_tokens, k_tokens) if tokens.segment_ids is not None]
    if len(given_ids) == 2:  # packed: a segment may have a shift of its own, if its queries and keys share it
        segments = [
            zero_elsewhere(ids, mask) for ids, (_, mask) in zip(in_one_type(*given_ids), shifts_and_masks, strict=True)
        ]
        # Sorted, the tokens of a segment are neighbors: its shifts are equal if each equals the one before.
        segment, shift = lax.sort((jnp.concatenate(segments), jnp.concatenate(relative_shifts)), num_keys=2)
        is_constant |= jnp.all((segment[1:] != segment[:-1]) | (shift[1:] == shift[:-1]))
    are_near = _are_near((q_tokens, k_tokens), [mask for _, mask in shifts_and_masks])
    return first_shifts[1] - first_shifts[0], is_constant & are_near


def common_shift(layout: Layout, operands: Operands) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Return the `constant_shift` that all examples share, and whether it exists."""
    axes = layout.q_axes, layout.k_axes
    token_sides = operands.q_tokens, operands.k_tokens
    positions = in_one_type(*(tokens.positions for tokens in token_sides))
    sides = [tokens._replace(positions=values) for tokens, values in zip(token_sides, positions, strict=True)]
    if all(field is None for side in axes for field in side):
        shift, exists = constant_shift(*sides)
        return shift.astype(jnp.int32), exists
    shifts, exist = jax.vmap(constant_shift, axes)(*sides)
    return shifts[0].astype(jnp.int32), jnp.all(exist) & jnp.all(shifts == shifts[0])


def _are_near(sides: tuple[TokenPositions, TokenPositions], masks: list[Any]) -> Bool[Array, ""]:
    """Return whether all positions lie within `LONGEST`, so that no difference of two overflows.

    Args:
        sides: tokens of the queries and of the keys.
        masks: for each side, the mask of the tokens that matter; None = all do.
    """
    ends = []
    for tokens, mask in zip(sides, masks, strict=True):
        positions = tokens.positions.astype(jnp.float32)
        ends.append(jnp.min(positions, where=mask, initial=jnp.inf))
        ends.append(-jnp.max(positions, where=mask, initial=-jnp.inf))
    # The highest position of both sides minus the lowest: `ends` holds the lowest and minus the highest of each.
    return -jnp.minimum(ends[0], ends[2]) - jnp.minimum(ends[1], ends[3]) < LONGEST


def _shifts(tokens: TokenPositions) -> tuple[Int[Array, " T"], Bool[Array, " T"] | None]:
    """Return position minus index, and the mask of the tokens that have a position and are not padding (None = all)."""
    positions, mask = tokens.positions, tokens.has_position
    if tokens.segment_ids is not None:
        mask = (True if mask is None else mask) & (tokens.segment_ids != 0)
    return positions - jnp.arange(len(positions), dtype=positions.dtype), mask
