"""Prompts as arrays or as lists of unequal lengths, and the ids of the tokens that end a text."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from pejax._calls.host import to_jax
from pejax._ops.checks import check_ids, check_token_ids
from pejax._ops.compile_time import transform_of
from pejax.models.parts.rolling import Rolling

Prompts: TypeAlias = Array | np.ndarray | Sequence[Any]
"""Token ids `(B, T)`, or B sequences of ids, which may differ in length."""

Stop: TypeAlias = int | np.integer | Array | np.ndarray | Sequence[int] | None
"""Ids of the tokens that end a text, one or several."""


def as_prompts(
    prompts: Prompts, segment_ids: Int[Array | np.ndarray, "B T"] | None, vocab: int, name: str = "prompts"
) -> tuple[Int[Array | np.ndarray, "B T"], Int[Array | np.ndarray, "B T"] | None]:
    """Return the ids of prompts as one array, those of a list padded on the left, and their segment ids, `on_host`.

    Args:
        prompts: token ids.
        segment_ids: as the caller gives them.
        vocab: V, size of the vocabulary.
        name: the argument in messages.

    Raises:
        ValueError: no token, ids outside the vocabulary, or segment ids of another shape.
        TypeError: ids that are not integers, or text.
    """
    if not isinstance(prompts, jax.Array | np.ndarray):
        prompts, padding = _padded(prompts, vocab, name)
        segment_ids = padding if segment_ids is None else segment_ids
    prompts = on_host(prompts)
    check_token_ids(name, prompts, vocab)
    if prompts.ndim != 2 or 0 in prompts.shape:
        rule = f"{name} must be (B, T), both at least 1, or a list of B lists of token ids"
        raise ValueError(f"{rule}, got an array of shape {prompts.shape}")
    if segment_ids is not None:
        segment_ids = on_host(to_jax("segment_ids", segment_ids))
        check_ids("segment_ids", segment_ids)
        if segment_ids.shape != prompts.shape:
            raise ValueError(f"segment_ids must have the shape of {name}, {prompts.shape}, got {segment_ids.shape}")
        segment_ids = segment_ids.astype(np.int32)
    return prompts.astype(np.int32), segment_ids


def on_host(ids: Int[Array | np.ndarray, "..."]) -> Int[Array | np.ndarray, "..."]:
    """Return known ids as an array of NumPy, which is checked and padded without programs to compile.

    Ids that are traced, or that several devices hold, stay as they are.
    """
    if isinstance(ids, jax.Array) and (isinstance(ids, Tracer) or len(ids.sharding.device_set) > 1):
        return ids
    return np.asarray(ids)


def rounded(length: int) -> int:
    """Return a length of which there are few: a multiple of 16, and of the power of two that is an 8th to a 4th of it.

    It is up to 15 tokens, or up to a quarter, above the one given: 16, 32, ..., 112, 128, 160, 192, 224, 256, 320, ...
    """
    step = max(16, 2 ** (length.bit_length() - 3))
    return -(-length // step) * step


def rounded_prompts(
    ids: Int[np.ndarray, "B T"], is_read: Bool[np.ndarray, "B T"], rolling: Rolling | None
) -> tuple[Int[np.ndarray, "B P"], Bool[np.ndarray, "B P"]]:
    """Return prompts, and which of their tokens are read, padded on the left to a `rounded` length: fewer programs.

    Prompts that fit a rolling cache still do, because that cache takes longer ones by another program.
    """
    length = ids.shape[1]
    padded = rounded(length)
    if rolling is not None and length <= rolling.slots:
        padded = min(padded, rolling.slots)
    width = ((0, 0), (padded - length, 0))
    return np.pad(ids, width), np.pad(is_read, width)


def _padded(prompts: Any, vocab: int, name: str) -> tuple[Array | np.ndarray, Int[np.ndarray, "B T"] | None]:
    """Return a list of prompts padded on the left with id 0, and 0 at the padding, 1 elsewhere; None = no padding."""
    rule = f"{name} must be token ids (B, T), or a list of B lists of token ids"
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise TypeError(f"{rule} (a tokenizer's `encode` makes them of text), got {str(prompts)[:80]!r}")
    if any(isinstance(row, str) for row in prompts):
        raise TypeError(f"{rule} (a tokenizer's `encode` makes them of text), got a list of text")
    if any(_axes(row) == 0 for row in prompts):
        raise ValueError(f"{rule}, got one list of ids: [ids] is a batch of one prompt")
    if not prompts or any(_axes(row) != 1 or not len(row) for row in prompts):
        raise ValueError(f"{rule}, each of at least 1 id, got {str(prompts)[:80]}")
    arrays = jnp if transform_of(prompts) else np
    rows = [arrays.asarray(row) for row in prompts]
    for row in rows:
        check_token_ids(name, row, vocab)
    longest = max(map(len, rows))
    ids = arrays.stack([arrays.pad(row.astype(np.int32), (longest - len(row), 0)) for row in rows])
    padding = np.asarray([[longest - len(row)] for row in rows])
    return ids, (np.arange(longest) >= padding).astype(np.int32) if padding.any() else None


def _axes(ids: Any) -> int:
    """Return the number of axes of an array, or how deep lists are nested; text has none."""
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        return getattr(ids, "ndim", 0)
    return 1 + max(map(_axes, ids), default=0)


def as_stop(stop: Stop, vocab: int) -> Int[Array | np.ndarray, " E"]:
    """Return the E ids that end a text, `on_host`; E = 0 for None.

    Raises:
        ValueError: an id outside the vocabulary, or ids on more than one axis.
        TypeError: ids that are not integers, or text.
    """
    stop = on_host(stop) if isinstance(stop, jax.Array) else stop
    stops = [] if stop is None else [*stop] if _axes(stop) else [stop]  # pyright: ignore[reportGeneralTypeIssues]
    if any(isinstance(item, str) for item in stops):
        raise TypeError(f"stop must be token ids; texts end the pieces of Tokenizer.stream(stop=), got {stop!r}")
    if any(map(_axes, stops)):
        raise ValueError(f"stop must be one id or a list of ids, got {str(stop)[:80]}")
    ids = (jnp if transform_of(stops) else np).asarray(stops) if stops else np.zeros(0, np.int32)
    check_token_ids("stop", ids, vocab)
    return ids.astype(np.int32)


def ends(ids: Int[Array, " B"], stop: Int[Array, " E"]) -> Bool[Array, " B"]:
    """Return which of the ids are among those that end a text."""
    return jnp.any(ids[:, None] == stop, axis=1)
