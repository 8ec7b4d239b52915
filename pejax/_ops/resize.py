"""Learned tables at other lengths and grids: resampling a table, and interpolating between its rows.

    table'_n = Σ_m W_nm table_m,    Σ_m W_nm = 1,    one matrix W per axis

Row n of W samples a kernel around the center `c_n = (n + 1/2)·N/N' - 1/2`, or `c_n = n·(N - 1)/(N' - 1)` for the method
"align_corners".

Reference:
    Keys 1981, "Cubic Convolution Interpolation for Digital Image Processing", equation 15 with a free parameter.
    torch.nn.functional.interpolate, whose numbers the methods reproduce.
"""

import functools
import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._ops.checks import check_choice, check_position_type

METHODS = ("bicubic", "bilinear", "align_corners")

Distance: TypeAlias = Float[Array | np.ndarray, "..."]
"""Distance from a kernel's center, in rows."""

_SHARP = -0.75  # slope of the bicubic kernel at distance 1: torch's value without antialiasing
_SOFT = -0.5  # torch's value with antialiasing


@checked
def resize_embedding(
    table: Float[Array | np.ndarray, "*B N C"],
    old_grid: int | tuple[int, ...],
    new_grid: int | tuple[int, ...],
    *,
    method: str = "bicubic",
    antialias: bool = False,
    prefix: int = 0,
) -> Float[Array, "*B M C"]:
    """Resample a learned table to another length or grid, in float32; rows of prefix tokens are unchanged.

    "bicubic" and "bilinear" place samples at the centers of cells; "align_corners" is bilinear and maps the first and
    last rows to themselves. An axis that keeps its size is unchanged.

    Args:
        table: N = prefix + the product of `old_grid` rows, in raster order.
        old_grid: length, or (rows, columns, ...), of the table, in tokens or patches.
        new_grid: length or grid to resample to.
        method: "bicubic", "bilinear" or "align_corners".
        antialias: whether the kernel is widened by N/N' on axes that shrink; the bicubic slope is then -0.5 in place of
            -0.75, on every axis.
        prefix: number of rows of tokens without a position (CLS, registers), which come first.

    Returns:
        M = prefix + the product of `new_grid` rows, in the dtype of `table`.

    Raises:
        ValueError: a table of another size, grids below 1 or with different numbers of axes, an unknown method, or
            antialiasing with "align_corners".

    Examples:
        >>> table = jnp.ones((1 + 14 * 14, 64))  # CLS, then 14 x 14 patches
        >>> resize_embedding(table, (14, 14), (20, 30), prefix=1).shape
        (601, 64)
    """
    table = jnp.asarray(table)
    old, new = (grid if isinstance(grid, tuple) else (grid,) for grid in (old_grid, new_grid))
    if len(old) != len(new):
        raise ValueError(f"old_grid and new_grid must have the same axes, got {old_grid} and {new_grid}")
    if not old or min(old + new) < 1 or prefix < 0:
        raise ValueError(f"grids must be at least 1 and prefix 0, got {old_grid}, {new_grid} and prefix={prefix}")
    if table.shape[-2] != prefix + math.prod(old):
        rule = f"prefix + grid = {prefix} + {'·'.join(map(str, old))} = {prefix + math.prod(old)} rows"
        raise ValueError(f"table must have {rule}, got shape {table.shape}")
    grid = table[..., prefix:, :].reshape(*table.shape[:-2], *old, table.shape[-1])
    grid = resize_grid(grid, new, method=method, antialias=antialias)
    rows = grid.reshape(*table.shape[:-2], math.prod(new), table.shape[-1])
    return jnp.concatenate([table[..., :prefix, :], rows], axis=-2)


def resize_grid(
    grid: Float[Array, "..."], size: tuple[int, ...], *, method: str = "bicubic", antialias: bool = False
) -> Float[Array, "..."]:
    """Resample a grid `(..., *old, C)` to `(..., *size, C)`, as `resize_embedding` does for a flattened table.

    Args:
        grid: the table, with one dimension per axis of the grid.
        size: the new grid, in rows per axis.
        method: "bicubic", "bilinear" or "align_corners".
        antialias: whether to filter, as in `resize_embedding`.
    """
    check_choice("method", method, METHODS)
    if antialias and method == "align_corners":
        raise ValueError("antialias must be False where method='align_corners', got True")
    result = grid.astype(_wide(grid.dtype))
    for axis, new in enumerate(size, start=grid.ndim - 1 - len(size)):
        if grid.shape[axis] != new:
            weights = jnp.asarray(_weights(grid.shape[axis], new, method, antialias), result.dtype)
            product = jnp.tensordot(weights, result, axes=(1, axis), precision=jax.lax.Precision.HIGHEST)
            result = jnp.moveaxis(product, 0, axis)
    return result.astype(grid.dtype)


