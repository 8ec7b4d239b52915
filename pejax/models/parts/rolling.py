"""A rolling cache: it keeps the first M and the last W tokens of a text, in M + W slots.

The token at index i of its text is in slot i if i < M, else in slot M + (i - M) mod W. A query at index i sees the keys
j ≤ i with j < M or i - j < W. The positions of query and keys are counted in one of two ways:

    own indices     query i, key j
    renumbered      query min(i, M + W - 1); key j if j < M, else min(i, M + W - 1) - (i - j)

Renumbered positions are below the number of slots. The distances to the last W keys are the same in both.

Reference:
    Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453), section 3.2. There
    the newest token comes on top of the M + W; here it is one of the last W.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pejax._calls.arguments import checked_fields
from pejax._tokens.positions import TokenPositions


@jax.tree_util.register_static
@checked_fields
@dataclass(frozen=True)
class Rolling:
    """The tokens that a rolling cache keeps, and how it counts them.

    Args:
        window: W, number of the last tokens that are kept, the newest included.
        first: M, number of the first tokens of a text that are kept, too.
        renumber: whether the kept tokens are counted from 0 at every step, without the dropped tokens between them; if
            not, they keep their own positions.
        empty: whether nothing has been written yet.

    Raises:
        ValueError: a window below 1, or a negative `first`.
    """

    window: int
    first: int = 0
    renumber: bool = True
    empty: bool = True

    def __post_init__(self) -> None:
        if self.window < 1 or self.first < 0:
            raise ValueError(f"window must be at least 1 and first at least 0, got {self.window} and {self.first}")

    @property
    def slots(self) -> int:
        """M + W, number of slots."""
        return self.first + self.window


class Part(NamedTuple):
    """The attention from new tokens to some of the keys.

    Attributes:
        keys: "new", those of the new tokens; "slots", those in the cache, the new ones included; "first", those in its
            first M slots; or "window", those that were in its other slots, and the new ones.
        tokens: positions of the queries.
        k_tokens: positions of the keys; segment 0 = the key is in no slot, or in another part.
        window: number of the last keys that a query sees. None = all.
    """

    keys: str
    tokens: TokenPositions
    k_tokens: TokenPositions
    window: int | None = None


class RollingStep(NamedTuple):
    """One step of a rolling cache, the same in all layers.

    Attributes:
        rolling: the tokens that are kept.
        written: `(B, T)`, the slot that each new token is written to; M + W = it is not kept.
        parts: the attention from the new tokens; no key is in two of them.
    """

    rolling: Rolling
    written: Int[Array, "B T"]
    parts: tuple[Part, ...]


def rolling_step(rolling: Rolling, slots: TokenPositions, tokens: TokenPositions) -> tuple[RollingStep, TokenPositions]:
    """Return the step that adds new tokens, and the tokens in the slots after it.

    Args:
        rolling: the tokens that are kept.
        slots: index and segment `(B, M + W)` of the token in each slot before the step.
        tokens: index and segment `(B, T)` of the new tokens.
    """
    first, window = rolling.first, rolling.window
    index, segments = tokens.positions, tokens.segment_ids
    newest = jnp.max(jnp.where(segments != 0, index, -1), axis=1, keepdims=True)
    is_kept = (segments != 0) & ((index < first) | (index > newest - window))
    written = jnp.where(is_kept, jnp.where(index < first, index, first + (index - first) % window), rolling.slots)
    write = lambda old, new: write_slots(old, new, written)
    after = TokenPositions(write(slots.positions, index), segment_ids=write(slots.segment_ids, segments))
    count = index.shape[1]
    if count == 1:
        parts = (_of_one_token(rolling, tokens, after),)
    elif rolling.empty and count <= rolling.slots:
        parts = (Part("new", tokens, tokens),)
    else:
        parts = _of_a_block(rolling, slots, tokens, after)
    return RollingStep(rolling, written, parts), after


def write_slots(old: Array, new: Array, written: Int[Array, "B T"]) -> Array:
    """Return an array of slots `(B, M + W, ...)` with the new rows `(B, T, ...)` in the slots that they belong to."""
    return old.at[jnp.arange(len(old))[:, None], written].set(new.astype(old.dtype), mode="drop")


def keys_of(part: Part, first: int, before: Array, new: Array, after: Array) -> Array:
    """Return the keys, or values, of a part.

    Args:
        part: attention to some of the keys.
        first: M, number of the first tokens that are kept.
        before: keys, or values, in the slots before the step.
        new: those of the new tokens.
        after: those in the slots after the step.
    """
    match part.keys:
        case "new":
            return new
        case "slots":
            return after
        case "first":
            return after[:, :first]
    return jnp.concatenate([before[:, first:], new.astype(before.dtype)], axis=1)


def _of_one_token(rolling: Rolling, tokens: TokenPositions, slots: TokenPositions) -> Part:
    """Return the attention from one token to all slots, which hold exactly the keys that it sees."""
    if not rolling.renumber:
        return Part("slots", tokens, slots)
    newest = jnp.minimum(tokens.positions, rolling.slots - 1)
    renumbered = jnp.where(
        slots.positions < rolling.first, slots.positions, newest - tokens.positions + slots.positions
    )
    return Part("slots", tokens._replace(positions=newest), slots._replace(positions=renumbered))


def _of_a_block(
    rolling: Rolling, before: TokenPositions, tokens: TokenPositions, after: TokenPositions
) -> tuple[Part, ...]:
    """Return the attention from several tokens, which see different keys.

    In the attention to the last W keys, queries and keys keep their own indices even if tokens are renumbered, because
    distances are the same. An encoding that reads anything else takes one token at a time (`rolls_blocks`).
    """
    first = rolling.first
    joined = lambda old, new: jnp.concatenate([old[:, first:], new], axis=1)
    index = joined(before.positions, tokens.positions)
    segments = jnp.where(index < first, 0, joined(before.segment_ids, tokens.segment_ids))
    window_part = Part("window", tokens, TokenPositions(index, segment_ids=segments), rolling.window)
    if not first:
        return (window_part,)
    limit = rolling.slots - 1 if rolling.renumber else jnp.iinfo(tokens.positions.dtype).max
    queries = tokens._replace(positions=jnp.minimum(tokens.positions, limit))
    return window_part, Part("first", queries, jax.tree.map(lambda leaf: leaf[:, :first], after))
