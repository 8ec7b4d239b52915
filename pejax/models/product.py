"""The product of a linear layer, its gradients in the order of axes that a CPU multiplies fastest.

    y = x w        dx = dy wᵀ        dw = xᵀ dy

JAX derives `dw = (dyᵀ x)ᵀ`, for which XLA:CPU copies all of dy. In bfloat16 its matrix kernels take row-major operands
alone and give float32: sums of another type, or a transposed operand, take two to six times longer.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from pejax.attention.implementations import platform
from pejax.attention.kept import kept


@jax.custom_vjp
def product(x: Float[Array, "*B C"], kernel: Float[Array, "C N"]) -> Float[Array, "*B N"]:
    """Return `x @ kernel`, summed and returned in at least 32 bits.

    Args:
        x: any leading axes.
        kernel: of the type of x.
    """
    return _sums(x, kernel, (x.ndim - 1,), (0,))


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, kernel = saved
    cotangent = cotangent.astype(x.dtype)
    d_x = _sums(cotangent, kernel, (x.ndim - 1,), (1,))
    return d_x.astype(x.dtype), _kernel_gradient(x, cotangent).astype(kernel.dtype)


product.defvjp(_forward, _backward)


def dot_general(x: Array, kernel: Array, dimensions: Any, precision: Any = None, **options: Any) -> Array:
    """Multiply as `nnx.Linear` asks its `dot_general` to: `product`, in the type of x."""
    del dimensions, precision, options
    return kept(product(x, kernel).astype(x.dtype))


def _sums(a: Array, b: Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...]) -> Array:
    kind = jnp.float32 if a.dtype.itemsize < 4 else a.dtype
    return lax.dot_general(a, b, ((a_axes, b_axes), ((), ())), preferred_element_type=kind)


def _kernel_gradient(x: Float[Array, "*B C"], cotangent: Float[Array, "*B N"]) -> Float[Array, "C N"]:
    """Return `xᵀ dy`. On a CPU, bfloat16 is laid out in memory first: a transposed view cannot be summed in float32.

    Such a constraint would gather what is split over devices; there the sum is left to bfloat16's own product.
    """
    turned, axes = jnp.moveaxis(x, -1, 0), (tuple(range(1, x.ndim)), tuple(range(x.ndim - 1)))
    if x.dtype == jnp.bfloat16 and platform() == "cpu":
        if jax.device_count() > 1:
            return lax.dot_general(turned, cotangent, (axes, ((), ())))
        turned = with_layout_constraint(turned, Layout(major_to_minor=tuple(range(x.ndim))))
    return _sums(turned, cotangent, *axes)
