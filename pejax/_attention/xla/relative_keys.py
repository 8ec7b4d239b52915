"""Relative-key biases at consecutive positions, as in Shaw et al. and Transformer-XL.

    bias_ij = (q_i + v) · a[k_j - q_i] + u · k_j

A strip of queries is multiplied by the vectors a of all distances that occur in the strip, in one matmul. Row i of the
product then keeps the slice of distances that belongs to query i. That is Transformer-XL's relative shift, strip by
strip, so that no product is much wider than a tile.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from pejax._attention.core.operands import Operands, bind_hooks
from pejax._calls.hook_calls import hook_name, naming_hook
from pejax._calls.kinds import shown
from pejax._ops.pytrees import Floats, floats_of, wide, with_floats
from pejax._ops.varying import zeros_varying

STRIP = 64
"""Number of queries per strip."""


class HeadRelativeKeys(NamedTuple):
    """Results a, v and u of `Encoding.relative_keys`, a transposed, for all heads, or for one without the axis H."""

    a_transposed: Float[Array, "H D R"]
    v: Float[Array, "H D"]
    u: Float[Array, "H D"]


def relative_keys_are_fastest(operands: Operands) -> bool:
    """Return whether the hook `relative_keys` is given, and is the fastest form of the bias.

    A `distance_bias` is always faster. The `bias` hook is faster only for few pairs T·S: the vectors of T + S distances
    cost about as much as D pairs each.

    Args:
        operands: operands with heads after tokens: q `(N, T, H, D)`, k `(N, S, K, D)`.
    """
    (t, _, d), s = operands.q.shape[1:], operands.k.shape[1]
    return operands.shared.relative_keys is not None and operands.shared.distance_bias is None and t * s >= (t + s) * d


def relative_keys_of_heads(
    operands: Operands, first: Int[Array, " N"] | None, sizes: tuple[int, int]
) -> tuple[HeadRelativeKeys | None, Callable[[HeadRelativeKeys | None], tuple[Floats, Floats]]]:
    """Return the relative keys of all heads, and their VJP to the floating-point leaves of the hooks' parameters.

    Args:
        operands: operands with heads after tokens.
        first: distance of the first pair, the same in the whole batch; None = positions are not consecutive.
        sizes: queries and keys per block.

    Returns:
        The relative keys, None if another form of the bias is used; and the VJP,
        `(gradients of the relative keys) -> (those of operands.shared, those of operands.per_head)`.
    """
    (_, t, heads, d), (s, groups) = operands.q.shape, operands.k.shape[1:3]
    before = t + -t % sizes[0] + STRIP - 2
    length = before + 2 + s + -s % sizes[1]
    dtype = jnp.result_type(*map(wide, operands[:3]))

    def of_params(shared_floats: Floats, own_floats: Floats) -> HeadRelativeKeys | None:
        if first is None or not relative_keys_are_fastest(operands):
            return None
        relative = first[0] - before + jnp.arange(length, dtype=first.dtype)
        shared, per_head = with_floats(operands.shared, shared_floats), with_floats(operands.per_head, own_floats)
        of_group = jax.vmap(
            lambda head_params: _checked(bind_hooks(shared, head_params).relative_keys, relative, d),
            axis_size=heads // groups,
        )
        parts = jax.vmap(of_group, axis_size=groups)(per_head)
        a, v, u = (x.reshape(heads, *x.shape[2:]).astype(dtype) for x in parts)
        return HeadRelativeKeys(a.swapaxes(1, 2), v, u)

    return jax.vjp(of_params, floats_of(operands.shared), floats_of(operands.per_head))


def _checked(hook: Partial, relative: Int[Array, " R"], d: int) -> tuple[Array, ...]:
    """Return the results a, v and u of the hook for these distances; raise ValueError if one has another shape."""
    with naming_hook("relative_keys", hook, hook.args[0], relative):
        parts = hook(relative)
    shapes = ((len(relative), d), (d,), (d,))
    if not isinstance(parts, tuple | list) or tuple(getattr(part, "shape", None) for part in parts) != shapes:
        rule = f"must return (R, D), (D,), (D,) = {shapes}"
        raise ValueError(f"{hook_name('relative_keys', hook)} {rule}, got {shown(parts)}")
    return tuple(parts)


def relative_logits(
    queries: Float[Array, "T D"], a_transposed: Float[Array, "D R"], start: Int[Array, ""], columns: int
) -> Float[Array, "T S"]:
    """Return the tile with `queries_i · a_transposed[:, STRIP - 1 + start + j - i]` in row i and column j."""
    strips = jnp.pad(queries, ((0, -len(queries) % STRIP), (0, 0))).reshape(-1, STRIP, queries.shape[1])
    width = columns + STRIP

    def strip(operands: tuple[Int[Array, ""], Float[Array, "B D"]]) -> Float[Array, "B S"]:
        i, rows = operands
        product = rows @ lax.dynamic_slice_in_dim(a_transposed, start - i * STRIP, width, 1)
        # Reading rows of `width` numbers as rows of `width - 1` shifts each row by one more: row i starts i earlier.
        skewed = product.reshape(-1)[STRIP - 1 : -1].reshape(STRIP, width - 1)
        return skewed[:, :columns]

    tile = lax.map(strip, (jnp.arange(len(strips), dtype=jnp.int32), strips))
    return tile.reshape(-1, columns)[: len(queries)]


def relative_logits_backward(
    d_tile: Float[Array, "T S"],
    queries_transposed: Float[Array, "D T"],
    a: Float[Array, "R D"],
    start: Int[Array, ""],
) -> tuple[Float[Array, "T D"], Float[Array, "D W"]]:
    """Return the gradients of `queries`, and of the slice of `a_transposed` that the tile reads.

    The slice begins at the first column that the last strip reads. Rows are skewed back by slices as they are read:
    padding and reshaping them would take XLA:CPU twice as long.
    """
    (t, columns), width = d_tile.shape, d_tile.shape[1] + STRIP
    padding, count = -t % STRIP, -(-t // STRIP)
    padded = jnp.pad(d_tile, ((0, padding), (STRIP - 1, STRIP))).reshape(count, STRIP, -1)
    skew = jax.vmap(lambda row, i: lax.dynamic_slice_in_dim(row, i, width))
    strips = jax.vmap(skew, (0, None))(padded, jnp.arange(STRIP, dtype=jnp.int32))
    padded_queries = jnp.pad(queries_transposed, ((0, 0), (0, padding)))

    def strip(total: Array, operands: tuple[Int[Array, ""], Array]) -> tuple[Array, Array]:
        i, d_product = operands
        column = (count - 1 - i) * STRIP
        first = start - (count - 1) * STRIP + column
        d_rows = d_product @ lax.dynamic_slice_in_dim(a, first, width)
        part = lax.dynamic_slice_in_dim(padded_queries, i * STRIP, STRIP, 1) @ d_product
        old = lax.dynamic_slice_in_dim(total, column, width, 1)
        return lax.dynamic_update_slice_in_dim(total, old + part, column, 1), d_rows

    shape = len(queries_transposed), columns + count * STRIP
    d_a = zeros_varying(shape, queries_transposed.dtype, d_tile, queries_transposed)
    d_a, d_queries = lax.scan(strip, d_a, (jnp.arange(count, dtype=jnp.int32), strips))
    return d_queries.reshape(-1, d_queries.shape[-1])[:t], d_a
