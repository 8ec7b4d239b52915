"""The bits of an array as another type."""

from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Shaped


def bitcast(x: Shaped[Array, "..."], dtype: DTypeLike) -> Shaped[Array, "..."]:
    """Return the bits of x as another type, where x may be a constant of the compiled program, transposed.

    XLA folds the bits of such a constant in the order that they have in memory, for whatever order the result is to
    have (docs/known-traps.md). What is behind a barrier is not folded.
    """
    return lax.bitcast_convert_type(lax.optimization_barrier(x), dtype)
