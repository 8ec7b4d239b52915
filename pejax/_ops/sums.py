"""Sums along the last axis in the forms that XLA:CPU computes fastest."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float


def row_sums(x: Float[Array, "T S"]) -> Float[Array, "T 1"]:
    """Return the sum of each row, by a product with ones: three times faster where x comes from a product.

    Transposed it is a product, too; `repeated` is that product.
    """
    return jnp.matmul(x, jnp.ones((x.shape[-1], 1), x.dtype), precision="highest")


def repeated(sums: Float[Array, "T 1"], count: int) -> Float[Array, "T S"]:
    """Return each row's number `count` times, by a product, whose transpose is `row_sums` and no reduction."""
    return jnp.matmul(sums, jnp.ones((1, count), sums.dtype), precision="highest")


def without_leading_ones(
    function: Callable[..., Array], x: Float[Array, "*B C"], *params: Array | None
) -> Float[Array, "*B C"]:
    """Return `function(x, *params)`, x without leading axes of one, beside which sums take ten times longer."""
    first = next((axis for axis, size in enumerate(x.shape[:-1]) if size != 1), x.ndim - 1)
    return function(x.reshape(x.shape[first:]), *params).reshape(x.shape)
