"""The steps of generation by a decoder: the prompts are read, then one token is added at a time."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from pejax._attention.by_example import follows_extent
from pejax._ops.compile_time import computed_now, transform_of
from pejax._record.encoding import Encoding, Extent, Params, adapt
from pejax._tokens.positions import TokenPositions
from pejax.models.generation.prompts import ends, rounded
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
    def settled(self) -> bool:
        """Whether encodings have the same parameters at all lengths of the generation."""
        return self.policy == LENGTH_INDEPENDENT

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


class Turn(NamedTuple):
    """Tokens that the layers take at once, after those in the cache.

    Attributes:
        ids: their ids.
        tokens: their positions.
        extent: the length or lengths that encodings adapt to.
        place: index of the token after which the new one comes.
        settled: whether encodings have the parameters of this extent at all lengths.
    """

    ids: Int[Array, "B T"]
    tokens: TokenPositions
    extent: Extent
    place: int | Int[Array, ""]
    settled: bool = False


def opened(model: Decoder, request: Request, settings: Settings) -> Text:
    """Return the text before the prompts are read."""
    batch, length = request.prompts.shape
    slots = request.slots(settings.count)
    count = slots.positions.shape[1]
    cache = model.stack.empty_cache(batch, count if settings.rolling is None else settings.rolling)
    ids = jnp.pad(request.prompts, ((0, 0), (0, count - length)))
    history = History.start(settings.sampling, request.prompts, request.segment_ids == 1, model.config.vocab)
    logprobs = jnp.zeros(batch) if settings.logprobs else None
    return Text(cache, slots, ids, jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool), history, logprobs)


def prompt_turn(text: Text, length: int, settings: Settings) -> Turn:
    """Return the turn of the prompts, which fill the first `length` slots."""
    tokens = jax.tree.map(lambda leaf: leaf[:, :length], text.slots)
    extent = {
        LENGTH_INDEPENDENT: 1,
        "stepwise": settings.extent(tokens.positions),
        "recompute": tokens.positions[:, -1] + 1,
    }
    return Turn(text.ids[:, :length], tokens, extent[settings.policy], length - 1, settings.settled)


def next_turn(text: Text, slot: Array, settings: Settings) -> tuple[Text, Turn]:
    """Return the text with its newest token in a slot, and the turn of that token."""
    ids = jax.lax.dynamic_update_slice_in_dim(text.ids, text.new[:, None], slot, axis=1)
    token = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, slot, axis=1), text.slots)
    extent = 1 if settings.settled else settings.extent(token.positions)[:, 0]
    return text._replace(ids=ids), Turn(text.new[:, None], token, extent, 0, settings.settled)


def whole_turn(text: Text, slot: Array, extent: Extent) -> tuple[Text, Turn]:
    """Return the text with an empty cache, and the turn of all tokens up to a slot, the later ones as padding."""
    keep = lambda array: jnp.where(jnp.arange(text.ids.shape[1]) <= slot, array, 0)
    filled = TokenPositions(keep(text.slots.positions), segment_ids=keep(text.slots.segment_ids))
    empty = text.cache._replace(used=jnp.zeros((), jnp.int32))
    return text._replace(cache=empty), Turn(text.ids, filled, extent, slot)


def take(model: Decoder, text: Text, turn: Turn) -> tuple[Float[Array, "B 1 C"], Cache]:
    """Return the states at the turn's place after all layers, and the cache with the turn's tokens."""
    x = model.embedding(turn.ids)
    x, cache = model.stack(x, turn.tokens, turn.extent, cache=text.cache, settled=turn.settled)
    return jax.lax.dynamic_slice_in_dim(x, turn.place, 1, axis=1), cache  # pyright: ignore[reportReturnType]


def continued(
    model: Decoder, text: Text, x: Float[Array, "B 1 C"], stop: Int[Array, " E"], key: Array | None, settings: Settings
) -> tuple[Text, Float[Array, "B V"]]:
    """Return the text with one more new token, and the logits that it was drawn from; x is what `take` returns."""
    logits = model.logits(x)[:, -1]
    new = jnp.where(text.done, text.new, sample(key, logits, settings.sampling, text.history))
    logprobs = logprobs_of(logits, new) if settings.logprobs else None
    done, history = text.done | ends(new, stop), text.history.add(new)
    return text._replace(new=new, done=done, history=history, logprobs=logprobs), logits


def read(model: Decoder, request: Request, key: Array | None, settings: Settings) -> tuple[Text, Float[Array, "B V"]]:
    """Return the text after the prompts with its first new token, and the logits that it was drawn from."""
    length, rolling = request.prompts.shape[1], settings.rolling
    text = opened(model, request, settings)
    turn = prompt_turn(text, length, settings)
    if rolling is not None and length > rolling.slots:
        x, cache = _read_by_blocks(model, text.cache, turn, settings, rolling)
    else:
        x, cache = take(model, text, turn)
    return continued(model, text._replace(cache=cache), x, request.stop, key, settings)


def _read_by_blocks(
    model: Decoder, cache: Cache, turn: Turn, settings: Settings, rolling: Rolling
) -> tuple[Float[Array, "B 1 C"], Cache]:
    """Return the states after prompts that are longer than the rolling cache, and the cache.

    The cache first takes as many tokens as it has slots, then a block at a time; single tokens, where those of a block
    would need keys at different positions (`rolls_blocks`).
    """
    remainder = turn.ids.shape[1] - rolling.slots
    lengths = 1 if turn.settled else settings.extent(turn.tokens.positions)
    size = min(BLOCK, remainder) if model.stack.rolls_blocks(rolling, lengths) else 1
    padding = -remainder % size  # padding on the left makes the rest whole blocks
    ids, tokens = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (padding, 0))), (turn.ids, turn.tokens))
    part = lambda start, count: jax.tree.map(
        lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, count, axis=1), (ids, tokens)
    )

    def read_block(cache: Cache, start: Array | int, count: int) -> tuple[Cache, Array]:
        block, own_mask = part(start, count)
        lengths = settings.extent(own_mask.positions)
        extent = 1 if turn.settled else lengths[:, 0] if count == 1 else lengths
        x, cache = model.stack(model.embedding(block), own_mask, extent, cache=cache, settled=turn.settled)  # pyright: ignore[reportAssignmentType]
        return cache, x[:, -1:]

    cache, x = read_block(cache, 0, rolling.slots)
    starts = rolling.slots + size * jnp.arange((remainder + padding) // size, dtype=jnp.int32)
    (cache, x), _ = jax.lax.scan(lambda carry, start: (read_block(carry[0], start, size), None), (cache, x), starts)
    return x, cache


def append(
    model: Decoder, text: Text, stop: Int[Array, " E"], key: Array | None, slot: Array, settings: Settings
) -> tuple[Text, Float[Array, "B V"]]:
    """Return the text with its newest token in a slot and one more new token, and the logits that it was drawn from."""
    text, turn = next_turn(text, slot, settings)

    def recompute() -> tuple[Array, Cache]:
        x, cache = take(model, *whole_turn(text, slot, turn.extent))
        return x, cache._replace(used=slot + 1)

    one_more = lambda: take(model, text, turn)
    changed = settings.policy == "recompute" and _params_changed(model, turn.extent)
    x, cache = one_more() if changed is False else jax.lax.cond(changed, recompute, one_more)
    return continued(model, text._replace(cache=cache), x, stop, key, settings)


def changed_lengths(model: Decoder, longest: int) -> Bool[np.ndarray, " L"] | None:
    """Return whether parameters of encodings at length n differ from those at n - 1, for n = 0 ... `longest` + 1.

    None = nobody knows, because parameters are traced.

    Raises:
        ValueError: an encoding that does not support the longest length, or no length that is traced.
    """
    changes = np.zeros(longest + 2, bool)
    for number, encoding in enumerate(model.stack.encodings):
        if encoding.adapt is None:
            continue
        params = model.stack.encoding_params(number)
        jax.eval_shape(functools.partial(adapt, encoding, extent=longest), params)
        if not follows_extent(encoding, params):
            continue
        if transform_of(params):  # unknown numbers cannot be compared
            return None
        count = rounded(longest)
        changes[2:] |= computed_now(lambda: np.asarray(_changes(encoding, params, count)))[:longest]  # noqa: B023
    return changes


@functools.partial(jax.jit, static_argnums=(0, 2))
def _changes(encoding: Encoding, params: Params, count: int) -> Bool[Array, " N"]:
    """Return whether the encoding's parameters at length n differ from those at n - 1, for n = 2 ... `count` + 1."""

    def compared(before: Params, length: Array) -> tuple[Params, Array]:
        after = adapt(encoding, params, length)
        return after, ~_trees_equal(after, before)

    lengths = jnp.arange(1, count + 2, dtype=jnp.int32)
    return jax.lax.scan(compared, adapt(encoding, params, lengths[0]), lengths[1:])[1]


def policy_by_changes(changes: Bool[np.ndarray, " L"] | None, rolling: Rolling | None) -> str:
    """Return the policy of a generation that names none: to recompute where no two successive lengths change."""
    is_rare = changes is not None and not (changes[1:] & changes[:-1]).any()
    return "recompute" if is_rare and rolling is None else "stepwise"


def _trees_equal(a: Any, b: Any) -> Array:
    """Return whether all arrays of two pytrees of the same structure are equal."""
    equal = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.array_equal(x, y), a, b))
    return functools.reduce(jnp.logical_and, equal, jnp.ones((), bool))


def _params_changed(model: Decoder, extent: Extent) -> Array:
    """Return whether the parameters of any encoding and example differ from those one token earlier."""

    def changed(number: int, encoding: Encoding) -> Array:
        params = model.stack.encoding_params(number)
        differ = lambda length: ~_trees_equal(adapt(encoding, params, length), adapt(encoding, params, length - 1))
        return jnp.any(jax.vmap(differ)(jnp.asarray(extent)))

    changes = [changed(number, encoding) for number, encoding in enumerate(model.stack.encodings)]
    return functools.reduce(jnp.logical_or, changes)
