"""Attention for CPUs: head by head, each in tiles, in memory linear in the length.

Heads are read from and written to the operands one at a time, so no operand is transposed or copied. The operands, the
output and the log-sum-exps are saved for the backward pass.
"""

import functools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pejax._attention.core.consecutive import constant_shift, may_be_consecutive
from pejax._attention.core.derivatives import tiled_rules
from pejax._attention.core.dropout import Dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.operands import Layout, Operands, bind_hooks, over_heads, refuse_pair_arrays
from pejax._attention.core.options import Options
from pejax._attention.xla.blocks import (
    Head,
    RelativeKeys,
    Terms,
    block_size,
    from_blocks,
    gradients_from_blocks,
    head_to_blocks,
    residuals_to_blocks,
    row_means,
    terms_from_hooks,
    terms_from_relative_keys,
)
from pejax._attention.xla.blockwise import blockwise_head
from pejax._attention.xla.heads import (
    HeadIndex,
    add_positions,
    head_indices,
    key_head,
    operands_as_bits,
    param_index,
    put_head,
    take_head,
)
from pejax._attention.xla.relative_keys import HeadRelativeKeys, relative_keys_are_fastest, relative_keys_of_heads
from pejax._attention.xla.tiles import backward, forward
from pejax._ops.bfloat16 import as_bits, from_bits
from pejax._ops.derivatives import differentiable, either
from pejax._ops.pytrees import Floats, cotangent_of, floats_of, wide, with_floats, zeros_of

BLOCK = 512
"""Maximum number of queries, and of keys, per tile if a device uses several cores."""

CORE_BLOCK = 256
"""The same if every device has one core: such a tile stays in the cache of the core."""

BACKWARD = 256
"""Maximum number of queries per tile in the backward pass."""


