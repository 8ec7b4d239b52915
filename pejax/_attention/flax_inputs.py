"""What a layer of Flax hands to its `attention_fn` beside q, k and v: masks of numbers, types, positions of tokens."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from pejax._attention.core.operands import check_tokens, pair_array
from pejax._attention.core.order import follow_arrays
from pejax._calls.kinds import shown
from pejax._ops.compile_time import are_known
from pejax._tokens.positions import Positions, TokenPositions, as_token_positions

ADDITIVE_MASK = "an additive mask goes into bias"
"""What to do with a mask of logits."""

MASK_IN_BIAS = "where a key is seen or not goes into mask"
"""What to do with a bias that is none: its numbers would be added."""


def read_mask(mask: Array, value: Array) -> tuple[Array, Array]:
    """Return a mask of numbers as Flax makes them, 1 = seen and 0 = masked, as booleans, and the values.

    A mask of other numbers, such as an additive one (0 = seen), would be read the wrong way round. It is refused; if
    its numbers are not known, under `jax.jit`, the values become NaN, and so do the outputs.

    Raises:
        ValueError: a known mask with other numbers, or one of numbers that masks everything.
    """
    if mask.dtype == jnp.bool_:
        return mask, value
    is_valid = jnp.all((mask == 0) | (mask == 1))
    if isinstance(is_valid, Tracer):
        return (mask == 1) | ~is_valid, jnp.where(is_valid, value, jnp.nan)
    if not is_valid or (mask.size and not jnp.any(mask)):
        rule = f"mask must be True or 1 where a key is seen, else False or 0 ({ADDITIVE_MASK})"
        raise ValueError(f"{rule}, got numbers from {jnp.min(mask)} to {jnp.max(mask)}")
    return mask == 1, value


def float_type(dtype: Any) -> jnp.dtype:
    """Return a type of floats; raise TypeError for any other."""
    with contextlib.suppress(TypeError):
        if jnp.issubdtype(dtype, jnp.floating):
            return jnp.dtype(dtype)
    raise TypeError(f"dtype must be a type of floats or None, got {shown(dtype)}")


def read_precision(precision: Any) -> Any:
    """Return a precision that `jax.numpy.matmul` takes, and that can be an option of a compiled function."""
    precision = tuple(precision) if isinstance(precision, list) else precision
    square = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    try:
        if precision is not None:
            jax.eval_shape(functools.partial(jnp.matmul, precision=precision), square, square)
    except (TypeError, ValueError):
        raise TypeError(f"precision must be a precision of jax.lax or None, got {shown(precision)}") from None
    return precision


def sides_of_input(
    positions: Positions,
    arrays: tuple[Array, Array, Array],
    mask: Bool[Array, "..."] | None,
    *,
    axes: int,
    causal: bool,
    spans: bool,
) -> tuple[Positions, TokenPositions | None, Array]:
    """Return the positions of queries and keys from those that a layer hands on, and the values.

    In a step of cached decoding, the layer has one query and the keys of all slots of its cache, and only the mask
    says which slots are filled: the last of them is the query's. The positions are those of all slots, or that of the
    query alone; then the tokens before it count up to it. Of a known step that cannot be, it is refused; if it is
    traced, the values become NaN, and so do the outputs.

    Args:
        positions: what the layer was given as `input_positions`.
        arrays: query, key and value.
        mask: which keys are seen; it broadcasts to `(*B, H, T, S)`.
        axes: number of position axes.
        causal: as in `follow_arrays`.
        spans: as in `follow_arrays`.

    Returns:
        Positions of the queries, those of the keys (None = the same), and the values.

    Raises:
        ValueError: positions of another shape, keys of other tokens, or a step that does not count the slots.
    """
    query, key, value = arrays
    (*batch, length, heads, _), slots = query.shape, key.shape[-3]
    if length == slots:
        check_tokens("input_positions", positions, tuple(batch), length, axes)
        return positions, None, value
    if length != 1 or mask is None:
        rule = "input_positions must be of one sequence, or of one token and a cache that the mask shows in part"
        way = "give the positions of both sides, by at(q, k), or by attention_fn(positions=, k_positions=)"
        raise ValueError(
            f"{rule}: {way}, got {length} queries and {slots} keys{'' if mask is not None else ', no mask'}"
        )
    pairs = (*batch, heads, 1, slots)
    seen = jnp.any(pair_array("mask", mask, pairs, pairs), axis=(-3, -2))
    filled = jnp.any(seen.reshape(-1, slots), axis=0)
    current = slots - 1 - jnp.argmax(filled[::-1]).astype(jnp.int32)
    tokens = as_token_positions(positions, (*batch, 1))
    is_plain = all(field is None for field in tokens[1:])
    if axes == 1 and is_plain and tokens.positions.shape in ((1,), (*batch, 1)):
        return tokens, *_count_back(tokens.positions, seen, current, value)
    shape, axis = tokens.positions.shape, -1 if axes == 1 else -2
    if slots not in shape[axis : axis + 1 or None]:
        rule = "input_positions of a step must be one number, that of its token, or those of all slots of the cache"
        fields = ", ".join(name for name, field in tokens._asdict().items() if field is not None)
        raise ValueError(f"{rule}, {slots}, got {fields} of shape {shape}")
    check_tokens("input_positions", positions, tuple(batch), slots, axes)
    tokens = follow_arrays(positions, (*batch, slots), causal=causal, spans=spans)
    of_query = functools.partial(jnp.take, indices=current[None], mode="clip")
    places = of_query(tokens.positions, axis=axis)
    return TokenPositions(places, *(None if x is None else of_query(x, axis=-1) for x in tokens[1:])), tokens, value


def _count_back(
    position: Int[Array, "*#B 1"], seen: Bool[Array, "*B S"], current: Int[Array, ""], value: Array
) -> tuple[TokenPositions, Array]:
    """Return the positions of all slots, the query's being in the slot `current`, and the values."""
    if not jnp.issubdtype(position.dtype, jnp.signedinteger):
        rule = "input_positions of one token must be a signed integer: give those of all slots of the cache"
        raise ValueError(f"{rule}, got {position.dtype}")
    places = position + (jnp.arange(seen.shape[-1], dtype=position.dtype) - current.astype(position.dtype))
    counts = jnp.all((places >= 0) | ~seen, axis=-1) & (position[..., 0] <= current)
    if not are_known(counts):
        return TokenPositions(places), jnp.where(counts[..., None, None, None], value, jnp.nan)
    if not np.all(counts):
        row = np.argwhere(~np.broadcast_to(counts, seen.shape[:-1]))[0]
        received = np.broadcast_to(position[..., 0], seen.shape[:-1])[tuple(row)]
        rule = "input_positions of one token must count the tokens before it that the mask shows, from 0"
        raise ValueError(f"{rule}: give those of all slots of the cache, got {received} in slot {current}")
    return TokenPositions(places), value
