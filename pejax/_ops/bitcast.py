"""A bitcast that is safe for arrays that XLA may fold as constants."""

from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Shaped


def bitcast(x: Shaped[Array, "..."], dtype: DTypeLike) -> Shaped[Array, "..."]:
    """Return the bits of x as another type, also if x is a transposed constant of the compiled program.

    XLA folds the bitcast of such a constant in the order of its elements in memory and ignores the transpose
    (docs/known-traps.md). The barrier prevents that folding.
    """
    return lax.bitcast_convert_type(lax.optimization_barrier(x), dtype)