@checked
def lookup_embedding(table: Float[Array, "*grid C"], positions: Num[Array | np.ndarray, "..."]) -> Float[Array, "..."]:
    """Return the rows of a table at integer positions, and bicubic interpolations of rows at float positions.

    `row(p) = Σ_o w(p - ⌊p⌋ - o) · table[⌊p⌋ + o]` on every axis, with o = -1 ... 2 and w the bicubic kernel. At a float
    position without a fraction it is the row itself. Positions may lie beyond the end rows by less than one row, where
    the end rows are repeated. Reading a table at the centers `c_n` equals `resize_embedding` without antialiasing.

    Args:
        table: `(L, C)`, or `(rows, columns, ..., C)` on A > 1 axes.
        positions: `(*B, T)`, or `(*B, T, A)`; in rows, from 0.

    Returns:
        `(*B, T, C)`, in the dtype of the table. Traced positions that lie outside the table, one row or more beyond the
        end rows, give NaN.

    Raises:
        ValueError: a table without rows, positions outside the table that are not traced, or positions with another
            number of axes.
        TypeError: positions that are neither integers nor floats of at least 32 bits.

    Examples:
        >>> table = jnp.asarray([[0.0], [1.0], [2.0], [3.0]])
        >>> lookup_embedding(table, jnp.asarray([2.0, 1.5])).tolist()
        [[2.0], [1.5]]
    """
    size = table.shape[:-1]
    if not size or 0 in size:
        raise ValueError(
            f"table must be (L, C) or (rows, columns, ..., C), with a row at least, got shape {table.shape}"
        )
    values = None if isinstance(positions, Tracer) else np.asarray(positions)
    positions = jnp.asarray(positions)
    if len(size) > 1 and positions.shape[-1:] != (len(size),):
        raise ValueError(f"positions must end in the {len(size)} axes of the table, got shape {positions.shape}")
    check_position_type(positions)
    if values is not None:
        _require_inside(values if len(size) > 1 else values[..., None], size)
    return _rows(table, positions if len(size) > 1 else positions[..., None])


def sample_grid(
    grid: Float[Array, "*grid C"],
    positions: Num[Array, "*BT A"],
    size: Float[Array, " A"],
    *,
    method: str = "bicubic",
    antialias: bool = False,
) -> Float[Array, "*BT C"]:
    """Return rows of a table resampled to a size that may be traced: `lookup_embedding(resize_grid(...), positions)`.

    `row(p) = Σ_m Π_a W_a[p_a, m_a] · table[m]`, with W interpolated bicubically between its rows at a fractional p_a.
    The resampled table, whose size no program knows, is never made.

    Args:
        grid: the table, with one dimension per axis.
        positions: positions in the resampled table, from 0; those outside it give NaN, as in `lookup_embedding`.
        size: rows of the resampled table along each axis.
        method: as in `resize_embedding`.
        antialias: as in `resize_embedding`.
    """
    wide = _wide(grid.dtype)
    is_whole = jnp.issubdtype(positions.dtype, jnp.integer)
    points, size = positions.reshape(-1, positions.shape[-1]).astype(wide), size.astype(wide)
    inside = jnp.all((points > -1) & (points < size), axis=-1, keepdims=True)
    points, letters = jnp.where(inside, points, 0), "abdefghijklmnopqrsuvwxyz"[: points.shape[-1]]
    weights = [
        _row_weights(points[:, axis], old, size[axis], is_whole, method, antialias)
        for axis, old in enumerate(grid.shape[:-1])
    ]
    products = f"{','.join(f't{letter}' for letter in letters)},{letters}c->tc"
    rows = jnp.einsum(products, *weights, grid.astype(wide), precision=jax.lax.Precision.HIGHEST)
    return jnp.where(inside, rows, jnp.nan).astype(grid.dtype).reshape(*positions.shape[:-1], grid.shape[-1])


def _row_weights(
    points: Float[Array, " T"], old: int, new: Float[Array, ""], is_whole: bool, method: str, antialias: bool
) -> Float[Array, "T {old}"]:
    """Return the weight of each row of the table at positions of the resampled one, along one axis."""
    weights = functools.partial(_traced_weights, old=old, new=new, method=method, antialias=antialias)
    if is_whole:
        return weights(points)
    first = jnp.floor(points)
    between = _four_weights(points - first)
    rows = [jnp.clip(first + offset, 0, new - 1) for offset in range(-1, 3)]
    weighted = (weight[:, None] * weights(row) for weight, row in zip(between, rows, strict=True))
    return sum(weighted, start=jnp.zeros_like(points)[:, None])


@jax.jit
def _rows(table: Float[Array, "*grid C"], positions: Num[Array, "*BT A"]) -> Float[Array, "*BT C"]:
    """Return the rows at the positions, NaN at positions outside the table."""
    points = positions.reshape(-1, positions.shape[-1]).astype(_wide(positions.dtype))
    inside = (points > -1) & (points < jnp.asarray(table.shape[:-1], points.dtype))
    inside = inside.all(axis=-1, keepdims=True)
    points = jnp.where(inside, points, 0)
    is_integer = jnp.issubdtype(points.dtype, jnp.integer)
    rows = table[tuple(points.T)] if is_integer else jax.vmap(lambda point: _interpolate(table, point))(points)
    rows = jnp.where(inside, rows, jnp.nan).astype(table.dtype)
    return rows.reshape(*positions.shape[:-1], table.shape[-1])


