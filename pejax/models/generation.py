"""Generation with a cache of keys and values, right for every encoding.

An encoding whose parameters depend on the length (`Encoding.adapt`) changes them while the text grows. Two policies say
what that means for the tokens already there:

    stepwise    query i takes the parameters of length i + 1, for itself and for all the keys it sees
    recompute   every token is as the full forward pass over the present length has it

`stepwise` costs a rotation of the cached keys per step, `recompute` a forward pass over the whole text whenever the
parameters change. Where they do not change over the lengths at hand, the two agree and cost nothing.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from pejax._encoding import Encoding, Params, adapt
from pejax._tokens import TokenPositions
from pejax.models.decoder import Decoder
from pejax.models.sampling import Sampling, check_sampling, sample
from pejax.models.transformer import Cache, sequence_tokens

POLICIES = ("stepwise", "recompute")


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
    """Return the `count` tokens that follow each prompt.

    Args:
        model: causal.
        prompts: tokens; shorter ones are padded on the left.
        count: N, tokens to generate.
        segment_ids: 0 = padding; other values are documents packed one after the other, of which the last is continued,
            from position 0 of its own. None = all of a row is one document.
        sampling: greedy by default.
        key: draws the tokens; needed where the temperature is above 0.
        policy: "stepwise" or "recompute", for encodings whose parameters depend on the length.
        stop: a token after which a row is filled with it.
        return_logits: also return the logits that each token was drawn from.

    Raises:
        ValueError: a count below 1, an unknown policy, a prompt that does not end in a token, an id outside the
            vocabulary, a sampling out of range, no key where one is needed, or an encoding that cannot serve the length
            (a learned table that is too short).
    """
    config, encoding = model.config, model.stack.encoding
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
    adapt(encoding, model.stack.embed_params(), longest)  # refuses what it cannot serve
    steady = bool(is_length_independent(encoding, model.stack.embed_params(), longest))
    static, params = nnx.split(model)
    way = "steady" if steady else policy
    key = jax.random.key(0) if key is None else key
    found, logits = _generate(static, params, prompts, tokens, key, count, sampling, way, stop, return_logits)
    return (found, logits) if return_logits else found


def check_ids(ids: Int[Array, "B T"], vocab: int) -> None:
    """Raise ValueError for a token outside of the vocabulary."""
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= vocab:
        raise ValueError(f"tokens must be from 0 to {vocab - 1}, got {least if least < 0 else most}")


@functools.partial(jax.jit, static_argnums=0)
def is_length_independent(encoding: Encoding, params: Params, longest: int | Array) -> Bool[Array, ""]:
    """Return whether the parameters are the same at every length from 1 to `longest`."""
    if encoding.adapt is None:
        return jnp.ones((), bool)
    first = adapt(encoding, params, jnp.ones((), jnp.int32))
    same = lambda length, so_far: so_far & _same(adapt(encoding, params, length), first)
    return jax.lax.fori_loop(2, longest + 1, same, jnp.ones((), bool))


def _same(a: Any, b: Any) -> Array:
    equal = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.array_equal(x, y), a, b))
    return functools.reduce(jnp.logical_and, equal, jnp.ones((), bool))


class _Text(NamedTuple):
    """What generation carries from token to token.

    Attributes:
        cache: of all tokens but the newest.
        ids: of all slots.
        new: the newest token.
        done: whether it ended the text.
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
    way: str,
    stop: int | None,
    return_logits: bool,
) -> tuple[Int[Array, "B N"], Float[Array, "B N V"] | None]:
    model: Decoder = nnx.merge(static, params)
    batch, length = prompts.shape
    slots = length + count - 1
    grow = lambda array, mode: jnp.pad(array, ((0, 0), (0, slots - length)), mode=mode)
    last, segment_ids = tokens.positions[:, -1], grow(tokens.segment_ids, "edge")
    beyond = last[:, None] + 1 + jnp.arange(slots - length)
    where = TokenPositions(jnp.concatenate([tokens.positions, beyond], axis=1), segment_ids=segment_ids)
    first, *keys = jax.random.split(key, count)

    extent = {"steady": 1, "stepwise": tokens.positions + 1, "recompute": last + 1}[way]
    cache = model.stack.empty_cache(batch, slots)
    logits, cache = model.cached(prompts, cache, tokens=tokens, extent=extent)
    new = sample(first, logits[:, -1], sampling)
    seen = lambda logits: logits[:, -1] if return_logits else None

    def step(text: _Text, at: tuple[Array, Array]) -> tuple[_Text, tuple[Array, Array | None]]:
        key, slot = at
        ids = jax.lax.dynamic_update_slice_in_dim(text.ids, text.new[:, None], slot, axis=1)
        position = last + 1 + slot - length
        place = TokenPositions(position[:, None], segment_ids=segment_ids[:, -1:])
        extent = 1 if way == "steady" else position + 1
        follow = lambda: model.cached(text.new[:, None], text.cache, tokens=place, extent=extent)

        def again() -> tuple[Array, Cache]:
            keep = lambda array: jnp.where(jnp.arange(slots) <= slot, array, 0)
            filled = TokenPositions(keep(where.positions), segment_ids=keep(segment_ids))
            empty = text.cache._replace(used=jnp.zeros((), jnp.int32))
            logits, cache = model.cached(ids, empty, tokens=filled, extent=extent)
            return logits[:, slot][:, None], cache._replace(used=slot + 1)

        changed = way == "recompute" and _changed(model, position + 1)
        logits, cache = follow() if changed is False else jax.lax.cond(changed, again, follow)
        new = sample(key, logits[:, -1], sampling)
        done = text.done if stop is None else text.done | (text.new == stop)
        new = new if stop is None else jnp.where(done, stop, new)
        return _Text(cache, ids, new, done), (new, seen(logits))

    text = _Text(cache, grow(prompts, "constant"), new, jnp.zeros(batch, bool))
    out = jax.tree.map(lambda leaf: leaf[:, None], (new, seen(logits)))
    if count == 1:
        return out
    steps = jnp.stack(keys), jnp.arange(length, slots, dtype=jnp.int32)
    _, following = jax.lax.scan(step, text, steps)
    return jax.tree.map(lambda one, many: jnp.concatenate([one, jnp.moveaxis(many, 0, 1)], axis=1), out, following)


def _changed(model: Decoder, extent: Int[Array, " B"]) -> Array:
    """Return whether any example's parameters are not those of the token before."""
    encoding, params = model.stack.encoding, model.stack.embed_params()
    changed = lambda length: ~_same(adapt(encoding, params, length), adapt(encoding, params, length - 1))
    return jnp.any(jax.vmap(changed)(extent))
