"""The implementations of attention, which of them a platform prefers, and what each says when it cannot."""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
from jaxtyping import Array

from pejax._attention.core.derivatives import UnknownDerivative, reverse_only
from pejax._attention.core.operands import HeadFunction, Layout, Operands, over_heads
from pejax._attention.core.options import Options
from pejax._attention.core.reference import dense_head
from pejax._attention.xla import blockwise, cpu
from pejax._ops.backend import platform

Implementation: TypeAlias = Callable[[Options, Layout, Operands], tuple[Array, Array]]
"""`(options, layout, operands) -> (output N K G T D, log-sum-exp N K G T)`, differentiable; traced under `jax.jit`.

What it cannot do it says when traced, by `NotImplementedError(reason)`.
"""


def _by_head(head: HeadFunction) -> Implementation:
    return lambda options, layout, operands: over_heads(functools.partial(head, options), operands, layout)


def _blockwise(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    if any(x is not None for x in operands.pairs):
        raise NotImplementedError("a mask or bias array is the size of the scores: only the reference takes one")
    return _by_head(blockwise.blockwise_head)(options._replace(block=blockwise.BLOCK), layout, operands)


def _cpu(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    return cpu.cpu_attention(options._replace(block=cpu.block()), layout, operands)


# Kernels are imported where they are asked for: Pallas takes longer to import than all of this package.


def _tpu(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    from pejax._attention.tpu import attention as tpu

    return tpu.tpu_attention(options, layout, operands, interpret=platform() != "tpu")


def _gpu(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    from pejax._attention.gpu import attention as gpu

    return gpu.gpu_attention(options, layout, operands, interpret=platform() != "gpu")


def _cudnn(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    from pejax._attention.gpu import cudnn

    return cudnn.fused_attention(options, layout, operands, interpret=platform() != "gpu")


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": _by_head(dense_head),
    "blockwise": _blockwise,
    "cpu": _cpu,
    "tpu": _tpu,
    "gpu": _gpu,
    "cudnn": _cudnn,
}


class Preference(NamedTuple):
    """What a platform tries.

    Attributes:
        short: scores of one head, T·S, up to which the dense reference comes first.
        kernels: what comes first beyond, in order; the dense reference comes last.
    """

    short: int
    kernels: tuple[str, ...]


PREFERENCES = {
    "cpu": Preference(2**10, ("cpu",)),
    "gpu": Preference(2**15, ("cudnn", "gpu", "blockwise")),
    "tpu": Preference(2**15, ("tpu", "blockwise")),
}
"""The end of the dense reference comes from CPU, forward and backward on one core; those of GPU and TPU are guesses."""


class Attempt(NamedTuple):
    """One implementation's turn: why it could not, or None for the one that ran."""

    name: str
    reason: str | None


def candidates(operands: Operands, implementation: str | None) -> tuple[str, ...]:
    """Return the names to try, in order: the one given, or all that this platform has for this size."""
    if implementation is not None:
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(f"implementation must be None or one of {(*IMPLEMENTATIONS,)}, got {implementation!r}")
        return (implementation,)
    short, kernels = PREFERENCES[platform()]
    is_short = operands.q.shape[-2] * operands.k.shape[-2] <= short
    return ("reference", *kernels) if is_short else (*kernels, "reference")


def attempt(
    options: Options, layout: Layout, operands: Operands, names: tuple[str, ...]
) -> tuple[list[Attempt], tuple[Array, Array] | None]:
    """Try each in turn until one can; return every turn taken, and the outputs of the last if it could."""
    turns: list[Attempt] = []
    for name in names:
        try:
            outputs = _run(options, layout, name, operands)
        except UnknownDerivative:
            raise
        except NotImplementedError as error:
            turns.append(Attempt(name, str(error)))
        else:
            return [*turns, Attempt(name, None)], outputs
    return turns, None


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _run(options: Options, layout: Layout, name: str, operands: Operands) -> tuple[Array, Array]:
    operands = operands if name == "reference" else reverse_only(name, operands)
    return IMPLEMENTATIONS[name](options, layout, operands)
