"""Attention on TPUs: Mosaic kernels with the bias of the distance made in every tile, and gradients to match.

A bias `distance(p_j - p_i)` gets into a tile in one of two ways:

    tile        arithmetic of single elements is done where it is used, from any integer positions on any axes.
    diagonals   anything else, a table say, is evaluated once per distance, O(T + S) numbers per head, from which every
                tile is cut. That holds where `p_j - p_i = j - i + shift` for every two placed tokens of one segment:
                a sequence, packed sequences, queries that follow cached keys.

Which positions allow diagonals is known when they are: for others the other way, or the blockwise implementation, is
taken in the same program.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jaxtyping import Array

from pejax._attention.core.contiguous import aligned
from pejax._attention.core.elementwise import Elementwise, cut
from pejax._attention.core.kernel_call import check_tokens
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.tpu import tile as tpu_tile
from pejax._attention.tpu.call import Call, Learned
from pejax._attention.tpu.kernels import forward, key_gradients, query_gradients
from pejax._attention.xla import blockwise
from pejax._ops.remat import kept

BLOCK = 512
"""Queries, and keys, of a tile at most: its float32 scores take 1 MiB of vector memory."""
LONGEST_LINE = 2**19
"""T + S up to which a head's diagonals, and their gradients, fit into vector memory."""


class Way(NamedTuple):
    """How the bias gets into the tiles: "none", "tile" with what to do there, "diagonals" or "blockwise"."""

    name: str
    hook: Elementwise | None = None


class Static(NamedTuple):
    """What is static in a call; hashable."""

    options: Options
    layout: Layout
    interpret: bool


