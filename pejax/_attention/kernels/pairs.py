"""Hooks of pairs prepared for kernels: what depends on parameters alone, and what is computed for a tile of tokens.

A hook, `bias` or `relative_values`, is traced for `QUERIES` and `KEYS`, by which the axes of tokens are recognized in
every shape. Whatever does not depend on tokens is computed outside the kernel, by XLA and with XLA's derivatives. The
rest is a `Program`: a flat list of `OPERATIONS`, in which nested calls are entered and rules of derivatives applied.
One gives the result for a tile, two more its gradients. The kernels of a device run them on tiles of their own sizes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage] - from 0.12 on, another name of Jaxpr
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
)
from jaxtyping import Array

from pejax._attention.kernels.elementwise import CHEAP, COSTLY, NESTED
from pejax._calls.hook_calls import check_returned, naming_hook
from pejax._ops.backward import NAME
from pejax._ops.varying import varying_over
from pejax._record.encoding import Params

QUERIES, KEYS = 8167, 8171
"""Numbers of queries and keys in the trace, by which axes of tokens are recognized; no other axis may have one."""

SHIFTS = ("left", "right_arithmetic", "right_logical")
ELEMENTWISE = (CHEAP | COSTLY | {"add_any", "one_minus_square"} | {f"shift_{x}" for x in SHIFTS}) - {"expm1"}
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


class Pairs(NamedTuple):
    """A `bias` hook for kernels. Inputs of tiles are q, k, the positions of both and, for gradients, that of the bias.

    Attributes:
        outside: `params -> numbers`, which the programs read; arrays of any shape.
        learned: the shapes of those numbers that get gradients, by their place.
        bias: gives the bias.
        query_gradients: gives the gradients of the learned numbers, then that of q if `reads_q`. None = nothing
            needs it.
        key_gradients: gives the gradient of k. None = the hook does not read k.
        reads_q: whether the hook reads q.
    """

    outside: Callable[[Params], list[Array]]
    learned: dict[int, tuple[int, ...]]
    bias: Program
    query_gradients: Program | None
    key_gradients: Program | None
    reads_q: bool


class Values(NamedTuple):
    """A `relative_values` hook for kernels. Inputs of tiles are the positions of both sides, the weights, and for
    gradients that of the values.

    Attributes:
        outside: as of `Pairs`.
        learned: as of `Pairs`.
        values: gives the values, summed over the keys of the tile.
        weight_gradients: gives the gradient of the weights.
        number_gradients: gives the gradients of the learned numbers. None = there are none.
    """

    outside: Callable[[Params], list[Array]]
    learned: dict[int, tuple[int, ...]]
    values: Program
    weight_gradients: Program
    number_gradients: Program | None


def prepare_pairs(
    hook: Callable[..., Array], params: Params, dim: int, axes: int, varying: frozenset[str] = frozenset()
) -> Pairs:
    """Trace a `bias` hook and its gradients, with q and k in float32, as everywhere, and positions in int32.

    Args:
        hook: `Encoding.bias`.
        params: parameters of one head, or their shapes.
        dim: D, channels of q and k.
        axes: A; 1 for positions `(T,)`.
        varying: the axes of the mesh over which parameters and tokens vary, in `jax.shard_map`.

    Raises:
        NotImplementedError: another operation than `OPERATIONS`, or an axis of `QUERIES` or `KEYS` that is not tokens'.
    """
    tokens = [_floats(QUERIES, dim), _floats(KEYS, dim), *_positions(axes)]
    traced = _Traced("bias", hook, "(T, S)", (QUERIES, KEYS), params, tokens, varying)
    count, learned = len(traced.numbers), traced.learned
    reads_q, reads_k = (_reads(traced.split.tile, count + place) for place in (0, 1))

    def pull_queries(numbers: list[Array], q: Array, *others: Array) -> Any:
        *tile, d_bias = others
        of = lambda floats, token: traced.whole(numbers, floats, (*(token or [q]), *tile))
        return jax.vjp(of, {i: numbers[i] for i in learned}, [q] if reads_q else [])[1](d_bias)

    def pull_keys(numbers: list[Array], q: Array, k: Array, *others: Array) -> Any:
        *positions, d_bias = others
        return jax.vjp(lambda k: traced.whole(numbers, {}, (q, k, *positions)), k)[1](d_bias)

    # The bias comes first: what has no derivatives is refused by its name.
    bias = traced.program(lambda numbers, *tile: traced.whole(numbers, {}, tile), *tokens)
    gradient = lambda function: traced.program(function, *tokens, _floats(QUERIES, KEYS))
    return Pairs(
        outside=traced.outside,
        learned=learned,
        bias=bias,
        query_gradients=gradient(pull_queries) if reads_q or learned else None,
        key_gradients=gradient(pull_keys) if reads_k else None,
        reads_q=reads_q,
    )


def prepare_values(
    hook: Callable[..., Array], params: Params, dim: int, axes: int, varying: frozenset[str] = frozenset()
) -> Values:
    """Trace a `relative_values` hook and its gradients; arguments and errors are those of `prepare_pairs`."""
    positions, weights, d_values = _positions(axes), _floats(QUERIES, KEYS), _floats(QUERIES, dim)
    call = lambda params, q_positions, k_positions, weights: hook(params, weights, q_positions, k_positions)
    inputs = [*positions, weights]
    traced = _Traced("relative_values", hook, "(T, D)", (QUERIES, dim), params, inputs, varying, call)
    learned = traced.learned

    def pull_weights(numbers: list[Array], q_positions: Array, k_positions: Array, weights: Array, d: Array) -> Any:
        of = lambda weights: traced.whole(numbers, {}, (q_positions, k_positions, weights))
        return jax.vjp(of, weights)[1](d)

    def pull_numbers(numbers: list[Array], *tile: Array) -> Any:
        of = lambda floats: traced.whole(numbers, floats, tile[:3])
        return jax.vjp(of, {i: numbers[i] for i in learned})[1](tile[3])

    values = traced.program(lambda numbers, *tile: traced.whole(numbers, {}, tile), *inputs)
    return Values(
        outside=traced.outside,
        learned=learned,
        values=values,
        weight_gradients=traced.program(pull_weights, *inputs, d_values),
        number_gradients=traced.program(pull_numbers, *inputs, d_values) if learned else None,
    )


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _positions(axes: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of the positions of queries and of keys."""
    on_axes = () if axes == 1 else (axes,)
    return [jax.ShapeDtypeStruct((size, *on_axes), jnp.int32) for size in (QUERIES, KEYS)]


