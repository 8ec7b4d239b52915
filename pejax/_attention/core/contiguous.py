"""Detects consecutive positions, for which key - query is constant along every diagonal."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from pejax._attention.core.operands import Layout, Operands
from pejax._ops.relative import LONGEST
from pejax._positions import TokenPositions


def may_be_consecutive(tokens: TokenPositions, batched: bool) -> bool:
    """Return whether positions can be consecutive: signed integers on one axis."""
    return tokens.positions.ndim == 1 + batched and jnp.issubdtype(tokens.positions.dtype, jnp.signedinteger)


def constant_shift(q_tokens: TokenPositions, k_tokens: TokenPositions) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Return the shift c in `k_j - q_i = j - i + c`, for queries i and keys j of one segment, and whether it exists.

    It exists for consecutive positions from any start, and for packed sequences that restart at the same tokens in
    queries and keys. Padding and tokens without a position do not matter.
    """
    sides = [_shifts(tokens) for tokens in (q_tokens, k_tokens)]
    first_shifts = [shift[0] if relevant is None else shift[jnp.argmax(relevant)] for shift, relevant in sides]
    zero_elsewhere = lambda x, relevant: x if relevant is None else jnp.where(relevant, x, 0)
    relative_shifts = [
        zero_elsewhere(shift - c, relevant) for (shift, relevant), c in zip(sides, first_shifts, strict=True)
    ]
    is_constant = jnp.all(relative_shifts[0] == 0) & jnp.all(relative_shifts[1] == 0)
    given_ids = [tokens.segment_ids for tokens in (q_tokens, k_tokens) if tokens.segment_ids is not None]
    if len(given_ids) == 2:  # packed: a segment may have a shift of its own, if its queries and keys share it
        segments = [
            zero_elsewhere(ids.astype(jnp.int32), relevant) for ids, (_, relevant) in zip(given_ids, sides, strict=True)
        ]
        segment, shift = lax.sort((jnp.concatenate(segments), jnp.concatenate(relative_shifts)), num_keys=2)
        is_constant |= jnp.all((segment[1:] != segment[:-1]) | (shift[1:] == shift[:-1]))
    are_near = _are_near((q_tokens, k_tokens), [relevant for _, relevant in sides])
    return first_shifts[1] - first_shifts[0], is_constant & are_near


def aligned(layout: Layout, operands: Operands) -> tuple[Bool[Array, ""], Int[Array, ""]]:
    """Return whether key - query is `j - i + shift` in every pair of placed tokens of one segment, and the shift."""
    axes = layout.q_axes, layout.k_axes
    sides = (
        tokens._replace(positions=tokens.positions.astype(jnp.int32))
        for tokens in (operands.q_tokens, operands.k_tokens)
    )
    if all(field is None for side in axes for field in side):
        shift, holds = constant_shift(*sides)
        return holds, shift
    shifts, holds = jax.vmap(constant_shift, axes)(*sides)
    return jnp.all(holds) & jnp.all(shifts == shifts[0]), shifts[0]


def _are_near(sides: tuple[TokenPositions, TokenPositions], relevant: list[Any]) -> Bool[Array, ""]:
    """Return whether all positions that matter lie within `LONGEST`, so that no difference of two overflows."""
    ends = []
    for tokens, mask in zip(sides, relevant, strict=True):
        positions = tokens.positions.astype(jnp.float32)
        ends.append(jnp.min(positions, where=mask, initial=jnp.inf))
        ends.append(-jnp.max(positions, where=mask, initial=-jnp.inf))
    # The highest position of both sides minus the lowest: `ends` holds the lowest and minus the highest of each.
    return -jnp.minimum(ends[0], ends[2]) - jnp.minimum(ends[1], ends[3]) < LONGEST


def _shifts(tokens: TokenPositions) -> tuple[Int[Array, " T"], Bool[Array, " T"] | None]:
    """Return position minus index, and the mask of the tokens that have a position and are not padding (None = all)."""
    positions, relevant = tokens.positions, tokens.has_position
    if tokens.segment_ids is not None:
        relevant = (True if relevant is None else relevant) & (tokens.segment_ids != 0)
    return positions - jnp.arange(len(positions), dtype=positions.dtype), relevant
