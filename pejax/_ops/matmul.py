"""The matmul of a linear layer with fast gradients on CPUs (`product`), and rematerialization (`recompute`).

    y = x w        dx = dy wᵀ        dw = xᵀ dy

JAX derives `dw = (dyᵀ x)ᵀ`, for which XLA:CPU copies all of dy. Its matrix kernels are fastest for row-major operands;
in bfloat16, a transposed operand or sums of another type than float32 take two to six times longer.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from pejax._ops.backend import platform
from pejax._ops.bfloat16 import as_bits, restored
from pejax._ops.derivatives import Rules, differentiable
from pejax._ops.pytrees import wide

FOLDS_FACTORS = jax.__version_info__ < (0, 11, 1)
"""Whether XLA computes `(x w + b) c` on a GPU as `(c x) w + b`, which is wrong (openxla/xla#46110)."""


def product(
    x: Float[Array, "*B C"], kernel: Float[Array, "C N"], bias: Float[Array, " N"] | None = None
) -> Float[Array, "*B N"]:
    """Return `x @ kernel + bias`, summed and returned in at least 32 bits.

    Args:
        x: any leading axes.
        kernel: matrix of any type; multiplied in the type of x.
        bias: bias of any type.
    """
    return _product(False, x, kernel, bias)


def product_in_type(
    x: Float[Array, "*B C"], kernel: Float[Array, "C N"], bias: Float[Array, " N"] | None = None
) -> Float[Array, "*B N"]:
    """Return `x @ kernel + bias` in the type of x, summed in at least 32 bits.

    On a GPU the bias is rounded to the type of x: the matrix kernel then adds it, and writes 16 bits instead of 32.

    Args:
        x: any leading axes.
        kernel: matrix of any type; multiplied in the type of x.
        bias: bias of any type.
    """
    narrow = platform() == "gpu" and x.dtype.itemsize < 4
    return _product(narrow, x, kernel, bias).astype(x.dtype)


def product_with_rows(
    x: Float[Array, "*B C"], rows: Float[Array, "N C"], bias: Float[Array, " N"] | None = None
) -> Float[Array, "*B N"]:
    """Return `x @ rows.T + bias`, summed and returned in at least 32 bits.

    For a single vector XLA:CPU reads the rows in their order in memory, where it may copy, or stride through, a
    transposed matrix of the same numbers, which takes up to nine times as long.

    Args:
        x: any leading axes.
        rows: matrix of any type; multiplied in the type of x.
        bias: bias of any type.
    """
    output = _contract(x, rows.astype(x.dtype), (x.ndim - 1,), (1,))
    return output if bias is None else output + bias.astype(output.dtype)


def _product(narrow: bool, x: Array, kernel: Array, bias: Array | None) -> Array:
    """Return `x @ kernel + bias`, in the type of x or, if that is not to be `narrow`, in at least 32 bits."""
    return differentiable(PRODUCT, narrow, (x, kernel, bias))


def _run(narrow: bool, operands: tuple[Array, Array, Array | None]) -> Array:
    """Return the product, without derivatives."""
    x, kernel, bias = operands
    output = _contract(x, kernel.astype(x.dtype), (x.ndim - 1,), (0,), narrow)
    if bias is None:
        return output
    output += bias.astype(output.dtype)
    return lax.optimization_barrier(output) if platform() == "gpu" and FOLDS_FACTORS else output


def _save(narrow: bool, operands: tuple[Array, Array, Array | None], output: Array) -> Array:
    """Return the bits of x."""
    del narrow, output
    return as_bits(operands[0])


def _pull(
    narrow: bool, operands: tuple[Array, Array, Array | None], bits: Array, cotangent: Array
) -> tuple[Array, Array, Array | None]:
    """Return the gradients of x, kernel and bias."""
    x, kernel, bias = restored(bits, operands[0]), *operands[1:]
    # read by the product and by the sum of the bias: without a barrier XLA:GPU keeps it in 32 bits for the sum
    cotangent = lax.optimization_barrier(cotangent) if narrow else cotangent
    d_bias = None if bias is None else jnp.sum(wide(cotangent), tuple(range(x.ndim - 1))).astype(bias.dtype)
    cotangent = cotangent.astype(x.dtype)
    d_x = _contract(cotangent, kernel.astype(x.dtype), (x.ndim - 1,), (1,), narrow)
    return d_x.astype(x.dtype), kernel_gradient(x, cotangent).astype(kernel.dtype), d_bias


PRODUCT = Rules(run=_run, plain=_run, save=_save, pull=_pull)


def recompute(function: Callable[..., Array]) -> Callable[..., Array]:
    """Rematerialize a function: save only its arguments, and compute it again in the backward pass.

    Args:
        function: function of float arrays or None, cheaper to compute than to store its intermediate results. A final
            `product` is not computed again, because no gradient needs its output.
    """
    run = lambda _, arguments: function(*arguments)
    save = lambda _, arguments, output: jax.tree.map(as_bits, arguments)

    def pull(_: None, arguments: Any, bits: Any, cotangent: Array) -> tuple[Array | None, ...]:
        return jax.vjp(function, *jax.tree.map(restored, bits, arguments))[1](cotangent)

    rules = Rules(run=run, plain=run, save=save, pull=pull)
    return functools.wraps(function)(lambda *arguments: differentiable(rules, None, arguments))


def _contract(a: Array, b: Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...], narrow: bool = False) -> Array:
    """Return the product of a and b, summed over these axes in at least 32 bits, then rounded if `narrow`."""
    kind = jnp.float32 if a.dtype.itemsize < 4 and not narrow else a.dtype
    return lax.dot_general(a, b, ((a_axes, b_axes), ((), ())), preferred_element_type=kind)


