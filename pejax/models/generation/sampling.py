"""Sampling of the next token from logits: penalties on tokens that are there, temperature, top k, top p and min p."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from pejax._ops.compile_time import transform_of

MIN_TEMPERATURE = 1e-6
"""The lowest temperature above 0; logits divided by it are still finite."""


class Sampling(NamedTuple):
    """The settings of sampling. Penalties come first, then the other settings in the order of the fields.

    Attributes:
        temperature: divides the logits; 0 = greedy, the token with the largest logit.
        top_k: draw from the k most probable tokens only; 0 = from all tokens.
        top_p: draw from the smallest set of most probable tokens whose probabilities sum to at least p; 1 = all.
        min_p: draw from tokens that are at least p times as probable as the most probable one; 0 = from all tokens.
        repetition_penalty: divides the positive logits of the tokens in the prompt and the text so far, and multiplies
            the negative ones; 1 = none.
        presence_penalty: subtracted from the logits of the tokens in the text so far, without the prompt; from -2 to 2.
        frequency_penalty: the same, times the number of times that a token is there; from -2 to 2.

    Reference:
        Keskar et al. 2019, "CTRL" (arXiv 1909.05858), section 4.1: the repetition penalty. Nguyen et al. 2024, "Turning
        Up the Heat: Min-p Sampling" (arXiv 2407.01082). Presence and frequency are those of OpenAI's interface.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class History(NamedTuple):
    """The tokens that are there already, as far as penalties read them.

    Attributes:
        seen: whether a token is in the prompt or the text so far. None = nothing reads it.
        counts: number of times that a token is in the text so far, without the prompt. None = nothing reads it.
    """

    seen: Bool[Array, "B V"] | None
    counts: Int[Array, "B V"] | None

    @classmethod
    def start(
        cls, sampling: Sampling, prompts: Int[Array, "B T"], is_token: Bool[Array, "B T"], vocab: int
    ) -> "History":
        """Return the history before the first token.

        Args:
            sampling: the settings, which say what is read.
            prompts: token ids.
            is_token: whether they are read; padding and other documents are not.
            vocab: V, number of tokens.
        """
        seen = counts = None
        if sampling.repetition_penalty != 1:
            rows, empty = jnp.arange(len(prompts))[:, None], jnp.zeros((len(prompts), vocab), jnp.int32)
            seen = empty.at[rows, prompts].add(is_token.astype(jnp.int32)) > 0
        if sampling.presence_penalty or sampling.frequency_penalty:
            counts = jnp.zeros((len(prompts), vocab), jnp.int32)
        return cls(seen, counts)

    def add(self, new: Int[Array, " B"]) -> "History":
        """Return the history with one more token per row."""
        rows = jnp.arange(len(new))
        return History(
            seen=None if self.seen is None else self.seen.at[rows, new].set(True),
            counts=None if self.counts is None else self.counts.at[rows, new].add(1),
        )


def check_sampling(sampling: Sampling, vocab: int) -> None:
    """Raise ValueError for a setting out of range, given the size of the vocabulary, and TypeError for a traced one."""
    check_known("sampling", sampling)
    if sampling.temperature != 0 and not MIN_TEMPERATURE <= sampling.temperature < math.inf:
        raise ValueError(f"temperature must be 0, or finite and at least {MIN_TEMPERATURE}, got {sampling.temperature}")
    if not 0 <= sampling.top_k <= vocab:
        raise ValueError(f"top_k must be from 0 to the size of the vocabulary, {vocab}, got {sampling.top_k}")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {sampling.top_p}")
    if not 0 <= sampling.min_p <= 1:
        raise ValueError(f"min_p must be from 0 to 1, got {sampling.min_p}")
    if not 0 < sampling.repetition_penalty < math.inf:
        raise ValueError(f"repetition_penalty must be above 0 and finite, got {sampling.repetition_penalty}")
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= getattr(sampling, name) <= 2:
            raise ValueError(f"{name} must be from -2 to 2, got {getattr(sampling, name)}")


def check_known(name: str, value: Any) -> None:
    """Raise TypeError for a traced argument that programs are compiled for; `name` is the argument in the message."""
    if transform := transform_of(value):
        rule = "must be known when generation is traced, because programs are compiled for it"
        raise TypeError(
            f"{name} {rule}, got {value}, traced by {transform}: pass it from outside, or as a static argument"
        )


def penalized(logits: Float[Array, "B V"], sampling: Sampling, history: History) -> Float[Array, "B V"]:
    """Return the logits after the penalties on the tokens of the history."""
    if history.seen is not None:
        factor = sampling.repetition_penalty
        logits = jnp.where(history.seen, jnp.where(logits < 0, logits * factor, logits / factor), logits)
    if history.counts is not None:
        counts, present = (part.astype(logits.dtype) for part in (history.counts, history.counts > 0))
        logits = logits - sampling.frequency_penalty * counts - sampling.presence_penalty * present
    return logits


def ranked(logits: Float[Array, "B V"], sampling: Sampling) -> tuple[Float[Array, "B V"], Int[Array, "B V"]]:
    """Return the logits that a token is drawn by, from the largest to the smallest, and the ids of their tokens.

    They are divided by the temperature and cut to the top k, then to the top p, then by min p: -inf is not drawn.
    """
    order = jnp.argsort(-logits, axis=-1)
    result = jnp.take_along_axis(logits, order, axis=-1) / sampling.temperature
    if sampling.top_k:
        result = jnp.where(jnp.arange(result.shape[-1]) < sampling.top_k, result, -jnp.inf)
    if sampling.top_p < 1:
        p = jax.nn.softmax(result, axis=-1)
        result = jnp.where(jnp.cumsum(p, axis=-1) - p < sampling.top_p, result, -jnp.inf)
    if sampling.min_p:
        result = jnp.where(result >= result[:, :1] + math.log(sampling.min_p), result, -jnp.inf)
    return result, order


def sample(
    key: Key[Array, ""] | None, logits: Float[Array, "B V"], sampling: Sampling, history: History | None = None
) -> Int[Array, " B"]:
    """Draw one token per example from its logits.

    Args:
        key: random key that tokens are drawn with; at temperature 0 it may be None.
        logits: logits of the next token.
        sampling: the settings, which `check_sampling` has checked.
        history: the tokens that are there. None = no penalty.

    Reference:
        Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (arXiv 1904.09751), section 3.1: top p.
    """
    if history is not None:
        logits = penalized(logits, sampling, history)
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    by_rank, order = ranked(logits, sampling)
    assert key is not None  # as `generate` checks
    drawn = jax.random.categorical(key, by_rank, axis=-1)
    return jnp.take_along_axis(order, drawn[:, None], axis=-1)[:, 0].astype(jnp.int32)


def logprobs_of(logits: Float[Array, "B V"], new: Int[Array, " B"]) -> Float[Array, " B"]:
    """Return the logarithms of the probabilities that the model itself gives new tokens, before penalties and cuts."""
    everything = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return jnp.take_along_axis(everything, new[:, None], axis=-1)[:, 0]
