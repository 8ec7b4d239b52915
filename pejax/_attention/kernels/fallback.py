"""Blockwise attention from the operands of kernels: for positions that they do not take, and for forward mode."""

import functools
from typing import Any

from jax.tree_util import Partial
from jaxtyping import Array

from pejax._attention.core.hooks import Hooks
from pejax._attention.core.operands import Operands, derived_bias, over_heads
from pejax._attention.kernels.kernel_call import Primals, Static
from pejax._attention.xla import blockwise
from pejax._record.encoding import Params


def blockwise_call(static: Static, operands: Operands, primals: Primals) -> tuple[Array, Array]:
    """Return attention in tiles of XLA, as `kernel_call.Kernels.blockwise`.

    Args:
        static: options of attention and layout of the operands.
        operands: the hooks, the tokens and dropout are read from these; `primals` replace the other arrays.
        primals: the differentiable inputs.
    """
    q_tokens, k_tokens = (
        tokens if positions is None else tokens._replace(positions=positions)
        for tokens, positions in (
            (operands.q_tokens, primals.q_positions),
            (operands.k_tokens, primals.k_positions),
        )
    )
    hooks, per_head = _hooks(operands, primals)
    operands = operands._replace(
        q=primals.q, k=primals.k, v=primals.v, shared=hooks, per_head=per_head, q_tokens=q_tokens, k_tokens=k_tokens,
        key_bias=primals.key_bias,
    )  # fmt: skip
    largest = blockwise.BLOCK
    options = static.options._replace(block=min(static.options.block or largest, largest))
    return over_heads(functools.partial(blockwise.blockwise_head, options), operands, static.layout)


def _hooks(operands: Operands, primals: Primals) -> tuple[Hooks, dict[str, Params]]:
    """Return the hooks with parameters of `primals`, and those that differ by head; a distance as a bias of pairs."""
    distance = operands.shared.distance_bias
    if distance is not None:
        return Hooks(derived_bias(None, Partial(distance.func, primals.shared))), {"bias": primals.per_head}
    bind = lambda name: Partial(getattr(operands.shared, name).func, primals.shared[name])
    hooks: Any = {name: bind(name) for name in primals.shared}
    return Hooks(**hooks), primals.per_head
