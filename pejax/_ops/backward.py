"""Functions with a backward pass of their own that forward mode and second derivatives know too.

`jax.custom_vjp` gives a function a faster backward pass and takes all other derivatives away. Here the tangent map N of
the plain function is part of a linear system, whose solution and whose transposed solution are given:

    (I - N) x = b    x = (I + N) b    as N N = 0: it leads from the inputs' part of b to the outputs' part of x

Reverse mode transposes the solution, and so runs the faster backward pass; whatever else JAX wants to know of N it
finds by differentiating the plain function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def with_backward(
    run: Callable[..., Array], plain: Callable[..., Array], backward: Callable[..., Any]
) -> Callable[..., Array]:
    """Return `run`, with every derivative.

    Args:
        run: `(*operands) -> array`, as fast as can be; need not be differentiable.
        plain: the same, of what JAX differentiates.
        backward: `(operands, d_output)` to a tree with a gradient for each float of the operands, in their order.
    """

    @jax.custom_jvp
    def function(*operands: Any) -> Array:
        return _value(run, plain, operands)

    @function.defjvp
    def _(operands: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
        return function(*operands), _push(plain, backward, operands, tangents)

    return function


def _value(run: Callable[..., Array], plain: Callable[..., Array], operands: Any) -> Array:
    """Return `run(*operands)`, whose derivative is that of `plain` where JAX forgets the rule for it.

    It does in a loop that is differentiated twice. The system has 1 and the output: (1, y - plain) = (1, 0).
    """
    output = jax.eval_shape(plain, *operands)
    after_one = lambda y: lax.pad(y.reshape(-1), jnp.zeros((), y.dtype), [(1, 0, 0)])
    solution = lax.custom_linear_solve(
        lambda x: x - x[0] * after_one(plain(*operands)),
        jnp.zeros(1 + output.size, output.dtype).at[0].set(1.0),
        solve=lambda _, b: b + b[0] * after_one(run(*operands)),
        transpose_solve=lambda _, c: c.at[0].add(jnp.vdot(c[1:], run(*operands).reshape(-1))),
    )
    return solution[1:].reshape(output.shape)


def _push(plain: Callable[..., Array], backward: Callable[..., Any], operands: Any, tangents: Any) -> Array:
    """Return the tangent of `plain`, so that its transpose is `backward`."""
    leaves, tree = jax.tree.flatten(operands)
    places = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    floats = [leaves[i] for i in places]

    def of_floats(*floats: Array) -> Array:
        given = dict(zip(places, floats, strict=True))
        return plain(*tree.unflatten([given.get(i, leaf) for i, leaf in enumerate(leaves)]))

    output = jax.eval_shape(of_floats, *floats)
    push = lambda x: jax.jvp(of_floats, floats, _split(x, floats))[1].reshape(-1)
    pull = lambda y: _join(jax.tree.leaves(backward(operands, y.reshape(output.shape))), output.dtype)
    all_tangents = jax.tree.leaves(tangents)
    b, zero = _join([all_tangents[i] for i in places], output.dtype), jnp.zeros((), output.dtype)
    into, out = lambda x: x[: b.size], lambda x: x[b.size :]
    at_inputs = lambda part: lax.pad(part, zero, [(0, output.size, 0)])
    at_outputs = lambda part: lax.pad(part, zero, [(b.size, 0, 0)])
    solution = lax.custom_linear_solve(
        lambda x: x - at_outputs(push(into(x))),
        at_inputs(b),
        solve=lambda _, b: b + at_outputs(push(into(b))),
        transpose_solve=lambda _, c: c + at_inputs(pull(out(c))),
    )
    return out(solution).reshape(output.shape)


def _join(parts: Sequence[Array], dtype: Any) -> Float[Array, " N"]:
    return jnp.concatenate([x.astype(dtype).reshape(-1) for x in parts])


def _split(whole: Float[Array, " N"], like: Sequence[Array]) -> list[Array]:
    """Undo `_join` of arrays like these."""
    ends = [0]
    for x in like:
        ends.append(ends[-1] + x.size)
    parts = zip(like, ends[:-1], ends[1:], strict=True)
    return [whole[start:end].reshape(x.shape).astype(x.dtype) for x, start, end in parts]
