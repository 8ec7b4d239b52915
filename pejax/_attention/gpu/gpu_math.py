"""Two functions of the GPU's own, for kernels on Triton: a power of two in one instruction, and a product and a sum.

Pallas lowers `jnp.exp` to eight instructions, and does not contract a product and a sum into one. Half of what a
forward kernel without a bias issued came from these two.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton
from jaxtyping import Array, Float


def exp2(x: Float[Array, "*N"], inline: bool) -> Float[Array, "*N"]:
    """Return 2^x, with a relative error of at most 2^-22; 0 where x is below -126.

    Args:
        x: float32.
        inline: whether to use the instruction of NVIDIA's GPUs; if not, JAX computes it.
    """
    return _instruction("ex2.approx.ftz.f32 $0, $1;", x) if inline else jnp.exp2(x)


def multiply_add(
    a: Float[Array, "*N"], b: Float[Array, "#*N"] | float, c: Float[Array, "#*N"] | float, inline: bool
) -> Float[Array, "*N"]:
    """Return a·b + c, rounded once where `inline` is True.

    Args:
        a: float32.
        b: broadcasts to a's shape.
        c: broadcasts to a's shape.
        inline: whether to use the instruction of NVIDIA's GPUs; if not, JAX computes it.
    """
    return _instruction("fma.rn.f32 $0, $1, $2, $3;", a, b, c) if inline else a * b + c


def _instruction(assembly: str, first: Array, *others: Array | float) -> Array:
    """Return the result of one instruction on float32 numbers, in the shape of the first operand."""
    operands = [first, *(jnp.broadcast_to(jnp.float32(x), first.shape) for x in others)]
    (result,) = triton.elementwise_inline_asm(
        assembly,
        args=operands,
        constraints=",".join(["=f", *["f"] * len(operands)]),
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(first.shape, jnp.float32)],
    )
    return result
