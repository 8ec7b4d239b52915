"""Attention on TPUs: Mosaic kernels for a bias of the distance between tokens that come in order, and for none.

A bias `distance(p_j - p_i)` is evaluated once a distance and head, O(T + S) numbers from which the kernels cut every
tile; its parameters get their gradients from the sums over diagonals that the kernels return. That holds where
`p_j - p_i = j - i + shift` for every two placed tokens of one segment: a sequence, packed sequences, queries that
follow cached keys. Which positions do is known when they are: for others the blockwise implementation takes over.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pejax.attention import blockwise, tpu_tile
from pejax.attention.operands import Layout, Operands, derived_bias, over_heads
from pejax.attention.tile import Hooks, Options
from pejax.attention.tpu_kernels import Spans, forward, key_gradients, query_gradients
from pejax.attention.tpu_tile import Plan, diagonal_of
from pejax.attention.tpu_tokens import Fields, aligned, drop_words, fields_of, spans_of
from pejax.encoding import Params, Tokens
from pejax.positions import visible

BLOCK = 512
"""Queries, and keys, of a tile at most: its float32 scores take 1 MiB of vector memory."""


class Learned(NamedTuple):
    """What has gradients."""

    q: Float[Array, "N K G T D"]
    k: Float[Array, "N K S D"]
    v: Float[Array, "N K S D"]
    shared: Params
    per_head: Params


def tpu_attention(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Attend as an `Implementation`, in Pallas's interpreter where the platform is not a TPU."""
    _refuse(options, layout, operands)
    distance = operands.shared.distance
    learned = Learned(
        operands.q, operands.k, operands.v, {} if distance is None else distance.args[0], operands.per_head[2]
    )
    return _attend(options, layout, learned, operands)  # pyright: ignore[reportReturnType]


def _refuse(options: Options, layout: Layout, operands: Operands) -> None:
    """Raise NotImplementedError for what the kernels have no way to do, and what `visible` raises."""
    if any(x is not None for x in operands.pairs):
        raise NotImplementedError("a mask or bias array is the size of the scores")
    if operands.shared.values is not None:
        raise NotImplementedError("values of positions need a product of their own for every tile")
    if operands.shared.bias is not None and operands.shared.distance is None:
        raise NotImplementedError("a bias that is not a function of the distance cannot be cut from its diagonals")
    if operands.shared.distance is not None:
        for tokens, axes in ((operands.q_tokens, layout.q_axes), (operands.k_tokens, layout.k_axes)):
            if not jnp.issubdtype(tokens.positions.dtype, jnp.integer):
                raise NotImplementedError("a bias of fractional distances has no diagonals")
            if tokens.positions.ndim != (1 if axes.positions is None else 2):
                raise NotImplementedError("a bias of distances on a grid has no diagonals")
    precision = lax.Precision.DEFAULT if options.precision is None else options.precision
    if precision not in (lax.Precision.DEFAULT, lax.Precision.HIGHEST):
        raise NotImplementedError(f"precision must be DEFAULT or HIGHEST, got {precision}")
    fields = [leaf.dtype for side in (operands.q_tokens, operands.k_tokens) for leaf in jax.tree.leaves(side)]
    if any(jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize > 4 for dtype in fields):
        raise NotImplementedError("positions, index and segments must have 32 bits")
    sees = functools.partial(
        visible, causal=options.causal, window=options.window, distance_range=options.distance_range
    )
    jax.eval_shape(sees, _one(operands.q_tokens, layout.q_axes), _one(operands.k_tokens, layout.k_axes))


def _one(tokens: Tokens, axes: Tokens) -> Tokens:
    """Return the tokens of one example."""
    return Tokens(*(x if x is None or axis is None else x[0] for x, axis in zip(tokens, axes, strict=True)))


