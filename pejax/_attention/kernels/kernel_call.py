"""One call of hand-written kernels on any device: refusals, the choice of a way to the bias, and gradients."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jaxtyping import Array, Float, Int

from pejax._attention.core.consecutive import common_shift
from pejax._attention.core.derivatives import tiled_rules
from pejax._attention.core.masks import check_orders
from pejax._attention.core.operands import Layout, Operands, refuse_pair_arrays
from pejax._attention.core.options import Options
from pejax._attention.kernels.ways import Way
from pejax._calls.hook_calls import hook_name
from pejax._ops.derivatives import differentiable
from pejax._ops.pytrees import Floats, zeros_of
from pejax._record.encoding import Params
from pejax._tokens.positions import TokenPositions

Outputs: TypeAlias = tuple[Float[Array, "N K G T D"], Float[Array, "N K G T"]]
"""The output in q's type, and the log-sum-exps."""

WAY_OUT = 'implementation="blockwise" takes any hook'


class Static(NamedTuple):
    """The static arguments of a call; hashable. `interpret`: run in Pallas's interpreter, which any platform has."""

    options: Options
    layout: Layout
    interpret: bool


class Primals(NamedTuple):
    """Differentiable inputs. Positions are included only if a bias reads float positions."""

    q: Float[Array, "N K G T D"]
    k: Float[Array, "N K S D"]
    v: Float[Array, "N K S D"]
    shared: Params
    per_head: Params
    q_positions: Array | None
    k_positions: Array | None
    key_bias: Float[Array, "N K G S"] | None

    def of_each_head(self, function: Callable[[Params], Any]) -> Any:
        """Return the result of a function of the parameters of one head for all heads, `(H, ...)`."""
        heads = self.q.shape[1] * self.q.shape[2]
        per_head = jax.tree.map(lambda x: x.reshape(heads, *x.shape[2:]), self.per_head)
        return jax.vmap(lambda params: function({**self.shared, **params}), axis_size=heads)(per_head)


class Rows(NamedTuple):
    """Arrays for the backward pass with one row per query.

    Attributes:
        d_output: gradient of the output, in the queries' type.
        lse: log-sum-exp, 0 where it is -inf.
        mean: Σ_d d_output·output - d_lse: the mean gradient of the row's weights, weighted by them, minus d_lse.
        d_lse: gradient of the log-sum-exp, 0 where that is -inf: the sum of the row's gradients of `scale·q·k + bias`
            where there is no soft cap.
    """

    d_output: Float[Array, "*N T D"]
    lse: Float[Array, "*N T"]
    mean: Float[Array, "*N T"]
    d_lse: Float[Array, "*N T"]


class Call(Protocol):
    """One call of a device's kernels, with the bias obtained in one way (`Way`)."""

    def forward(self, primals: Primals) -> Outputs:
        """Return the outputs."""
        ...

    def gradients(self, primals: Primals, rows: Rows) -> Primals:
        """Return the gradients with respect to the differentiable inputs."""
        ...


class Kernels(NamedTuple):
    """The kernels of a device; hashable.

    Attributes:
        ways: `(static, operands) -> ways`: one, or one for positions that allow diagonals and one for others.
        call: `(static, way, operands, shift) -> call`, with `p_j - p_i = j - i + shift` where the way is "diagonals".
        blockwise: `(static, operands, primals) -> outputs`, differentiable, without kernels.
    """

    ways: Callable[[Static, Operands], tuple[Way, ...]]
    call: Callable[[Static, Way, Operands, Int[Array, ""]], Call]
    blockwise: Callable[[Static, Operands, Primals], Outputs]

    def names_of_ways(self, options: Options, layout: Layout, operands: Operands) -> tuple[str, ...]:
        """Return the names of the ways, of which the first that the positions allow is taken."""
        return tuple(way.name for way in self.ways(Static(options, layout, interpret=True), operands))


def attention(kernels: Kernels, static: Static, primals: Primals, operands: Operands) -> Outputs:
    """Attend, with gradients for `primals`, which `primals_of` takes from the operands."""
    return differentiable(RULES, (kernels, static), (primals, lax.stop_gradient(operands)))


def _save(of_call: tuple[Kernels, Static], arrays: tuple[Primals, Operands], outputs: Outputs) -> Outputs:
    """Return the outputs for the backward pass."""
    del of_call, arrays
    return outputs


def _pull(
    of_call: tuple[Kernels, Static], arrays: tuple[Primals, Operands], outputs: Outputs, cotangents: Outputs
) -> tuple[Primals, Floats]:
    """Return the gradients of `primals`; the other operands have none."""
    return gradients(*of_call, *arrays, outputs, cotangents), zeros_of(arrays[1])


RULES = tiled_rules(
    run=lambda of_call, arrays: attend(*of_call, *arrays),
    plain=lambda of_call, arrays: of_call[0].blockwise(of_call[1], arrays[1], arrays[0]),
    save=_save,
    pull=_pull,
)


def attend(kernels: Kernels, static: Static, primals: Primals, operands: Operands) -> Outputs:
    """Return output and log-sum-exps, without derivatives: `gradients` computes them."""

    def run_way(way: Way, shift: Array) -> Outputs:
        if way.name == "blockwise":
            return kernels.blockwise(static, operands, primals)
        return kernels.call(static, way, operands, shift).forward(primals)

    return _choose(kernels, static, operands, run_way)


