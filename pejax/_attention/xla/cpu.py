"""Attention head by head, each in tiles: what XLA:CPU does fastest, in memory that grows with the length alone.

Heads are read from and written to the arrays where they are, one at a time, so that no array is copied whole. Kept for
the backward pass are the operands, the output and the log-sum-exps.
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

from pejax._attention.core.contiguous import counts_on, first_distance
from pejax._attention.core.dropout import Dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.operands import Layout, Operands, bind_hooks
from pejax._attention.core.options import Options
from pejax._attention.xla.blocks import (
    Head,
    Terms,
    Vectors,
    block_size,
    cut_head,
    cut_row,
    join,
    join_gradients,
    row_means,
    terms_of,
    terms_of_vectors,
)
from pejax._attention.xla.heads import Place, key_place, parameters_at, places, put_head, take_head
from pejax._attention.xla.relative_keys import HeadVectors, vectors_of, vectors_pay
from pejax._attention.xla.tiles import backward, forward
from pejax._ops.bfloat16 import as_bits, from_bits
from pejax._ops.pytrees import Floats, cotangent_of, floats_of, wide, with_floats, zeros_of
from pejax._ops.remat import kept
from pejax._tokens import TokenPositions

BLOCK = 512
"""Queries and keys of a tile at most, where several cores share the operations of a device."""

ALONE = 256
"""The same where each device has a core: a tile that stays in its cache."""

BACKWARD = 256
"""Queries of a tile in the backward pass at most."""


def block() -> int:
    """Return how many queries and keys a tile has at most, given how many devices compute at the same time."""
    mesh = jax.sharding.get_abstract_mesh()
    devices = math.prod(mesh.shape[axis] for axis in mesh.manual_axes)
    return min(BLOCK, ALONE) if devices >= cores() else BLOCK


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_attention(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    """Attend in tiles, one head after the other.

    The rest of this module has the arrays as the caller had them, q `(N, T, H, D)`, k and v `(N, S, K, D)`: heads
    brought to the front would be copies.
    """
    if any(x is not None for x in operands.pairs):
        raise NotImplementedError("a mask or bias array is the size of the scores: only the reference takes one")
    n, groups, heads, t, d = operands.q.shape
    by_token = operands._replace(
        q=jnp.moveaxis(operands.q, 3, 1).reshape(n, t, groups * heads, d),
        k=jnp.moveaxis(operands.k, 2, 1),
        v=jnp.moveaxis(operands.v, 2, 1),
    )
    output, lse = _attend(options, layout, by_token)  # pyright: ignore[reportGeneralTypeIssues]
    by_head = lambda x: jnp.moveaxis(x.reshape(n, t, groups, heads, *x.shape[3:]), 1, 3)
    return by_head(output), by_head(lse)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    return _choose(_forward, options, layout, operands)


def _attend_forward(options: Options, layout: Layout, operands: Operands) -> tuple[Any, Any]:
    # The gradient of what a bias learns adds up over rows what the mean of a row is off: it wants the output unrounded.
    exact = operands.shared.bias is not None
    output, lse = kept(_choose(functools.partial(_forward, exact=exact), options, layout, operands))
    return (output.astype(operands.q.dtype), lse), (_by_bits(operands), as_bits(output), lse)


def _attend_backward(options: Options, layout: Layout, saved: Any, cotangents: tuple[Array, Array]) -> tuple[Any]:
    operands, output, lse = saved
    operands = operands._replace(q=from_bits(operands.q), k=from_bits(operands.k), v=from_bits(operands.v))
    totals = _choose(_backward, options, layout, operands, from_bits(output), lse, *cotangents)
    return (cotangent_of(operands, jax.tree.leaves(totals)),)


_attend.defvjp(_attend_forward, _attend_backward)


def _choose(run: Any, options: Options, layout: Layout, operands: Operands, *arrays: Array) -> Any:
    """Run with a line of biases, or with vectors, where the bias allows it and the positions do, else with the hook."""
    # Where queries and keys are the same tokens, XLA:CPU would read one slice along rows and along columns, and not
    # vectorise the loop that does.
    operands = operands._replace(k_tokens=lax.optimization_barrier(operands.k_tokens))
    run, sides = functools.partial(run, options, layout), (operands.q_tokens, operands.k_tokens)
    batched = [axes.positions is not None for axes in (layout.q_axes, layout.k_axes)]
    by_vectors = vectors_pay(operands)
    if not (operands.shared.distance_bias is not None or by_vectors) or not all(map(counts_on, sides, batched)):
        return run(operands, None, *arrays)
    if layout.in_order:  # one of two branches need not be compiled
        return run(operands, jnp.zeros(len(operands.q), jnp.int32), *arrays)
    axes = (layout.q_axes, layout.k_axes)
    first, steady = jax.vmap(first_distance, axes, axis_size=len(operands.q))(*sides)
    if by_vectors:  # they are those of the whole batch
        steady &= first == first[0]
    without_hook = lambda operands, *arrays: run(operands, first, *arrays)
    with_hook = lambda operands, *arrays: run(operands, None, *arrays)
    return lax.cond(jnp.all(steady), without_hook, with_hook, operands, *arrays)


def _forward(
    options: Options, layout: Layout, operands: Operands, first: Int[Array, " N"] | None, *, exact: bool = False
) -> tuple[Float[Array, "N T H D"], Float[Array, "N T H"]]:
    """Return the output, in the type of q or `exact` in at least 32 bits, and each row's log-sum-exp."""
    t, s = operands.q.shape[1], operands.k.shape[1]
    sizes = block_size(options.block, t), block_size(options.block, s)
    count, place_of = places(operands)
    vectors, _ = vectors_of(operands, first, sizes)
    operands = _by_bits(operands)

    def head(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        place = place_of(i)
        output, lse = forward(options, _head(layout, operands, first, vectors, sizes, place)[0])
        return put_head(carry[0], place, join(output, t)), put_head(carry[1], place, join(lse, t))

    kind = wide(from_bits(operands.q)).dtype
    start = jnp.zeros_like(operands.q, dtype=kind if exact else None), jnp.zeros(operands.q.shape[:-1], kind)
    output, lse = lax.fori_loop(0, count, head, start)
    return from_bits(output), lse


class _Totals(NamedTuple):
    """Gradients of the floats of `Operands`, in the order of its leaves."""

    q: Float[Array, "N T H D"]
    k: Float[Array, "N S K D"]
    v: Float[Array, "N S K D"]
    shared: Floats
    per_head: Floats
    q_tokens: Floats
    k_tokens: Floats


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
    (t, heads), (s, groups) = operands.q.shape[1:3], operands.k.shape[1:3]
    sizes = block_size(min(options.block, BACKWARD), t), block_size(options.block, s)
    count, place_of = places(operands)
    vectors, pull_vectors = vectors_of(operands, first, sizes)
    # Of all heads at once: in the loop, XLA:CPU would make it one operation with the product dov, and a slow one.
    mean = row_means(output, d_output, d_lse)
    operands, d_output = _by_bits(operands), as_bits(d_output)

    def head(i: Array, carry: tuple[_Totals, Any]) -> tuple[_Totals, Any]:
        (totals, d_vectors), place = carry, place_of(i)
        tiles, pull = _head(layout, operands, first, vectors, sizes, place)
        row = cut_row(tiles, *(take_head(x, place) for x in (d_output, lse, mean)))
        part = backward(options, tiles, row)
        (d_q, *d_q_tokens), (d_k, d_v, *d_k_tokens) = join_gradients(part, t, s)
        d_shared, d_own, d_head, q_more, k_more = pull((part.hooks, part.line, part.vectors))
        keys, own = key_place(operands, place), parameters_at(operands, place)
        totals = _Totals(
            q=put_head(totals.q, place, d_q + q_more),
            k=put_head(totals.k, keys, wide(take_head(totals.k, keys)) + d_k + k_more),
            v=put_head(totals.v, keys, wide(take_head(totals.v, keys)) + d_v),
            shared=_sum(totals.shared, d_shared),
            per_head=[x.at[own].add(y) for x, y in zip(totals.per_head, d_own, strict=True)],
            q_tokens=_add_tokens(totals.q_tokens, d_q_tokens, layout.q_axes, place),
            k_tokens=_add_tokens(totals.k_tokens, d_k_tokens, layout.k_axes, place),
        )
        return totals, jax.tree.map(lambda x, y: x.at[place.head].add(y), d_vectors, d_head)

    # Several query heads add to the gradient of one key head: that sum is kept in float32.
    exact = lambda x: x if heads == groups else wide(from_bits(x))
    nothing = _Totals(
        q=jnp.zeros_like(operands.q),
        k=jnp.zeros_like(exact(operands.k)),
        v=jnp.zeros_like(exact(operands.v)),
        **{name: zeros_of(getattr(operands, name)) for name in ("shared", "per_head", "q_tokens", "k_tokens")},
    )
    totals, d_vectors = lax.fori_loop(0, count, head, (nothing, jax.tree.map(jnp.zeros_like, vectors)))
    d_shared, d_per_head = pull_vectors(d_vectors)
    return _Totals(
        *map(from_bits, totals[:3]),
        shared=_sum(totals.shared, d_shared),
        per_head=_sum(totals.per_head, d_per_head),
        q_tokens=totals.q_tokens,
        k_tokens=totals.k_tokens,
    )


def _by_bits(operands: Operands) -> Operands:
    """Return the operands, their heads as they are kept, and as `take_head` reads them."""
    return operands._replace(q=as_bits(operands.q), k=as_bits(operands.k), v=as_bits(operands.v))


def _head(
    layout: Layout,
    operands: Operands,
    first: Int[Array, " N"] | None,
    vectors: HeadVectors | None,
    sizes: tuple[int, int],
    place: Place,
) -> tuple[Head, Callable[[tuple[Floats, Array | None, Vectors | None]], tuple[Floats, Floats, Any, Array, Array]]]:
    """Cut one head into tiles, and return the way back from the gradients of its terms.

    It leads to the parameters that heads share, to the head's own, to its vectors, and to q and k as these meet them.
    """
    q, (k, v) = (
        take_head(operands.q, place),
        (take_head(x, key_place(operands, place)) for x in (operands.k, operands.v)),
    )
    q_tokens, k_tokens = (
        tokens._replace(**{name: x[place.batch] for name, x in tokens._asdict().items() if getattr(axes, name) == 0})
        for tokens, axes in ((operands.q_tokens, layout.q_axes), (operands.k_tokens, layout.k_axes))
    )
    dropout = _dropout(layout, operands, place)
    tiles = cut_head(sizes, q, k, v, q_tokens, k_tokens, Terms(Hooks(None, None)), dropout)
    own = jax.tree.map(lambda leaf: leaf[parameters_at(operands, place)], operands.per_head)
    start = None if first is None else first[place.batch] + 1 - tiles.queries.ids.size
    length = tiles.queries.ids.size + tiles.keys.ids.size - 1

    def bound(shared_floats: Floats, own_floats: Floats, vectors: HeadVectors | None, q: Array, k: Array) -> Terms:
        hooks = bind_hooks(with_floats(operands.shared, shared_floats), with_floats(own, own_floats))
        if vectors is None:
            return terms_of(hooks, start, length, wide(tiles.queries.q).dtype)
        return terms_of_vectors(hooks, sizes, vectors, q, k)

    def floats(*parts: Any) -> tuple[Floats, Array | None, Vectors | None]:
        hooks, line, vectors = bound(*parts)
        return floats_of(hooks), line, vectors

    of_head = jax.tree.map(lambda x: x[place.head], vectors)
    parts = floats_of(operands.shared), floats_of(own), of_head, wide(q), wide(k)
    (hook_floats, line, cut_vectors), pull = jax.vjp(floats, *parts)
    terms = Terms(with_floats(bound(*parts).hooks, hook_floats), line, cut_vectors)
    return tiles._replace(terms=terms), pull


def _sum(totals: Floats, parts: Floats) -> Floats:
    return [x + y for x, y in zip(totals, parts, strict=True)]


def _dropout(layout: Layout, operands: Operands, place: Place) -> Dropout | None:
    """Return what tells this head's drops from another's."""
    if operands.seed is None:
        return None
    origin = operands.origin
    batch, head = (x.astype(jnp.uint32) for x in place)
    batch, head = (0 * batch, 0 * head) if layout.one_dropout else (batch + origin.batch, head + origin.head)
    return Dropout(operands.seed, batch, head, origin.query, origin.key)


def _add_tokens(totals: Floats, parts: Floats, axes: TokenPositions, place: Place) -> Floats:
    """Add one head's gradient of the positions, which are the only floats of tokens."""
    add = lambda x, y: x + y if axes.positions is None else x.at[place.batch].add(y)
    return [add(*pair) for pair in zip(totals, parts, strict=True)]
