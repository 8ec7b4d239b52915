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
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: _marked(name)(x) if floating(x) else x, tree)


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


def _marked(name: str) -> Callable[[Array], Array]:
    """Return the identity whose tangent can be transposed, but neither computed nor differentiated."""
    identity = jax.custom_jvp(lambda x: x)

    @identity.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (x,), (tangent,) = primals, tangents
        nothing = lax.slice(x, (0,) * x.ndim, (0,) * x.ndim)  # empty; `_batch` reads from it whether x is batched
        return _without_derivative(name)(x), _tangent().bind(tangent, nothing, name=name)

    return identity


def _transpose(gradient: Array | ad.Zero, *_: Any, name: str) -> list[Any]:
    return [gradient if isinstance(gradient, ad.Zero) else _without_derivative(name)(gradient), None]


def _batch(operands: tuple[Array, Array], axes: tuple[Any, Any], *, name: str) -> tuple[Array, Any]:
    if axes[0] is not None and axes[1] is None:  # many tangents at one point: `jax.jacfwd`
        _refuse(name)
    return _tangent().bind(*operands, name=name), axes[0]


@functools.cache
def _tangent() -> Any:
    """Return the identity for tangents, a primitive. It is made on first use: importing `jax.extend` imports Pallas."""
    from jax.extend.core import Primitive

    tangent = Primitive("reverse_only")
    tangent.def_abstract_eval(lambda tangent, nothing, *, name: tangent)
    tangent.def_impl(lambda *_, name: _refuse(name))
    mlir.register_lowering(tangent, lambda *_, name: _refuse(name))
    ad.primitive_jvps[tangent] = lambda *_, name: _refuse(name)
    ad.primitive_transposes[tangent] = _transpose
    batching.primitive_batchers[tangent] = _batch
    return tangent
