"""Generation by a decoder with a KV cache, correct for every encoding.

The parameters of some encodings depend on the length (`Encoding.adapt`), which grows with every generated token. Two
policies decide which parameters the earlier tokens get:

    stepwise    query i and all keys that it sees get the parameters of length i + 1
    recompute   all tokens get the parameters of the current length, as in a forward pass over the text so far

`stepwise` rotates the cached keys again in every step. `recompute` runs a forward pass over the text so far whenever
the parameters change, and is the default where they change at single lengths. If they do not change over the lengths of
one generation, both policies give the same result and cost nothing extra.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from pejax._calls.arguments import named_arguments
from pejax._ops.compile_time import are_known, transform_of
from pejax.models.generation.by_layer import runs_by_layer, steps_by_layer
from pejax.models.generation.prompts import Prompts, Stop, as_prompts, as_stop, rounded, rounded_prompts
from pejax.models.generation.sampling import Sampling, check_known, check_sampling
from pejax.models.generation.steps import (
    LENGTH_INDEPENDENT,
    POLICIES,
    Request,
    Settings,
    Text,
    append,
    changed_lengths,
    policy_by_changes,
    read,
)
from pejax.models.networks.decoder import Decoder
from pejax.models.parts.rolling import Rolling


@named_arguments
def generate(
    model: Decoder,
    prompts: Prompts,
    count: int,
    *,
    segment_ids: Int[Array, "B T"] | None = None,
    sampling: Sampling = Sampling(),
    key: Key[Array, ""] | None = None,
    policy: str | None = None,
    stop: Stop = None,
    window: int | None = None,
    first: int = 0,
    renumber: bool = True,
    return_logits: bool = False,
) -> Int[Array, "B N"] | tuple[Int[Array, "B N"], Float[Array, "B N V"]]:
    """Generate the `count` tokens that follow each prompt.

    Inside `jax.jit`, `jax.lax.scan`, `jax.vmap` and other transforms, parameters, prompts, segment ids, keys and stop
    tokens may be traced. What is traced is not checked, because it cannot be seen.

    Args:
        model: a causal decoder.
        prompts: token ids `(B, T)`, or a list of B lists of ids, which may differ in length. In an array, shorter
            prompts are padded on the left, as `segment_ids` says.
        count: N, number of tokens to generate.
        segment_ids: 0 = padding, and 1 = tokens, as in an attention mask; other values number the documents packed into
            a prompt. Positions start from 0 in each document, and the last document is continued. None = each prompt
            is one document.
        sampling: settings of sampling, greedy by default.
        key: random key that tokens are drawn with; required if the temperature is above 0.
        policy: treatment of encodings whose parameters change with the length. "stepwise": the states of a
            token stay as they were computed at its step, which is fast. "recompute": all tokens are computed again at
            each length where parameters change, which equals a full forward pass. None = "recompute" where no two
            successive lengths change them, as with LongRoPE, which changes once; else, and with a window or with
            parameters that are traced, "stepwise".
        stop: id, or several ids, of tokens that end a text, such as `tokenizer.eos`; the rest of the row is filled with
            the token that ended it. None = no token does.
        window: W, number of the last tokens that are kept in the cache, the newest included: a query sees no others
            but the first M. The cache has M + W slots, however long the text. None = all tokens are kept.
        first: M, number of the first tokens of each document that a window keeps, too. Models attend to them much.
        renumber: with a window, whether the kept tokens are counted from 0 again at every step (StreamingLLM), so that
            no position exceeds M + W - 1; if not, tokens keep their own positions. With M = 0 and an encoding of the
            distance alone, both are the same.
        return_logits: whether to return also the logits that each token was drawn from, before penalties and cuts.

    Raises:
        ValueError: a count below 1, an unknown policy, prompts without tokens, a prompt that ends in padding, an id
            outside the vocabulary, sampling settings out of range, a missing key, an encoding that does not support
            the length (such as a learned table that is too short), a window below 1, `first` without a window,
            "recompute" with a window where parameters change, or `renumber` in a model that adds positions to its
            input.
        TypeError: prompts or stop ids that are not integers, such as text; a traced count, or traced sampling settings.

    Examples:
        >>> from pejax.models import decoder
        >>> model = Decoder(decoder(vocab=16, length=8, width=8, layers=1, heads=2), rngs=nnx.Rngs(0))
        >>> generate(model, [[1, 2, 3], [4]], 2, stop=(0, 5)).tolist()  # untrained: all logits are zero
        [[0, 0], [0, 0]]
    """
    rolling = as_rolling(window, first, renumber)
    request, settings, changes = _checked(model, prompts, count, segment_ids, sampling, key, policy, stop, rolling)
    if runs_by_layer(model, request, settings):
        generated, logits = _joined(steps_of(model, request, settings, changes), return_logits)
    else:
        generated, logits = _generate(*nnx.split(model), request, settings, return_logits)
    return (generated, logits) if return_logits else generated  # pyright: ignore[reportReturnType]


@named_arguments
def stream(
    model: Decoder,
    prompts: Prompts,
    count: int,
    *,
    segment_ids: Int[Array, "B T"] | None = None,
    sampling: Sampling = Sampling(),
    key: Key[Array, ""] | None = None,
    policy: str | None = None,
    stop: Stop = None,
    window: int | None = None,
    first: int = 0,
    renumber: bool = True,
    return_logprobs: bool = False,
) -> Iterator[Int[Array, " B"]] | Iterator[tuple[Int[Array, " B"], Float[Array, " B"]]]:
    """Generate the same tokens as `generate`, and yield them one at a time.

    Arguments as in `generate`. The iterator ends after `count` tokens, or as soon as each row has a token of `stop`. No
    token is generated before it is asked for. With `return_logprobs` it yields pairs: the tokens, and the logarithms of
    the probabilities that the model gives them, at temperature 1, before penalties and cuts.

    Raises:
        ValueError: as `generate`, before the first token.
        TypeError: as `generate`; inside a transform, at the latest where the first token is asked for.

    Examples:
        >>> from pejax.models import decoder
        >>> config = decoder(vocab=16, length=8, width=8, layers=1, heads=2)
        >>> model = Decoder(config, rngs=nnx.Rngs(0))
        >>> [int(token[0]) for token in stream(model, [[1, 2]], 3)]  # untrained: all logits are zero
        [0, 0, 0]
        >>> [int(token[0]) for token in stream(model, [[1, 2]], 3, stop=0)]
        [0]
    """
    rolling = as_rolling(window, first, renumber)
    request, settings, changes = _checked(model, prompts, count, segment_ids, sampling, key, policy, stop, rolling)
    _refuse_traced((nnx.state(model), request))
    steps = steps_of(model, request, settings._replace(logprobs=return_logprobs), changes)
    newest = lambda text: (jnp.copy(text.new), jnp.copy(text.logprobs)) if return_logprobs else jnp.copy(text.new)

    def tokens_one_by_one() -> Iterator[Any]:
        for text, _ in steps:
            _refuse_traced(text.new)  # within a transform whose arguments are not those of `stream`
            yield newest(text)  # copied, since the next step reuses the memory of the text
            if request.stop.size and bool(text.done.all()):
                return

    return tokens_one_by_one()


def steps_of(
    model: Decoder, request: Request, settings: Settings, changes: Bool[np.ndarray, " L"] | None
) -> Iterator[tuple[Text, Float[Array, "B V"] | None]]:
    """Return an iterator over the texts after each new token, and its logits where they are at hand.

    Args:
        model: the decoder.
        request: the arrays of the generation.
        settings: its settings.
        changes: as `changed_lengths` returns them.
    """
    count, length = settings.count, request.prompts.shape[1]
    keys = [None] * count if request.key is None else list(jax.random.split(request.key, count))
    settings = settings._replace(count=rounded(length + count - 1) + 1 - length)  # one program serves other counts
    if runs_by_layer(model, request, settings):
        lengths = np.asarray(request.segment_ids).sum(axis=1) + np.arange(count)[:, None]
        computes_again = np.zeros(count, bool)
        if settings.policy == "recompute" and changes is not None:
            computes_again[1:] = changes[lengths[1:]].any(axis=1)
        return steps_by_layer(model, request, settings, keys, computes_again)
    return _steps(*nnx.split(model), request, settings, keys)


def _steps(
    static: Any, params: Any, request: Request, settings: Settings, keys: Sequence[Array | None]
) -> Iterator[tuple[Text, None]]:
    text, _ = _first_step(static, params, request, keys[0], settings)
    yield text, None
    for slot, key in enumerate(keys[1:], request.prompts.shape[1]):
        text = _next_step(static, params, text, request.stop, key, slot, settings)
        yield text, None


def _refuse_traced(arrays: Any) -> None:
    """Raise TypeError for arrays that a transform traces."""
    if transform := transform_of(arrays):
        raise TypeError(f"stream yields known tokens, which there are none of where {transform} traces: call generate")


def as_rolling(window: int | None, first: int, renumber: bool) -> Rolling | None:
    """Return the rolling cache that these arguments of `generate` ask for; None = the cache keeps all tokens."""
    if window is not None:
        return Rolling(window, first, renumber)
    if first:
        raise ValueError(f"first needs a window, whose cache keeps the first tokens too, got first={first} without one")
    return None


def _checked(
    model: Decoder,
    prompts: Prompts,
    count: int,
    segment_ids: Int[Array, "B T"] | None,
    sampling: Sampling,
    key: Key[Array, ""] | None,
    policy: str | None,
    stop: Stop,
    rolling: Rolling | None,
) -> tuple[Request, Settings, Bool[np.ndarray, " L"] | None]:
    """Return the arrays and the settings of a generation, and `changed_lengths`; arguments as in `generate`."""
    config = model.config
    if not config.causal:
        raise ValueError("generation needs a causal model, got causal=False")
    check_known("count", count)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if policy not in (None, *POLICIES):
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, or None, got {policy!r}")
    check_sampling(sampling, config.vocab)
    if sampling.temperature > 0 and key is None:
        raise ValueError(f"temperature={sampling.temperature} needs a key, got None")
    ids, documents = as_prompts(prompts, segment_ids, config.vocab)
    documents = np.ones(ids.shape, np.int32) if documents is None else documents
    documents = np.asarray(documents) if are_known(documents) else documents
    if isinstance(documents, np.ndarray) and (documents[:, -1] == 0).any():
        raise ValueError("segment_ids must end in a token, not in 0, which is padding: pad prompts on the left")
    is_read = documents == documents[:, -1:]  # only the last document of a row is continued
    settings = Settings(count, sampling, LENGTH_INDEPENDENT, rolling)
    longest = int(is_read.sum(axis=1).max()) if isinstance(is_read, np.ndarray) else ids.shape[1]
    longest = min(longest + count - 1, settings.most)
    changes = changed_lengths(model, longest)
    if changes is None or changes[: longest + 1].any():
        settings = settings._replace(policy=policy or policy_by_changes(changes, rolling))
    if rolling is not None and settings.policy == "recompute":
        raise ValueError("policy must be 'stepwise' with a window, because the tokens that it drops cannot be "
                         "computed again, got 'recompute'")  # fmt: skip
    key = key if sampling.temperature else None  # nothing is drawn
    if isinstance(ids, np.ndarray) and isinstance(is_read, np.ndarray):
        ids, is_read = rounded_prompts(ids, is_read, rolling)
    stop_ids = jnp.asarray(as_stop(stop, config.vocab))
    request = Request(jnp.asarray(ids), jnp.asarray(is_read.astype(np.int32)), key, stop_ids)
    return request, settings, changes


def _joined(
    steps: Iterator[tuple[Text, Array | None]], return_logits: bool
) -> tuple[Int[Array, "B N"], Float[Array, "B N V"] | None]:
    """Return the tokens and the logits of all steps."""
    new, logits = zip(*((text.new, logits if return_logits else None) for text, logits in steps), strict=True)
    return jnp.stack(new, axis=1), jnp.stack(logits, axis=1) if return_logits else None


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _generate(
    static: Any, params: Any, request: Request, settings: Settings, return_logits: bool
) -> tuple[Int[Array, "B N"], Float[Array, "B N V"] | None]:
    """Return the generated tokens and their logits."""
    model: Decoder = nnx.merge(static, params)
    count, length = settings.count, request.prompts.shape[1]
    keys = None if request.key is None else jax.random.split(request.key, count)
    text, logits = read(model, request, None if keys is None else keys[0], settings)
    returned = lambda logits: logits if return_logits else None

    def step(text: Text, key_and_slot: tuple[Array | None, Array]) -> tuple[Text, tuple[Array, Array | None]]:
        text, logits = append(model, text, request.stop, *key_and_slot, settings)
        return text, (text.new, returned(logits))

    first = jax.tree.map(lambda leaf: leaf[:, None], (text.new, returned(logits)))
    if count == 1:
        return first
    steps = None if keys is None else keys[1:], jnp.arange(length, length + count - 1, dtype=jnp.int32)
    _, following = jax.lax.scan(step, text, steps)
    join = lambda first, later: jnp.concatenate([first, jnp.moveaxis(later, 0, 1)], axis=1)
    return jax.tree.map(join, first, following)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _first_step(
    static: Any, params: Any, request: Request, key: Array | None, settings: Settings
) -> tuple[Text, Array]:
    return read(nnx.merge(static, params), request, key, settings)


@functools.partial(jax.jit, static_argnums=(0, 6), donate_argnums=2)  # the memory of `text` is reused
def _next_step(
    static: Any, params: Any, text: Text, stop: Array, key: Array | None, slot: Array, settings: Settings
) -> Text:
    return append(nnx.merge(static, params), text, stop, key, slot, settings)[0]
