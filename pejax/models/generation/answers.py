"""Generation by an encoder-decoder: the source is encoded once, then tokens are generated one by one.

The cache of every decoder layer holds its own keys and values, which grow by one token per step, and the keys and
values of the source, which do not change. The length of the answer is fixed in advance, and all encodings adapt to that
length from the first token on, so the answer is the same as without a cache.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int, Key

from pejax._ops.checks import check_token_ids, known_range
from pejax._tokens.positions import TokenPositions
from pejax.models.generation.prompts import Prompts, Stop, as_prompts, as_stop, ends
from pejax.models.generation.sampling import History, Sampling, check_known, check_sampling, sample
from pejax.models.networks.encoder_decoder import EncoderDecoder
from pejax.models.stack.cache import Cache


def generate_answers(
    model: EncoderDecoder,
    source: Prompts,
    source_segments: Int[Array, "B S"] | None,
    count: int,
    *,
    start: int = 0,
    sampling: Sampling = Sampling(),
    key: Key[Array, ""] | None = None,
    stop: Stop = None,
) -> Int[Array, "B N"]:
    """Generate the first `count` tokens of the answer to each source.

    Args:
        model: an encoder-decoder.
        source: token ids `(B, S)`, or a list of B lists of ids, which may differ in length.
        source_segments: 1 for tokens, 0 for padding, as in an attention mask. None = no padding
            except that of lists of different lengths.
        count: N, number of tokens to generate; also the target length that encodings adapt to.
        start: id of the start token, which comes before the answer.
        sampling: settings of sampling, greedy by default.
        key: random key that tokens are drawn with; required if the temperature is above 0.
        stop: id, or several ids, of tokens that end an answer; the rest of its row repeats the one that ended it.
            None = no token ends an answer.

    Raises:
        ValueError: a count below 1, a source without tokens, an id outside the vocabulary, segments other than 0 and 1,
            sampling settings out of range, a missing key, or an encoding that does not support the lengths.
        TypeError: ids that are not integers, such as text; a traced count, or traced sampling settings.
    """
    vocab = model.config.decoder.vocab
    check_known("count", count)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    check_sampling(sampling, vocab)
    if sampling.temperature > 0 and key is None:
        raise ValueError(f"temperature={sampling.temperature} needs a key, got None")
    ids, segments = as_prompts(source, source_segments, vocab, "source")
    check_token_ids("start", start if isinstance(start, jax.Array) else np.asarray(start), vocab)
    smallest, largest = (0, 1) if segments is None else known_range(segments) or (0, 1)
    if smallest < 0 or largest > 1:
        rule = "source_segments must be 0 or 1, because an answer has one source"
        raise ValueError(f"{rule}, got {smallest if smallest < 0 else largest}")
    static, params = nnx.split(model)
    key = key if sampling.temperature else None  # nothing is drawn
    return _answer(static, params, ids, segments, key, start, as_stop(stop, vocab), count, sampling)


@functools.partial(jax.jit, static_argnums=(0, 7, 8))
def _answer(
    static: Any,
    params: Any,
    source: Any,
    segment_ids: Any,
    key: Array | None,
    start: Array | int,
    stop: Any,
    count: int,
    sampling: Sampling,
) -> Int[Array, "B N"]:
    """Return the generated tokens; `key` is None where none is drawn."""
    model: EncoderDecoder = nnx.merge(static, params)
    encoded = model.encode(source, segment_ids)
    batch = len(source)
    keys = None if key is None else jax.random.split(key, count)

    def step(
        carry: tuple[Cache, Array, Array, History], inputs: tuple[Array | None, Array]
    ) -> tuple[tuple[Cache, Array, Array, History], Array]:
        (cache, new, done, history), (key, position) = carry, inputs
        token = TokenPositions(jnp.broadcast_to(position, (batch, 1)))
        logits, cache = model.cached(new[:, None], cache, encoded, tokens=token, extent=count)
        new = jnp.where(done, new, sample(key, logits[:, -1], sampling, history))
        return (cache, new, done | ends(new, stop), history.add(new)), new

    first, done = jnp.full(batch, start, jnp.int32), jnp.zeros(batch, bool)
    history = History.start(sampling, first[:, None], ~done[:, None], model.config.decoder.vocab)
    initial = model.empty_cache(encoded, count), first, done, history
    return jax.lax.scan(step, initial, (keys, jnp.arange(count, dtype=jnp.int32)))[1].T