class Setting(NamedTuple):
    """A call as the kernels take it: lengths are whole blocks, H = K·G heads in one axis."""

    plan: Plan
    arrays: dict[str, Array]
    by_queries: Spans
    by_keys: Spans


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(options: Options, layout: Layout, learned: Learned, operands: Operands) -> tuple[Array, Array]:
    def by_kernels(learned: Learned, shift: Array) -> tuple[Array, Array]:
        n, groups, heads, t, d = learned.q.shape
        setting = _setting(options, layout, operands, learned, sides, shift)
        output, lse = forward(setting.plan, setting.arrays, setting.by_queries)
        shape = (n, groups, heads, -1)
        return output.reshape(*shape, d)[:, :, :, :t], lse.reshape(shape)[..., :t]

    otherwise = functools.partial(_blockwise, options, layout, operands)
    sides = _sides(options, layout, operands)
    return _choose(layout, operands, sides, by_kernels, otherwise, learned)


def _attend_forward(options: Options, layout: Layout, learned: Learned, operands: Operands) -> tuple[Any, Any]:
    output, lse = _attend(options, layout, learned, operands)  # pyright: ignore[reportGeneralTypeIssues]
    return (output, lse), (learned, operands, output, lse)


def _attend_backward(options: Options, layout: Layout, saved: Any, cotangents: Any) -> tuple[Learned, None]:
    learned, operands, output, lse = saved
    d_output, d_lse = cotangents
    sides = _sides(options, layout, operands)

    def by_kernels(learned: Learned, shift: Array) -> Learned:
        setting = _setting(options, layout, operands, learned, sides, shift)
        plan, (n, groups, heads, t, d) = setting.plan, learned.q.shape
        by_head = lambda x: _padded(x.reshape(n, groups * heads, *x.shape[3:]), 2, plan.queries)  # noqa: E731
        mean = jnp.sum(d_output.astype(jnp.float32) * output.astype(jnp.float32), axis=-1) - d_lse
        arrays = {
            **setting.arrays,
            "d_output": by_head(d_output),
            "lse": by_head(jnp.where(jnp.isneginf(lse), 0.0, lse))[:, :, None],
            "mean": by_head(mean)[:, :, None],
        }
        d_q, *d_diagonals = query_gradients(plan, arrays, setting.by_queries)
        d_k, d_v = key_gradients(plan, arrays, setting.by_keys)
        d_q, s = d_q.reshape(n, groups, heads, -1, d)[:, :, :, :t], learned.k.shape[2]
        d_shared, d_own = jax.tree.map(jnp.zeros_like, (learned.shared, learned.per_head))
        if d_diagonals:
            evaluate = functools.partial(_diagonals, plan, operands, shift)
            _, pull = jax.vjp(evaluate, learned.shared, learned.per_head)
            d_shared, d_own = pull(jnp.sum(d_diagonals[0], axis=0))
        return Learned(d_q, d_k[:, :, :s], d_v[:, :, :s], d_shared, d_own)

    def otherwise(learned: Learned) -> Learned:
        _, pull = jax.vjp(functools.partial(_blockwise, options, layout, operands), learned)
        return pull((d_output, d_lse))[0]

    return _choose(layout, operands, sides, by_kernels, otherwise, learned), None


_attend.defvjp(_attend_forward, _attend_backward)


def _choose(layout: Layout, operands: Operands, sides: Any, by_kernels: Any, otherwise: Any, learned: Learned) -> Any:
    """Run the kernels where they are right: always without a bias, else where distances follow the arrays."""
    if operands.shared.distance is None:
        return by_kernels(learned, jnp.int32(0))
    right, shift = aligned(layout, operands, sides)
    return lax.cond(right, by_kernels, lambda learned, shift: otherwise(learned), learned, shift)


def _blockwise(options: Options, layout: Layout, operands: Operands, learned: Learned) -> tuple[Array, Array]:
    """Attend by the implementation that serves any positions."""
    distance = operands.shared.distance
    hooks = Hooks(None, None, jax.tree_util.Partial(distance.func, learned.shared) if distance else None)
    operands = operands._replace(
        q=learned.q,
        k=learned.k,
        v=learned.v,
        shared=hooks._replace(bias=derived_bias(None, hooks.distance)),
        per_head=(learned.per_head, {}, learned.per_head),
    )
    head = functools.partial(blockwise.blockwise_head, options._replace(block=blockwise.BLOCK))
    return over_heads(head, operands, layout)


