"""Sampling of the next token from logits: temperature, top k and top p."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from pejax._ops.compile_time import transform_of

MIN_TEMPERATURE = 1e-6
"""The lowest temperature above 0; logits divided by it are still finite."""


class Sampling(NamedTuple):
    """The settings of sampling, applied in the order of the fields.

    Attributes:
        temperature: divides the logits; 0 = greedy, the token with the largest logit.
        top_k: draw from the k most probable tokens only; 0 = from all tokens.
        top_p: draw from the smallest set of most probable tokens whose probabilities sum to at least p; 1 = all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


def check_sampling(sampling: Sampling, vocab: int) -> None:
    """Raise ValueError for a setting out of range, given the size of the vocabulary, and TypeError for a traced one."""
    check_known("sampling", sampling)
    if sampling.temperature != 0 and not MIN_TEMPERATURE <= sampling.temperature < math.inf:
        raise ValueError(f"temperature must be 0, or finite and at least {MIN_TEMPERATURE}, got {sampling.temperature}")
    if not 0 <= sampling.top_k <= vocab:
        raise ValueError(f"top_k must be from 0 to the size of the vocabulary, {vocab}, got {sampling.top_k}")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {sampling.top_p}")


def check_known(name: str, value: Any) -> None:
    """Raise TypeError for a traced argument that programs are compiled for; `name` is the argument in the message."""
    if transform := transform_of(value):
        rule = "must be known when generation is traced, because programs are compiled for it"
        raise TypeError(
            f"{name} {rule}, got {value}, traced by {transform}: pass it from outside, or as a static argument"
        )


def sample(key: Key[Array, ""] | None, logits: Float[Array, "B V"], sampling: Sampling) -> Int[Array, " B"]:
    """Draw one token per example from its logits, divided by the temperature and cut to the top k, then to the top p.

    Args:
        key: random key that tokens are drawn with; at temperature 0 it may be None.
        logits: logits of the next token.
        sampling: the settings, which `check_sampling` has checked.

    Reference:
        Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (arXiv 1904.09751), section 3.1: top p.
    """
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    order = jnp.argsort(-logits, axis=-1)
    ranked = jnp.take_along_axis(logits, order, axis=-1) / sampling.temperature
    if sampling.top_k:
        ranked = jnp.where(jnp.arange(ranked.shape[-1]) < sampling.top_k, ranked, -jnp.inf)
    if sampling.top_p < 1:
        p = jax.nn.softmax(ranked, axis=-1)
        ranked = jnp.where(jnp.cumsum(p, axis=-1) - p < sampling.top_p, ranked, -jnp.inf)
    assert key is not None  # as `generate` checks
    drawn = jax.random.categorical(key, ranked, axis=-1)
    return jnp.take_along_axis(order, drawn[:, None], axis=-1)[:, 0].astype(jnp.int32)
