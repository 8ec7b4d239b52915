"""Attention on TPUs: Mosaic kernels with the bias of the distance made in every tile, and gradients to match."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.kernels import kernel_call, line
from pejax._attention.kernels.fallback import blockwise_call
from pejax._attention.kernels.kernel_call import WAY_OUT, Kernels, Static, of_pairs
from pejax._attention.kernels.pairs import Pairs, prepare_pairs, prepare_values
from pejax._attention.kernels.slots import slot_count
from pejax._attention.kernels.ways import DIAGONALS, SLOTS, Way, position_axes, ways_to_bias
from pejax._attention.tpu import tpu_tile as tpu_tile
from pejax._attention.tpu.tpu_call import Call
from pejax._attention.tpu.tpu_pairs import TilePairs
from pejax._calls.hook_calls import hook_name
from pejax._ops.varying import varying_axes

BLOCK = 512
"""Largest number of queries, and of keys, in a tile: its float32 scores take 1 MiB of vector memory."""
LONGEST_LINE = 2**19
"""Largest T + S for which a head's diagonals and their gradients fit into vector memory."""


def tpu_attention(
    options: Options, layout: Layout, operands: Operands, *, interpret: bool = False
) -> tuple[Array, Array]:
    """Return attention by the Pallas kernels for TPUs, as an `Implementation` of `backends`.

    Args:
        options: settings of the attention; `block` > 0 limits the tile size.
        layout: which tokens are batched.
        operands: arrays of the call, with a bias of the distance or none.
        interpret: run in Pallas's interpreter, which any platform has.

    Returns:
        The output in q's type and the log-sum-exps. Products of float32 are those of the platform's default precision,
        as everywhere in JAX; weights multiply values in the type of the values.

    Raises:
        NotImplementedError: the kernels do not support these operands.
        ValueError: a mask needs an order that the tokens do not have.
    """
    static = Static(options._replace(block=options.block or BLOCK), layout, interpret)
    _refuse(static, operands)
    return line.attention(KERNELS, static, operands)


def _refuse(static: Static, operands: Operands) -> None:
    """Raise NotImplementedError for operands that the kernels do not support, ValueError for a missing order."""
    kernel_call.refuse(static, operands, ("float32", "bfloat16"), pairs=True)
    kinds = [side.positions.dtype for side in (operands.q_tokens, operands.k_tokens)]
    if (operands.shared.bias is not None or of_pairs(operands)) and not all(
        jnp.issubdtype(kind, jnp.integer) for kind in kinds
    ):
        raise NotImplementedError("a bias of positions that are floats and may have gradients")
    if of_pairs(operands) and jnp.uint32 in kinds:
        raise NotImplementedError("a bias of positions in uint32, which may be beyond int32")
    precision = static.options.precision
    if precision not in (None, lax.Precision.DEFAULT, lax.Precision.HIGHEST):
        raise NotImplementedError(f"precision must be DEFAULT or HIGHEST, got {precision}")
    if not static.interpret:
        kernel_call.refuse_splitting("Mosaic", devices=jax.device_count())


def _ways(static: Static, operands: Operands) -> tuple[Way, ...]:
    """Return the ways to obtain the bias; diagonals need positions on one axis, and must fit into memory."""
    if of_pairs(operands):
        return (Way("pairs", pairs=tile_pairs(static.layout, operands)),)
    axes, box = position_axes(static.layout, operands), static.layout.box
    fits = operands.q.shape[3] + operands.k.shape[2] <= LONGEST_LINE
    try:
        lookup = DIAGONALS if fits and axes == 1 else ()
        return ways_to_bias(static.layout, operands, lookup=lookup, most_numbers=tpu_tile.LANES)
    except NotImplementedError:
        if axes == 1 or box is None or 2 * slot_count(box) + sum(static.layout.unplaced) > LONGEST_LINE:
            raise
        return SLOTS


def tile_pairs(layout: Layout, operands: Operands) -> TilePairs:
    """Return the hooks of pairs for kernels; raise NotImplementedError, which names one that they cannot run."""
    axes, dim, varying = position_axes(layout, operands), operands.q.shape[-1], varying_axes(operands)
    shapes = lambda tree, skip: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[skip:], x.dtype), tree)

    def prepared(name: str, prepare: Callable[..., Any]) -> Any:
        hook = getattr(operands.shared, name)
        if hook is None:
            return None
        params = shapes(hook.args[0], 0) | shapes(operands.per_head[name], 2)
        try:
            result = prepare(hook.func, params, dim, axes, varying)
            is_bias = isinstance(result, Pairs)  # alone, so that an error names the hook
            TilePairs(result if is_bias else None, None if is_bias else result, dim, axes)
        except NotImplementedError as error:
            raise NotImplementedError(f"{hook_name(name, hook)} {error}; {WAY_OUT}") from None
        return result

    bias, values = prepared("bias", prepare_pairs), prepared("relative_values", prepare_values)
    return TilePairs(bias, values, dim, axes)


KERNELS = Kernels(_ways, Call, blockwise_call)
