"""Backward passes of one's own that keep forward mode: functions whose derivative is a linear map with two directions.

`jax.custom_vjp` gives a function a backward pass, but then `jax.jvp` fails. Here the derivative is one primitive, which
is linear in the tangents. Its transpose is `pull`, the backward pass; it is computed by `push` only where nothing
transposes it, which is forward mode. Reverse mode traces no `push`, so it costs nothing.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec
from jaxtyping import Array

from pejax._calls.modes import own_modes
from pejax._ops.pytrees import is_float, own_floats, with_floats
from pejax._ops.remat import name_for_remat
from pejax._ops.varying import varying_alike


class Rules(NamedTuple):
    """A function and its derivative; hashable. `static` is hashable, and `operands` a tree of arrays.

    Attributes:
        run: `(static, operands) -> outputs`, a tree of arrays; it need not be differentiable.
        plain: the same function, in operations that have forward mode. It may leave out the last outputs, which then
            count as constants.
        save: `(static, operands, outputs) -> saved`, a tree of arrays that the backward pass reads besides operands.
        pull: `(static, operands, saved, cotangents) -> gradients`, the backward pass. Cotangents have the
            structure of the outputs. The leaves of the gradients are those of the floats of the operands, in order.
        named: whether outputs are kept under rematerialization (`name_for_remat`).
        filled: whether the cotangent of an output that nothing reads is an array of zeros; else it is None.
    """

    run: Callable[..., Any]
    plain: Callable[..., Any]
    save: Callable[..., Any]
    pull: Callable[..., Any]
    named: bool = False
    filled: bool = True


def differentiable(rules: Rules, static: Hashable, operands: Any) -> Any:
    """Return `rules.run(static, operands)`, with derivatives by the other rules.

    The derivative holds all operands. XLA drops those that the backward pass does not read, in loops too.
    """
    return _run(rules, static, varying_alike(operands))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _run(rules: Rules, static: Hashable, operands: Any) -> Any:
    return rules.run(static, operands)


@functools.partial(_run.defjvp, symbolic_zeros=True)
def _run_and_tangents(rules: Rules, static: Hashable, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """Return the outputs and their tangents."""
    (operands,), (tangents_of_operands,) = primals, tangents
    outputs = _run(rules, static, operands)
    outputs = name_for_remat(outputs) if rules.named else outputs
    held, trees = _flat(operands, rules.save(static, operands, outputs), outputs)
    moves = [
        x for leaf, x in zip(*map(jax.tree.leaves, (operands, tangents_of_operands)), strict=True) if is_float(leaf)
    ]
    moving = tuple(not isinstance(x, SymbolicZero) for x in moves)
    moves = [x for x in moves if not isinstance(x, SymbolicZero)]
    derivative = _OfRules(rules, static, trees, tuple(map(is_float, jax.tree.leaves(outputs))), moving)
    types = tuple(jax.typeof(x) for x in own_floats(outputs))
    pushed = iter(_linear_map().bind(*held, *moves, derivative=derivative, types=types))
    no_tangent = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    return outputs, jax.tree.map(lambda x: next(pushed) if is_float(x) else no_tangent(x), outputs)


def either(run: Callable[..., Any], derived: Callable[..., Any], static: Hashable, operands: Any) -> Any:
    """Return `run(static, operands)`, and where it is differentiated `derived(static, operands)`, which saves more."""
    return _either(run, derived, static, operands)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _either(run: Callable[..., Any], derived: Callable[..., Any], static: Hashable, operands: Any) -> Any:
    del derived
    return run(static, operands)


@functools.partial(_either.defjvp, symbolic_zeros=True)
def _derived_and_tangents(
    run: Callable[..., Any], derived: Callable[..., Any], static: Hashable, primals: tuple[Any], tangents: tuple[Any]
) -> tuple[Any, Any]:
    """Return the outputs of `derived` and their tangents."""
    del run
    leaves, tree = jax.tree.flatten(primals[0])
    moves = dict(enumerate(jax.tree.leaves(tangents[0])))
    moves = {i: x for i, x in moves.items() if is_float(leaves[i]) and not isinstance(x, SymbolicZero)}
    of_moving = lambda moving: derived(static, tree.unflatten([moving.get(i, x) for i, x in enumerate(leaves)]))
    return jax.jvp(of_moving, ({i: leaves[i] for i in moves},), (moves,))


def _flat(operands: Any, saved: Any, outputs: Any) -> tuple[list[Any], tuple[Any, Any, Any]]:
    """Return the arrays that a derivative holds, those of operands and saved, and the three structures."""
    leaves, trees = zip(*map(jax.tree.flatten, (operands, saved, outputs)), strict=True)
    return [*leaves[0], *leaves[1]], trees


class _OfRules(NamedTuple):
    """The derivative that rules give: a linear map of lists of arrays, that depends on arrays that it holds.

    Attributes:
        rules: the function.
        static: its static argument.
        trees: structures of operands, of what is saved, and of the outputs.
        floats: for each output, whether it is floating point.
        moving: for each float of the operands, whether it has a tangent.
    """

    rules: Rules
    static: Hashable
    trees: tuple[Any, Any, Any]
    floats: tuple[bool, ...]
    moving: tuple[bool, ...]

    @property
    def held(self) -> int:
        return self.trees[0].num_leaves + self.trees[1].num_leaves

    @property
    def filled(self) -> bool:
        return self.rules.filled

    def push(self, held: list[Any], tangents: list[Array]) -> list[Array]:
        operands = self._unflatten(held)[0]
        floats = own_floats(operands)

        def of_moving(moving: list[Array]) -> Any:
            following = iter(moving)
            replaced = [next(following) if moves else x for x, moves in zip(floats, self.moving, strict=True)]
            return self.rules.plain(self.static, with_floats(operands, replaced))

        at = [x for x, moves in zip(floats, self.moving, strict=True) if moves]
        return jax.tree.leaves(jax.jvp(of_moving, (at,), (tangents,))[1])

    def pull(self, held: list[Any], cotangents: list[Array | None]) -> list[Array]:
        operands, saved = self._unflatten(held)
        following = iter(cotangents)
        of_outputs = self.trees[2].unflatten([next(following) if is_float else None for is_float in self.floats])
        gradients = self.rules.pull(self.static, operands, saved, of_outputs)
        return [x for x, moves in zip(jax.tree.leaves(gradients), self.moving, strict=True) if moves]

    def _unflatten(self, held: list[Any]) -> tuple[Any, Any]:
        """Return operands and what is saved."""
        count = self.trees[0].num_leaves
        return self.trees[0].unflatten(held[:count]), self.trees[1].unflatten(held[count:])


class _Batched(NamedTuple):
    """The derivatives of a batch.

    Attributes:
        one: the derivative of one example.
        axes: the batch axis of each array that is held, 0, or None = it is the same for all. Vectors have it in front.
    """

    one: Any
    axes: tuple[int | None, ...]

    @property
    def held(self) -> int:
        return len(self.axes)

    @property
    def filled(self) -> bool:
        return self.one.filled

    def push(self, held: list[Any], tangents: list[Array]) -> list[Array]:
        return jax.vmap(self.one.push, (list(self.axes), 0))(held, tangents)

    def pull(self, held: list[Any], cotangents: list[Array | None]) -> list[Array]:
        return jax.vmap(self.one.pull, (list(self.axes), 0))(held, cotangents)


_Derivative: TypeAlias = _OfRules | _Batched
"""`push` returns the tangents of the outputs, by those of the inputs; `pull` the gradients of the inputs."""


def _push(*operands: Any, derivative: _Derivative, types: tuple[Any, ...]) -> list[Array]:
    """Return the outputs of the primitive: the tangents of a function's outputs.

    Args:
        *operands: the arrays that the derivative holds, and the tangents of the inputs.
        derivative: the linear map.
        types: types of the outputs.
    """
    with own_modes():
        outputs = derivative.push(list(operands[: derivative.held]), list(operands[derivative.held :]))
    constants = [jnp.zeros(kind.shape, kind.dtype) for kind in types[len(outputs) :]]
    return [*(x.astype(kind.dtype) for x, kind in zip(outputs, types, strict=False)), *constants]


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, derivative: _Derivative, types: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Return the outputs and their tangents, by those of the inputs and of what is held."""
    held, vectors = primals[: derivative.held], primals[derivative.held :]
    bind = functools.partial(_linear_map().bind, *held, derivative=derivative, types=types)
    changes = tangents[derivative.held :]
    parts = []
    if any(not isinstance(x, ad.Zero) for x in changes):
        parts.append(bind(*map(ad.instantiate_zeros, changes)))
    moving = [i for i, x in enumerate(tangents[: derivative.held]) if is_float(held[i]) and not isinstance(x, ad.Zero)]
    if moving:

        def of_moving(arrays: list[Any]) -> list[Array]:
            replaced = dict(zip(moving, arrays, strict=True))
            arrays = [replaced.get(i, x) for i, x in enumerate(held)]
            return _push(*arrays, *vectors, derivative=derivative, types=types)

        parts.append(jax.jvp(of_moving, ([held[i] for i in moving],), ([tangents[i] for i in moving],))[1])
    outputs = bind(*vectors)
    sums = [functools.reduce(jnp.add, terms) for terms in zip(*parts, strict=True)]
    return outputs, sums or [jnp.zeros_like(x) for x in outputs]


