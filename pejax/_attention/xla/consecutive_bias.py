"""The bias of a tile at consecutive positions, by its diagonals or by relative keys, and its gradients."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pejax._attention.xla.blocks import Gradients, Head, RelativeKeys, add_to_block, block_at
from pejax._attention.xla.relative_keys import STRIP, relative_logits, relative_logits_backward
from pejax._ops.toeplitz import add_slice, toeplitz


def consecutive_bias(head: Head, c: Int[Array, ""], b: Int[Array, ""]) -> Float[Array, "T S"]:
    """Return the bias of a tile at consecutive positions, by its diagonals or by relative keys."""
    (_, diagonals, relative), start = head.terms, _start(head, c, b)
    rows, columns = head.queries.ids.shape[1], head.keys.ids.shape[1]
    if relative is None:
        return toeplitz(diagonals, start, rows, columns)  # pyright: ignore[reportArgumentType]
    logits = relative_logits(block_at(relative.queries, c), relative.a_transposed, start, columns)
    return logits + block_at(relative.key_bias, b)


def relative_keys_backward(
    head: Head,
    d_bias: Float[Array, "T S"],
    index: tuple[Int[Array, ""], Int[Array, ""]],
    queries_transposed: Float[Array, "N D T"],
    a: Float[Array, "R D"],
) -> RelativeKeys:
    """Return the contribution of one tile to the gradients of `RelativeKeys`."""
    d_queries, d_a = relative_logits_backward(d_bias, block_at(queries_transposed, index[0]), a, _start(head, *index))
    return RelativeKeys(d_queries, d_a, jnp.sum(d_bias, axis=0))


def add_consecutive_bias(
    totals: list[Any], head: Head, part: Gradients, c: Int[Array, ""], b: Int[Array, ""]
) -> list[Any]:
    """Return the gradients of the diagonals and of the relative keys with those of one tile added."""
    (diagonals, relative), start, before = totals, _start(head, c, b), head.queries.ids.shape[1] - 1
    if part.diagonals is not None:
        diagonals = add_slice(diagonals, part.diagonals, start - before)
    if part.relative_keys is not None:
        d_queries, d_a, d_key_bias = part.relative_keys
        d_a = add_slice(relative.a_transposed, d_a, start - before // STRIP * STRIP)
        relative = RelativeKeys(
            add_to_block(c, relative.queries, d_queries), d_a, add_to_block(b, relative.key_bias, d_key_bias)
        )
    return [diagonals, relative]


def _start(head: Head, c: Int[Array, ""], b: Int[Array, ""]) -> Int[Array, ""]:
    """Return the index, counted from the smallest distance, of the distance of the first pair of a tile."""
    (count, rows), columns = head.queries.ids.shape, head.keys.ids.shape[1]
    return b * columns - c * rows + count * rows - 1
