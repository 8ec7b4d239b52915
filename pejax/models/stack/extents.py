"""The length that encodings adapt to where rows hold padding, or several documents: each row has its own.

    extent_b = max over the tokens of row b, padding left out, of p + 1

p is a token's position in its document, so the extent is the length of the longest document of the row, which all
documents in the row share.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from pejax._attention.by_example import follows_extent
from pejax._record.encoding import Encoding, Extent, Params, adapt
from pejax._tokens.positions import TokenPositions, segment_positions


def own_extents(
    tokens: TokenPositions,
    length: Extent,
    encodings: Sequence[Encoding],
    params_of: Callable[[int], Params],
    also: bool = False,
) -> Extent:
    """Return the extent of rows of T tokens: T, or, where they have segment ids, that of each row, `(B,)`.

    Args:
        tokens: positions of the tokens, and their documents; 0 = padding.
        length: T.
        encodings: the encodings that adapt to the extent. Where it changes none of them, one extent serves all rows.
        params_of: number of an encoding -> its parameters, before `adapt`.
        also: whether an encoding of something else, such as cross-attention, adapts to it.

    Raises:
        ValueError: an encoding that does not support the longest extent, or, where that is traced, T; or that needs one
            extent which is known when traced.
    """
    if tokens.segment_ids is None:
        return length
    adapting = [(encoding, params_of(number)) for number, encoding in enumerate(encodings) if encoding.adapt]
    if not (adapting or also):
        return length
    refusal, traced = "", any(isinstance(field, Tracer) for field in tokens)
    try:
        follow = also or any(follows_extent(*arguments) for arguments in adapting)
    except ValueError as refused:  # it must know the extent when it is traced
        follow, refusal = True, str(refused)
    extents: Extent = length
    if follow or not traced:
        with contextlib.nullcontext() if traced else jax.ensure_compile_time_eval():
            extents = one_if_equal(document_lengths(tokens))
    longest = int(np.max(extents)) if is_known(extents) else length
    for encoding, params in adapting:
        jax.eval_shape(functools.partial(adapt, encoding, extent=longest), params)
    if refusal and not isinstance(extents, int):
        rule = "rows with padding or several documents have an extent each, unless extent= is given"
        raise ValueError(f"{rule}: {refusal}")
    return extents if follow else longest


def with_segments(tokens: TokenPositions) -> TokenPositions:
    """Return traced positions of one document as such, for `own_extents`: they may begin anywhere, not at 0 alone."""
    if tokens.segment_ids is not None or not isinstance(tokens.positions, Tracer):
        return tokens
    shape = (tokens.positions if tokens.order is None else tokens.order).shape
    return tokens._replace(segment_ids=jnp.ones(shape, jnp.int32))


def document_lengths(tokens: TokenPositions) -> Int[Array, "*B"]:
    """Return the length of the longest document of each row that has segment ids, at least 1.

    Integer positions count it, because they must lie below the extent; others do not say how many tokens there are, and
    the tokens of a document are counted.
    """
    positions, segment_ids = tokens.positions, tokens.segment_ids
    counts = segment_ids != 0
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        positions = segment_positions(segment_ids)  # pyright: ignore[reportArgumentType]
    elif tokens.has_position is not None:
        counts &= tokens.has_position
    return jnp.max(jnp.where(counts, positions.astype(jnp.int32), 0), axis=-1) + 1


def one_if_equal(extents: Int[Array, "*B"]) -> Extent:
    """Return the one extent that all rows have, where they are known and equal; else the extents as they are."""
    if not is_known(extents):
        return extents
    different = np.unique(np.asarray(extents))
    return int(different[0]) if len(different) == 1 else extents


def is_known(extents: Extent) -> bool:
    """Return whether this process knows the numbers: they are neither traced nor on devices of another one."""
    return not isinstance(extents, Tracer) and getattr(extents, "is_fully_addressable", True)