def tpu_attention(
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
        as everywhere in JAX; weights multiply values in the type of the values.

    Raises:
        NotImplementedError: what the kernels have no way to do.
        ValueError: an order is asked for that the tokens do not have.
    """
    _refuse(options, layout, operands)
    if not interpret:
        _refuse_to_be_split()
    static = Static(options._replace(block=options.block or BLOCK), layout, interpret)
    _ways(static, operands)
    distance = operands.shared.distance_bias
    shared = {} if distance is None else distance.args[0]
    learned = Learned(operands.q, operands.k, operands.v, shared, operands.per_head[2])
    return _attend(static, learned, operands)  # pyright: ignore[reportReturnType]


def _refuse(options: Options, layout: Layout, operands: Operands) -> None:
    """Raise NotImplementedError for what no way leads to, and ValueError where `visible` does."""
    if any(x is not None for x in operands.pairs):
        raise NotImplementedError("a mask or bias array is the size of the scores")
    if operands.shared.relative_values is not None:
        raise NotImplementedError("relative_values need a product of their own for every tile")
    if operands.shared.bias is not None and operands.shared.distance_bias is None:
        raise NotImplementedError("a bias that is not a function of the distance")
    sides = operands.q_tokens, operands.k_tokens
    if any(leaf.dtype.itemsize > 4 for side in sides for leaf in jax.tree.leaves(side)):
        raise NotImplementedError("positions, order and segment_ids must have 32 bits")
    integers = all(jnp.issubdtype(side.positions.dtype, jnp.integer) for side in sides)
    if operands.shared.distance_bias is not None and not integers:
        raise NotImplementedError("a bias of positions that are floats and may have gradients")
    kinds = {str(x.dtype) for x in (operands.q, operands.k, operands.v)}
    if len(kinds) > 1 or not kinds <= {"float32", "bfloat16"}:
        raise NotImplementedError(f"q, k and v must be all float32 or bfloat16, got {', '.join(sorted(kinds))}")
    if options.precision not in (None, lax.Precision.DEFAULT, lax.Precision.HIGHEST):
        raise NotImplementedError(f"precision must be DEFAULT or HIGHEST, got {options.precision}")
    check_tokens(options, layout, operands)


def _refuse_to_be_split() -> None:
    """Raise NotImplementedError where the compiler may have to split the kernels over devices, which it cannot."""
    mesh = jax.sharding.get_abstract_mesh()
    devices = jax.device_count() if mesh.empty else mesh.size
    if devices > 1 and (mesh.empty or any(kind != AxisType.Manual for kind in mesh.axis_types)):
        rule = "use sharded_attention, jax.shard_map or a mesh of one device"
        raise NotImplementedError(f"the compiler does not split Mosaic kernels over {devices} devices: {rule}")


def _ways(static: Static, operands: Operands) -> tuple[Way, ...]:
    """Return the ways to the bias: one, or one for positions that follow the arrays and one for others."""
    distance = operands.shared.distance_bias
    if distance is None:
        return (Way("none"),)
    positions = operands.q_tokens.positions.shape[1 if static.layout.q_axes.positions is None else 2 :]
    fits = operands.q.shape[3] + operands.k.shape[2] <= LONGEST_LINE
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), operands.per_head[2])
    try:
        params = {**distance.args[0], **own}
        hook = cut(distance.func, params, positions[0] if positions else 1, jnp.int32)
        if len(jax.eval_shape(hook.outside, params)) > tpu_tile.LANES:
            raise NotImplementedError(f"a bias that reads more than {tpu_tile.LANES} numbers")
    except NotImplementedError:
        if positions or not fits:
            raise
        return Way("diagonals"), Way("blockwise")
    return (Way("tile", hook),) if positions or hook.cheap or not fits else (Way("diagonals"), Way("tile", hook))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: Static, learned: Learned, operands: Operands) -> tuple[Array, Array]:
    def by(way: Way, shift: Array) -> tuple[Array, Array]:
        if way.name == "blockwise":
            return _blockwise(static, operands, learned)
        call = Call(static.options, static.layout, operands, way.hook, shift, static.interpret)
        arrays = call.arrays(learned, call.bias(learned))
        return call.whole(*forward(call.plan, arrays, call.spans[0]))

    return _choose(static, operands, by)


def _choose(static: Static, operands: Operands, by: Callable[[Way, Array], Any]) -> Any:
    """Take the one way, or the one that the positions allow."""
    ways = _ways(static, operands)
    if len(ways) == 1:
        return by(ways[0], jnp.int32(0))
    follow, shift = aligned(static.layout, operands)
    return lax.cond(follow, *(functools.partial(by, way) for way in ways), shift)


def _attend_forward(static: Static, learned: Learned, operands: Operands) -> tuple[Any, Any]:
    outputs = kept(_attend(static, learned, operands))
    return outputs, (learned, operands, outputs)


def _attend_backward(static: Static, saved: tuple, cotangents: tuple[Array, Array]) -> tuple[Learned, None]:
    learned, operands, (output, lse) = saved
    d_output, d_lse = cotangents
    mean = jnp.sum(d_output.astype(jnp.float32) * output.astype(jnp.float32), axis=-1) - d_lse
    rows = d_output, jnp.where(jnp.isneginf(lse), 0.0, lse), mean

    def by(way: Way, shift: Array) -> Learned:
        if way.name == "blockwise":
            return jax.vjp(functools.partial(_blockwise, static, operands), learned)[1](cotangents)[0]
        call = Call(static.options, static.layout, operands, way.hook, shift, static.interpret)
        bias, pull = jax.vjp(call.bias, learned)
        arrays = {**call.arrays(learned, bias), **call.rows(*rows)}
        d_q, *d_bias = query_gradients(call.plan, arrays, call.spans[0])
        d_k, d_v = key_gradients(call.plan, arrays, call.spans[1])
        return call.learned(d_q, d_k, d_v, pull(call.d_bias(bias, d_bias))[0])

    return _choose(static, operands, by), None


_attend.defvjp(_attend_forward, _attend_backward)


def _blockwise(static: Static, operands: Operands, learned: Learned) -> tuple[Array, Array]:
    """Attend by the implementation for any device, from the distance."""
    arrays, params = (learned.q, learned.k, learned.v), (learned.shared, learned.per_head)
    return blockwise.from_distance_alone(static.options, static.layout, operands, arrays, params)
