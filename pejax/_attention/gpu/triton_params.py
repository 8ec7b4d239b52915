"""Parameters of our kernels, by which the warning that Pallas's backend for Triton will go is told once, in our words.

JAX warns whenever it lowers a kernel for that backend: inside the caller's `jax.jit`, after the call of the kernel has
returned, and at a line of JAX's own, by which a filter cannot tell our kernels from others. But Pallas finds the rule
that lowers a kernel by the type of its parameters.
"""

import functools
import threading
import warnings
from typing import Any

import jax
from jax._src.pallas.core import get_lowering_rule, register_lowering_rule  # the only way to a rule of one's own
from jax.experimental.pallas import triton

_turn = threading.Lock()  # the filters of warnings are the process's: two threads would restore each other's


class KernelParams(triton.CompilerParams):
    """Parameters of a kernel that is lowered as any other, but with a warning of our own."""


@functools.cache
def warn_of_removal() -> None:
    """Warn, at the first call, that JAX will remove the backend of the kernels."""
    what = "the GPU kernels of pejax need Pallas's Triton backend, which JAX is going to remove"
    warnings.warn(f"{what}: then attention runs by cuDNN and XLA (docs/hardware.md)", FutureWarning, stacklevel=2)


def _lower(*args: Any, **params: Any) -> Any:
    """Lower one kernel by JAX's rule for Triton."""
    warn_of_removal()
    rule: Any = get_lowering_rule(triton.CompilerParams, "gpu")
    with _turn, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        return rule(*args, **params)


if jax.__version_info__ >= (0, 11):  # before, JAX does not warn, and has no such rule
    register_lowering_rule(KernelParams, _lower, "gpu")
