"""Hooks of pairs prepared for kernels: what depends on parameters alone, and what is computed for a tile of tokens.

A hook, `bias` or `relative_values`, is traced. Whatever does not depend on tokens is computed outside the kernel, by
XLA and with XLA's derivatives. The rest is a `Program`: one gives the result for a tile, two more its gradients. The
kernels of a device run them on tiles of their own sizes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage] - from 0.12 on, another name of Jaxpr
from jaxtyping import Array

from pejax._attention.kernels.programs import (
    KEYS,
    OPERATIONS,
    QUERIES,
    TYPES,
    Program,
    enter,
    enter_all,
    evaluate,
    flat,
    reads,
    split,
)
from pejax._calls.hook_calls import check_returned, naming_hook
from pejax._record.encoding import Params


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
    reads_q, reads_k = (reads(traced.split.tile, count + place) for place in (0, 1))

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
            closed = flat(lambda x: checked(x[0], *x[1]), enter, (params, inputs), axes)
        except (
            TypeError,
            ValueError,
        ) as error:  # what takes no tiles has its own error, of shapes that the caller knows
            raise NotImplementedError(f"does not take any number of tokens: {error}".partition("\n")[0]) from error
        self.split = split(closed, len(leaves))
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
        return evaluate(ClosedJaxpr(self.split.tile, ()), lambda _: None, [*values, *tile])[0]

    def program(self, function: Callable[..., Any], *tile: Any) -> Program:
        """Return the program of a function of the numbers and of the inputs of a tile, rules of derivatives applied."""
        axes = [*self.split.varying, *[self._varying] * len(tile)]
        closed = flat(lambda x: function(x[0], *x[1]), enter_all, (self.numbers, tile), axes)
        parts = split(closed, len(self.numbers))
        for equation in parts.tile.eqns:
            if (name := equation.primitive.name) not in OPERATIONS and name not in TYPES:
                raise NotImplementedError(f"does {name} to tokens")
        return Program(parts.outside, parts.tile)
