"""Checks of what users give."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped


def check_position_type(positions: Shaped[Array | np.ndarray, "..."]) -> None:
    """Refuse positions that are no numbers, and floats that do not hold every position: it would be another one.

    Raises:
        TypeError: neither integers nor floats of at least 32 bits.
    """
    kind = positions.dtype
    narrow = jnp.issubdtype(kind, jnp.floating) and jnp.finfo(kind).bits < 32
    if not (narrow or jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.floating)):
        raise TypeError(f"positions must be integers or floats, got {kind}")
    if narrow:
        most = 2 ** (jnp.finfo(kind).nmant + 1)
        raise TypeError(f"positions must be integers or float32, got {kind}, which is exact only up to {most:,}")


@dataclass(frozen=True)
class CausalHook:
    """A hook of an encoding made for a causal model; equal for equal hooks, so that jit knows it again."""

    hook: Callable[..., Any]

    def __call__(self, *operands: Any) -> Any:
        return self.hook(*operands)
