"""Distances at which a bias is one and the same function of its parameters, such as those in T5's last bucket.

The hook is traced on known distances. What it computes from them alone is computed; from there on, two distances have
the same bias, and the same gradients, for all parameters, if what is read for them is the same: rows of indices into a
table, operands of elementwise arithmetic.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage] - from 0.12 on, another name of Jaxpr
    Jaxpr,
    JaxprEqn,
    Literal,
)
from jax.tree_util import Partial
from jaxtyping import Array, Int

from pejax._attention.kernels.elementwise import CHEAP, COSTLY, NESTED, run_equation
from pejax._ops.compile_time import computed_now
from pejax._record.encoding import Params

BY_ROWS = {"broadcast_in_dim", "copy", "reshape", "slice", "squeeze", "stop_gradient", "reduce_sum", "reduce_max"}
"""Operations that keep rows apart if they keep the axis of the distances first and whole."""


class Ends(NamedTuple):
    """Numbers of the first distances that share one bias, and of the last ones; 0 where nothing is known."""

    first: int
    last: int


class _Unknown(NamedTuple):
    """A value that depends on parameters and not on distances."""


class _Undecided(Exception):
    """The hook does something of which nothing is known."""


def constant_ends(hook: Callable[[Params, Array], Array], params: Params, relative: Int[np.ndarray, "R *A"]) -> Ends:
    """Return how many of the first, and of the last, distances have the same bias for all parameters.

    Args:
        hook: `Encoding.distance_bias`.
        params: parameters of one head; arrays or their shapes.
        relative: the distances. What depends on them alone is computed, so call this where nothing is traced.
    """
    distances = jax.numpy.asarray(relative)
    closed = jax.make_jaxpr(lambda params: hook(params, distances))(params)
    count = len(relative)
    try:
        (bias,) = _interpret(closed, [_Unknown()] * len(closed.jaxpr.invars), count)
    except _Undecided:
        return Ends(0, 0)
    return bias if isinstance(bias, Ends) else _ends_of_rows(np.asarray(bias))


def ends_of_hook(distance: Partial, per_head: Params, relative: Int[np.ndarray, "R *A"]) -> Ends:
    """Return the `constant_ends` of a hook.

    Args:
        distance: the hook, bound to the parameters that all heads share.
        per_head: its other parameters, which begin with the axes K, G.
        relative: the distances.
    """
    of_one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), per_head)
    params = {**distance.args[0], **of_one}
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    return Ends(*map(int, computed_now(lambda: constant_ends(distance.func, shapes, relative))))


def _interpret(closed: ClosedJaxpr, args: list[Any], count: int) -> list[Any]:
    """Return the results of a jaxpr: arrays that depend on distances alone, `Ends`, or `_Unknown`."""
    jaxpr: Jaxpr = closed.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))
    for equation in jaxpr.eqns:
        operands = [atom.val if isinstance(atom, Literal) else values[atom] for atom in equation.invars]
        values.update(zip(equation.outvars, _results(jaxpr, equation, operands, count), strict=True))
    return [atom.val if isinstance(atom, Literal) else values[atom] for atom in jaxpr.outvars]


def _results(jaxpr: Jaxpr, equation: JaxprEqn, operands: list[Any], count: int) -> list[Any]:
    """Return the results of one equation."""
    name = equation.primitive.name
    if not any(isinstance(x, (Ends, _Unknown)) for x in operands):
        return run_equation(jaxpr, equation, operands)
    if name in NESTED:
        return _interpret(equation.params["jaxpr" if "jaxpr" in equation.params else "call_jaxpr"], operands, count)
    if len(equation.outvars) != 1:
        raise _Undecided
    shapes = [atom.aval.shape for atom in equation.invars]  # pyright: ignore[reportAttributeAccessIssue]
    (shape,) = (variable.aval.shape for variable in equation.outvars)  # pyright: ignore[reportAttributeAccessIssue]
    has_rows = [isinstance(x, Ends) or (not isinstance(x, _Unknown) and _lead(s, count) and _lead(shape, count))
                for x, s in zip(operands, shapes, strict=True)]  # fmt: skip
    if not any(has_rows):
        return [_repeated(equation, shape, shapes, count)]
    pairs = [*zip(operands, shapes, has_rows, strict=True)]
    ends = [x if isinstance(x, Ends) else _ends_of_rows(np.asarray(x)) for x, _, is_by_row in pairs if is_by_row]
    others = [s for _, s, is_by_row in pairs if not is_by_row]
    if name == "gather":
        is_kept = has_rows == [False, True] and 0 not in equation.params["dimension_numbers"].offset_dims
    elif name in CHEAP | COSTLY:
        is_kept = all(s == () for s in others)
    else:
        is_kept = name in BY_ROWS and 0 not in equation.params.get("axes", ()) and _first_stays(equation)
    if not is_kept or not _lead(shape, count):
        raise _Undecided
    return [Ends(min(x.first for x in ends), min(x.last for x in ends))]


def _repeated(equation: JaxprEqn, shape: tuple[int, ...], shapes: list[tuple[int, ...]], count: int) -> Any:
    """Return the result of an equation on parameters alone: the same for every distance if it is broadcast to them."""
    if equation.primitive.name != "broadcast_in_dim" or not _lead(shape, count) or _lead(shapes[0], count):
        return _Unknown()
    return Ends(count, count) if 0 not in equation.params["broadcast_dimensions"] else _Unknown()


def _first_stays(equation: JaxprEqn) -> bool:
    """Return whether the first axis of the operand is the first of the result."""
    return equation.params.get("broadcast_dimensions", (0,))[:1] == (0,)


def _lead(shape: tuple[int, ...], count: int) -> bool:
    """Return whether the first axis of a shape is that of the distances."""
    return shape[:1] == (count,)


def _ends_of_rows(x: np.ndarray) -> Ends:
    """Return how many of the first rows are the first row, and of the last rows the last."""
    rows = x.reshape(len(x), -1)
    counts = [len(x) if equal.all() else int(np.argmin(equal)) for equal in
              ((rows == rows[0]).all(1), (rows == rows[-1]).all(1)[::-1])]  # fmt: skip
    return Ends(*counts)
