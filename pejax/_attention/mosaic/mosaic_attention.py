"""Attention on Hopper GPUs, forward and backward: Pallas kernels on Mosaic GPU, with any bias by distance."""

import os

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.kernels import kernel_call, line
from pejax._attention.kernels.fallback import blockwise_call
from pejax._attention.kernels.kernel_call import Kernels, Static
from pejax._attention.kernels.ways import DIAGONALS, SLOTS, Way, position_axes
from pejax._attention.mosaic.mosaic_call import HEAD_SIZES, Call
from pejax._attention.mosaic.mosaic_memory import CONSUMERS

CAPABILITY = "9.0"
HOPPER = ("H100", "H200", "H800", "H20", "GH200")
"""What the names of cards of this capability contain, for cards that do not tell it because they are not here."""

THREADS = CONSUMERS + 2
"""Threads that JAX's interpreter holds at once: one per warpgroup, and the one that waits for them."""


def mosaic_attention(
    options: Options, layout: Layout, operands: Operands, *, interpret: bool = False
) -> tuple[Array, Array]:
    """Return attention by the kernels on Mosaic GPU, as an `Implementation` of `backends`.

    Args:
        options: settings of the attention.
        layout: layout of the operands.
        operands: queries, keys, values, tokens and hooks; a bias must come from `distance_bias`.
        interpret: run in JAX's interpreter of Mosaic GPU, on a CPU.

    Returns:
        The output in q's type and the log-sum-exps.

    Raises:
        NotImplementedError: the kernels do not support these operands, or not this device.
        ValueError: a mask needs an order that the tokens do not have.
    """
    if interpret:
        _refuse_few_threads()
    else:
        kernel_call.refuse_splitting("Mosaic GPU", devices=1)
        _refuse_other_cards()
    return traced_attention(options, layout, operands, interpret=interpret)


def traced_attention(options: Options, layout: Layout, operands: Operands, *, interpret: bool) -> tuple[Array, Array]:
    """Return the same attention, on any device as long as it is only traced."""
    static = Static(options, layout, interpret)
    refuse(static, operands)
    return line.attention(KERNELS, static, operands)


def refuse(static: Static, operands: Operands) -> None:
    """Raise NotImplementedError for operands without support, ValueError for a missing order."""
    kernel_call.refuse(static, operands, ("bfloat16", "float16"))
    if (head_size := operands.q.shape[-1]) > HEAD_SIZES[-1]:
        raise NotImplementedError(f"heads must have at most {HEAD_SIZES[-1]} channels, got {head_size}{WAY_OUT}")
    positions, axes = operands.q_tokens.positions, position_axes(static.layout, operands)
    if operands.shared.distance_bias is None:
        return
    if (axes > 1 and static.layout.box is None) or any(
        not jnp.issubdtype(side.positions.dtype, jnp.integer) for side in (operands.q_tokens, operands.k_tokens)
    ):
        rule = "a bias must be one by distance between integer positions, on a grid known ones"
        raise NotImplementedError(f"{rule}, got {positions.dtype} on {axes} axes{WAY_OUT}")


WAY_OUT = '; implementation=None and "blockwise" take any'


def _refuse_few_threads() -> None:
    """Raise NotImplementedError where JAX's interpreter would wait for threads that its CPU does not have."""
    devices = sum(device.platform == "cpu" for device in jax.local_devices())
    threads = max(devices, int(os.environ.get("PJRT_NPROC", 0)) or os.cpu_count() or 1)
    if threads < THREADS:
        rule = f"JAX's interpreter of Mosaic GPU must have {THREADS} threads, got {threads}"
        raise NotImplementedError(f"{rule}: set PJRT_NPROC={THREADS} before JAX starts")


def _refuse_other_cards() -> None:
    """Raise NotImplementedError on a GPU that is not Hopper, present or absent."""
    absent = jax.sharding.get_abstract_mesh().abstract_device
    if absent is not None:
        name = absent.device_kind
        is_hopper = any(word in name for word in HOPPER)
    else:
        device = jax.devices()[0]
        name, capability = device.device_kind, getattr(device, "compute_capability", None)
        is_hopper = capability == CAPABILITY
    if not is_hopper:
        rule = f"the kernels on Mosaic GPU are for compute capability {CAPABILITY} (H100, H200)"
        raise NotImplementedError(f"{rule}, got {name}; implementation=None takes any")


def _ways(static: Static, operands: Operands) -> tuple[Way, ...]:
    """Return the ways to obtain the bias: even one that a tile could compute is looked up by distance."""
    if operands.shared.distance_bias is None:
        return (Way("none"),)
    return DIAGONALS if position_axes(static.layout, operands) == 1 else SLOTS


KERNELS = Kernels(_ways, Call, blockwise_call)
