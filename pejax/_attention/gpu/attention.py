"""Attention on GPUs: Pallas kernels with the bias of the distance evaluated in every tile, and gradients to match.

A bias `distance(p_j - p_i)` that is arithmetic of single elements is computed where it is used, from any positions. One
that looks up a table, or takes many instructions, is evaluated once per diagonal where positions count tokens: which
they do is known when they are, and for others the next way is taken, in the same program.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jaxtyping import Array

from pejax._attention.core.contiguous import aligned
from pejax._attention.core.elementwise import cut
from pejax._attention.core.kernel_call import check_tokens
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.gpu.call import Call, Learned, Static, Way, position_axes
from pejax._attention.gpu.kernels import forward
from pejax._attention.xla import blockwise
from pejax._ops.remat import kept


def gpu_attention(
    options: Options, layout: Layout, operands: Operands, *, interpret: bool = False
) -> tuple[Array, Array]:
    """Attend as an `Implementation`.

    Args:
        options: `block` > 0 makes it the most queries, and keys, of a tile.
        layout: what is batched.
        operands: with a bias that `distance` gives, or none.
        interpret: run in Pallas's interpreter, which any platform has.

    Returns:
        The output in q's type and the log-sum-exps. Products of float32 are those of the platform's default precision,
        as everywhere in JAX.

    Raises:
        NotImplementedError: what the kernels have no way to do.
        ValueError: an order is asked for that the tokens do not have.
    """
    static = Static(options, layout, interpret)
    refuse(static, operands)
    return _attend(static, learned_of(operands), operands)  # pyright: ignore[reportReturnType]


def learned_of(operands: Operands) -> Learned:
    """Return what has gradients."""
    distance = operands.shared.distance_bias
    moving = [
        side.positions if distance is not None and jnp.issubdtype(side.positions.dtype, jnp.floating) else None
        for side in (operands.q_tokens, operands.k_tokens)
    ]
    shared = {} if distance is None else distance.args[0]
    return Learned(operands.q, operands.k, operands.v, shared, operands.per_head[2], *moving)


def refuse(static: Static, operands: Operands) -> None:
    """Raise NotImplementedError for what no way leads to, and ValueError for tokens without an order to go by."""
    mesh = jax.sharding.get_abstract_mesh()
    if not static.interpret and mesh.size > 1 and any(kind != AxisType.Manual for kind in mesh.axis_types):
        rule = "use sharded_attention or jax.shard_map"
        raise NotImplementedError(f"the compiler does not split Triton kernels over {mesh.size} devices: {rule}")
    if any(x is not None for x in operands.pairs):
        raise NotImplementedError("a mask or bias array is the size of the scores")
    if operands.shared.relative_values is not None:
        raise NotImplementedError("relative_values need a product of their own for every tile")
    if operands.shared.bias is not None and operands.shared.distance_bias is None:
        raise NotImplementedError("a bias that is not a function of the distance")
    kinds = {operands.q.dtype, operands.k.dtype, operands.v.dtype}
    if len(kinds) > 1 or not kinds <= {np.dtype(x) for x in (jnp.float32, jnp.bfloat16, jnp.float16)}:
        raise NotImplementedError(f"q, k and v must be all float32, bfloat16 or float16, got {sorted(map(str, kinds))}")
    if operands.q.shape[-1] * operands.q.dtype.itemsize > 1024:
        raise NotImplementedError(f"heads of more than 1024 bytes do not fit, got D={operands.q.shape[-1]}")
    sides = operands.q_tokens, operands.k_tokens
    if any(leaf.dtype.itemsize > 4 for side in sides for leaf in jax.tree.leaves(side)):
        raise NotImplementedError("positions, order and segment_ids must have 32 bits")
    if (
        operands.shared.distance_bias is not None
        and len({np.dtype(side.positions.dtype).kind == "f" for side in sides}) > 1
    ):
        raise NotImplementedError("positions of queries and keys must both be integers or both floats")
    check_tokens(static.options, static.layout, operands)
    _ways(static, operands)


def _ways(static: Static, operands: Operands) -> tuple[Way, ...]:
    """Return the ways to the bias: one, or one for positions that count tokens and one for others."""
    distance = operands.shared.distance_bias
    if distance is None:
        return (Way("none"),)
    axes, kind = position_axes(static.layout, operands), operands.q_tokens.positions.dtype
    kind = np.dtype(np.int32) if jnp.issubdtype(kind, jnp.integer) else kind
    whole = axes == 1 and kind == jnp.int32
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), operands.per_head[2])
    try:
        inside = cut(distance.func, {**distance.args[0], **own}, axes, kind)
    except NotImplementedError:
        if not whole:
            raise
        return Way("diagonals"), Way("blockwise")
    tile = Way("tile", inside)
    return (Way("diagonals"), tile) if whole and not inside.cheap else (tile,)


def attend(static: Static, learned: Learned, operands: Operands) -> tuple[Array, Array]:
    """Return output and log-sum-exps; nothing else may differentiate it than `gradients`."""

    def by(way: Way) -> tuple[Array, Array]:
        if way.name == "blockwise":
            return _blockwise(static, operands, learned)
        call = Call(static, way, operands)
        output, lse = forward(call.plans[0], call.inputs(call.plans[0], call.floats(learned)))
        n, k, g, t, d = operands.q.shape
        return output[:, :, :t, :d].reshape(n, k, g, t, d), lse[:, :, :t].reshape(n, k, g, t)

    return _choose(static, operands, by)


def _choose(static: Static, operands: Operands, by: Callable[[Way], Any]) -> Any:
    """Take the one way, or the one that the positions allow."""
    ways = _ways(static, operands)
    if len(ways) == 1:
        return by(ways[0])
    return lax.cond(aligned(static.layout, operands)[0], *(functools.partial(by, way) for way in ways))


def gradients(
    static: Static,
    learned: Learned,
    operands: Operands,
    outputs: tuple[Array, Array],
    cotangents: tuple[Array, Array],
) -> Learned:
    """Return the gradients of `attend`, given what it returned and the gradients of that."""
    (output, lse), (d_output, d_lse) = outputs, cotangents
    mean = jnp.sum(d_output.astype(jnp.float32) * output.astype(jnp.float32), axis=-1) - d_lse
    rows = d_output, jnp.where(jnp.isneginf(lse), 0.0, lse), mean

    def by(way: Way) -> Learned:
        if way.name == "blockwise":
            return jax.vjp(functools.partial(_blockwise, static, operands), learned)[1](cotangents)[0]
        call = Call(static, way, operands)
        floats, pull = jax.vjp(call.floats, learned)
        return pull(call.gradients(floats, call.rows(*rows)))[0]

    return _choose(static, operands, by)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: Static, learned: Learned, operands: Operands) -> tuple[Array, Array]:
    return attend(static, learned, operands)


def _attend_forward(static: Static, learned: Learned, operands: Operands) -> tuple[tuple[Array, Array], tuple]:
    outputs = kept(attend(static, learned, operands))
    return outputs, (learned, operands, outputs)


def _attend_backward(static: Static, saved: tuple, cotangents: tuple[Array, Array]) -> tuple[Learned, None]:
    learned, operands, outputs = saved
    return gradients(static, learned, operands, outputs, cotangents), None


_attend.defvjp(_attend_forward, _attend_backward)


def _blockwise(static: Static, operands: Operands, learned: Learned) -> tuple[Array, Array]:
    """Attend by the implementation for any device, from the distance."""
    arrays, params = (learned.q, learned.k, learned.v), (learned.shared, learned.per_head)
    return blockwise.from_distance_alone(static.options, static.layout, operands, arrays, params)
