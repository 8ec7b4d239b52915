"""Gradients in reverse mode only: every other derivative is an error that names the implementation."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

Tree = TypeVar("Tree")


class UnknownDerivative(NotImplementedError):
    """Raised for a derivative that an implementation lacks; `attempt` then does not try the next implementation."""


def reverse_only(name: str, tree: Tree) -> Tree:
    """Return the tree; its floating-point leaves allow gradients, and raise an error for every other derivative.

    Otherwise the error would come from inside the implementation `name`, and would name neither this implementation
    nor one that has the derivative.
    """
    is_floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: _reverse_only_identity(name)(x) if is_floating(x) else x, tree)


def _refuse(name: str) -> NoReturn:
    raise UnknownDerivative(
        f"attention by {name!r} has gradients in reverse mode, and no other derivatives: for jax.jvp, jax.hessian and "
        'gradients of gradients pass implementation="reference"'
    )


def _without_derivative(name: str) -> Callable[[Array], Array]:
    """Return the identity function, with a derivative that raises `UnknownDerivative`."""
    identity = jax.custom_jvp(lambda x: x)
    identity.defjvp(lambda x, tangent: _refuse(name))
    return identity


def _reverse_only_identity(name: str) -> Callable[[Array], Array]:
    """Return the identity function whose tangent can be transposed, but neither computed nor differentiated."""
    identity = jax.custom_jvp(lambda x: x)

    @identity.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (x,), (tangent,) = primals, tangents
        # An empty array tells `_batch` whether x is batched, and costs nothing.
        empty = lax.slice(x, (0,) * x.ndim, (0,) * x.ndim)
        return _without_derivative(name)(x), _tangent_identity().bind(tangent, empty, name=name)

    return identity


def _transpose(gradient: Array | ad.Zero, *_: Any, name: str) -> list[Any]:
    """Return the gradients of the operands of `_tangent_identity`: the tangent's passes through, "empty" has none."""
    return [gradient if isinstance(gradient, ad.Zero) else _without_derivative(name)(gradient), None]


def _batch(operands: tuple[Array, Array], axes: tuple[Any, Any], *, name: str) -> tuple[Array, Any]:
    """Return the batched tangent and its batch axis, or refuse many tangents at one point: `jax.jacfwd`."""
    tangent_axis, point_axis = axes
    if tangent_axis is not None and point_axis is None:
        _refuse(name)
    return _tangent_identity().bind(*operands, name=name), tangent_axis


@functools.cache
def _tangent_identity() -> Any:
    """Return the primitive `(tangent, empty) -> tangent`, which is transposed or batched, and refuses all else.

    It is made on first use, because importing `jax.extend` imports Pallas.
    """
    from jax.extend.core import Primitive

    primitive = Primitive("reverse_only")
    primitive.def_abstract_eval(lambda tangent, empty, *, name: tangent)
    primitive.def_impl(lambda *_, name: _refuse(name))
    mlir.register_lowering(primitive, lambda *_, name: _refuse(name))
    ad.primitive_jvps[primitive] = lambda *_, name: _refuse(name)
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = _batch
    return primitive
