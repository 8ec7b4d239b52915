"""Custom backward passes that also support forward mode and higher derivatives.

`jax.custom_vjp` gives a function a faster backward pass, but then forward mode and second derivatives fail. Here the
derivative N of the plain function is written as a linear system, with a given solution and a given transposed solution:

    (I - N) x = b    x = (I + N) b    because N N = 0: N maps the part of b for the inputs to that for the outputs

Reverse mode transposes the solution, and so runs the faster backward pass. For all other derivatives JAX differentiates
the plain function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pejax._ops.open_sizes import are_open
from pejax._ops.varying import varying_alike, zeros_varying

NAME = "value_of_plain"
"""The name of the jitted function that is the value, in the jaxpr of a program that calls it."""


def with_backward(
    run: Callable[..., Array],
    plain: Callable[..., Array],
    backward: Callable[..., Any],
    *,
    tpu: Callable[..., Array] | None = None,
) -> Callable[..., Array]:
    """Return a function that computes `run`, with the backward pass `backward` and all other derivatives of `plain`.

    On other devices than CPUs it computes `plain` or `tpu`. Kernels differentiate these; they find them by `NAME`.

    Args:
        run: `(*operands) -> array`, fast on CPUs; need not be differentiable.
        plain: the same function, written in operations that JAX can differentiate.
        backward: `(operands, d_output) -> gradients`, a pytree with one gradient per floating point leaf of the
            operands, in their order.
        tpu: the form of `plain` for TPUs and their kernels. None = `plain` itself.
    """

    def value_of_plain(*operands: Any) -> Array:
        by_run = lambda *operands: _value(run, plain, operands)
        return lax.platform_dependent(*operands, cpu=by_run, tpu=tpu or plain, default=plain)

    value = jax.jit(value_of_plain)

    @jax.custom_jvp
    def function(*operands: Any) -> Array:
        return value(*operands)

    @function.defjvp
    def _(operands: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
        return function(*operands), _tangent(plain, backward, operands, tangents)

    def with_own_backward(*operands: Any) -> Array:
        return plain(*operands) if are_open(*operands) else function(*varying_alike(operands))

    return with_own_backward


def _value(run: Callable[..., Array], plain: Callable[..., Array], operands: Any) -> Array:
    """Return `run(*operands)`, in a form that has the derivative of `plain` even where JAX drops the custom rule.

    JAX drops it in a loop that is differentiated twice. The unknowns of the linear system are 1 and the output y:
    (1, y - plain(*operands)) = (1, 0).
    """
    output = jax.eval_shape(plain, *operands)
    zero = zeros_varying((), output.dtype, operands)
    after_one = lambda y: lax.pad(y.reshape(-1), zero, [(1, 0, 0)])
    solution = lax.custom_linear_solve(
        lambda x: x - x[0] * after_one(plain(*operands)),
        zeros_varying((1 + output.size,), output.dtype, operands).at[0].set(1.0),
        solve=lambda _, b: b + b[0] * after_one(run(*operands)),
        transpose_solve=lambda _, c: c.at[0].add(jnp.vdot(c[1:], run(*operands).reshape(-1))),
    )
    return solution[1:].reshape(output.shape)


def _tangent(plain: Callable[..., Array], backward: Callable[..., Any], operands: Any, tangents: Any) -> Array:
    """Return the tangent of `plain`, as a linear solution whose transpose is `backward`."""
    leaves, tree = jax.tree.flatten(operands)
    indices = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    floats = [leaves[i] for i in indices]

    def of_floats(*floats: Array) -> Array:
        replaced = dict(zip(indices, floats, strict=True))
        return plain(*tree.unflatten([replaced.get(i, leaf) for i, leaf in enumerate(leaves)]))

    output = jax.eval_shape(of_floats, *floats)
    push = lambda x: jax.jvp(of_floats, floats, _split(x, floats))[1].reshape(-1)
    pull = lambda y: _join(jax.tree.leaves(backward(operands, y.reshape(output.shape))), output.dtype)
    all_tangents = jax.tree.leaves(tangents)
    b, zero = _join([all_tangents[i] for i in indices], output.dtype), zeros_varying((), output.dtype, operands)
    # the unknowns are one vector: first the inputs' part, then the outputs'
    inputs_of, outputs_of = lambda x: x[: b.size], lambda x: x[b.size :]
    as_inputs = lambda part: lax.pad(part, zero, [(0, output.size, 0)])
    as_outputs = lambda part: lax.pad(part, zero, [(b.size, 0, 0)])
    solution = lax.custom_linear_solve(
        lambda x: x - as_outputs(push(inputs_of(x))),
        as_inputs(b),
        solve=lambda _, b: b + as_outputs(push(inputs_of(b))),
        transpose_solve=lambda _, c: c + as_inputs(pull(outputs_of(c))),
    )
    return outputs_of(solution).reshape(output.shape)


def _join(parts: Sequence[Array], dtype: Any) -> Float[Array, " N"]:
    """Return the elements of all arrays as one vector."""
    return jnp.concatenate([x.astype(dtype).reshape(-1) for x in parts])


def _split(joined: Float[Array, " N"], like: Sequence[Array]) -> list[Array]:
    """Undo `_join`: return arrays of the shapes and types of those in `like`."""
    ends = [0]
    for x in like:
        ends.append(ends[-1] + x.size)
    parts = zip(like, ends[:-1], ends[1:], strict=True)
    return [joined[start:end].reshape(x.shape).astype(x.dtype) for x, start, end in parts]
