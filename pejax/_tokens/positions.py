"""Positions of tokens, of the patches of a grid, and of packed sequences; coordinates, and their noise in training.

Tokens without a position (CLS, registers) are neither rotated nor embedded.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Num

from pejax._calls.arguments import checked
from pejax._calls.hook_calls import call_token_hook
from pejax._calls.host import to_jax
from pejax._ops.checks import check_choice, check_ids, check_position_type
from pejax._ops.compile_time import are_known, computed_now
from pejax._record.encoding import Encoding, Extent, Params, one_extent
from pejax._record.params import RandomKey


class TokenPositions(NamedTuple):
    """Positions, order and segments of tokens, where segment 0 is padding, in one pytree.

    It is sharded, vmapped, tiled and cached as a whole. Where it is read, numbers from NumPy that int32 and float32 do
    not hold are refused: `offset_positions` and `segment_ids_of` make others of them.

    Attributes:
        positions: `(*B, T)` in tokens, or on A > 1 axes `(*B, T, A)` in patches; integer or float, always finite; 0 for
            tokens without a position.
        order: `(*B, T)`, the order of the tokens for causal masks and windows, in tokens. None = integer `positions` on
            one axis, which causal masks and windows then need. Tokens that attend to each other, with a causal mask,
            then never see what follows them in the arrays: known positions must rise within a segment, and traced ones
            that do not are read as one sequence.
        has_position: `(*B, T)`; False = the token has no position (CLS, registers). None = every token has a position.
        segment_ids: `(*B, T)`; a token attends only to tokens with its own id; 0 = padding. None = one segment.
            `segment_ids_of` numbers labels that count from 0, hashes and names.

    Examples:
        >>> tokens = TokenPositions(jnp.asarray([0, 0, 1, 2]), has_position=jnp.arange(4) > 0)  # CLS, then 3 tokens
        >>> tokens.has_position.tolist()
        [False, True, True, True]
    """

    positions: Num[Array, "..."]
    order: Int[Array, "*B T"] | None = None
    has_position: Bool[Array, "*B T"] | None = None
    segment_ids: Int[Array, "*B T"] | None = None


Positions: TypeAlias = TokenPositions | Num[Array, "..."]
"""Positions of tokens, or an array of them: of all tokens, in one segment."""


def as_token_positions(tokens: Positions, shape: tuple[int, ...] = ()) -> TokenPositions:
    """Return `TokenPositions`, a plain array being the positions of all tokens, in one segment.

    Args:
        tokens: positions, as an array or a record.
        shape: `(*B, T)`: fields with one row for all examples, `(1, ..., 1, T)`, become `(T,)`. () = they stay.
    """
    tokens = tokens if isinstance(tokens, TokenPositions) else TokenPositions(to_jax("positions", tokens))
    if not all(field is None or isinstance(field, Array) for field in tokens):
        fields: Any = (None if x is None else to_jax(name, x) for name, x in tokens._asdict().items())
        tokens = TokenPositions(*fields)
    check_position_type(tokens.positions)
    if jnp.issubdtype(tokens.positions.dtype, jnp.integer) and tokens.positions.dtype.itemsize < 4:
        wide = tokens.positions.astype(jnp.int32)  # differences of 8 or 16 bits can overflow
        tokens = tokens._replace(positions=wide)
    if all(size == 1 for size in shape[:-1]):
        return tokens
    return TokenPositions(*(_without_rows(x, shape) for x in tokens))


def _without_rows(field: Any, shape: tuple[int, ...]) -> Any:
    """Return a field of tokens `(*B, T)` without the axes *B if it has one row for all examples, else as it is."""
    rows = (1,) * (len(shape) - 1)
    if field is None or field.shape[: len(shape)] != (*rows, *shape[-1:]):
        return field
    one_row = lambda: field.reshape(field.shape[len(rows) :])
    return computed_now(one_row) if are_known(field) else one_row()  # known numbers stay known


def in_one_type(*sides: Int[Array, "..."]) -> list[Int[Array, "..."]]:
    """Return integers in one signed type, of 64 bits if some have them; different ones stay different, and 0 is 0."""
    kind = jnp.int64 if any(ids.dtype.itemsize > 4 for ids in sides) else jnp.int32
    return [ids.astype(kind) for ids in sides]


@checked
def embed_tokens(
    embed: Callable[[Params, Array, Array], Array],
    width: int | None,
    params: Params,
    x: Float[Array, "*B T C"],
    positions: Positions,
) -> Float[Array, "*B T C"]:
    """Embed x `(*B, T, C)` at the positions of its tokens; tokens without a position are unchanged."""
    if width is not None and x.shape[-1] != width:
        raise ValueError(f"x must be (*B, T, C) with C={width}, the width of the dims, got shape {x.shape}")
    tokens = as_token_positions(positions)
    embedded = call_token_hook("embed", embed, params, x, tokens.positions)
    if tokens.has_position is None:
        return embedded
    return jnp.where(jnp.broadcast_to(tokens.has_position[..., None], x.shape), embedded, x)


def rotary_positions(tokens: TokenPositions, shape: tuple[int, ...]) -> Num[Array, "..."]:
    """Return the positions that rotate tokens `(*B, T)`; tokens without one get 0, which rotates nothing."""
    positions, has_position = tokens.positions, tokens.has_position
    if has_position is None:
        return positions
    axes = () if positions.shape in (shape[-1:], shape) else positions.shape[-1:]
    common = jnp.broadcast_shapes(positions.shape, has_position.shape + (1,) * len(axes))
    is_placed = jnp.broadcast_to(has_position.reshape(has_position.shape + (1,) * len(axes)), common)
    return jnp.where(is_placed, jnp.broadcast_to(positions, common), 0)


def embedding_tokens(encoding: Encoding, width: int | None = None) -> Encoding:
    """Return the encoding with an `embed` that takes `TokenPositions` in place of positions, too.

    Args:
        encoding: any record.
        width: C, the channels that the input of `embed` must have. None = any number.
    """
    if encoding.embed is None:
        return encoding
    return dataclasses.replace(encoding, embed=functools.partial(embed_tokens, encoding.embed, width))


BY_PLACE = "sizes are given by place, as in grid_positions(4, 6)"
"""What to write for sizes by name, of which there are not always two."""


@functools.partial(checked, height=BY_PLACE, width=BY_PLACE)
def grid_positions(*sizes: int | tuple[int, ...], indexing: str = "ij") -> Int[Array, "T A"]:
    """Return the position of every patch of a grid, in raster order: `p_n = (⌊n / width⌋, n mod width)`.

    Args:
        *sizes: numbers of patches along each axis: height and width, of a video frames, height and width; or one tuple
            of them, such as an extent.
        indexing: "ij" gives (row, column), as sizes are ordered; "xy", of two sizes, gives (column, row).

    Returns:
        Positions of as many patches as the product of the sizes, in patches; the last axis is fastest.

    Raises:
        ValueError: fewer than two sizes, one below 1, an unknown indexing, or "xy" of other than two sizes.

    Examples:
        >>> grid_positions(2, 3).tolist()
        [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
        >>> grid_positions((2, 1, 2)).tolist()
        [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
    """
    check_choice("indexing", indexing, ("ij", "xy"))
    extent = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes
    grid = [size for size in extent if isinstance(size, int)]
    if len(grid) < 2 or len(grid) != len(extent) or min(grid) < 1:
        raise ValueError(f"sizes must be two or more integers of at least 1, such as height and width, got {extent}")
    if indexing == "xy" and len(grid) != 2:
        raise ValueError(f"indexing='xy' is of two sizes, height and width, got {extent}")
    positions = np.indices(grid, np.int32).reshape(len(grid), -1).T
    ordered = positions if indexing == "ij" else positions[:, ::-1]
    return computed_now(lambda: jnp.asarray(ordered))  # known inside `jit`, too: attention looks biases up


def with_unplaced(count: int, positions: Num[Array, "*B T A"]) -> TokenPositions:
    """Return the positions of tokens behind `count` others that have none, such as CLS; known ones stay known."""

    def tokens() -> TokenPositions:
        # An array of positions has a number for every token; `has_position` says which of them are positions.
        placeholders = jnp.zeros((*positions.shape[:-2], count, positions.shape[-1]), positions.dtype)
        has_position = jnp.arange(count + positions.shape[-2]) >= count
        return TokenPositions(jnp.concatenate([placeholders, positions], axis=-2), has_position=has_position)

    return computed_now(tokens) if are_known(positions) else tokens()


@checked
def segment_positions(segment_ids: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Return the position of each token in its own segment: the number of earlier tokens with the same id.

    In sequences packed one after the other, positions restart at 0 in each. Other tokens between those of a segment,
    such as padding, do not change its positions. This function does not mask attention between segments:
    `TokenPositions.segment_ids` does, and `packed_positions` returns both. Ids that explicit axes of a mesh split along
    the sequence are gathered by every device; the positions are split as the ids are.

    Args:
        segment_ids: any integers; 0, the id of padding, is counted like any other segment.

    Returns:
        int32, in tokens.

    Raises:
        TypeError: ids that are not integers.
        ValueError: ids that int32 does not hold (`segment_ids_of`).
    """
    check_ids("segment_ids", segment_ids)
    split = jax.typeof(segment_ids).sharding
    if any(part is not None for part in split.spec[-1:]):  # ids are sorted along the whole sequence
        gathered = NamedSharding(split.mesh, PartitionSpec(*split.spec[:-1], None))
        return jax.reshard(segment_positions(jax.reshard(segment_ids, gathered)), split)

    def one_sequence(ids: Int[Array, " T"]) -> Int[Array, " T"]:
        by_segment = jnp.argsort(ids, stable=True)
        ordered, rank = ids[by_segment], jnp.arange(ids.shape[0], dtype=jnp.int32)
        starts = jnp.where(ordered != jnp.roll(ordered, 1), rank, 0)
        return jnp.zeros_like(rank).at[by_segment].set(rank - jax.lax.cummax(starts))

    return jnp.vectorize(one_sequence, signature="(t)->(t)")(segment_ids)


@checked
def packed_positions(segment_ids: Int[Array, "*B T"]) -> TokenPositions:
    """Return the `TokenPositions` of packed sequences and padding, id 0: positions restart in each sequence.

    No sequence attends to another, and none to padding, whose positions are 0.

    Args:
        segment_ids: the sequence that each token belongs to, from 1; 0 = padding. `segment_ids_of` numbers labels that
            count from 0, 64-bit hashes and names.

    Raises:
        TypeError: ids that are not integers.
        ValueError: ids that int32 does not hold.

    Examples:
        >>> packed_positions(jnp.asarray([1, 1, 1, 2, 2, 0])).positions.tolist()
        [0, 1, 2, 0, 1, 0]
    """
    order = jnp.broadcast_to(jnp.arange(segment_ids.shape[-1], dtype=jnp.int32), segment_ids.shape)
    positions = jnp.where(segment_ids != 0, segment_positions(segment_ids), 0)
    return TokenPositions(positions, order, segment_ids=segment_ids)


@checked
def segments_of_positions(positions: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Return the segment of each token of rows that were packed elsewhere, where only their positions are known.

    `s_t = s_{t-1} + [p_t ≠ p_{t-1} + 1]`, from 1: a new document begins wherever a position does not follow the one
    before it, as transformers reads `position_ids`. Give both to attention:
    `TokenPositions(positions, segment_ids=segments_of_positions(positions))`.

    Args:
        positions: in tokens; they may be traced.

    Returns:
        int32, from 1.

    Reference:
        transformers 5.24, `find_packed_sequence_indices` of masking_utils.py.

    Examples:
        >>> segments_of_positions(jnp.asarray([0, 1, 2, 0, 1, 0])).tolist()
        [1, 1, 1, 2, 2, 3]
    """
    before, after = positions[..., :-1], positions[..., 1:]
    begins = (after != before + 1) | (after <= before)  # the sum of the largest integer and 1 wraps
    first = jnp.ones_like(positions[..., :1], jnp.int32)
    return jnp.cumsum(jnp.concatenate([first, begins.astype(jnp.int32)], axis=-1), axis=-1, dtype=jnp.int32)


def check_within(positions: TokenPositions | Array, extent: Extent, axes: int | None = None) -> None:
    """Raise ValueError for an integer position outside a length or grid, where both are known: not under `jax.jit`.

    Tokens without a position and padding count nowhere. Positions of a float type may lie between and beyond patches.

    Args:
        positions: positions of the tokens.
        extent: one length, which on several axes is that of each; lengths, which are not checked; one grid; or on A > 1
            axes grids `(B, A)`, one per image.
        axes: A, number of position axes. None = as many as the extent has.
    """
    tokens = positions if isinstance(positions, TokenPositions) else TokenPositions(positions)
    sides = extent if isinstance(extent, tuple) else (extent,)
    if any(isinstance(x, Tracer) or not getattr(x, "is_fully_addressable", True) for x in (*tokens, *sides)):
        return
    axes, shape = axes or len(sides), np.shape(extent)
    by_image = axes > 1 and len(shape) == 2
    if not by_image and (any(np.ndim(side) for side in sides) or shape not in ((), (axes,))):
        return
    values = np.asarray(tokens.positions)
    if not np.issubdtype(values.dtype, np.integer) or (axes > 1 and values.shape[-1:] != (axes,)):
        return
    places = values if axes > 1 else values[..., None]
    most = np.asarray(extent)
    most = most[:, None] if by_image else np.broadcast_to(most, (axes,))
    outside = ((places < 0) | (places >= most)).any(axis=-1)
    for counts in (tokens.has_position, tokens.segment_ids):
        outside = outside if counts is None else outside & (np.asarray(counts) != 0)
    if outside.any():
        place, below = (np.broadcast_to(array, (*outside.shape, axes))[outside][0].tolist() for array in (places, most))
        rule = "positions must lie inside the extent, the length or grid of this input, row first"
        limit, got = (tuple(below), place) if axes > 1 else (below[0], place[0])
        raise ValueError(f"{rule}: from 0 to below {limit}, got {got}")


@checked
def normalized_positions(positions: Num[Array, "..."], extent: Extent, by: str = "separate") -> Float[Array, "..."]:
    """Return the centers of patches as coordinates between -1 and 1: `p'_a = 2 (p_a + 1/2) / N_a - 1`.

    N is the side of the same axis, or one side for all axes, which keeps the shape of the picture.

    Args:
        positions: `(*B, T)` in tokens where the extent is a length, or `(*B, T, A)` in patches; from 0.
        extent: the current length or grid, or grids `(*B, A)`, one per image; grids may be traced.
        by: "separate": N_a = L_a, so that every axis runs from -1 to 1; "min" or "max": N is the shortest or the
            longest side, as in DINOv3's `normalize_coords`.

    Returns:
        Coordinates in float32, or in float64 if the positions are.

    Raises:
        ValueError: an unknown `by`, a side below 1, positions without the axes of the extent, or integer positions
            outside it that are not traced.
        TypeError: positions that are neither integers nor floats of at least 32 bits.

    Reference:
        Siméoni et al. 2025, "DINOv3" (arXiv 2508.10104), section 3.2; code: `rope_position_encoding.py`.

    Examples:
        >>> normalized_positions(jnp.arange(4), 4).tolist()
        [-0.75, -0.25, 0.25, 0.75]
    """
    check_choice("by", by, ("separate", "min", "max"))
    check_position_type(positions)
    extent = extent if np.ndim(extent) > 1 else one_extent(extent)
    if isinstance(extent, jax.Array) and (extent.ndim or isinstance(extent, Tracer)):
        return _normalized_by_image(positions, extent, by)
    sides = extent if isinstance(extent, tuple) else (extent,)
    if not sides or min(sides) < 1:
        raise ValueError(f"extent must be positive, got {extent}")
    if isinstance(extent, tuple) and positions.shape[-1:] != (len(sides),):
        raise ValueError(f"positions must end in the {len(sides)} axes of extent={extent}, got {positions.shape}")
    check_within(positions, extent)
    wide = jnp.float64 if positions.dtype == jnp.float64 else jnp.float32
    unit = {"separate": sides, "min": (min(sides),) * len(sides), "max": (max(sides),) * len(sides)}[by]
    units = jnp.asarray(unit if isinstance(extent, tuple) else unit[0], wide)
    return 2.0 * (positions.astype(wide) + 0.5) / units - 1.0


def _normalized_by_image(positions: Num[Array, "*B T A"], extent: Int[Array, "..."], by: str) -> Array:
    """Return `normalized_positions` on a traced grid, or on one grid per image."""
    axes = positions.shape[-1:]
    if positions.ndim < 2 or extent.shape not in (axes, (*positions.shape[:-2], *axes)):
        rule = "extent must be a grid (A,), or grids (*B, A), of positions (*B, T, A)"
        raise ValueError(f"{rule} {positions.shape}, got shape {extent.shape}")
    if not isinstance(extent, Tracer) and np.min(np.asarray(extent), initial=1) < 1:
        raise ValueError(f"extent must be positive, got {np.asarray(extent).tolist()}")
    check_within(positions, extent, axes[0])
    sides = extent.astype(jnp.float64 if positions.dtype == jnp.float64 else jnp.float32)
    one_side = {"min": jnp.min, "max": jnp.max}.get(by)
    unit = sides if one_side is None else one_side(sides, axis=-1, keepdims=True)
    return 2.0 * (positions.astype(sides.dtype) + 0.5) / unit[..., None, :] - 1.0


@checked
def augment_positions(
    key: RandomKey,
    positions: Num[Array, "..."],
    *,
    shift: float = 0.0,
    jitter: float = 1.0,
    rescale: float = 1.0,
    noise: float = 0.0,
) -> Num[Array, "..."]:
    """Shift, stretch and disturb positions at random, for training: `p'_a = r · j_a · (p_a + s_a + e_a)`.

    s_a is uniform in ±shift and j_a log-uniform in 1/jitter ... jitter, both one number per axis; r is log-uniform in
    1/rescale ... rescale, one number for all axes; e is uniform in ±noise, one number per token and axis. All but e are
    drawn once per call, as in DINOv3, for the whole batch. For one draw per image, use `jax.vmap` over keys.

    Args:
        key: a JAX random key.
        positions: `(T,)` on one axis, or `(*B, T, A)`; in any unit, such as that of `normalized_positions`.
        shift: the largest shift, in the unit of the positions.
        jitter: the largest factor of an axis.
        rescale: the largest factor of all axes.
        noise: the largest shift of a single token, in the unit of the positions.

    Returns:
        Positions in float32, or in float64 if they are; the positions unchanged if nothing is asked for.

    Raises:
        ValueError: a negative shift or noise, or a jitter or rescale below 1.
        TypeError: positions that are neither integers nor floats of at least 32 bits.

    Reference:
        Siméoni et al. 2025, "DINOv3" (arXiv 2508.10104), section 3.2; code: `rope_position_encoding.py`: shift, jitter
        and rescale.
        Likhomanenko et al. 2021, "CAPE" (arXiv 2106.03143), section 3: shifts of single tokens.

    Examples:
        >>> centers = normalized_positions(grid_positions(2, 2), (2, 2))
        >>> augment_positions(jax.random.key(0), centers, shift=0.1, jitter=1.1, rescale=2.0).shape
        (4, 2)
    """
    check_position_type(positions)
    for name, value, least in (
        ("shift", shift, 0),
        ("jitter", jitter, 1),
        ("rescale", rescale, 1),
        ("noise", noise, 0),
    ):
        if not least <= value < math.inf:
            raise ValueError(f"{name} must be a finite number from {least}, got {value}")
    if (shift, jitter, rescale, noise) == (0, 1, 1, 0):
        return positions
    wide = jnp.float64 if positions.dtype == jnp.float64 else jnp.float32
    by_axis = positions.shape[-1:] if positions.ndim > 1 else ()
    keys = jax.random.split(key, 4)
    uniform = lambda key, shape, most: jax.random.uniform(key, shape, wide, -1.0, 1.0) * most
    moved = positions.astype(wide) + uniform(keys[0], by_axis, shift) + uniform(keys[3], positions.shape, noise)
    stretch = uniform(keys[1], by_axis, math.log(jitter)) + uniform(keys[2], (), math.log(rescale))
    return moved * jnp.exp(stretch)
