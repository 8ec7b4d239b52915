"""The steps of generation by a decoder: the prompts are read, then one token is added at a time."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from pejax._attention.by_example import follows_extent
from pejax._ops.compile_time import computed_now, transform_of
from pejax._record.encoding import Encoding, Params, adapt
from pejax._tokens.positions import TokenPositions
from pejax.models.generation.prompts import ends
from pejax.models.generation.sampling import History, Sampling, logprobs_of, sample
from pejax.models.networks.decoder import Decoder
from pejax.models.parts.rolling import Rolling
from pejax.models.stack.cache import Cache

POLICIES = ("stepwise", "recompute")
LENGTH_INDEPENDENT = "length_independent"
"""The policy that replaces both if the parameters are the same at all lengths of one generation."""

BLOCK = 256
"""Maximum number of tokens of a prompt that a full rolling cache takes at once."""


class Settings(NamedTuple):
    """The settings of a generation that are compiled into it.

    Attributes:
        count: number of tokens to generate.
        sampling: how they are drawn.
        policy: as in `generate`, or `LENGTH_INDEPENDENT`.
        rolling: the tokens that the cache keeps. None = all.
        logprobs: whether the probabilities of the tokens are computed.
    """

    count: int
    sampling: Sampling
    policy: str
    rolling: Rolling | None
    logprobs: bool = False

    @property
    def most(self) -> int:
        """The largest length that the encoding counts."""
        rolling = self.rolling
        return np.iinfo(np.int32).max if rolling is None or not rolling.renumber else rolling.slots

    def extent(self, positions: Int[Array, "B T"]) -> Int[Array, "B T"]:
        """Return the length of the text that ends in each token, as the encoding counts it."""
        return jnp.minimum(positions + 1, self.most)


class Request(NamedTuple):
    """The arrays of a generation.

    Attributes:
        prompts: token ids.
        segment_ids: 1 = a token of the document that is continued, 0 = any other.
        key: random key that tokens are drawn with. None = none is drawn.
        stop: ids of the tokens that end a text.
    """

    prompts: Int[Array, "B T"]
    segment_ids: Int[Array, "B T"]
    key: Key[Array, ""] | None
    stop: Int[Array, " E"]

    def slots(self, count: int) -> TokenPositions:
        """Return the positions of the prompts, then of all new tokens but the last, which is not read."""
        segment_ids = jnp.pad(self.segment_ids, ((0, 0), (0, count - 1)), constant_values=1)
        positions = jnp.where(segment_ids == 1, jnp.cumsum(segment_ids, axis=1) - 1, 0)
        return TokenPositions(positions, segment_ids=segment_ids)


class Text(NamedTuple):
    """The carry of the scan over generated tokens.

    Attributes:
        cache: keys and values of all tokens except the newest.
        slots: positions of the tokens of all slots.
        ids: token ids of all slots.
        new: the newest token of each row.
        done: whether a row has generated a token that ends a text.
        history: the tokens that penalties read, the newest included.
        logprobs: logarithms of the model's probabilities of the newest tokens. None = nobody asks for them.
    """

    cache: Cache
    slots: TokenPositions
    ids: Int[Array, "B S"]
    new: Int[Array, " B"]
    done: Bool[Array, " B"]
    history: History
    logprobs: Float[Array, " B"] | None


def read(model: Decoder, request: Request, key: Array | None, settings: Settings) -> tuple[Text, Float[Array, "B V"]]:
    """Return the text after the prompts with its first new token, and the logits that it was drawn from."""
    batch, length = request.prompts.shape
    slots, rolling = request.slots(settings.count), settings.rolling
    count = slots.positions.shape[1]
    tokens = jax.tree.map(lambda leaf: leaf[:, :length], slots)
    if rolling is not None and length > rolling.slots:
        logits, cache = _read_by_blocks(model, request.prompts, tokens, settings, rolling)
    else:
        cache = model.stack.empty_cache(batch, count if rolling is None else rolling)
        extent = {
            LENGTH_INDEPENDENT: 1,
            "stepwise": settings.extent(tokens.positions),
            "recompute": tokens.positions[:, -1] + 1,
        }
        logits, cache = model.cached(request.prompts, cache, tokens=tokens, extent=extent[settings.policy])
        logits = logits[:, -1]
    ids = jnp.pad(request.prompts, ((0, 0), (0, count - length)))
    history = History.start(settings.sampling, request.prompts, request.segment_ids == 1, model.config.vocab)
    new = sample(key, logits, settings.sampling, history)
    logprobs = logprobs_of(logits, new) if settings.logprobs else None
    return Text(cache, slots, ids, new, ends(new, request.stop), history.add(new), logprobs), logits


def _read_by_blocks(
    model: Decoder, prompts: Array, tokens: TokenPositions, settings: Settings, rolling: Rolling
) -> tuple[Float[Array, "B V"], Cache]:
    """Return the logits after prompts that are longer than the rolling cache, and the cache.

    The cache first takes as many tokens as it has slots, then a block at a time; single tokens, where those of a block
    would need keys at different positions (`rolls_blocks`).
    """
    batch, remainder = len(prompts), prompts.shape[1] - rolling.slots
    independent = settings.policy == LENGTH_INDEPENDENT
    lengths = 1 if independent else settings.extent(tokens.positions)
    size = min(BLOCK, remainder) if model.stack.rolls_blocks(rolling, lengths) else 1
    padding = -remainder % size  # padding on the left makes the rest whole blocks
    ids, tokens = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (padding, 0))), (prompts, tokens))
    part = lambda start, count: jax.tree.map(
        lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, count, axis=1), (ids, tokens)
    )

    def read_block(cache: Cache, start: Array | int, count: int) -> tuple[Cache, Array]:
        block, own_mask = part(start, count)
        lengths = settings.extent(own_mask.positions)
        extent = 1 if independent else lengths[:, 0] if count == 1 else lengths
        logits, cache = model.cached(block, cache, tokens=own_mask, extent=extent)
        return cache, logits[:, -1]

    cache, _ = read_block(model.stack.empty_cache(batch, rolling), 0, rolling.slots)
    starts = rolling.slots + size * jnp.arange((remainder + padding) // size, dtype=jnp.int32)
    (cache, logits), _ = jax.lax.scan(
        lambda carry, start: (read_block(carry[0], start, size), None),
        (cache, jnp.zeros((batch, model.config.vocab))),
        starts,
    )
    return logits, cache


def append(
    model: Decoder, text: Text, stop: Int[Array, " E"], key: Array | None, slot: Array, settings: Settings
) -> tuple[Text, Float[Array, "B V"]]:
    """Return the text with its newest token in a slot and one more new token, and the logits that it was drawn from."""
    slots, policy = text.slots, settings.policy
    ids = jax.lax.dynamic_update_slice_in_dim(text.ids, text.new[:, None], slot, axis=1)
    token = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, slot, axis=1), slots)
    length = settings.extent(token.positions)[:, 0]
    extent = 1 if policy == LENGTH_INDEPENDENT else length
    one_more = lambda: model.cached(text.new[:, None], text.cache, tokens=token, extent=extent)

    def recompute() -> tuple[Array, Cache]:
        keep = lambda array: jnp.where(jnp.arange(ids.shape[1]) <= slot, array, 0)
        filled = TokenPositions(keep(slots.positions), segment_ids=keep(slots.segment_ids))
        empty = text.cache._replace(used=jnp.zeros((), jnp.int32))
        logits, cache = model.cached(ids, empty, tokens=filled, extent=extent)
        return logits[:, slot][:, None], cache._replace(used=slot + 1)

    changed = policy == "recompute" and _params_changed(model, length)
    logits, cache = one_more() if changed is False else jax.lax.cond(changed, recompute, one_more)
    logits = logits[:, -1]
    new = jnp.where(text.done, text.new, sample(key, logits, settings.sampling, text.history))
    logprobs = logprobs_of(logits, new) if settings.logprobs else None
    return Text(cache, slots, ids, new, text.done | ends(new, stop), text.history.add(new), logprobs), logits


def keeps_params(model: Decoder, number: int, longest: int) -> bool:
    """Return whether an encoding of the model is known to have the same parameters at all lengths up to `longest`.

    Raises:
        ValueError: an encoding that does not support this length, or no length that is traced.
    """
    encoding = model.stack.encodings[number]
    if encoding.adapt is None:
        return True
    params = model.stack.encoding_params(number)
    jax.eval_shape(functools.partial(adapt, encoding, extent=longest), params)
    if not follows_extent(encoding, params):
        return True
    if transform_of(params):  # unknown numbers cannot be compared
        return False
    return computed_now(lambda: bool(is_length_independent(encoding, params, longest)))


@functools.partial(jax.jit, static_argnums=0)
def is_length_independent(encoding: Encoding, params: Params, longest: int | Array) -> Bool[Array, ""]:
    """Return whether the encoding's parameters are the same at every length from 1 to `longest`."""
    first = adapt(encoding, params, jnp.ones((), jnp.int32))
    unchanged = lambda length, so_far: so_far & _trees_equal(adapt(encoding, params, length), first)
    return jax.lax.fori_loop(2, longest + 1, unchanged, jnp.ones((), bool))


def _trees_equal(a: Any, b: Any) -> Array:
    """Return whether all arrays of two pytrees of the same structure are equal."""
    equal = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.array_equal(x, y), a, b))
    return functools.reduce(jnp.logical_and, equal, jnp.ones((), bool))


def _params_changed(model: Decoder, extent: Int[Array, " B"]) -> Array:
    """Return whether the parameters of any encoding and example differ from those one token earlier."""

    def changed(number: int, encoding: Encoding) -> Array:
        params = model.stack.encoding_params(number)
        differ = lambda length: ~_trees_equal(adapt(encoding, params, length), adapt(encoding, params, length - 1))
        return jnp.any(jax.vmap(differ)(extent))

    changes = [changed(number, encoding) for number, encoding in enumerate(model.stack.encodings)]
    return functools.reduce(jnp.logical_or, changes)
