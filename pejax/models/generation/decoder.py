"""Generation by a decoder with a KV cache, correct for every encoding.

The parameters of some encodings depend on the length (`Encoding.adapt`), which grows with every generated token. Two
policies decide which parameters the earlier tokens get:

    stepwise    query i and all keys that it sees get the parameters of length i + 1
    recompute   all tokens get the parameters of the current length, as in a forward pass over the text so far

`stepwise` rotates the cached keys again in every step. `recompute` runs a forward pass over the text so far whenever
the parameters change. If they do not change over the lengths of one generation, both policies give the same result and
cost nothing extra.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from pejax._encoding import Encoding, Params, adapt
from pejax._positions import TokenPositions
from pejax.models.generation.sampling import Sampling, check_sampling, sample
from pejax.models.networks.decoder import Decoder
from pejax.models.stack.transformer import Cache, sequence_tokens

POLICIES = ("stepwise", "recompute")
LENGTH_INDEPENDENT = "length_independent"
"""The policy that replaces both if the parameters are the same at all lengths of one generation."""


def generate(
    model: Decoder,
    prompts: Int[Array, "B T"],
    count: int,
    *,
    segment_ids: Int[Array, "B T"] | None = None,
    sampling: Sampling = Sampling(),
    key: Key[Array, ""] | None = None,
    policy: str = "stepwise",
    stop: int | None = None,
    return_logits: bool = False,
) -> Int[Array, "B N"] | tuple[Int[Array, "B N"], Float[Array, "B N V"]]:
    """Generate the `count` tokens that follow each prompt.

    Args:
        model: a causal decoder.
        prompts: token ids; shorter prompts are padded on the left.
        count: N, number of tokens to generate.
        segment_ids: 0 = padding; other values number the documents packed into a prompt. Positions start from 0 in each
            document, and the last document is continued. None = each row is one document.
        sampling: settings of sampling, greedy by default.
        key: draws the tokens; required if the temperature is above 0.
        policy: treatment of encodings whose parameters change with the length. "stepwise": the cached states
            stay as they were computed at their step, which is fast. "recompute": all tokens are computed again at each
            new length, which equals a full forward pass and is slow.
        stop: id of the stop token; after it, the rest of the row is filled with this id. None = no stop token.
        return_logits: whether to return also the logits that each token was drawn from.

    Raises:
        ValueError: a count below 1, an unknown policy, a prompt that ends in padding, an id outside the vocabulary,
            sampling settings out of range, a missing key, or an encoding that does not support the length (such as a
            learned table that is too short).
    """
    tokens, policy, key = _checked(model, prompts, count, segment_ids, sampling, key, policy)
    static, params = nnx.split(model)
    generated, logits = _generate(static, params, prompts, tokens, key, count, sampling, policy, stop, return_logits)
    return (generated, logits) if return_logits else generated


def stream(
    model: Decoder,
    prompts: Int[Array, "B T"],
    count: int,
    *,
    segment_ids: Int[Array, "B T"] | None = None,
    sampling: Sampling = Sampling(),
    key: Key[Array, ""] | None = None,
    policy: str = "stepwise",
) -> Iterator[Int[Array, " B"]]:
    """Generate the same tokens as `generate`, and yield them one at a time.

    Arguments as in `generate`. Stop reading to stop generating.

    Raises:
        ValueError: as `generate`, before the first token.

    Examples:
        >>> from pejax.models import decoder
        >>> config = decoder(vocab=16, length=8, width=8, layers=1, heads=2)
        >>> model = Decoder(config, rngs=nnx.Rngs(0))
        >>> [int(token[0]) for token in stream(model, jnp.asarray([[1, 2]]), 3)]  # untrained: all logits are zero
        [0, 0, 0]
    """
    tokens, policy, key = _checked(model, prompts, count, segment_ids, sampling, key, policy)
    static, params = nnx.split(model)

    def following() -> Iterator[Int[Array, " B"]]:
        first, *keys = jax.random.split(key, count)
        slots = _slots(tokens, count)
        text, _ = _first(static, params, prompts, slots, first, sampling, policy)
        yield jnp.copy(text.new)  # the next step reuses the memory of the text
        for slot, one in enumerate(keys, prompts.shape[1]):
            text = _following(static, params, text, slots, one, slot, sampling, policy)
            yield jnp.copy(text.new)

    return following()


def _checked(
    model: Decoder,
    prompts: Int[Array, "B T"],
    count: int,
    segment_ids: Int[Array, "B T"] | None,
    sampling: Sampling,
    key: Key[Array, ""] | None,
    policy: str,
) -> tuple[TokenPositions, str, Key[Array, ""]]:
    """Return the positions of the prompts, the policy that is needed, and a key; arguments as in `generate`."""
    config = model.config
    if not config.causal:
        raise ValueError("generation needs a causal model, got causal=False")
    if count < 1 or prompts.ndim != 2 or 0 in prompts.shape:
        raise ValueError(f"count must be at least 1 and prompts (B, T), both at least 1, got {count}, {prompts.shape}")
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    check_sampling(sampling, config.vocab)
    if sampling.temperature > 0 and key is None:
        raise ValueError(f"temperature={sampling.temperature} needs a key, got None")
    check_ids(prompts, config.vocab)
    segment_ids = jnp.ones(prompts.shape, jnp.int32) if segment_ids is None else segment_ids.astype(jnp.int32)
    if segment_ids.shape != prompts.shape or bool((segment_ids[:, -1] == 0).any()):
        raise ValueError(f"segment_ids must have the prompts' shape, {prompts.shape}, and end in a token, not in 0")
    tokens = sequence_tokens(prompts, segment_ids)
    longest = max(int(tokens.positions.max()) + 1, int(tokens.positions[:, -1].max()) + count)
    own = [(one, model.stack.encoding_params(number)) for number, one in enumerate(model.stack.encodings)]
    for encoding, params in own:
        adapt(encoding, params, longest)  # raises if the encoding does not support this length
    if all(bool(is_length_independent(encoding, params, longest)) for encoding, params in own):
        policy = LENGTH_INDEPENDENT
    return tokens, policy, jax.random.key(0) if key is None else key


def check_ids(ids: Int[Array, "B T"], vocab: int) -> None:
    """Raise ValueError for a token id outside the vocabulary."""
    smallest, largest = int(ids.min()), int(ids.max())
    if smallest < 0 or largest >= vocab:
        raise ValueError(f"tokens must be from 0 to {vocab - 1}, got {smallest if smallest < 0 else largest}")


@functools.partial(jax.jit, static_argnums=0)
def is_length_independent(encoding: Encoding, params: Params, longest: int | Array) -> Bool[Array, ""]:
    """Return whether the encoding's parameters are the same at every length from 1 to `longest`."""
    if encoding.adapt is None:
        return jnp.ones((), bool)
    first = adapt(encoding, params, jnp.ones((), jnp.int32))
    same = lambda length, so_far: so_far & _trees_equal(adapt(encoding, params, length), first)
    return jax.lax.fori_loop(2, longest + 1, same, jnp.ones((), bool))


