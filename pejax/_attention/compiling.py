"""Trial compilation of a program: an error inside a user's jit comes too late to be caught there."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def compile_error(function: Callable[..., Any], *operands: Any) -> tuple[str, float]:
    """Return the first line of the compilation error of a function with its gradients (empty = none), and the seconds.

    Args:
        function: returns one array.
        *operands: trees of arrays or shapes; floats among them get gradients.
    """

    def loss(*operands: Any) -> Array:
        return jnp.sum(function(*operands).astype(jnp.float32))

    begun = time.perf_counter()
    values_and_gradients = jax.value_and_grad(loss, tuple(range(len(operands))), allow_int=True)
    try:
        jax.jit(values_and_gradients).lower(*operands).compile()
    except Exception as error:  # XLA, Triton, Mosaic and cuDNN each raise types of their own
        line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        return line[:300], time.perf_counter() - begun
    return "", time.perf_counter() - begun
