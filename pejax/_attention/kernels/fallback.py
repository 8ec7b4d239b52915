"""Blockwise attention, for distance biases that the kernels of a device cannot compute."""

import functools

from jax.tree_util import Partial
from jaxtyping import Array

from pejax._attention.core.hooks import Hooks
from pejax._attention.core.operands import Operands, derived_bias, over_heads
from pejax._attention.kernels.kernel_call import Learned, Static
from pejax._attention.xla import blockwise


def blockwise_call(static: Static, operands: Operands, learned: Learned) -> tuple[Array, Array]:
    """Attend with the bias that the distance_bias hook gives, as `kernel_call.Kernels.blockwise`.

    Args:
        static: options of attention and layout of the operands.
        operands: hold the hook, tokens and dropout; their other arrays are replaced by `learned`.
        learned: q, k, v, and the parameters of the distance_bias hook.
    """
    distance = operands.shared.distance_bias
    bias = derived_bias(None, None if distance is None else Partial(distance.func, learned.shared))
    operands = operands._replace(
        q=learned.q, k=learned.k, v=learned.v, shared=Hooks(bias), per_head={"bias": learned.per_head},
        key_bias=learned.key_bias,
    )  # fmt: skip
    most = blockwise.BLOCK
    options = static.options._replace(block=min(static.options.block or most, most))
    return over_heads(functools.partial(blockwise.blockwise_head, options), operands, static.layout)
