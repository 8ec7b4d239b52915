"""Which kernels take an encoding, and how its bias gets into their tiles: found by tracing, without a device."""

import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pejax._attention.api import prepared
from pejax._attention.backends import KERNELS, attempt, checked_kernel
from pejax._attention.core.hooks import Hooks, bound_hooks
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, adapt, init_params
from pejax._tokens.positions import TokenPositions

TOKENS = 1024
"""About the number of tokens in the trace, on any number of axes."""

WAYS = {
    "none": "without a bias",
    "tile": "the bias is computed in every tile",
    "diagonals": "the bias is looked up by distance",
    "slots": "the bias is looked up by the difference of slots",
    "pairs": "the bias hook runs in every tile",
    "blockwise": "blockwise",
    "fused": "in one fused kernel",
}
"""Names of `Way`s in words."""


def kernel_use(encoding: Encoding, dims: Dims, dtype: DTypeLike, names: Iterable[str] | None) -> dict[str, str]:
    """Return, by implementation, "runs: " and how the bias gets into a tile, or the reason why it does not run.

    Args:
        encoding: the record.
        dims: the dims that it was made for.
        dtype: type of q, k and v.
        names: names of implementations. None = all that are kernels.

    Raises:
        ValueError: a name that is not one of a kernel.
    """
    side = round(TOKENS ** (1 / dims.axes))
    grid = (side,) * dims.axes
    count = math.prod(grid)
    q, k = (
        jax.ShapeDtypeStruct((1, count, heads, dims.head_dim), jnp.dtype(dtype))
        for heads in (dims.heads, dims.kv_heads)
    )
    positions = np.indices(grid, dtype=np.int32).reshape(dims.axes, -1).T
    order = np.arange(count, dtype=np.int32)
    tokens = None if dims.axes == 1 else TokenPositions(jnp.asarray(positions), order=jnp.asarray(order))
    extent = dims.extent or (grid if dims.axes > 1 else count)
    settle = lambda: bound_hooks(encoding, adapt(encoding, init_params(encoding, jax.random.key(0)), extent))
    use: dict[str, str] = {}

    def trace(q: jax.Array, k: jax.Array, hooks: Hooks) -> None:
        arguments = {"positions": tokens, "hooks": hooks, "causal": dims.causal, "scale": dims.scale}
        options, layout, operands = prepared(q, k, k, **arguments)
        for name in map(checked_kernel, KERNELS if names is None else names):
            kernel = KERNELS[name]
            (turn,), _ = attempt(options, layout, operands, (name,), trial=True)
            ways = () if turn.reason else kernel.ways(options, layout, operands)
            use[name] = turn.reason or f"runs: {', else '.join(WAYS[way] for way in ways)}"

    jax.eval_shape(trace, q, k, jax.eval_shape(settle))
    return use