def gradients(
    kernels: Kernels,
    static: Static,
    primals: Primals,
    operands: Operands,
    outputs: Outputs,
    cotangents: Outputs,
) -> Primals:
    """Return the gradients of the inputs of `attend`, given its outputs and their cotangents."""
    (output, lse), (d_output, d_lse) = outputs, cotangents
    mean = jnp.sum(d_output.astype(jnp.float32) * output.astype(jnp.float32), axis=-1) - d_lse
    sees_nothing = jnp.isneginf(lse)
    rows = Rows(d_output, jnp.where(sees_nothing, 0.0, lse), mean, jnp.where(sees_nothing, 0.0, d_lse))

    def run_way(way: Way, shift: Array) -> Primals:
        if way.name == "blockwise":
            return jax.vjp(functools.partial(kernels.blockwise, static, operands), primals)[1](cotangents)[0]
        return kernels.call(static, way, operands, shift).gradients(primals, rows)

    return _choose(kernels, static, operands, run_way)


def _choose(kernels: Kernels, static: Static, operands: Operands, run_way: Callable[[Way, Array], Any]) -> Any:
    """Run the only way; of two, the first if the positions allow diagonals, else the second."""
    ways = kernels.ways(static, operands)
    if len(ways) == 1 or static.layout.in_order:
        return run_way(ways[0], jnp.int32(0))
    shift, exists = common_shift(static.layout, operands)
    return lax.cond(exists, *(functools.partial(run_way, way) for way in ways), shift)


def primals_of(operands: Operands) -> Primals:
    """Return the differentiable inputs."""
    distance = operands.shared.distance_bias
    q_positions, k_positions = (
        side.positions if distance is not None and jnp.issubdtype(side.positions.dtype, jnp.floating) else None
        for side in (operands.q_tokens, operands.k_tokens)
    )
    if distance is None:  # hooks of pairs have parameters of their own
        hooks = {name: hook for name, hook in operands.shared.items() if name in ("bias", "relative_values")}
        shared = {name: hook.args[0] for name, hook in hooks.items()}
        per_head = {name: operands.per_head[name] for name in hooks}
    else:
        shared, per_head = distance.args[0], operands.per_head["distance_bias"]
    return Primals(operands.q, operands.k, operands.v, shared, per_head, q_positions, k_positions, operands.key_bias)


def of_pairs(operands: Operands) -> bool:
    """Return whether hooks of pairs are all that there is: `bias`, `relative_values` or both, without a distance."""
    hooks = operands.shared
    return hooks.distance_bias is None and (hooks.bias is not None or hooks.relative_values is not None)


def refuse(static: Static, operands: Operands, types: tuple[str, ...], *, pairs: bool = False) -> None:
    """Raise NotImplementedError for inputs that no kernel supports, ValueError if a mask needs a missing order.

    Args:
        static: its options say whether a mask reads the order.
        operands: the operands to check.
        types: names of the types of q, k and v that the kernels support.
        pairs: whether the kernels can run hooks of pairs.
    """
    refuse_pair_arrays(operands)
    if operands.shared.relative_values is not None and not (pairs and of_pairs(operands)):
        name = hook_name("relative_values", operands.shared.relative_values)
        rule = "relative_values need a product of their own for every tile"
        raise NotImplementedError(f"{name}: {rule}; {WAY_OUT}")
    if of_pairs(operands) and not pairs:
        name, rule = hook_name("bias", operands.shared.bias), "the kernels take a bias only from distance_bias"
        raise NotImplementedError(f"{name}: {rule}; {WAY_OUT}")
    dtypes = sorted({str(x.dtype) for x in (operands.q, operands.k, operands.v)})
    if len(dtypes) > 1 or dtypes[0] not in types:
        rule = f"q, k and v must all be {', '.join(types[:-1])} or {types[-1]}"
        raise NotImplementedError(f"{rule}, got {', '.join(dtypes)}")
    sides = operands.q_tokens, operands.k_tokens
    if any(leaf.dtype.itemsize > 4 for side in sides for leaf in jax.tree.leaves(side)):
        raise NotImplementedError("positions, order and segment_ids must have 32 bits")
    if static.options.uses_order:
        jax.eval_shape(check_orders, *map(_one, sides, (static.layout.q_axes, static.layout.k_axes)))


def _one(tokens: TokenPositions, axes: TokenPositions) -> TokenPositions:
    """Return the shapes of the tokens of one example."""
    fields: list[Any] = [
        None if x is None else jax.ShapeDtypeStruct(x.shape if axis is None else x.shape[1:], x.dtype)
        for x, axis in zip(tokens, axes, strict=True)
    ]
    return TokenPositions(*fields)


def refuse_splitting(compiler: str, devices: int) -> None:
    """Raise NotImplementedError where the compiler would have to split kernels over devices, which it cannot.

    Args:
        compiler: name of the compiler, for the message.
        devices: number of devices that arrays may be split over if no mesh is in use.
    """
    mesh = jax.sharding.get_abstract_mesh()
    devices = devices if mesh.empty else mesh.size
    if devices > 1 and (mesh.empty or any(axis != AxisType.Manual for axis in mesh.axis_types)):
        rule = "give a Sharding, or use jax.shard_map or a mesh of one device"
        raise NotImplementedError(f"the compiler does not split {compiler} kernels over {devices} devices: {rule}")
