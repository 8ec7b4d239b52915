"""Blockwise attention, for positions at which the kernels of a device cannot compute a distance bias."""

import functools

from jax.tree_util import Partial
from jaxtyping import Array

from pejax._attention.core.hooks import Hooks
from pejax._attention.core.operands import Operands, derived_bias, over_heads
from pejax._attention.kernels.kernel_call import Primals, Static
from pejax._attention.xla import blockwise


def blockwise_call(static: Static, operands: Operands, primals: Primals) -> tuple[Array, Array]:
    """Return attention with the bias that `distance_bias` implies, as `kernel_call.Kernels.blockwise`.

    Args:
        static: options of attention and layout of the operands.
        operands: the hook, the tokens and dropout are read from these; `primals` replace the other arrays.
        primals: q, k, v, the parameters of the hook and the key bias.
    """
    distance = operands.shared.distance_bias
    bias = derived_bias(None, None if distance is None else Partial(distance.func, primals.shared))
    operands = operands._replace(
        q=primals.q, k=primals.k, v=primals.v, shared=Hooks(bias), per_head={"bias": primals.per_head},
        key_bias=primals.key_bias,
    )  # fmt: skip
    largest = blockwise.BLOCK
    options = static.options._replace(block=min(static.options.block or largest, largest))
    return over_heads(functools.partial(blockwise.blockwise_head, options), operands, static.layout)
