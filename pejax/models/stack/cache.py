"""The KV cache: what it holds, which tokens it takes, and how it is cut."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from pejax._attention.core.order import first_fall
from pejax._tokens.positions import TokenPositions
from pejax.models.parts.attention import LayerCache
from pejax.models.parts.rolling import Rolling


class Cache(NamedTuple):
    """The KV cache of decoding: S slots that are filled from the left, in step for the whole batch, or that roll.

    Attributes:
        layers: keys and values `(layers, B, K, S, D)`, one entry per `Body`: the layers that one program computes.
        tokens: position of the token in each slot, `(B, S)`; segment 0 = an empty slot, or padding.
        used: number of tokens so far, padding included; without `rolling` the number of filled slots.
        rolling: the tokens that a rolling cache keeps; None = all of them.
    """

    layers: tuple[LayerCache, ...]
    tokens: TokenPositions
    used: Int[Array, ""]
    rolling: Rolling | None = None

    def cut(self, length: int | Int[Array, "*B"]) -> "Cache":
        """Return the cache with its first slots alone, as it was before later tokens came, such as rejected drafts.

        Keys and values stay where they are, and are not copied: the slots behind count as empty, and are written next.

        Args:
            length: number of slots to keep, padding included, at most `used`; one for all examples, or one for each.
                Then the cache keeps the slots of the longest, and those between are padding. It may be traced.

        Raises:
            ValueError: a rolling cache, whose dropped tokens cannot come back; a negative length, or one above `used`,
                as far as both are known.

        Examples:
            >>> from flax import nnx
            >>> from pejax.models import Decoder, decoder
            >>> model = Decoder(decoder(vocab=16, length=8, width=8, layers=1, heads=2), rngs=nnx.Rngs(0))
            >>> ids, tokens = jnp.ones((1, 4), jnp.int32), TokenPositions(jnp.arange(4))
            >>> _, cache = model.cached(ids, model.stack.empty_cache(1, 8), tokens=tokens, extent=4)
            >>> int(cache.cut(3).used)
            3
        """
        if self.rolling is not None:
            raise ValueError("a rolling cache cannot be cut, because the tokens that it dropped do not come back")
        if not isinstance(length, Tracer) and not isinstance(self.used, Tracer):
            lengths = np.asarray(length)
            if lengths.min() < 0 or lengths.max() > int(self.used):
                raise ValueError(f"length must be from 0 to used={int(self.used)}, got {lengths.tolist()}")
        length = jnp.asarray(length, jnp.int32)
        is_kept = jnp.arange(self.tokens.positions.shape[-1]) < length.reshape(-1, 1)
        lengths = lambda values: jnp.where(is_kept, values, 0)
        tokens = TokenPositions(lengths(self.tokens.positions), segment_ids=lengths(self.tokens.segment_ids))
        return self._replace(tokens=tokens, used=jnp.max(length))


def check_cacheable(cache: Cache, tokens: TokenPositions) -> None:
    """Raise ValueError for tokens that a cache cannot hold; outside jit, also for too many, or those that it has."""
    if (
        not jnp.issubdtype(tokens.positions.dtype, jnp.integer)
        or tokens.order is not None
        or tokens.has_position is not None
    ):
        fields = [name for name in ("order", "has_position") if getattr(tokens, name) is not None]
        received = f"{tokens.positions.dtype} positions, and {', '.join(fields) or 'neither'}"
        rule = "a cache holds tokens at integer positions, without order or has_position"
        raise ValueError(f"{rule}, got {received}: pass TokenPositions(positions, segment_ids=...)")
    slots, new = cache.tokens.positions.shape[-1], tokens.positions.shape[-1]
    if cache.rolling is None and not isinstance(cache.used, Tracer) and int(cache.used) + new > slots:
        raise ValueError(f"a cache of {slots} slots, {int(cache.used)} of them used, cannot take {new} more tokens")
    _check_new(cache, tokens)


def _check_new(cache: Cache, tokens: TokenPositions) -> None:
    """Raise ValueError for a token at a position that another one of its segment has, if nothing is traced."""
    segments = np.int64(1) if tokens.segment_ids is None else tokens.segment_ids
    arrays = (cache.tokens.positions, cache.tokens.segment_ids, tokens.positions, segments)
    if any(isinstance(array, Tracer) for array in arrays):
        return
    old_at, old_in, new_at, new_in = (np.asarray(array, np.int64) for array in arrays)
    shape = (len(old_at), new_at.shape[-1])
    new_at, new_in = (np.broadcast_to(array, shape) for array in (new_at, new_in))
    rows = zip(old_at, old_in, new_at, new_in, strict=True)
    for row, (were_at, were_in, are_at, are_in) in enumerate(rows):
        at, document = (np.concatenate(pair) for pair in ((were_at, are_at), (were_in, are_in)))
        first = np.unique((document << 32) + at, return_index=True)[1]
        again = np.setdiff1d(np.flatnonzero(document), first)
        if np.any(again >= len(were_at)):  # a new token, not one that was there before
            rule = "a cache takes tokens at positions that no token of their segment has"
            way = "cache.cut(length) drops the tokens from a slot on"
            raise ValueError(f"{rule}, got {at[again].max()} again in example {row}: {way}")
    if fall := first_fall(new_at, new_in):
        raise ValueError(f"a cache takes the tokens of a segment in the order of their positions, got {fall}")


def with_new_tokens(slots: TokenPositions, tokens: TokenPositions, start: Array, batch: int) -> TokenPositions:
    """Return the positions in the slots of a cache, with new tokens written from slot `start` on."""
    write = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=1)
    new = batched(tokens, batch)
    return TokenPositions(write(slots.positions, new.positions), segment_ids=write(slots.segment_ids, new.segment_ids))


def batched(tokens: TokenPositions, batch: int) -> TokenPositions:
    """Return positions and segment ids `(B, T)` in int32; without segment ids, all tokens are in segment 1."""
    with_batch = lambda x: jnp.broadcast_to(x.astype(jnp.int32), (batch, x.shape[-1]))
    segment_ids = jnp.ones_like(tokens.positions) if tokens.segment_ids is None else tokens.segment_ids
    return TokenPositions(with_batch(tokens.positions), segment_ids=with_batch(segment_ids))


def one_query(token: TokenPositions, slots: TokenPositions) -> tuple[TokenPositions, TokenPositions]:
    """Return a single new token and those in the slots, ordered so that it sees its own segment without segment ids.

    A slot that it must not see comes after it in the order. So attention need not clear the keys and values of such
    slots, which would copy all of them for every token: they hold no NaN, being zeros or states of other tokens.
    """
    own = (slots.segment_ids == token.segment_ids) & (slots.segment_ids != 0)
    order = jnp.where(own, slots.positions, jnp.iinfo(jnp.int32).max)
    return TokenPositions(token.positions, token.positions), TokenPositions(slots.positions, order)
