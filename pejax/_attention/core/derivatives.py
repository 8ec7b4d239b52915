"""Derivatives of attention in tiles: the first, in reverse and in forward mode; others are refused with the way out."""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import jax
from jaxtyping import Array

from pejax._ops.derivatives import Rules, differentiable
from pejax._ops.pytrees import is_float

Tree = TypeVar("Tree")


def tiled_rules(
    run: Callable[..., Any], plain: Callable[..., Any], save: Callable[..., Any], pull: Callable[..., Any]
) -> Rules:
    """Return the rules of attention in tiles or by kernels, whose first derivatives have no derivatives.

    Args:
        run: as in `Rules`.
        plain: as in `Rules`.
        save: as in `Rules`.
        pull: as in `Rules`.
    """

    def pushable(static: Any, operands: Any) -> Any:
        return differentiable(_FORWARD, None, plain(static, operands))

    def pull_once(static: Any, operands: Any, saved: Any, cotangents: Any) -> Any:
        return pull(static, *_without_derivative((operands, saved, cotangents)))

    return Rules(run, pushable, save, pull_once, named=True)


def _refuse(*_: Any) -> NoReturn:
    raise NotImplementedError(
        "attention in tiles or by kernels has first derivatives, in reverse and in forward mode, and no others: for "
        'jax.hessian, gradients of gradients and gradients of jax.jvp pass implementation="reference"'
    )


_FORWARD = Rules(lambda _, x: x, lambda _, x: x, lambda *_: (), _refuse)
"""The identity function, whose tangents have no gradient."""


def _without_derivative(tree: Tree) -> Tree:
    """Return the tree, with a derivative that is refused."""
    return jax.tree.map(lambda x: _constant(x) if is_float(x) else x, tree)


@jax.custom_jvp
def _constant(x: Array) -> Array:
    return x


_constant.defjvp(_refuse)