def kernel_gradient(x: Float[Array, "*B C"], cotangent: Float[Array, "*B N"]) -> Float[Array, "C N"]:
    """Return `xᵀ dy`. On a CPU as `(dyᵀ x)ᵀ` if dy is narrower than x: `aᵀ b` is faster there with a narrow a."""
    if platform() == "cpu" and x.shape[-1] > cotangent.shape[-1]:
        transposed = _over_rows(cotangent, x)
        # without the barrier XLA folds the transpose into the matmul, and copies x
        return lax.optimization_barrier(transposed).T
    return _over_rows(x, cotangent)


def _over_rows(a: Float[Array, "*B C"], b: Float[Array, "*B N"]) -> Float[Array, "C N"]:
    """Return `aᵀ b`, summed over rows.

    On a CPU, `aᵀ` is laid out in memory first: a transposed view of bfloat16 would not be summed in float32.
    """
    transposed, axes = jnp.moveaxis(a, -1, 0), (tuple(range(1, a.ndim)), tuple(range(a.ndim - 1)))
    if platform() == "cpu" and _is_unsharded():
        transposed = _row_major(transposed)
    elif platform() == "cpu" and a.dtype == jnp.bfloat16:
        transposed = _row_major_per_device(transposed)
    return _contract(transposed, b, *axes)


def _is_unsharded() -> bool:
    """Return whether no array is sharded here: there is one device, or this runs inside `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.device_count() == 1 or (not mesh.empty and set(mesh.manual_axes) == set(mesh.axis_names))


def _row_major(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Return x, laid out in memory in the order of its axes."""
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


@jax.custom_batching.custom_vmap
def _row_major_per_device(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Return a sharded array, each shard laid out in memory in the order of its axes.

    `with_layout_constraint` alone would gather the array from all devices.
    """
    return _sharded_row_major(x)


@_row_major_per_device.def_vmap
def _row_major_of_batch(size: int, batched: list[bool], x: Float[Array, "N *B"]) -> tuple[Float[Array, "N *B"], bool]:
    """Batching rule: lay out the batched array, whose batch axis comes first."""
    del size, batched  # the one argument is batched, or this rule would not be called
    return _row_major_per_device(x), True


_sharded_row_major = custom_partitioning(_row_major)


def _keep_sharding(mesh: Any, shapes: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
    """Return the partition rule: output and computation have the sharding of the operand."""
    del result
    return mesh, _row_major, shapes[0].sharding, (shapes[0].sharding,)


def _same_axes(mesh: Any, operands: list[Any], results: list[Any]) -> str:
    """Return the sharding rule: the output has the axes of the operand."""
    del mesh, results
    names = " ".join(f"a{i}" for i in range(len(operands[0].shape)))
    return f"{names} -> {names}"


_sharded_row_major.def_partition(partition=_keep_sharding, sharding_rule=_same_axes)
