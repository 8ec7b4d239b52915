"""Whether JAX has the backend that our kernels for GPUs are written for, and what stands in for them without it."""

import importlib
from typing import Any

import jax

from pejax._attention.kernels.fallback import blockwise_call
from pejax._attention.kernels.kernel_call import Kernels
from pejax._attention.kernels.ways import Way


def missing_backend() -> str | None:
    """Return the reason why there are no kernels, that Pallas has no Triton backend; None = there are."""
    try:
        importlib.import_module("jax.experimental.pallas.triton")
    except ImportError:
        way = "implementation='blockwise' and, where it applies, 'cudnn' do not need it"
        return f"jax {jax.__version__} has no Triton backend in Pallas, for which these kernels are written: {way}"
    return None


def kernels_for_fused() -> Kernels:
    """Return the kernels that compute what cuDNN's do not: ours on Triton, or none, but tiles by XLA."""
    if missing_backend() is not None:
        return WITHOUT_KERNELS
    from pejax._attention.gpu.gpu_attention import KERNELS  # imports the backend

    return KERNELS


def _no_kernels(*args: Any) -> Any:
    raise NotImplementedError(missing_backend() or "this call has no kernels")


WITHOUT_KERNELS = Kernels(lambda static, operands: (Way("blockwise"),), _no_kernels, blockwise_call)
