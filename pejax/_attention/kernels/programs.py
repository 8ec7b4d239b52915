"""Programs of hooks of pairs: flat lists of the operations that kernels run, cut off from what no token has a part in.

A hook is traced for `QUERIES` and `KEYS`, by which the axes of tokens are recognized in every shape. Nested calls are
entered, and rules of derivatives applied.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage] - from 0.12 on, another name of Jaxpr
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
)
from jaxtyping import Array

from pejax._attention.kernels.elementwise import CHEAP, COSTLY, NESTED
from pejax._ops.backward import NAME
from pejax._ops.varying import varying_over

QUERIES, KEYS = 8167, 8171
"""Numbers of queries and keys in the trace, by which axes of tokens are recognized; no other axis may have one."""

SHIFTS = ("left", "right_arithmetic", "right_logical")
ELEMENTWISE = CHEAP | COSTLY | {"add_any", "one_minus_square"} | {f"shift_{x}" for x in SHIFTS}
"""Operations on each number alone."""
OF_CHANNELS = frozenset(
    {"broadcast_in_dim", "concatenate", "dot_general", "expand_dims", "pad", "reduce_max", "reduce_min", "reduce_sum"}
    | {"reshape", "rev", "slice", "split", "squeeze", "transpose"}
)
"""Operations along channels, which leave the tokens in place; products and sums of gradients go over tokens, too."""
OPERATIONS = ELEMENTWISE | OF_CHANNELS
"""What a hook may do to tokens."""

TYPES = ("pvary", "pcast")
"""Operations that change the type of an array in `jax.shard_map`, and no number."""


class Program(NamedTuple):
    """What is computed for a tile.

    Attributes:
        outside: `numbers -> operands`: what no token has a part in, computed outside the kernel.
        tile: its inputs are the operands, then the inputs of the tile.
    """

    outside: Callable[[list[Array]], list[Array]]
    tile: Jaxpr


def has_tokens(shape: Sequence[int]) -> bool:
    """Return whether an axis of the shape is one of tokens."""
    return not {QUERIES, KEYS}.isdisjoint(shape)


class Split(NamedTuple):
    """A jaxpr in two: `outside`, of its known inputs, and the rest, `tile`.

    Attributes:
        outside: `known inputs -> values`.
        tile: reads the values, then the other inputs.
        of_known: for each value, whether it depends on an input; others are constants.
        varying: for each value, the axes of the mesh over which it varies.
    """

    outside: Callable[[list[Array]], list[Array]]
    tile: Jaxpr
    of_known: tuple[bool, ...]
    varying: tuple[frozenset[str], ...]


def split(closed: ClosedJaxpr, known_count: int) -> Split:
    """Split a flat jaxpr: equations that read the tile, or whose results have an axis of tokens, belong to the tile."""
    jaxpr = closed.jaxpr
    known, others = jaxpr.invars[:known_count], jaxpr.invars[known_count:]
    equations = _needed(jaxpr)
    of_tile, dependent = {*others}, {*known}
    inside, outside = [], []
    for equation in equations:
        variables = [atom for atom in equation.invars if isinstance(atom, Var)]
        reads_tile = any(variable in of_tile for variable in variables)
        if reads_tile or any(has_tokens(shape_of(variable)) for variable in equation.outvars):
            of_tile.update(equation.outvars)
            inside.append(equation)
        else:
            outside.append(equation)
            if any(variable in dependent for variable in variables):
                dependent.update(equation.outvars)
    read = [atom for equation in inside for atom in equation.invars] + jaxpr.outvars
    values = [*dict.fromkeys(atom for atom in read if isinstance(atom, Var) and atom not in of_tile)]
    names = jaxpr.debug_info.with_unknown_names()
    part = lambda invars, equations, outvars: jaxpr.replace(
        constvars=[], invars=invars, eqns=equations, outvars=outvars, debug_info=names
    )
    before = ClosedJaxpr(part([*jaxpr.constvars, *known], outside, values), ())
    run = lambda leaves: evaluate(before, lambda _: None, [*closed.consts, *leaves])
    return Split(
        run,
        part([*values, *others], inside, jaxpr.outvars),
        tuple(x in dependent for x in values),
        tuple(x.aval.manual_axis_type.varying for x in values),  # pyright: ignore[reportAttributeAccessIssue]
    )


def _needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """Return the equations that the outputs depend on."""
    wanted = {atom for atom in jaxpr.outvars if isinstance(atom, Var)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if wanted.intersection(equation.outvars):
            wanted.update(atom for atom in equation.invars if isinstance(atom, Var))
            equations.append(equation)
    return equations[::-1]


def reads(jaxpr: Jaxpr, place: int) -> bool:
    """Return whether an equation or the output of a jaxpr reads one of its inputs."""
    variable = jaxpr.invars[place]
    return any(variable in equation.invars for equation in jaxpr.eqns) or variable in jaxpr.outvars


def flat(
    function: Callable[..., Any], enter: Callable[[JaxprEqn], Any], shapes: Any, varying: Sequence[frozenset[str]]
) -> ClosedJaxpr:
    """Trace a function of arrays into one list of equations.

    Args:
        function: takes a tree of arrays.
        enter: returns the jaxpr of a call that is entered, else None.
        shapes: the shapes of the arrays.
        varying: for each leaf, the axes of the mesh over which it varies, in `jax.shard_map`.
    """
    leaves, tree = jax.tree.flatten(shapes)
    vary = lambda leaves: [varying_over(axes, x) for axes, x in zip(varying, leaves, strict=True)]
    closed = jax.make_jaxpr(lambda *leaves: function(tree.unflatten(vary(leaves))))(*leaves)
    return jax.make_jaxpr(lambda *leaves: evaluate(closed, enter, vary(leaves)))(*leaves)


def enter(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the jaxpr of a call, if it has no rule of derivatives of its own, or one that is that of the jaxpr."""
    name, params = equation.primitive.name, equation.params
    if name in (*NESTED, "checkpoint", "remat", "remat2"):
        inner = params["jaxpr" if "jaxpr" in params else "call_jaxpr"]
        return inner if hasattr(inner, "consts") else ClosedJaxpr(inner, ())
    if name == "cond" and params.get("branches_platforms"):
        platforms = params["branches_platforms"]
        of_tpu = [i for i, names in enumerate(platforms) if names is not None and "tpu" in names]
        return params["branches"][of_tpu[0] if of_tpu else platforms.index(None)]
    if name == "custom_jvp_call":
        inner = params["call_jaxpr"]
        calls = [inner_equation.params.get("name") for inner_equation in inner.jaxpr.eqns]
        return inner if calls == [NAME] else None
    return None


def enter_all(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the jaxpr of any call."""
    if equation.primitive.name in ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"):
        return equation.params["call_jaxpr" if "call_jaxpr" in equation.params else "fun_jaxpr"]
    return enter(equation)


def evaluate(closed: ClosedJaxpr, enter: Callable[[JaxprEqn], Any], args: list[Any]) -> list[Any]:
    """Run a jaxpr equation by equation, and the calls that are entered in the same way."""
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else values[atom]
    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        inner = enter(equation)
        if inner is None:
            results = _bind(equation, operands)
        elif equation.primitive.name == "cond":
            results = evaluate(inner, enter, operands[1:])
        else:
            results = evaluate(inner, enter, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _bind(equation: JaxprEqn, values: list[Any]) -> list[Any]:
    """Run one equation."""
    primitive = equation.primitive
    if primitive.name in TYPES:  # its operand may vary already
        return list(varying_over(frozenset(equation.params["axes"]), values))
    results = primitive.bind(*values, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


def shape_of(atom: Any) -> tuple[int, ...]:
    """Return the shape of a variable or literal."""
    return atom.aval.shape


def dtype_of(atom: Any) -> Any:
    """Return the type of a variable or literal."""
    return atom.aval.dtype