def block() -> int:
    """Return the maximum number of queries, and of keys, per tile, given the number of devices that run at once."""
    mesh = jax.sharding.get_abstract_mesh()
    devices = math.prod(mesh.shape[axis] for axis in mesh.manual_axes)
    return min(BLOCK, CORE_BLOCK) if devices >= cores() else BLOCK


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_attention(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Return the output `(N, K, G, T, D)` and the log-sum-exp `(N, K, G, T)`, computed one head after the other.

    The rest of this module has the operands with heads after tokens, as the caller gave them: q `(N, T, H, D)`, k and v
    `(N, S, K, D)`. Moving the heads to the front would copy them.
    """
    refuse_pair_arrays(operands)
    n, groups, heads, t, d = operands.q.shape
    by_token = operands._replace(
        q=jnp.moveaxis(operands.q, 3, 1).reshape(n, t, groups * heads, d),
        k=jnp.moveaxis(operands.k, 2, 1),
        v=jnp.moveaxis(operands.v, 2, 1),
    )
    output, lse = _attend(options, layout, by_token)
    by_head = lambda x: jnp.moveaxis(x.reshape(n, t, groups, heads, *x.shape[3:]), 1, 3)
    return by_head(output), by_head(lse)


def _attend(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Return the output `(N, T, H, D)` in q's type, and the log-sum-exp `(N, T, H)`."""
    return either(_run_alone, _run_to_differentiate, (options, layout), operands)


def _run_alone(settings: tuple[Options, Layout], operands: Operands) -> tuple[Array, Array]:
    """Return output and log-sum-exps, without a derivative."""
    return _choose(_forward, *settings, operands)


def _run_to_differentiate(settings: tuple[Options, Layout], operands: Operands) -> tuple[Array, Array]:
    """Return output and log-sum-exps, with their derivatives."""
    output, lse = differentiable(RULES, settings, operands)
    return output.astype(operands.q.dtype), lse


def _run(settings: tuple[Options, Layout], operands: Operands) -> tuple[Array, Array]:
    """Return output and log-sum-exps, the output unrounded if a backward pass needs it so."""
    # Gradients of a bias's parameters sum the errors of the row means over all rows.
    exact = operands.shared.bias is not None
    return _choose(functools.partial(_forward, exact=exact), *settings, operands)


def _save(
    settings: tuple[Options, Layout], operands: Operands, outputs: tuple[Array, Array]
) -> tuple[list[Array], Array, Array]:
    """Return the bits of q, k, v and the output, and the log-sum-exps, for the backward pass."""
    del settings
    return [as_bits(x) for x in (operands.q, operands.k, operands.v)], as_bits(outputs[0]), outputs[1]


def _pull(
    settings: tuple[Options, Layout],
    operands: Operands,
    saved: tuple[list[Array], Array, Array],
    cotangents: tuple[Array, Array],
) -> Any:
    """Return the gradients of the operands."""
    (q, k, v), output, lse = saved
    q, k, v = map(from_bits, (q, k, v))
    operands, d_output = operands._replace(q=q, k=k, v=v), cotangents[0].astype(q.dtype)
    totals = _choose(_backward, *settings, operands, from_bits(output), lse, d_output, cotangents[1])
    return cotangent_of(operands, jax.tree.leaves(totals))


def _in_tiles(settings: tuple[Options, Layout], operands: Operands) -> tuple[Array, Array]:
    """Return output and log-sum-exps by `blockwise`, which has forward mode."""
    options, layout = settings
    (n, t, heads, d), groups = operands.q.shape, operands.k.shape[2]
    by_head = operands._replace(
        q=jnp.moveaxis(operands.q.reshape(n, t, groups, heads // groups, d), 1, 3),
        k=jnp.moveaxis(operands.k, 2, 1),
        v=jnp.moveaxis(operands.v, 2, 1),
    )
    output, lse = over_heads(functools.partial(blockwise_head, options), by_head, layout)
    by_token = lambda x: jnp.moveaxis(x, 3, 1).reshape(n, t, heads, *x.shape[4:])
    return by_token(output), by_token(lse)


RULES = tiled_rules(run=_run, plain=_in_tiles, save=_save, pull=_pull)


def _choose(run: Any, options: Options, layout: Layout, operands: Operands, *arrays: Array) -> Any:
    """Run with per-diagonal biases or relative keys if positions are consecutive, else with the `bias` hook.

    Args:
        run: `(options, layout, operands, first, *arrays)`, where `first` is the distance of the first pair in each
            batch entry, or None = positions are not consecutive.
        options: settings of the attention.
        layout: which tokens are batched.
        operands: operands with heads after tokens.
        *arrays: further arguments of `run`.
    """
    # If queries and keys are the same tokens, XLA:CPU would read one array along both rows and columns, in a loop that
    # it does not vectorize. The barrier makes them two arrays.
    operands = operands._replace(k_tokens=lax.optimization_barrier(operands.k_tokens))
    run, sides = functools.partial(run, options, layout), (operands.q_tokens, operands.k_tokens)
    batched = [axes.positions is not None for axes in (layout.q_axes, layout.k_axes)]
    use_relative_keys = relative_keys_are_fastest(operands)
    by_distance = operands.shared.distance_bias is not None or use_relative_keys
    if not by_distance or not all(map(may_be_consecutive, sides, batched)):
        return run(operands, None, *arrays)
    if layout.in_order:  # one of two branches need not be compiled
        return run(operands, jnp.zeros(len(operands.q), jnp.int32), *arrays)
    axes = (layout.q_axes, layout.k_axes)
    first, consecutive_batches = jax.vmap(constant_shift, axes, axis_size=len(operands.q))(*sides)
    if use_relative_keys:  # computed once for all batch entries
        consecutive_batches &= first == first[0]
    consecutive = lambda operands, *arrays: run(operands, first, *arrays)
    general = lambda operands, *arrays: run(operands, None, *arrays)
    return lax.cond(jnp.all(consecutive_batches), consecutive, general, operands, *arrays)


def _forward(
    options: Options, layout: Layout, operands: Operands, first: Int[Array, " N"] | None, *, exact: bool = False
) -> tuple[Float[Array, "N T H D"], Float[Array, "N T H"]]:
    """Return the output, in q's type or if `exact` in at least 32 bits, and the log-sum-exp of each row.

    `first` is as in `_choose`.
    """
    t, s = operands.q.shape[1], operands.k.shape[1]
    sizes = block_size(options.block, t), block_size(options.block, s)
    count, index_of = head_indices(operands)
    relative_keys, _ = relative_keys_of_heads(operands, first, sizes)
    operands = operands_as_bits(operands)

    def head(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        index = index_of(i)
        output, lse = forward(options, _head(layout, operands, first, relative_keys, sizes, index)[0])
        return put_head(carry[0], index, from_blocks(output, t)), put_head(carry[1], index, from_blocks(lse, t))

    kind = wide(from_bits(operands.q)).dtype
    start = jnp.zeros_like(operands.q, dtype=kind if exact else None), jnp.zeros_like(operands.q[..., 0], dtype=kind)
    output, lse = lax.fori_loop(0, count, head, start)
    return from_bits(output), lse


class _Totals(NamedTuple):
    """Gradients of the floating point leaves of `Operands`, in the order of its leaves."""

    q: Float[Array, "N T H D"]
    k: Float[Array, "N S K D"]
    v: Float[Array, "N S K D"]
    shared: Floats
    per_head: Floats
    q_tokens: Floats
    k_tokens: Floats
    key_bias: Floats


def _backward(
    options: Options,
    layout: Layout,
    operands: Operands,
    first: Int[Array, " N"] | None,
    output: Float[Array, "N T H D"],
    lse: Float[Array, "N T H"],
    d_output: Float[Array, "N T H D"],
    d_lse: Float[Array, "N T H"],
) -> _Totals:
    """Return the gradients of the operands, by the cotangents of output and log-sum-exp; `first` as in `_choose`."""
    (t, heads), (s, groups) = operands.q.shape[1:3], operands.k.shape[1:3]
    sizes = block_size(min(options.block, BACKWARD), t), block_size(options.block, s)
    count, index_of = head_indices(operands)
    relative_keys, pull_relative = relative_keys_of_heads(operands, first, sizes)
    # For all heads at once: in the loop, XLA:CPU would fuse it with the matmul of d_output and v into a slow operation.
    mean = row_means(output, d_output, d_lse)
    operands, d_output = operands_as_bits(operands), as_bits(d_output)

    def head(i: Array, carry: tuple[_Totals, Any]) -> tuple[_Totals, Any]:
        (totals, d_relative), index = carry, index_of(i)
        blocks, pull = _head(layout, operands, first, relative_keys, sizes, index)
        residuals = residuals_to_blocks(blocks, *(take_head(x, index) for x in (d_output, lse, mean)))
        part = backward(options, blocks, residuals)
        (d_q, *d_q_tokens), (d_k, d_v, *d_k_tokens) = gradients_from_blocks(part, t, s)
        d_key_bias = [d_k_tokens.pop() for _ in totals.key_bias]
        d_shared, d_own, d_head, d_q_terms, d_k_terms = pull((part.hooks, part.diagonals, part.relative_keys))
        keys, numbers = key_head(operands, index), param_index(operands, index)
        totals = _Totals(
            q=put_head(totals.q, index, d_q + d_q_terms),
            k=put_head(totals.k, keys, wide(take_head(totals.k, keys)) + d_k + d_k_terms),
            v=put_head(totals.v, keys, wide(take_head(totals.v, keys)) + d_v),
            shared=_sum(totals.shared, d_shared),
            per_head=[x.at[numbers].add(y) for x, y in zip(totals.per_head, d_own, strict=True)],
            q_tokens=add_positions(totals.q_tokens, d_q_tokens, layout.q_axes, index),
            k_tokens=add_positions(totals.k_tokens, d_k_tokens, layout.k_axes, index),
            key_bias=[x.at[index.batch, *numbers].set(y) for x, y in zip(totals.key_bias, d_key_bias, strict=True)],
        )
        return totals, jax.tree.map(lambda x, y: x.at[index.head].add(y), d_relative, d_head)

    # If several query heads add to the gradient of one key head, that sum is in float32.
    exact = lambda x: x if heads == groups else wide(from_bits(x))
    zeros = _Totals(
        q=jnp.zeros_like(operands.q),
        k=jnp.zeros_like(exact(operands.k)),
        v=jnp.zeros_like(exact(operands.v)),
        **{
            name: zeros_of(getattr(operands, name))
            for name in ("shared", "per_head", "q_tokens", "k_tokens", "key_bias")
        },
    )
    totals, d_relative = lax.fori_loop(0, count, head, (zeros, jax.tree.map(jnp.zeros_like, relative_keys)))
    d_shared, d_per_head = pull_relative(d_relative)
    return _Totals(
        *map(from_bits, totals[:3]),
        shared=_sum(totals.shared, d_shared),
        per_head=_sum(totals.per_head, d_per_head),
        q_tokens=totals.q_tokens,
        k_tokens=totals.k_tokens,
        key_bias=totals.key_bias,
    )


def _head(
    layout: Layout,
    operands: Operands,
    first: Int[Array, " N"] | None,
    relative_keys: HeadRelativeKeys | None,
    sizes: tuple[int, int],
    index: HeadIndex,
) -> tuple[
    Head, Callable[[tuple[Floats, Array | None, RelativeKeys | None]], tuple[Floats, Floats, Any, Array, Array]]
]:
    """Return one head, split into blocks, and the VJP of its terms.

    `terms_of` is called twice: under `jax.vjp`, for the floats that have gradients, and plainly, for the hooks around
    these floats. A pytree of hooks holds functions, which cannot pass through `jax.vjp`; XLA removes the double work.

    The VJP takes the gradients of the hooks' floating point leaves, of the diagonals and of the relative keys. It
    returns those of the parameters that heads share, of the head's own parameters, of the head's relative keys, and of
    q and k through these.
    """
    q = take_head(operands.q, index)
    k, v = (take_head(x, key_head(operands, index)) for x in (operands.k, operands.v))
    q_tokens, k_tokens = (
        tokens._replace(**{name: x[index.batch] for name, x in tokens._asdict().items() if getattr(axes, name) == 0})
        for tokens, axes in ((operands.q_tokens, layout.q_axes), (operands.k_tokens, layout.k_axes))
    )
    dropout = _dropout(layout, operands, index)
    place = param_index(operands, index)
    key_bias = None if operands.key_bias is None else operands.key_bias[index.batch, *place]
    blocks = head_to_blocks(sizes, q, k, v, q_tokens, k_tokens, key_bias, Terms(Hooks()), dropout)
    head_params = jax.tree.map(lambda leaf: leaf[place], operands.per_head)
    start = None if first is None else first[index.batch] + 1 - blocks.queries.ids.size
    length = blocks.queries.ids.size + blocks.keys.ids.size - 1

    def terms_of(shared: Floats, of_head: Floats, relative: HeadRelativeKeys | None, q: Array, k: Array) -> Terms:
        hooks = bind_hooks(with_floats(operands.shared, shared), with_floats(head_params, of_head))
        if relative is None:
            return terms_from_hooks(hooks, start, length, wide(blocks.queries.q).dtype)
        return terms_from_relative_keys(hooks, sizes, relative, q, k)

    def floats(*parts: Any) -> tuple[Floats, Array | None, RelativeKeys | None]:
        hooks, diagonals, relative = terms_of(*parts)
        return floats_of(hooks), diagonals, relative

    relative = jax.tree.map(lambda x: x[index.head], relative_keys)
    parts = floats_of(operands.shared), floats_of(head_params), relative, wide(q), wide(k)
    (hook_floats, diagonals, relative_blocks), pull = jax.vjp(floats, *parts)
    terms = Terms(with_floats(terms_of(*parts).hooks, hook_floats), diagonals, relative_blocks)
    return blocks._replace(terms=terms), pull


def _sum(totals: Floats, parts: Floats) -> Floats:
    """Return the sums of corresponding arrays."""
    return [x + y for x, y in zip(totals, parts, strict=True)]


def _dropout(layout: Layout, operands: Operands, index: HeadIndex) -> Dropout | None:
    """Return the dropout of one head; None without dropout."""
    if operands.seed is None:
        return None
    origin = operands.origin
    batch, head = (x.astype(jnp.uint32) for x in index)
    batch, head = (0 * batch, 0 * head) if layout.one_dropout else (batch + origin.batch, head + origin.head)
    return Dropout(operands.seed, batch, head, origin.query, origin.key)
