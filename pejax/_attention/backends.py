"""The implementations of attention, the order in which each platform tries them, and why one was skipped."""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pejax._attention.core import reference
from pejax._attention.core.operands import HeadFunction, Layout, Operands, over_heads, refuse_pair_arrays
from pejax._attention.core.options import Options
from pejax._attention.xla import blockwise, cpu, dense
from pejax._calls.names import did_you_mean
from pejax._ops.backend import platform
from pejax._ops.open_sizes import are_open
from pejax._ops.varying import varying_alike, varying_axes

Implementation: TypeAlias = Callable[[Options, Layout, Operands], tuple[Array, Array]]
"""`(options, layout, operands) -> (output N K G T D, log-sum-exp N K G T)`, differentiable; traced under `jax.jit`.

It raises `NotImplementedError(reason)` when traced with operands or options that it does not support.
"""


def _by_head(head: HeadFunction) -> Implementation:
    """Return the implementation that runs `head` for every head."""
    return lambda options, layout, operands: over_heads(functools.partial(head, options), operands, layout)


def _blockwise(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Attend in tiles, on any device."""
    refuse_pair_arrays(operands)
    return _by_head(blockwise.blockwise_head)(options._replace(block=blockwise.BLOCK), layout, operands)


def _cpu(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Attend in tiles, head by head, as CPUs do it fastest."""
    return cpu.cpu_attention(options._replace(block=cpu.block()), layout, operands)


MOSAIC_GPU = (0, 12)
"""The first version of JAX whose Mosaic GPU, and interpreter of it, have what our kernels use."""

# Kernels are imported on first use, because Pallas takes longer to import than all of this package.


def _tpu(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Attend by the Pallas kernels for TPUs."""
    from pejax._attention.tpu import tpu_attention as tpu

    return tpu.tpu_attention(options, layout, operands, interpret=_is_interpreted("tpu", operands))


def _gpu(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Attend by the Pallas kernels for GPUs."""
    from pejax._attention.gpu.availability import missing_backend

    if reason := missing_backend():
        raise NotImplementedError(reason)
    from pejax._attention.gpu import gpu_attention as gpu

    return gpu.gpu_attention(options, layout, operands, interpret=_is_interpreted("gpu", operands))


def _mosaic_gpu(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Attend by the Pallas kernels for Hopper GPUs, on Mosaic GPU."""
    _refuse_old_jax()
    from pejax._attention.mosaic import mosaic_attention as mosaic

    return mosaic.mosaic_attention(options, layout, operands, interpret=_is_interpreted("gpu", operands))


def _refuse_old_jax() -> None:
    if jax.__version_info__ < MOSAIC_GPU:
        needed = ".".join(map(str, MOSAIC_GPU))
        raise NotImplementedError(f"the kernels on Mosaic GPU need jax {needed}, got {jax.__version__}")


def _cudnn(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Attend by cuDNN."""
    from pejax._attention.gpu import cudnn

    return cudnn.fused_attention(options, layout, operands, interpret=platform() != "gpu")


def _is_interpreted(device: str, operands: Operands) -> bool:
    """Return whether kernels for a device run in Pallas's interpreter; refuse where JAX's own slices fail in it."""
    is_interpreted = platform() != device
    if is_interpreted and varying_axes(operands):
        raise NotImplementedError(f"not on a {device.upper()}, kernels run in a shard_map with check_vma=False alone")
    return is_interpreted


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": _by_head(reference.dense_head),
    "dense": _by_head(dense.dense_head),
    "blockwise": _blockwise,
    "cpu": _cpu,
    "tpu": _tpu,
    "gpu": _gpu,
    "cudnn": _cudnn,
    "mosaic_gpu": _mosaic_gpu,
}


class Kernel(NamedTuple):
    """An implementation whose kernels need a device, as it can be tried without one.

    Attributes:
        device: the platform of its device.
        trial: what it is on its device, interpreted: it refuses the same operands.
        ways: the names of the ways in which it obtains the bias (`kernel_call.Way`), the first that serves is taken.
    """

    device: str
    trial: Implementation
    ways: Callable[[Options, Layout, Operands], tuple[str, ...]]


def _gpu_trial(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    from pejax._attention.gpu import gpu_attention as gpu

    return gpu.gpu_attention(options, layout, operands, interpret=True)


def _gpu_ways(options: Options, layout: Layout, operands: Operands) -> tuple[str, ...]:
    from pejax._attention.gpu import gpu_attention as gpu

    return gpu.KERNELS.names_of_ways(options, layout, operands)


def _cudnn_trial(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    from pejax._attention.gpu import cudnn

    with jax.numpy_dtype_promotion("standard"):  # JAX's own attention promotes
        return cudnn.fused_attention(options, layout, operands, backend="xla", interpret=True)


def _mosaic_gpu_trial(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    _refuse_old_jax()
    from pejax._attention.mosaic import mosaic_attention as mosaic

    return mosaic.traced_attention(options, layout, operands, interpret=True)


def _mosaic_gpu_ways(options: Options, layout: Layout, operands: Operands) -> tuple[str, ...]:
    from pejax._attention.mosaic import mosaic_attention as mosaic

    return mosaic.KERNELS.names_of_ways(options, layout, operands)


def _tpu_trial(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    from pejax._attention.tpu import tpu_attention as tpu

    return tpu.tpu_attention(options, layout, operands, interpret=True)


def _tpu_ways(options: Options, layout: Layout, operands: Operands) -> tuple[str, ...]:
    from pejax._attention.tpu import tpu_attention as tpu

    return tpu.KERNELS.names_of_ways(options, layout, operands)


KERNELS = {
    "cudnn": Kernel("gpu", _cudnn_trial, lambda *_: ("fused",)),
    "gpu": Kernel("gpu", _gpu_trial, _gpu_ways),
    "mosaic_gpu": Kernel("gpu", _mosaic_gpu_trial, _mosaic_gpu_ways),
    "tpu": Kernel("tpu", _tpu_trial, _tpu_ways),
}
"""The implementations whose kernels need a device."""


class Preference(NamedTuple):
    """The order in which a platform tries the implementations.

    Attributes:
        short: the largest T·S of one head for which "dense" is tried first.
        kernels: the implementations to try, in order; for larger T·S "dense" is tried last.
    """

    short: int
    kernels: tuple[str, ...]


PREFERENCES = {
    "cpu": Preference(2**10, ("cpu",)),
    "gpu": Preference(2**15, ("cudnn", "gpu", "blockwise")),
    "tpu": Preference(2**15, ("tpu", "blockwise")),
}
"""`short` was measured on CPU, forward and backward on one core; for GPU and TPU it is a guess."""


class Attempt(NamedTuple):
    """An implementation that was tried, and why it was skipped; None for the one that ran."""

    name: str
    reason: str | None


def candidates(operands: Operands, implementation: str | None) -> tuple[str, ...]:
    """Return the names of the implementations to try, in order.

    Args:
        operands: arrays of the call, whose size decides.
        implementation: the only one to try; None = all that the platform prefers.

    Raises:
        ValueError: an unknown implementation.
    """
    if implementation is not None:
        return (checked_name(implementation),)
    if are_open(operands.q, operands.k):
        return ("dense",)
    short, kernels = PREFERENCES[platform()]
    if "cpu" in kernels and on_automatic_axes(operands.q):
        kernels = ("blockwise", *kernels)  # a loop over the batch would gather what is split over it
    queries, keys = operands.q.shape[-2], operands.k.shape[-2]
    is_short = queries * keys <= short or (queries == 1 and "cpu" in kernels)
    return ("dense", *kernels) if is_short else (*kernels, "dense")


def on_automatic_axes(x: Array) -> bool:
    """Return whether an array is on a mesh whose automatic axes, over several devices, may split it."""
    mesh = jax.typeof(x).sharding.mesh
    return any(mesh.shape[axis] > 1 for axis in mesh.axis_names if axis in mesh.auto_axes)


def checked_name(implementation: str) -> str:
    """Return the name of an implementation; ValueError for another."""
    if implementation not in IMPLEMENTATIONS:
        hint = did_you_mean(implementation, IMPLEMENTATIONS)
        raise ValueError(f"implementation must be None or one of {(*IMPLEMENTATIONS,)}, got {implementation!r}{hint}")
    return implementation


def checked_kernel(name: str) -> str:
    """Return the name of an implementation whose kernels need a device; ValueError for another."""
    if name not in KERNELS:
        rule = f"implementations must be of {(*KERNELS,)}, those whose kernels need a device"
        raise ValueError(f"{rule}, got {name!r}{did_you_mean(name, KERNELS)}")
    return name


def attempt(
    options: Options, layout: Layout, operands: Operands, names: tuple[str, ...], *, trial: bool = False
) -> tuple[list[Attempt], tuple[Array, Array] | None]:
    """Try the implementations in order until one runs.

    Args:
        options: settings of the attention.
        layout: layout of the operands.
        operands: arrays of the call.
        names: the implementations; in a trial, those of `KERNELS`.
        trial: whether to try kernels as they are on their device.

    Returns:
        Every attempt, and the outputs of the last one; None if no implementation supports the call.
    """
    attempts: list[Attempt] = []
    for name in names:
        try:
            outputs = _run(options, layout, name, operands, trial)
        except NotImplementedError as error:
            attempts.append(Attempt(name, str(error)))
        else:
            return [*attempts, Attempt(name, None)], outputs
    return attempts, None


def run(
    options: Options, layout: Layout, operands: Operands, implementation: str | None, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """Run one implementation, or the first that supports the operands; return outputs of `shape` and `shape[:-1]`."""
    names = candidates(operands, implementation)
    if 0 in operands.q.shape or operands.k.shape[-2] == 0:
        return jnp.zeros(shape, operands.q.dtype), jnp.full(shape[:-1], -jnp.inf, jnp.float32)
    turns, outputs = attempt(options, layout, operands, names)
    if outputs is None:
        raise NotImplementedError("; ".join(f"{name}: {reason}" for name, reason in turns))
    output, lse = outputs
    return jnp.moveaxis(output, 3, 1).reshape(shape), jnp.moveaxis(lse, 3, 1).reshape(shape[:-1])


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 4))
def _run(options: Options, layout: Layout, name: str, operands: Operands, trial: bool) -> tuple[Array, Array]:
    """Run one implementation; all but the dense ones have first derivatives only."""
    operands = varying_alike(operands)
    if name not in ("reference", "dense") and are_open(operands.q, operands.k):
        sizes, way = operands.q.shape, 'implementation="dense" takes any'
        raise NotImplementedError(f"tiles and kernels need known sizes, jax.export left open {sizes}: {way}")
    return (KERNELS[name].trial if trial else IMPLEMENTATIONS[name])(options, layout, operands)