def _require_inside(positions: Num[np.ndarray, "... A"], size: tuple[int, ...]) -> None:
    """Raise ValueError for a position outside a table of this size."""
    outside = ~((positions > -1) & (positions < np.asarray(size))).all(axis=-1)
    if outside.any():
        label = size[0] if len(size) == 1 else size
        raise ValueError(f"positions must lie inside a table of size {label}, got {positions[outside][0].tolist()}")


def _interpolate(table: Float[Array, "*grid C"], point: Float[Array, " A"]) -> Float[Array, " C"]:
    """Return the bicubic interpolation of 4^A rows at one point."""
    first = jnp.floor(point)
    weights = _four_weights(point - first)
    last = jnp.asarray(table.shape[:-1], jnp.int32) - 1
    indices = [jnp.clip(first.astype(jnp.int32) + offset, 0, last) for offset in range(-1, 3)]
    patch = table[jnp.ix_(*jnp.stack(indices, axis=-1))].astype(_wide(table.dtype))
    for axis_weights in weights.T.astype(patch.dtype):
        patch = jnp.tensordot(axis_weights, patch, axes=1, precision=jax.lax.Precision.HIGHEST)
    return patch


def _four_weights(fraction: Float[Array, "..."]) -> Float[Array, "4 ..."]:
    """Return the bicubic weights of the rows -1, 0, 1 and 2 around a point this far after row 0."""
    kernel = ((_outer, fraction + 1), (_inner, fraction), (_inner, 1 - fraction), (_outer, 2 - fraction))
    return jnp.stack([piece(distance, _SHARP) for piece, distance in kernel])


def _weights(old: int, new: int, method: str, antialias: bool) -> Float[np.ndarray, "{new} {old}"]:
    """Return W in float64: in each row the kernel around one center, with weights summing to 1."""
    if method == "align_corners":
        centers = np.linspace(0.0, old - 1.0, new)
    else:
        centers = (np.arange(new) + 0.5) * (old / new) - 0.5
    return _kernel_weights(centers, old, max(old / new, 1.0), method, antialias)


def _traced_weights(
    rows: Float[Array, " T"], old: int, new: Float[Array, ""], method: str, antialias: bool
) -> Float[Array, "T {old}"]:
    """Return the rows of W with these numbers, for a traced number of rows."""
    if method == "align_corners":
        centers = rows * ((old - 1) / jnp.maximum(new - 1, 1))
    else:
        centers = (rows + 0.5) * (old / new) - 0.5
    return _kernel_weights(centers, old, jnp.maximum(old / new, 1.0), method, antialias)


def _kernel_weights(
    centers: Float[Array | np.ndarray, " T"], old: int, shrinking: Any, method: str, antialias: bool
) -> Any:
    """Return the weights of the old rows around each center, by NumPy for centers of NumPy.

    Kernel values beyond the ends are added to the end rows; with antialiasing they are dropped, as in torch.
    """
    xp = jnp if isinstance(centers, jax.Array) else np
    margin, slope, widening = (0, _SOFT, shrinking) if antialias else (2, _SHARP, 1.0)
    rows = np.arange(-margin, old + margin)
    distance = xp.abs(centers[:, None] - xp.asarray(rows, centers.dtype)) / widening
    kernel = _cubic(distance, slope) if method == "bicubic" else xp.maximum(1.0 - distance, 0.0)
    weights = kernel[:, margin : margin + old]
    for beyond, end in ((kernel[:, :margin], 0), (kernel[:, margin + old :], old - 1)):
        weights = weights + xp.where(np.arange(old) == end, beyond.sum(axis=1, keepdims=True), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


def _cubic(distance: Distance, slope: float) -> Distance:
    """Return the bicubic kernel: 1 at distance 0, 0 at every other integer, with the derivative `slope` at 1."""
    xp = jnp if isinstance(distance, jax.Array) else np
    return xp.where(distance < 1, _inner(distance, slope), xp.where(distance < 2, _outer(distance, slope), 0.0))


def _inner(distance: Distance, slope: float) -> Distance:
    """Return `(a + 2)x³ - (a + 3)x² + 1`, the kernel with slope a at distance x for 0 ≤ x ≤ 1."""
    return ((slope + 2) * distance - (slope + 3)) * distance * distance + 1


def _outer(distance: Distance, slope: float) -> Distance:
    """Return `ax³ - 5ax² + 8ax - 4a`, the kernel with slope a at distance x for 1 ≤ x ≤ 2."""
    return ((slope * distance - 5 * slope) * distance + 8 * slope) * distance - 4 * slope


def _wide(dtype: np.dtype) -> Any:
    """Return the integer or floating type to compute in: of 64 bits for 64-bit types, else of 32 bits."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.int64 if dtype.itemsize == 8 else jnp.int32
    return jnp.float64 if dtype.itemsize == 8 else jnp.float32
