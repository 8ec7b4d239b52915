"""Relative table: a learned number for each head and offset of a grid, resized to other grids as a learned table is.

    logits[h, i, j] += table[h, p_j - p_i]

The table of a grid of h · w patches has (2h - 1)(2w - 1) cells, one for each offset of two patches.

Reference:
    Liu et al. 2021, "Swin Transformer" (arXiv 2103.14030), section 3.2 and equation 4: the table, and its bicubic
    resampling.
    Bao et al. 2021, "BEiT" (arXiv 2106.08254): one table per layer over the whole image, initially 0; code:
    `modeling_finetune.py:RelativePositionBias`. Both index their tables by query - key: flip every axis to read them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._ops.checks import check_choice
from pejax._ops.offset_table import is_traced_grid, look_up, sample_offsets, sides_of, table_cells
from pejax._ops.relative import axes_of, check_axes, relative_positions
from pejax._ops.resize import METHODS, resize_grid
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params, from_distance, shared_or_per_layer
from pejax._record.specs import Extension


@checked
def relative_table_bias(
    q_positions: Num[Array, "T *A"], k_positions: Num[Array, "S *A"], table: Float[Array, "H *cells"]
) -> Float[Array, "H T S"]:
    """Return `table[h, p_j - p_i]` for every head and pair; offset 0 is the middle of the table.

    Args:
        q_positions: positions of the queries: `(T,)` in tokens, or `(T, A)` in patches. Between the cells, a fractional
            offset is interpolated bicubically.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        table: logits, with an odd number of cells along each axis, 2n - 1 for n patches; offsets beyond them read the
            border.

    Returns:
        Logits.

    Raises:
        ValueError: a table that does not have the axes of the positions, or an even number of cells along one.

    Examples:
        >>> table = jnp.arange(5.0)[None]  # one head, offsets -2 ... 2
        >>> relative_table_bias(jnp.arange(3), jnp.arange(3), table)[0].tolist()
        [[2.0, 3.0, 4.0], [1.0, 2.0, 3.0], [0.0, 1.0, 2.0]]
    """
    axes, cells = axes_of(q_positions), table.shape[1:]
    if len(cells) != axes or any(count % 2 == 0 for count in cells):
        rule = f"(H, {', '.join(['2n - 1'] * axes)}), as the positions have {axes} axes"
        raise ValueError(f"the relative table must be {rule}, got shape {table.shape}")
    relative = relative_positions(q_positions, k_positions)
    pairs = relative.reshape(-1, axes)
    return jax.vmap(lambda table: look_up(table, pairs))(table).reshape(len(table), *relative.shape[:2])


@encoding_factory()
def relative_table(
    dims: Dims, *, method: str = "bicubic", share: str = "layer", extend: Extension | None = None
) -> Encoding:
    """Make a relative table for these dims: `bias[h, i, j] = table[h, p_j - p_i]`, initially 0.

    On A > 1 axes, `adapt` resamples the table to the cells of any other grid; on a traced grid, every pair of patches
    samples it. On one axis the table stays as it is, and distances of L tokens or more read its ends.

    BEiT has three more numbers, for pairs with its CLS token. Here, pairs with a token that has no position get 0.

    Args:
        dims: `extent` is the trained length or grid, H the number of tables.
        method: resampling method: "bicubic", "bilinear" or "align_corners" (`resize_embedding`).
        share: "layer": one table per layer, as in Swin and BEiT; "model": one for all layers.
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: no extent, an unknown method or an unknown `share`.
    """
    check_choice("relative_table's method", method, METHODS)
    shape = (dims.heads, *table_cells(sides_of("relative_table", dims.extent, dims.axes)))

    def init(key: Array) -> Params:
        del key
        return {"heads": {"table": jnp.zeros(shape, jnp.float32)}}

    def adapt(params: Params, extent: Extent) -> Params:
        if is_traced_grid("relative_table", extent, dims.axes):
            return {**params, "all": {**params.get("all", {}), "cells": 2.0 * jnp.asarray(extent, jnp.float32) - 1.0}}
        cells = table_cells(sides_of("relative_table", extent, dims.axes))
        table = resize_grid(params["heads"]["table"][..., None], cells, method=method)[..., 0]
        return {**params, "heads": {**params["heads"], "table": table}}

    def distance(params: Params, relative: Array) -> Array:
        check_axes("relative_table", relative, dims.axes)
        if "cells" in params:
            return sample_offsets(params["table"], relative, params["cells"], method)
        return look_up(params["table"], relative.reshape(-1, dims.axes))

    return Encoding(
        **shared_or_per_layer(share, init),
        adapt=adapt if dims.axes > 1 else None,
        bias=from_distance(distance),
        distance_bias=distance,
        shift_invariant=True,
        tabulate=True,
    )
