"""The length that encodings adapt to where rows hold padding, or several documents: each row has its own.

    extent_b = max over the tokens of row b, padding left out, of p + 1

p is a token's position in its document, so the extent is the length of the longest document of the row, which all
documents in the row share.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from pejax._encoding import Extent, adapt
from pejax._positions import TokenPositions, segment_positions
from pejax.models.stack.layered import Layered


def own_extents(tokens: TokenPositions, length: int, model: Layered, also: bool = False) -> Extent:
    """Return the extent of rows of T tokens: T, or, where they have segment ids, that of each row, `(B,)`.

    Args:
        tokens: positions of the tokens, and their documents; 0 = padding.
        length: T.
        model: the layers, whose encodings adapt to the extent. Where none does, the extent is T.
        also: whether an encoding of something else, such as cross-attention, adapts to it.

    Raises:
        ValueError: an encoding that does not support the longest extent, or, where that is traced, T.
    """
    adapting = [number for number, encoding in enumerate(model.encodings) if encoding.adapt is not None]
    if tokens.segment_ids is None or not (adapting or also):
        return length
    extents = one_if_equal(document_lengths(tokens))
    longest = length if isinstance(extents, Tracer) else int(np.max(extents))
    for number in adapting:
        supports = functools.partial(adapt, model.encodings[number], extent=longest)
        jax.eval_shape(supports, model.encoding_params(number))
    return extents


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
    if isinstance(extents, Tracer) or not extents.is_fully_addressable:
        return extents
    known = np.unique(np.asarray(extents))
    return int(known[0]) if len(known) == 1 else extents
