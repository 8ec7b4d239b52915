"""Attention on GPUs, forward and backward: Pallas kernels, with a distance bias computed or looked up in every tile."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.gpu.gpu_call import Call
from pejax._attention.kernels import kernel_call
from pejax._attention.kernels.fallback import blockwise_call
from pejax._attention.kernels.kernel_call import Kernels, Static, primals_of
from pejax._attention.kernels.ways import DIAGONALS, SLOTS, Way, position_axes, ways_to_bias


def gpu_attention(
    options: Options, layout: Layout, operands: Operands, *, interpret: bool = False
) -> tuple[Array, Array]:
    """Return attention by the Pallas kernels for GPUs, as an `Implementation` of `backends`.

    Args:
        options: settings of the attention; `block` > 0 limits the tile size.
        layout: layout of the operands.
        operands: queries, keys, values, tokens and hooks; a bias must come from `distance_bias`.
        interpret: run in Pallas's interpreter, which any platform has.

    Returns:
        The output in q's type and the log-sum-exps. Products of float32 have the platform's default precision, as
        everywhere in JAX.

    Raises:
        NotImplementedError: the kernels do not support these operands.
        ValueError: a mask needs an order that the tokens do not have.
    """
    static = Static(options, layout, interpret)
    refuse(static, operands)
    return kernel_call.attention(KERNELS, static, primals_of(operands), operands)


def refuse(static: Static, operands: Operands) -> None:
    """Raise NotImplementedError for operands that the kernels do not support, ValueError for a missing order."""
    if not static.interpret:
        kernel_call.refuse_splitting("Triton", devices=1)
    kernel_call.refuse(static, operands, ("float32", "bfloat16", "float16"))
    if operands.q.shape[-1] * operands.q.dtype.itemsize > 1024:
        head_size = f"D={operands.q.shape[-1]} of {operands.q.dtype}"
        raise NotImplementedError(f"heads must have at most 1024 bytes, got {head_size}")
    are_floats = {np.dtype(tokens.positions.dtype).kind == "f" for tokens in (operands.q_tokens, operands.k_tokens)}
    if operands.shared.distance_bias is not None and len(are_floats) > 1:
        raise NotImplementedError("positions of queries and keys must both be integers or both floats")


def _ways(static: Static, operands: Operands) -> tuple[Way, ...]:
    """Return the ways to obtain the bias; lookups need integer positions, and on a grid known ones."""
    integers = jnp.issubdtype(operands.q_tokens.positions.dtype, jnp.integer)
    lookup = DIAGONALS if integers and position_axes(static.layout, operands) == 1 else ()
    return ways_to_bias(static.layout, operands, lookup=SLOTS if static.layout.box is not None else lookup)


KERNELS = Kernels(_ways, Call, blockwise_call)
