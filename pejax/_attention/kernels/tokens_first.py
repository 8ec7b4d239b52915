"""Operands with tokens before heads, as callers have them, and padded to whole tiles, for kernels of GPUs.

`Operands` has heads before tokens. XLA cancels that move against the one back, so that neither is made.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pejax._attention.core.operands import Operands
from pejax._attention.kernels.kernel_call import Outputs, Rows
from pejax._ops.compile_time import computed_now

LOG2_E = float(np.log2(np.e))


def tokens_first(x: Float[Array, "N K G T D"], length: int, width: int) -> Float[Array, "N P H E"]:
    """Return queries, or the gradient of the output, padded to P = `length` tokens and E = `width` channels."""
    n, key_heads, group, t, d = x.shape
    x = jnp.moveaxis(x, 3, 1).reshape(n, t, key_heads * group, d)
    return jnp.pad(x, ((0, 0), (0, length - t), (0, 0), (0, width - d)))


def heads_first(
    output: Float[Array, "N P H E"], lse: Float[Array, "N H P"], like: Float[Array, "N K G T D"]
) -> Outputs:
    """Return the outputs of a kernel in the shape of the queries, without padding."""
    n, key_heads, group, t, d = like.shape
    output = jnp.moveaxis(output[:, :t, :, :d].reshape(n, t, key_heads, group, d), 1, 3)
    return output, lse[:, :, :t].reshape(n, key_heads, group, t)


def padded_rows(rows: Rows, length: int, width: int) -> Rows:
    """Return rows of the backward pass padded, `(N, P, H, E)` and `(N, H, P)`, with log-sum-exps over ln 2."""
    n, key_heads, group, t, _ = rows.d_output.shape
    pad = lambda x: jnp.pad(x.reshape(n, key_heads * group, t), ((0, 0), (0, 0), (0, length - t)))
    d_output = tokens_first(rows.d_output, length, width)
    return Rows(d_output, pad(rows.lse * LOG2_E), pad(rows.mean), pad(rows.d_lse))


def padded_key_bias(bias: Float[Array, "N K G S"] | None, length: int) -> Float[Array, "N H P"] | None:
    """Return the bias of the keys, padded to P = `length` keys."""
    if bias is None:
        return None
    n, key_heads, group, s = bias.shape
    return jnp.pad(bias.reshape(n, key_heads * group, s), ((0, 0), (0, 0), (0, length - s)))


def offsets_of_diagonals(operands: Operands, lengths: tuple[int, int]) -> Int[np.ndarray, " R"]:
    """Return j - i of every diagonal of padded T and S, limited to those that padding alone does not have."""
    offsets = np.arange(sum(lengths), dtype=np.int32) - (lengths[0] - 1)
    # The hook is not asked for distances that only padding has: it may have none for them, as a table has none.
    return offsets.clip(1 - operands.q.shape[3], operands.k.shape[2] - 1)


def computed(is_known: bool, function: Callable[[], Any]) -> Any:
    """Return the result of a function of tokens, computed where the call is traced if they are known there."""
    return computed_now(function) if is_known else function()
