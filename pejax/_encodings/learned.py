"""A learned vector for each position, added to the input once: one row per token, or one row per patch of a grid.

    x'_n = x_n + table[p_n]

Reference:
    Gehring et al. 2017, "Convolutional Sequence to Sequence Learning" (arXiv 1705.03122), section 3.1: sequences.
    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.2 and appendix D.4: grids,
    resampled at other resolutions, and one table per axis.
"""

import functools

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from pejax._encodings.factory import encoding_factory
from pejax._ops.checks import check_choice, check_positions
from pejax._ops.offset_table import is_traced_grid
from pejax._ops.resize import METHODS, lookup_embedding, resize_grid, sample_grid
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params
from pejax._record.specs import Extension

STD = 0.02


@encoding_factory("resize")
def learned(
    dims: Dims,
    *,
    method: str = "bicubic",
    antialias: bool = False,
    factorized: bool = False,
    extend: Extension | None = None,
) -> Encoding:
    """Make a learned table for these dims, drawn from a normal distribution of standard deviation 0.02.

    On one axis the table is `(L, C)`. On A > 1 axes it is the grid `(rows, columns, ..., C)`, the raster-order table
    of ViT, which `adapt` resamples to any other grid; on a traced grid, `embed` samples the rows that it reads. Integer
    positions read rows, float positions read bicubic interpolations of rows, so positions from `interpolate_positions`
    need no resampled table.

    Args:
        dims: `extent` gives the size of the table, `width` its channels.
        method: resampling method: "bicubic", "bilinear" or "align_corners".
        antialias: whether axes that shrink are low-pass filtered (`resize_embedding`).
        factorized: whether each axis has its own table of C/A channels, concatenated in the order of the axes; for
            A > 1 only.
        extend: `resize()` of `pejax.extensions`, on one axis only, or an extension of any encoding, such as `pi()`.
            None = no extension.

    Raises:
        ValueError: no extent; an unknown method; `antialias` with "align_corners"; `factorized` on one axis or with a
            width that A does not divide; an extension that is not supported, or `resize()` on more than one axis.
            `adapt` refuses a sequence longer than the table (without `resize()`), an extent with another number of
            axes, and, with `resize()`, a traced length unless the method is "bicubic" without antialiasing. `embed`
            refuses positions outside the table or with another number of axes.
    """
    resizes = extend is not None
    size = _table_size(dims, method, antialias, factorized, resizes)
    shapes = [(n, dims.width // dims.axes) for n in size] if factorized else [(*size, dims.width)]

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(shapes))
        return {f"table_{i}": STD * jax.random.normal(keys[i], shape) for i, shape in enumerate(shapes)}

    def adapt(params: Params, extent: Extent) -> Params:
        rows = len(params["table_0"])
        if resizes and isinstance(extent, Tracer):
            if method != "bicubic" or antialias:
                rule = "extend='resize' needs a length known when traced, or method='bicubic' without antialiasing"
                raise ValueError(f"{rule}, got {method!r} and antialias={antialias}")
            return {**params, "cell": jnp.minimum(1.0, rows / extent.astype(jnp.float32))}
        if is_traced_grid("learned", extent, dims.axes):
            return {**params, "sides": jnp.asarray(extent, jnp.float32)}
        sizes = _sizes(extent, dims.axes, rows, resizes)
        sizes = [(n,) for n in sizes] if factorized else [sizes]
        resized = {
            f"table_{i}": resize_grid(params[f"table_{i}"], to, method=method, antialias=antialias)
            for i, to in enumerate(sizes)
        }
        return {**params, **resized}

    def embed(params: Params, x: Array, positions: Array) -> Array:
        check_positions(positions.shape, x.shape[:-1], dims.axes)
        tables = [params[f"table_{i}"] for i in range(len(shapes))]
        if "cell" in params:
            positions = (positions.astype(jnp.float32) + 0.5) * params["cell"] - 0.5
        by_table = [positions[..., i] for i in range(dims.axes)] if factorized else [positions]
        if "sides" in params:
            sides = params["sides"]
            by_table = [weights[..., None] for weights in by_table] if factorized else by_table
            sizes = [sides[i : i + 1] for i in range(dims.axes)] if factorized else [sides]
            sample = functools.partial(sample_grid, method=method, antialias=antialias)
            rows = [sample(*arguments) for arguments in zip(tables, by_table, sizes, strict=True)]
        else:
            rows = [lookup_embedding(*pair) for pair in zip(tables, by_table, strict=True)]
        return (x.astype(jnp.float32) + jnp.concatenate(rows, axis=-1).astype(jnp.float32)).astype(x.dtype)

    return Encoding(init=init, adapt=adapt, embed=embed)


def _table_size(dims: Dims, method: str, antialias: bool, factorized: bool, resizes: bool) -> tuple[int, ...]:
    """Return the trained extent as a tuple, all options checked."""
    if dims.extent is None:
        raise ValueError("a table needs the trained extent, got dims.extent=None")
    check_choice("method", method, METHODS)
    if antialias and method == "align_corners":
        raise ValueError("learned: antialias must be False where method='align_corners', got True")
    if factorized and (dims.axes == 1 or dims.width % dims.axes):
        rule = "more than one axis, and a width that they divide"
        raise ValueError(f"learned(factorized=True) needs {rule}, got axes={dims.axes}, width={dims.width}")
    if resizes and dims.axes > 1:
        raise ValueError(f"extend='resize' is for one axis: grids are always resampled, got axes={dims.axes}")
    return dims.extent if isinstance(dims.extent, tuple) else (dims.extent,)


def _sizes(extent: Extent, axes: int, rows: int, resizes: bool) -> tuple[int, ...]:
    """Return the size that the table must have for an extent."""
    if axes > 1:
        if not isinstance(extent, tuple) or len(extent) != axes or min(extent) < 1:
            raise ValueError(f"extent must be a tuple of {axes} positive ints, got {extent!r}")
        return extent
    if isinstance(extent, Tracer):
        return (rows,)
    if isinstance(extent, tuple) or extent < 1:
        raise ValueError(f"extent must be a positive length, got {extent!r}")
    if extent > rows and not resizes:
        raise ValueError(f"a learned table must be as long as the sequence, got a table of {rows} for length {extent}")
    return (max(int(extent), rows),)