class _Traced:
    """A hook, traced: the numbers that it derives from parameters, and what it does with tokens.

    Attributes:
        split: the hook in two.
        numbers: the shapes of the numbers.
        learned: the shapes of those that get gradients, by their place.
    """

    def __init__(
        self,
        name: str,
        hook: Callable[..., Array],
        letters: str,
        result_shape: tuple[int, int],
        params: Params,
        inputs: list[Any],
        varying: frozenset[str],
        call: Callable[..., Array] | None = None,
    ) -> None:
        """Trace `call(params, *inputs)`, by default the hook itself, whose result has this shape."""
        params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        leaves = jax.tree.leaves(params)
        others = [size for x in leaves for size in x.shape]
        others += [size for x in inputs for size in x.shape[1:] if x.shape != (QUERIES, KEYS)]
        if {QUERIES, KEYS}.intersection(others):
            raise NotImplementedError(f"reads an axis of {QUERIES:,} or {KEYS:,}, the numbers of tokens in its trace")
        run = call or hook

        def checked(params: Params, *inputs: Array) -> Array:
            with naming_hook(name, hook, params, *inputs):
                result = run(params, *inputs)
            check_returned(name, hook, letters, result_shape, result)
            return jnp.asarray(result, jnp.float32)

        axes = [varying] * (len(leaves) + len(inputs))
        try:
            flat = _flat(lambda x: checked(x[0], *x[1]), _enter, (params, inputs), axes)
        except (
            TypeError,
            ValueError,
        ) as error:  # what takes no tiles has its own error, of shapes that the caller knows
            raise NotImplementedError(f"does not take any number of tokens: {error}".partition("\n")[0]) from error
        self.split = _split(flat, len(leaves))
        self.numbers = jax.eval_shape(self.split.outside, leaves)
        self.learned = {
            i: x.shape
            for i, (x, of_params) in enumerate(zip(self.numbers, self.split.of_known, strict=True))
            if of_params and jnp.issubdtype(x.dtype, jnp.floating)
        }
        self._varying = varying

    def outside(self, params: Params) -> list[Array]:
        """Return the numbers."""
        return self.split.outside(jax.tree.leaves(params))

    def whole(self, numbers: Sequence[Array], floats: dict[int, Array], tile: Sequence[Array]) -> Array:
        """Return the hook's result for a tile, with `floats` in place of some of the numbers."""
        values = [floats.get(i, x) for i, x in enumerate(numbers)]
        return _evaluate(ClosedJaxpr(self.split.tile, ()), lambda _: None, [*values, *tile])[0]

    def program(self, function: Callable[..., Any], *tile: Any) -> Program:
        """Return the program of a function of the numbers and of the inputs of a tile, rules of derivatives applied."""
        axes = [*self.split.varying, *[self._varying] * len(tile)]
        closed = _flat(lambda x: function(x[0], *x[1]), _enter_all, (self.numbers, tile), axes)
        parts = _split(closed, len(self.numbers))
        for equation in parts.tile.eqns:
            if (name := equation.primitive.name) not in OPERATIONS and name not in TYPES:
                raise NotImplementedError(f"does {name} to tokens")
        return Program(parts.outside, parts.tile)


def has_tokens(shape: Sequence[int]) -> bool:
    """Return whether an axis of the shape is one of tokens."""
    return not {QUERIES, KEYS}.isdisjoint(shape)


class _Split(NamedTuple):
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


def _split(closed: ClosedJaxpr, known_count: int) -> _Split:
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
    run = lambda leaves: _evaluate(before, lambda _: None, [*closed.consts, *leaves])
    return _Split(
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


def _reads(jaxpr: Jaxpr, place: int) -> bool:
    """Return whether an equation or the output of a jaxpr reads one of its inputs."""
    variable = jaxpr.invars[place]
    return any(variable in equation.invars for equation in jaxpr.eqns) or variable in jaxpr.outvars


def _flat(
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
    return jax.make_jaxpr(lambda *leaves: _evaluate(closed, enter, vary(leaves)))(*leaves)


def _enter(equation: JaxprEqn) -> ClosedJaxpr | None:
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


def _enter_all(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the jaxpr of any call."""
    if equation.primitive.name in ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"):
        return equation.params["call_jaxpr" if "call_jaxpr" in equation.params else "fun_jaxpr"]
    return _enter(equation)


def _evaluate(closed: ClosedJaxpr, enter: Callable[[JaxprEqn], Any], args: list[Any]) -> list[Any]:
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
            results = _evaluate(inner, enter, operands[1:])
        else:
            results = _evaluate(inner, enter, operands)
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
