"""A distance_bias hook split in two: its work on parameters, done once, and its work on each distance, inside a kernel.

A hook `distance(params, relative)`, with relative `(R,)` or `(R, A)`, is traced. Whatever does not depend on `relative`
is computed outside the kernel, by XLA and with XLA's derivatives. The rest must be elementwise arithmetic, or a sum or
a choice over the axes. It then runs on tiles of any shape, one tile per axis.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage] - from 0.12 on, another name of Jaxpr
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    jaxpr_as_fun,
)
from jaxtyping import Array

from pejax._calls.hook_calls import check_returned, naming_hook
from pejax._ops.varying import varying_alike
from pejax._record.encoding import Params

COUNT = 8191
"""Number of distances in the trace. Arrays of distances are recognized by this size; parameters of this size are
refused."""

CHEAP = frozenset(
    {"abs", "add", "and", "clamp", "convert_element_type", "copy", "eq", "ge", "gt", "integer_pow", "is_finite", "le"}
    | {"lt", "max", "min", "mul", "ne", "neg", "not", "or", "select_n", "sign", "square", "stop_gradient", "sub", "xor"}
)
"""Operations of one or two instructions."""
MOST_CHEAP = 8
"""Number of them that is still cheaper than a lookup."""
COSTLY = frozenset(
    {"atan2", "ceil", "cos", "div", "erf", "exp", "exp2", "floor", "log", "log1p", "logistic", "pow", "rem"}
    | {"round", "rsqrt", "sin", "sqrt", "tan", "tanh"}
)
"""Operations of many instructions. `expm1`, which kernels of TPUs do not have, makes a bias one that is looked up."""
WHOLE = frozenset({"abs", "max", "min", "neg", "sign"})
"""Operations on integers that are the same on floats that they were rounded to."""
COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)
NESTED = ("jit", "pjit", "closed_call")
OVER_AXES = {"reduce_sum": jnp.add, "reduce_max": jnp.maximum, "reduce_min": jnp.minimum}


class Elementwise(NamedTuple):
    """The two halves of a hook.

    Attributes:
        outside: `params -> numbers`, the numbers that `inside` reads.
        inside: `(numbers, one array of distances per axis) -> bias` in the shape of the distances.
        cheap: whether `inside` takes fewer instructions per element than a lookup.
        takes_floats: whether `inside` takes whole distances as float32, too, rounded once: a GPU is slow with integers.
    """

    outside: Callable[[Params], list[Array]]
    inside: Callable[[Sequence[Array], tuple[Array, ...]], Array]
    cheap: bool
    takes_floats: bool


class _Tile(NamedTuple):
    """A value per distance.

    Attributes:
        parts: inside the kernel, one array per axis; outside, none; in `slope`, the coefficient of the distance.
        on_axes: whether the value has one number per axis, `(R, A)`, or one in all, `(R,)`.
        whole: whether the parts are float32 where the hook has integers.
    """

    parts: tuple[Array, ...] = ()
    on_axes: bool = False
    whole: bool = False


class _Known(NamedTuple):
    """A value that depends only on parameters; None inside the kernel, where parameters are not available."""

    value: Any = None


def cut(hook: Callable[[Params, Array], Array], params: Params, axes: int, dtype: Any) -> Elementwise:
    """Cut a hook in two.

    Args:
        hook: `Encoding.distance_bias`.
        params: parameters of one head; arrays or their shapes.
        axes: A; 1 for relative positions `(R,)`.
        dtype: type of the relative positions.

    Raises:
        NotImplementedError: an operation on distances is not elementwise, or a parameter has an axis of `COUNT`.
    """
    closed = _trace(hook, params, axes, dtype)
    costs: list[bool] = []

    # `outside` and `inside` walk the same jaxpr, and its order alone says which number an equation reads: both must
    # meet the equations on tiles, and the parameters among their operands, in the same order.
    def outside(params: Params) -> list[Array]:
        numbers: list[Array] = []

        def known(jaxpr: Jaxpr, equation: JaxprEqn, values: list[Any]) -> list[Any]:
            return _bind(jaxpr, equation, [x.value if isinstance(x, _Known) else x for x in values])

        def on_tiles(equation: JaxprEqn, values: list[Any]) -> list[Any]:
            numbers_read = [_number(equation, x.value) for x in values if isinstance(x, _Known)]
            if any(not jnp.issubdtype(x.dtype, jnp.floating) for x in numbers_read):
                name = equation.primitive.name
                raise NotImplementedError(f"a distance_bias hook must read floats, but its {name} reads another number")
            numbers.extend(numbers_read)
            return [_Tile(on_axes=len(_shape(variable)) == 2) for variable in equation.outvars]

        leaves = [_Known(leaf) for leaf in jax.tree.leaves(params)]
        _walk(closed.jaxpr, [_Known(x) for x in closed.consts], [*leaves, _Tile(on_axes=axes > 1)], known, on_tiles)
        return numbers

    def inside(numbers: Sequence[Array], relative: tuple[Array, ...]) -> Array:
        following = iter(numbers)

        def known(jaxpr: Jaxpr, equation: JaxprEqn, values: list[Any]) -> list[Any]:
            unknown = any(isinstance(x, _Known) for x in values)
            return [None for _ in equation.outvars] if unknown else _bind(jaxpr, equation, values)

        def on_tiles(equation: JaxprEqn, values: list[Any]) -> list[Any]:
            costs.append(equation.primitive.name in COSTLY)
            operands = [next(following) if isinstance(x, _Known) else x for x in values]
            if any(isinstance(x, _Tile) and x.whole for x in operands):
                return [_apply_to_whole(equation, operands)]
            return [_apply(equation, operands)]

        leaves = [_Known() for _ in closed.jaxpr.invars[:-1]]
        consts = [_Known() for _ in closed.consts]
        whole = jnp.issubdtype(dtype, jnp.integer) and jnp.issubdtype(relative[0].dtype, jnp.floating)
        (result,) = _walk(closed.jaxpr, consts, [*leaves, _Tile(relative, axes > 1, whole)], known, on_tiles)
        if not isinstance(result, _Tile):
            raise NotImplementedError("the distance_bias hook does not read the distance")
        return result.parts[0]

    numbers = jax.eval_shape(outside, params)
    tiles = lambda dtype: tuple(jax.ShapeDtypeStruct((16, 16), dtype) for _ in range(axes))
    jax.eval_shape(inside, numbers, tiles(dtype))
    operations = len(costs)
    try:
        jax.eval_shape(inside, numbers, tiles(jnp.float32))
        takes_floats = True
    except NotImplementedError:
        takes_floats = False
    return Elementwise(outside, inside, not any(costs) and operations <= MOST_CHEAP, takes_floats)


def _trace(hook: Callable[[Params, Array], Array], params: Params, axes: int, dtype: Any) -> ClosedJaxpr:
    """Trace a hook on `COUNT` distances; refuse it if anything else has that size."""
    relative = jax.ShapeDtypeStruct((COUNT,) if axes == 1 else (COUNT, axes), dtype)
    with naming_hook("distance_bias", hook, params, relative):
        closed, shape = jax.make_jaxpr(hook, return_shape=True)(params, relative)
    check_returned("distance_bias", hook, "(R,)", (COUNT,), shape, relative)
    if any(COUNT in jnp.shape(leaf) for leaf in jax.tree.leaves((params, closed.consts))):
        raise NotImplementedError(
            f"no parameter of the distance_bias hook may have an axis of {COUNT:,}, the size of its trace"
        )
    return closed


def slope(hook: Callable[[Params, Array], Array], params: Params) -> Array:
    """Return the number a with `hook(params, r) = a·r` for every r ≤ 0, derived from the hook's own operations.

    Args:
        hook: `Encoding.distance_bias`, which is traced on integer positions on one axis.
        params: parameters of one head.

    Raises:
        NotImplementedError: the hook is not linear in the distance.
    """
    closed = _trace(hook, params, 1, jnp.int32)

    def known(jaxpr: Jaxpr, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        return _bind(jaxpr, equation, [x.value if isinstance(x, _Known) else x for x in values])

    def on_tiles(equation: JaxprEqn, values: list[Any]) -> list[Any]:
        name, dtype = equation.primitive.name, equation.outvars[0].aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
        operands = [x.parts[0] if isinstance(x, _Tile) else _as_float(equation, x) for x in values]
        is_tile = [isinstance(x, _Tile) for x in values]
        if name == "copy" or (name == "convert_element_type" and dtype in (jnp.float32, jnp.float64)):
            result = operands[0]
        elif name == "neg":
            result = -operands[0]
        elif name == "abs":  # |a·r| = |a|·|r|
            result = -jnp.abs(operands[0])
        elif name == "mul" and is_tile.count(True) == 1:
            result = operands[0] * operands[1]
        elif name == "div" and is_tile == [True, False] and jnp.issubdtype(dtype, jnp.floating):
            result = operands[0] / operands[1]
        elif name in ("add", "sub") and all(is_tile):
            result = operands[0] + operands[1] if name == "add" else operands[0] - operands[1]
        else:
            raise NotImplementedError(
                f"a distance_bias hook that applies {name} to distances is not known to be linear"
            )
        return [_Tile((result,))]

    leaves = [_Known(leaf) for leaf in jax.tree.leaves(params)]
    start = _Tile((jnp.float32(1),))
    (result,) = _walk(closed.jaxpr, [_Known(x) for x in closed.consts], [*leaves, start], known, on_tiles)
    if not isinstance(result, _Tile):
        raise NotImplementedError("the distance_bias hook does not read the distance")
    return result.parts[0]


def _as_float(equation: JaxprEqn, value: Any) -> Array:
    return jnp.asarray(_number(equation, value.value if isinstance(value, _Known) else value)).astype(jnp.float32)


def _walk(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], known: Callable, on_tiles: Callable) -> list[Any]:
    """Interpret the jaxpr: `known` evaluates equations without tiles, `on_tiles` the others.

    One interpreter serves three evaluations: the numbers that a hook reads (outside a kernel), the arithmetic on
    distances (inside), and the proof that it is linear (`slope`). They differ only in the two functions. Nested calls
    are entered, so that a hook may use jitted functions. Literals, and results of literals only, are not wrapped.
    """
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else values[atom]
    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        if not any(isinstance(x, _Tile) for x in operands):
            wrap = _Known if any(isinstance(x, _Known) for x in operands) else lambda x: x
            results = [wrap(x) for x in known(jaxpr, equation, operands)]
        elif equation.primitive.name in NESTED:
            inner = equation.params["jaxpr" if "jaxpr" in equation.params else "call_jaxpr"]
            results = _walk(inner.jaxpr, [_Known(x) for x in inner.consts], operands, known, on_tiles)
        else:
            results = on_tiles(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _bind(jaxpr: Jaxpr, equation: JaxprEqn, values: list[Any]) -> list[Any]:
    """Run one equation; a number that would be broadcast to all distances stays a number."""
    if equation.primitive.name == "broadcast_in_dim" and _shape(equation.outvars[0])[:1] == (COUNT,):
        return values[:1]
    return run_equation(jaxpr, equation, values)


def run_equation(jaxpr: Jaxpr, equation: JaxprEqn, values: list[Any]) -> list[Any]:
    """Return the results of one equation of a jaxpr."""
    operands = {atom: x for atom, x in zip(equation.invars, values, strict=True) if not isinstance(atom, Literal)}
    names = jaxpr.debug_info.with_unknown_names()
    alone = jaxpr.replace(constvars=[], invars=[*operands], outvars=equation.outvars, eqns=[equation], debug_info=names)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*varying_alike([*operands.values()]))


def _shape(variable: Var) -> tuple[int, ...]:
    return variable.aval.shape  # pyright: ignore[reportAttributeAccessIssue]


def _number(equation: JaxprEqn, value: Any) -> Array:
    if jnp.ndim(value):
        raise NotImplementedError(
            f"a distance_bias hook must combine distances with one number at a time, but its {equation.primitive.name} "
            f'reads an array of shape {jnp.shape(value)}; implementation="blockwise" takes any hook'
        )
    return jnp.asarray(value)


def _apply_to_whole(equation: JaxprEqn, operands: list[Any]) -> _Tile:
    """Run one equation of integers on floats that hold them, or that they were rounded to beyond 2^24.

    Raises:
        NotImplementedError: its result would be another one.
    """
    name, (result,) = equation.primitive.name, equation.outvars
    kind = result.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    tiles = [x for x in operands if isinstance(x, _Tile)]
    literals = [x for x in operands if not isinstance(x, _Tile)]
    # Rounding keeps the order of two numbers, but may make them equal; below 2^24, it does nothing.
    is_known = all(not isinstance(x, Tracer) and abs(int(x)) < 2**24 for x in literals)
    is_same = name in WHOLE or (name in COMPARISONS and len(tiles) == 1) or name in ("reduce_max", "reduce_min")
    is_same |= name in ("slice", "squeeze", "broadcast_in_dim") or (name == "convert_element_type" and kind in FLOATS)
    if not (is_same and is_known and all(x.whole for x in tiles)):
        raise NotImplementedError(f"{name} needs integers")
    floats = [x._replace(whole=False) if isinstance(x, _Tile) else np.float32(x) for x in operands]
    tile = _apply(equation, floats)
    return tile._replace(whole=jnp.issubdtype(kind, jnp.integer))


def _apply(equation: JaxprEqn, operands: list[Any]) -> _Tile:
    """Run one equation on the parts of tiles, one by one; numbers are broadcast to the shape of a part."""
    name, params = equation.primitive.name, equation.params
    tiles = [x for x in operands if isinstance(x, _Tile)]
    on_axes = len(_shape(equation.outvars[0])) == 2
    if name in OVER_AXES and params["axes"] == (1,):
        return _Tile((functools.reduce(OVER_AXES[name], tiles[0].parts),))
    if name == "slice" and params["start_indices"][0] == 0 and params["limit_indices"][0] == COUNT:
        return _Tile(tiles[0].parts[params["start_indices"][1] : params["limit_indices"][1]], True)
    if name == "squeeze" and params["dimensions"] == (1,):
        return _Tile(tiles[0].parts)
    if name == "broadcast_in_dim" and params["broadcast_dimensions"] == (0,) and on_axes:
        return _Tile(tiles[0].parts * params["shape"][1], True)
    if name not in CHEAP | COSTLY or any(x.on_axes != on_axes for x in tiles):
        raise NotImplementedError(f"a distance_bias hook that does {name} to distances is not elementwise")
    shape = tiles[0].parts[0].shape

    def part(i: int) -> Array:
        values = [x.parts[i] if isinstance(x, _Tile) else jnp.broadcast_to(x, shape) for x in operands]
        return equation.primitive.bind(*values, **params)

    return _Tile(tuple(part(i) for i in range(len(tiles[0].parts))), on_axes)