def _trees_equal(a: Any, b: Any) -> Array:
    """Return whether all arrays of two pytrees of the same structure are equal."""
    equal = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.array_equal(x, y), a, b))
    return functools.reduce(jnp.logical_and, equal, jnp.ones((), bool))


class _Text(NamedTuple):
    """The carry of the scan over generated tokens.

    Attributes:
        cache: keys and values of all tokens except the newest.
        ids: token ids of all slots.
        new: the newest token of each row.
        done: whether a row has generated the stop token.
    """

    cache: Cache
    ids: Int[Array, "B S"]
    new: Int[Array, " B"]
    done: Array


@functools.partial(jax.jit, static_argnums=(0, 5, 6, 7, 8, 9))
def _generate(
    static: Any,
    params: Any,
    prompts: Array,
    tokens: TokenPositions,
    key: Array,
    count: int,
    sampling: Sampling,
    policy: str,
    stop: int | None,
    return_logits: bool,
) -> tuple[Int[Array, "B N"], Float[Array, "B N V"] | None]:
    """Return the generated tokens and their logits; arguments as in `generate`, or policy = `LENGTH_INDEPENDENT`."""
    model: Decoder = nnx.merge(static, params)
    slots, length = _slots(tokens, count), prompts.shape[1]
    first_key, *keys = jax.random.split(key, count)
    text, logits = _read(model, prompts, slots, first_key, sampling, policy)
    kept = lambda logits: logits if return_logits else None

    def step(text: _Text, key_and_slot: tuple[Array, Array]) -> tuple[_Text, tuple[Array, Array | None]]:
        done = text.done if stop is None else text.done | (text.new == stop)
        text, logits = _append(model, text, slots, *key_and_slot, sampling, policy)
        text = text if stop is None else text._replace(new=jnp.where(done, stop, text.new), done=done)
        return text, (text.new, kept(logits))

    first = jax.tree.map(lambda leaf: leaf[:, None], (text.new, kept(logits)))
    if count == 1:
        return first
    steps = jnp.stack(keys), jnp.arange(length, length + count - 1, dtype=jnp.int32)
    _, following = jax.lax.scan(step, text, steps)
    return jax.tree.map(lambda one, many: jnp.concatenate([one, jnp.moveaxis(many, 0, 1)], axis=1), first, following)