def _transpose(cotangents: Sequence[Any], *operands: Any, derivative: _Derivative, types: tuple[Any, ...]) -> list[Any]:
    """Return the gradients of the inputs that are linear; None for all else."""
    del types
    held, inputs = list(operands[: derivative.held]), operands[derivative.held :]
    empty = ad.instantiate_zeros if derivative.filled else lambda zero: None
    with own_modes():
        gradients = derivative.pull(held, [empty(x) if isinstance(x, ad.Zero) else x for x in cotangents])
    own = [
        gradient.astype(x.aval.dtype) if ad.is_undefined_primal(x) else None
        for x, gradient in zip(inputs, gradients, strict=True)
    ]
    return [None] * derivative.held + own


def _batch(
    operands: Sequence[Any], axes: Sequence[Any], *, derivative: _Derivative, types: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Return the outputs of all examples, and their batch axes."""
    pairs = list(zip(operands, axes, strict=True))
    size = next(x.shape[axis] for x, axis in pairs if axis is not None)
    first = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in pairs]
    held, vectors = first[: derivative.held], first[derivative.held :]
    of_held, of_vectors = axes[: derivative.held], axes[derivative.held :]
    vectors = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else x
        for x, axis in zip(vectors, of_vectors, strict=True)
    ]
    batched = _Batched(derivative, tuple(None if axis is None else 0 for axis in of_held))
    types = tuple(_with_batch(size, kind) for kind in types)
    outputs = _linear_map().bind(*held, *vectors, derivative=batched, types=types)
    return outputs, [0] * len(outputs)


def _with_batch(size: int, kind: Any) -> Any:
    """Return the type of an array with one more axis, the first."""
    sharding = kind.sharding.update(spec=PartitionSpec(None, *kind.sharding.spec))
    return kind.update(shape=(size, *kind.shape), sharding=sharding)


@functools.cache
def _linear_map() -> Any:
    """Return the primitive `(*saved, *tangents) -> tangents of the outputs`.

    It is made on first use, because importing `jax.extend` imports Pallas.
    """
    from jax.extend.core import Primitive

    primitive = Primitive("derivative")
    primitive.multiple_results = True
    primitive.def_impl(_push)
    primitive.def_abstract_eval(lambda *_, derivative, types: list(types))
    mlir.register_lowering(primitive, mlir.lower_fun(_push, multiple_results=True))
    ad.primitive_jvps[primitive] = _differentiate
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = _batch
    return primitive
