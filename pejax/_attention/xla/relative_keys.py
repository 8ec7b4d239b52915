"""Relative-key biases `(q_i + v)·a[k_j - q_i] + u·k_j` at consecutive positions.

    bias_ij = (q_i + v) · a[k_j - q_i] + u · k_j

A strip of queries meets the vectors of all its distances in one product, of which each row keeps a run of its own. That
is the relative shift of Transformer-XL, strip by strip: no product is much wider than a tile.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from pejax._attention.core.operands import Operands, bind_hooks
from pejax._encoding import naming_missing
from pejax._ops.pytrees import Floats, floats_of, wide, with_floats

STRIP = 64
"""Queries that meet the same vectors in one product."""


class HeadVectors(NamedTuple):
    """What `Encoding.relative_keys` gives for every head, or for one of them without the letter H; a transposed."""

    transposed: Float[Array, "H D R"]
    v: Float[Array, "H D"]
    u: Float[Array, "H D"]


def vectors_pay(operands: Operands) -> bool:
    """Say whether there are vectors, and pairs enough for them: they cost T + S projections, each of some D pairs.

    The operands are as `cpu_attention` has them.
    """
    (t, _, d), s = operands.q.shape[1:], operands.k.shape[1]
    return operands.shared.relative_keys is not None and operands.shared.distance_bias is None and t * s >= (t + s) * d


def vectors_of(
    operands: Operands, first: Int[Array, " N"] | None, sizes: tuple[int, int]
) -> tuple[HeadVectors | None, Callable[[HeadVectors | None], tuple[Floats, Floats]]]:
    """Return the vectors of all heads, and the way back to the floats of `shared` and of `per_head`.

    None where they do not pay, or without `first`: the distance of the first pair, one for the whole batch.
    """
    (_, t, heads, d), (s, groups) = operands.q.shape, operands.k.shape[1:3]
    before = t + -t % sizes[0] + STRIP - 2
    length = before + 2 + s + -s % sizes[1]
    kind = jnp.result_type(*map(wide, operands[:3]))

    def found(shared_floats: Floats, own_floats: Floats) -> HeadVectors | None:
        if first is None or not vectors_pay(operands):
            return None
        relative = first[0] - before + jnp.arange(length, dtype=first.dtype)
        shared, own = with_floats(operands.shared, shared_floats), with_floats(operands.per_head, own_floats)
        each = jax.vmap(
            lambda own: _checked(bind_hooks(shared, own).relative_keys, relative, d), axis_size=heads // groups
        )
        parts = jax.vmap(each, axis_size=groups)(own)
        a, v, u = (x.reshape(heads, *x.shape[2:]).astype(kind) for x in parts)
        return HeadVectors(a.swapaxes(1, 2), v, u)

    return jax.vjp(found, floats_of(operands.shared), floats_of(operands.per_head))


def _checked(hook: Partial | None, relative: Int[Array, " R"], d: int) -> tuple[Array, ...]:
    """Call the hook and require the shapes of its parts."""
    with naming_missing("relative_keys hook", hook.args[0]):  # pyright: ignore[reportOptionalMemberAccess]
        parts = hook(relative)  # pyright: ignore[reportOptionalCall]
    shapes = ((len(relative), d), (d,), (d,))
    if (found := tuple(map(jnp.shape, parts))) != shapes:
        raise ValueError(f"relative_keys hook must return (R, D), (D,), (D,) = {shapes}, got {found}")
    return parts


def against_vectors(
    met: Float[Array, "T D"], transposed: Float[Array, "D R"], start: Int[Array, ""], columns: int
) -> Float[Array, "T S"]:
    """Return the tile `met_i · transposed[:, STRIP - 1 + start + j - i]`, i a row and j a column."""
    strips = jnp.pad(met, ((0, -len(met) % STRIP), (0, 0))).reshape(-1, STRIP, met.shape[1])
    width = columns + STRIP

    def strip(operands: tuple[Int[Array, ""], Float[Array, "B D"]]) -> Float[Array, "B S"]:
        i, rows = operands
        product = rows @ lax.dynamic_slice_in_dim(transposed, start - i * STRIP, width, 1)
        skewed = product.reshape(-1)[STRIP - 1 : -1].reshape(STRIP, width - 1)
        return skewed[:, :columns]

    tile = lax.map(strip, (jnp.arange(len(strips), dtype=jnp.int32), strips))
    return tile.reshape(-1, columns)[: len(met)]


def through_vectors(
    d_tile: Float[Array, "T S"],
    met_transposed: Float[Array, "D T"],
    vectors: Float[Array, "R D"],
    start: Int[Array, ""],
) -> tuple[Float[Array, "T D"], Float[Array, "D W"]]:
    """Return the gradients of `met` and of the run of `transposed` that the tile reads.

    The run begins where the last strip reads first. Rows are skewed back as they are read: XLA:CPU takes twice as long
    where they are padded and reshaped instead.
    """
    (t, columns), width = d_tile.shape, d_tile.shape[1] + STRIP
    more, count = -t % STRIP, -(-t // STRIP)
    padded = jnp.pad(d_tile, ((0, more), (STRIP - 1, STRIP))).reshape(count, STRIP, -1)
    skew = jax.vmap(lambda row, i: lax.dynamic_slice_in_dim(row, i, width))
    strips = jax.vmap(skew, (0, None))(padded, jnp.arange(STRIP, dtype=jnp.int32))
    by_strip = jnp.pad(met_transposed, ((0, 0), (0, more)))

    def strip(total: Array, operands: tuple[Int[Array, ""], Array]) -> tuple[Array, Array]:
        i, d_product = operands
        place = (count - 1 - i) * STRIP
        first = start - (count - 1) * STRIP + place
        d_rows = d_product @ lax.dynamic_slice_in_dim(vectors, first, width)
        part = lax.dynamic_slice_in_dim(by_strip, i * STRIP, STRIP, 1) @ d_product
        old = lax.dynamic_slice_in_dim(total, place, width, 1)
        return lax.dynamic_update_slice_in_dim(total, old + part, place, 1), d_rows

    run = jnp.zeros((len(met_transposed), columns + count * STRIP), met_transposed.dtype)
    run, d_met = lax.scan(strip, run, (jnp.arange(count, dtype=jnp.int32), strips))
    return d_met.reshape(-1, d_met.shape[-1])[:t], run