def _sides(options: Options, layout: Layout, operands: Operands) -> tuple[Fields, Fields]:
    lengths = operands.q.shape[3], operands.k.shape[2]
    return fields_of(options, layout, operands, any(size % _block(size) for size in lengths))


def _block(length: int) -> int:
    """Return the size of the fewest equal blocks, whole registers wide."""
    count = math.ceil(length / BLOCK)
    return math.ceil(length / count / tpu_tile.LANES) * tpu_tile.LANES


def _padded(x: Array, axis: int, size: int) -> Array:
    """Pad one axis by zeros to whole blocks: tokens of segment 0, which see nothing and are not seen."""
    padding = [(0, -x.shape[axis] % size if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, padding)


def _setting(
    options: Options,
    layout: Layout,
    operands: Operands,
    learned: Learned,
    sides: tuple[Fields, Fields],
    shift: Int32[Array, ""],
) -> Setting:
    """Bring a call into the kernels' shapes."""
    n, groups, heads, t, d = learned.q.shape
    queries, keys = _block(t), _block(learned.k.shape[2])
    q, k = (
        jax.tree.map(lambda leaf: _padded(leaf, 1, size), side)  # noqa: B023
        for side, size in zip(sides, (queries, keys), strict=True)
    )
    names = tuple(name for name, field in q._asdict().items() if field is not None)
    columns = [getattr(k, name) for name in names]
    arrays = {
        "q": _padded(learned.q.reshape(n, groups * heads, t, d), 2, queries),
        "k": _padded(learned.k, 2, keys),
        "v": _padded(learned.v, 2, keys),
    }
    if names:
        arrays["rows"] = jnp.stack([getattr(q, name) for name in names], axis=1)
    if operands.seed is not None:
        words, column = drop_words(layout, operands, operands.seed)
        arrays["words"] = _padded(words, 2, queries)[:, :, None]
        column = _padded(lax.bitcast_convert_type(column, jnp.int32)[None], 1, keys)
        columns.append(jnp.broadcast_to(column, columns[0].shape) if columns else column)
        names = (*names, "word")
    if columns:
        arrays["columns"] = jnp.stack(columns, axis=2)
    plan = Plan(options, names, queries, keys, arrays["q"].shape[2] // queries, _interpreted())
    if operands.shared.distance is not None:
        arrays["diagonals"] = _diagonals(plan, operands, shift, learned.shared, learned.per_head)
    return Setting(plan, arrays, *spans_of(plan, q, k, arrays["k"].shape[2] // keys))


def _diagonals(
    plan: Plan, operands: Operands, shift: Int32[Array, ""], shared: Params, per_head: Params
) -> Float[Array, "H M W"]:
    """Return the bias of each head along each diagonal of tiles, `[S - u]` beyond the first key of its tile at u."""
    (t, s), distance = (operands.q.shape[3], operands.k.shape[2]), operands.shared.distance
    blocks = math.ceil(s / plan.keys)
    starts = plan.step * jnp.arange(diagonal_of(plan, 0, blocks - 1) + 1) - (plan.query_blocks - 1) * plan.queries
    apart = starts[:, None] + plan.keys - jnp.arange(plan.queries + plan.keys)
    relative = (jnp.clip(apart, 1 - t, s - 1).astype(jnp.int32) + shift).ravel()

    def head(own: Params) -> Array:
        bias = distance.func({**shared, **own}, relative)
        if jnp.shape(bias) != relative.shape:
            raise ValueError(f"distance hook must return (R,) = {relative.shape}, got {jnp.shape(bias)}")
        return bias.astype(jnp.float32).reshape(apart.shape)

    if not jax.tree.leaves(per_head):
        one = head({})
        return jnp.broadcast_to(one, (operands.q.shape[1] * operands.q.shape[2], *one.shape))
    return jax.vmap(jax.vmap(head))(per_head).reshape(-1, *apart.shape)


def _interpreted() -> bool:
    from pejax.attention.implementations import platform

    return platform() != "tpu"
