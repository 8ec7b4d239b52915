"""One call of hand-written kernels, whatever the device."""

from typing import Any

import jax

from pejax._attention.core.masks import check_orders
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._tokens import TokenPositions


def check_tokens(options: Options, layout: Layout, operands: Operands) -> None:
    """Raise ValueError, as `visible` does, where an order is asked for that the tokens do not have."""
    if options.ordered:
        jax.eval_shape(check_orders, _one(operands.q_tokens, layout.q_axes), _one(operands.k_tokens, layout.k_axes))


def _one(tokens: TokenPositions, axes: TokenPositions) -> TokenPositions:
    """Return the shapes of the tokens of one example."""
    fields: list[Any] = [
        None if x is None else jax.ShapeDtypeStruct(x.shape if axis is None else x.shape[1:], x.dtype)
        for x, axis in zip(tokens, axes, strict=True)
    ]
    return TokenPositions(*fields)
