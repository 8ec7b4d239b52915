"""Tables with one number for each offset between two patches of a grid, and their lookup.

    out_r = table[clip(Δ_r + n - 1)]        Δ = key - query, n_a the patches along axis a

The table of a grid (n_0, n_1, ...) has 2n_a - 1 cells along axis a, for the offsets 1 - n_a ... n_a - 1.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from pejax._ops.relative import limited
from pejax._ops.resize import lookup_embedding, sample_grid


def sides_of(name: str, extent: Any, axes: int) -> tuple[int, ...]:
    """Return the patches along each axis of a known length or grid.

    Raises:
        ValueError: no extent, or one that is traced or has another number of axes.
    """
    sizes = extent if isinstance(extent, tuple) else (extent,)
    if len(sizes) != axes or not all(isinstance(n, int | np.integer) and n >= 1 for n in sizes):
        rule = "a known length" if axes == 1 else f"a tuple of {axes} positive ints"
        raise ValueError(f"{name}: extent must be {rule}, got {extent!r}")
    return tuple(int(n) for n in sizes if n is not None)


def is_traced_grid(name: str, extent: Any, axes: int) -> bool:
    """Return whether an extent is an array: a grid `(A,)` whose sides are traced.

    Raises:
        ValueError: an array of another shape.
    """
    if isinstance(extent, tuple) or not np.ndim(extent):
        return False
    if np.shape(extent) != (axes,):
        raise ValueError(f"{name}: extent must be a grid of {axes} sides, ({axes},), got shape {np.shape(extent)}")
    return True


def table_cells(sides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the table of a grid: 2n - 1 cells along an axis of n patches."""
    return tuple(2 * n - 1 for n in sides)


def table_offsets(sides: tuple[int, ...]) -> Int[np.ndarray, "R A"]:
    """Return the offset of each cell of the table of a grid, the last axis varying fastest."""
    ranges = [range(1 - n, n) for n in sides]
    return np.asarray(list(itertools.product(*ranges)), np.int32)


def within_table(cells: tuple[int, ...], relative: Int[Array, "R A"]) -> Bool[Array, ""]:
    """Return whether the table has a cell for every offset."""
    return jnp.all(jnp.abs(limited(relative)) <= (np.asarray(cells) - 1) // 2)


def look_up_within(
    name: str,
    relative: Num[Array, "R *A"],
    otherwise: Callable[[dict[str, Any]], Float[Array, " R"]],
    params: dict[str, Any],
) -> Float[Array, " R"]:
    """Return the numbers of a table at integer offsets, or `otherwise(params)` unless it has a cell for every offset.

    Args:
        name: name of the table in `params`; without it, `otherwise` computes all numbers.
        relative: key - query, `(R, A)` where there is a table; floats are not looked up.
        otherwise: computes the same numbers without the table.
        params: parameters that `otherwise` reads.
    """
    if name not in params or not jnp.issubdtype(relative.dtype, jnp.integer):
        return otherwise(params)
    inside = within_table(params[name].shape, relative)
    # Without the checkpoint, a lookup would also fill and save the zeros of what `otherwise` has for its gradient.
    return lax.cond(inside, lambda params: look_up(params[name], relative), jax.checkpoint(otherwise), params)


def table_of_offsets(
    distance: Callable[[Any, Array], Float[Array, " R"]], shared: Any, heads: Any, count: int, sides: tuple[int, ...]
) -> Float[Array, "H *cells"]:
    """Return the table of a grid for each head: `distance({**shared, **heads[h]}, offset)` for every offset.

    Args:
        distance: `(params, relative) -> bias`, with relative `(R, A)`.
        shared: parameters that all heads share.
        heads: parameters whose leaves have the leading axis H.
        count: H.
        sides: patches along each axis.
    """
    offsets = jnp.asarray(table_offsets(sides))
    by_head = jax.vmap(lambda head_params: distance({**shared, **head_params}, offsets), axis_size=count)(heads)
    return by_head.reshape(count, *table_cells(sides))


def look_up(table: Float[Array, "*cells"], relative: Num[Array, "R A"]) -> Float[Array, " R"]:
    """Return the number of each offset, in float32; offsets beyond the table read its border.

    Between integers, the numbers are interpolated bicubically (`lookup_embedding`).
    """
    reach = ((np.asarray(table.shape) - 1) // 2).astype(relative.dtype)
    place = jnp.clip(relative, -reach, reach) + reach
    if jnp.issubdtype(relative.dtype, jnp.integer):
        strides = np.cumprod([1, *table.shape[:0:-1]])[::-1].astype(np.int32)
        row = jnp.sum(place.astype(jnp.int32) * strides, axis=-1)
        return table.reshape(-1).at[row].get(mode="promise_in_bounds").astype(jnp.float32)
    positions = place if table.ndim > 1 else place[..., 0]
    return lookup_embedding(table[..., None].astype(jnp.float32), positions)[..., 0]


def sample_offsets(
    table: Float[Array, "*cells"], relative: Num[Array, "R A"], cells: Float[Array, " A"], method: str
) -> Float[Array, " R"]:
    """Return `look_up` in a table resampled to a traced number of cells, which is never made."""
    is_whole = jnp.issubdtype(relative.dtype, jnp.integer)
    reach = (cells - 1.0) / 2.0
    place = jnp.clip(limited(relative).astype(jnp.float32), -reach, reach) + reach
    place = place.astype(jnp.int32) if is_whole else place
    return sample_grid(table[..., None].astype(jnp.float32), place, cells, method=method)[..., 0]