def _slots(tokens: TokenPositions, count: int) -> TokenPositions:
    """Return the positions of all slots: of the prompts, then of all new tokens but the last."""
    last, later = tokens.positions[:, -1:], jnp.arange(1, count, dtype=tokens.positions.dtype)
    segment_ids = jnp.pad(tokens.segment_ids, ((0, 0), (0, count - 1)), mode="edge")  # pyright: ignore[reportArgumentType]
    return TokenPositions(jnp.concatenate([tokens.positions, last + later], axis=1), segment_ids=segment_ids)


def _read(
    model: Decoder, prompts: Array, slots: TokenPositions, key: Array, sampling: Sampling, policy: str
) -> tuple[_Text, Float[Array, "B V"]]:
    """Return the text after the prompts with its first new token, and the logits that it was drawn from."""
    batch, length = prompts.shape
    count = slots.positions.shape[1]
    tokens = TokenPositions(slots.positions[:, :length], segment_ids=slots.segment_ids[:, :length])  # pyright: ignore[reportOptionalSubscript]
    extent = {LENGTH_INDEPENDENT: 1, "stepwise": tokens.positions + 1, "recompute": tokens.positions[:, -1] + 1}[policy]
    cache = model.stack.empty_cache(batch, count)
    logits, cache = model.cached(prompts, cache, tokens=tokens, extent=extent)
    ids = jnp.pad(prompts, ((0, 0), (0, count - length)))
    return _Text(cache, ids, sample(key, logits[:, -1], sampling), jnp.zeros(batch, bool)), logits[:, -1]


def _append(
    model: Decoder, text: _Text, slots: TokenPositions, key: Array, slot: Array, sampling: Sampling, policy: str
) -> tuple[_Text, Float[Array, "B V"]]:
    """Return the text with its newest token in a slot and one more new token, and the logits that it was drawn from."""
    ids = jax.lax.dynamic_update_slice_in_dim(text.ids, text.new[:, None], slot, axis=1)
    at_slot = lambda array: jax.lax.dynamic_index_in_dim(array, slot, axis=1)
    token = TokenPositions(at_slot(slots.positions), segment_ids=at_slot(slots.segment_ids))
    position = token.positions[:, 0]
    extent = 1 if policy == LENGTH_INDEPENDENT else position + 1
    append = lambda: model.cached(text.new[:, None], text.cache, tokens=token, extent=extent)

    def recompute() -> tuple[Array, Cache]:
        keep = lambda array: jnp.where(jnp.arange(ids.shape[1]) <= slot, array, 0)
        filled = TokenPositions(keep(slots.positions), segment_ids=keep(slots.segment_ids))
        empty = text.cache._replace(used=jnp.zeros((), jnp.int32))
        logits, cache = model.cached(ids, empty, tokens=filled, extent=extent)
        return logits[:, slot][:, None], cache._replace(used=slot + 1)

    changed = policy == "recompute" and _params_changed(model, position + 1)
    logits, cache = append() if changed is False else jax.lax.cond(changed, recompute, append)
    return text._replace(cache=cache, ids=ids, new=sample(key, logits[:, -1], sampling)), logits[:, -1]


@functools.partial(jax.jit, static_argnums=(0, 5, 6))
def _first(
    static: Any, params: Any, prompts: Array, slots: TokenPositions, key: Array, sampling: Sampling, policy: str
) -> tuple[_Text, Array]:
    return _read(nnx.merge(static, params), prompts, slots, key, sampling, policy)


@functools.partial(jax.jit, static_argnums=(0, 6, 7), donate_argnums=2)
def _following(
    static: Any,
    params: Any,
    text: _Text,
    slots: TokenPositions,
    key: Array,
    slot: Array,
    sampling: Sampling,
    policy: str,
) -> _Text:
    return _append(nnx.merge(static, params), text, slots, key, slot, sampling, policy)[0]


def _params_changed(model: Decoder, extent: Int[Array, " B"]) -> Array:
    """Return whether the parameters of any encoding and example differ from those one token earlier."""

    def changed(number: int, encoding: Encoding) -> Array:
        params = model.stack.encoding_params(number)
        differ = lambda length: ~_trees_equal(adapt(encoding, params, length), adapt(encoding, params, length - 1))
        return jnp.any(jax.vmap(differ)(extent))

    found = [changed(number, encoding) for number, encoding in enumerate(model.stack.encodings)]
    return functools.reduce(jnp.logical_or, found)
