"""Dropout of attention weights by a hash of indices: every implementation, tile and device drops the same pairs.

Reference:
    The finalizer's constants: C. Wellons, "hash-prospector" (lowbias32).
"""

import numbers
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32


class Dropout(NamedTuple):
    """The dropout of one head: a random seed, and indices that are the same however the arrays are sharded.

    Attributes:
        seed: two random 32-bit numbers.
        batch: index of the example.
        head: index of the query head.
        first_query: index of the first query on this device.
        first_key: index of the first key on this device.
    """

    seed: UInt32[Array, "2"]
    batch: UInt32[Array, ""]
    head: UInt32[Array, ""]
    first_query: UInt32[Array, ""] | np.uint32 = np.uint32(0)
    first_key: UInt32[Array, ""] | np.uint32 = np.uint32(0)


def keep_pairs(
    dropout: Dropout, queries: UInt32[Array, " T"], keys: UInt32[Array, " S"], rate: float
) -> Bool[Array, "T S"]:
    """Return the pairs to keep: `hash(seed, batch, head, query, key) >= rate·2³²`.

    The hash is `finalize(row + column)`, with one word per row and one per column: one `finalize` per pair.

    Args:
        dropout: seed and indices of this head.
        queries: indices of the queries, counted from `first_query`.
        keys: indices of the keys, counted from `first_key`.
        rate: share of the pairs to drop, in [0, 1).
    """
    return keep_words(query_words(dropout, queries)[:, None] + key_words(dropout, keys)[None, :], rate)


def query_words(dropout: Dropout, queries: UInt32[Array, " T"]) -> UInt32[Array, " T"]:
    """Return the word of each query; `keep_pairs` says what the queries are."""
    stream = finalize(finalize(dropout.seed[0] ^ dropout.batch) + dropout.head)
    return finalize(stream ^ finalize(queries + dropout.first_query + dropout.seed[1]))


def key_words(dropout: Dropout, keys: UInt32[Array, " S"]) -> UInt32[Array, " S"]:
    """Return the word of each key, the same for all examples and heads."""
    return finalize(finalize((keys + dropout.first_key) ^ dropout.seed[1]) + dropout.seed[0])


def keep_words(words: UInt32[Array, "..."], rate: float) -> Bool[Array, "..."]:
    """Return which pairs to keep, from the sum of the words of the query and of the key."""
    threshold = min(round(rate * 2**32), 2**32 - 1)  # a rate just below 1 rounds up to 2^32, which is no uint32
    return finalize(words) >= jnp.uint32(threshold)


def apply_dropout(weights: Float[Array, "T S"], keep: Bool[Array, "T S"], rate: float) -> Float[Array, "T S"]:
    """Return the kept weights divided by 1 - rate, and 0 for the dropped ones."""
    return jnp.where(keep, weights / (1.0 - rate), 0.0)


def finalize(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Mix 32 bits: an xor-shift-multiply bijection; flipping an input bit flips about half the output bits."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)


def check_dropout(dropout: tuple[Array, float] | None) -> tuple[Array | None, float]:
    """Return the seed (two words drawn from the key) and the rate; the seed is None if nothing is dropped.

    Raises:
        TypeError: neither None nor a key and a number.
        ValueError: a rate outside [0, 1).
    """
    if dropout is None:
        return None, 0.0
    is_rate = lambda x: isinstance(x, numbers.Real) or jnp.issubdtype(getattr(x, "dtype", bool), jnp.floating)
    if not (isinstance(dropout, tuple) and len(dropout) == 2 and is_rate(dropout[1])):
        kinds = [type(x).__name__ for x in dropout] if isinstance(dropout, tuple) else type(dropout).__name__
        raise TypeError(f"dropout must be (key, rate) with a number as rate, got {kinds}")
    key, rate = dropout
    if not 0 <= rate < 1:
        raise ValueError(f"dropout must be (key, rate) with 0 <= rate < 1, got rate={rate}")
    return (jax.random.bits(key, (2,), jnp.uint32) if rate else None), float(rate)
