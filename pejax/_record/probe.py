"""Random probes for measuring an encoding, and one dense attention layer computed on them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params, adapt, pair_bias, split_params

DEFAULT_LENGTH = 32
"""Tokens along each axis where the dims have no extent."""


def compiled(function: Callable) -> Callable:
    """Return the jitted function, whose encoding and dims are static and whose products are exact to float32.

    The default of GPUs and TPUs rounds the factors of a product, by more than the laws allow.
    """

    @functools.wraps(function)
    def exact(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return jax.jit(exact, static_argnames=("encoding", "dims"))


class Probe(NamedTuple):
    """Random inputs on which an encoding is measured.

    Attributes:
        x: token vectors.
        q_kernel: projection to queries.
        k_kernel: projection to keys.
        positions: positions in tokens or patches.
    """

    x: Float[Array, "T C"]
    q_kernel: Float[Array, "C H D"]
    k_kernel: Float[Array, "C K D"]
    positions: Num[Array, "T *A"]


class Terms(NamedTuple):
    """The terms of a dense attention layer that depend on positions, in float32.

    Attributes:
        logits: scaled q·k plus the bias.
        values: the term that the encoding adds to the attention output; None without a `relative_values` hook.
    """

    logits: Float[Array, "H T S"]
    values: Float[Array, "H T D"] | None


def extent_of(dims: Dims) -> Extent:
    """Return the trained extent, or `DEFAULT_LENGTH` tokens along each axis if the dims have none."""
    if dims.extent is not None:
        return dims.extent
    return DEFAULT_LENGTH if dims.axes == 1 else (DEFAULT_LENGTH,) * dims.axes


def settle(encoding: Encoding, params: Params, dims: Dims) -> Params:
    """Return the parameters adapted to the trained extent, or to 32 tokens along each axis if the dims have none.

    Args:
        encoding: the record.
        params: merged parameters of the model and one layer, not adapted.
        dims: the dims that the encoding was made for.
    """
    return adapt(encoding, params, extent_of(dims))


def draw_probe(seed: int, dims: Dims, *, tokens: int = 12, reach: float = 2.0, dtype: DTypeLike = jnp.int32) -> Probe:
    """Draw tokens, the projections of one layer, and positions, uniformly from `[0, reach · extent)` along each axis.

    Args:
        seed: random seed.
        dims: the dims of the encoding; `extent` is the trained length or grid, `axes` the number of axes.
        tokens: T, number of tokens.
        reach: end of the range of positions, in trained extents; above 1, they exceed those in training.
        dtype: dtype of the positions; a float dtype draws multiples of a quarter token, whose sums are exact.

    Returns:
        Standard normal token vectors `(T, C)`, projections to queries and keys, and positions.
    """
    normal = np.random.default_rng(seed).standard_normal
    draw = lambda scale, *shape: jnp.asarray(scale * normal(shape), jnp.float32)
    return Probe(
        x=draw(1.0, tokens, dims.width),
        q_kernel=draw(dims.width**-0.5, dims.width, dims.heads, dims.head_dim),
        k_kernel=draw(dims.width**-0.5, dims.width, dims.kv_heads, dims.head_dim),
        positions=_draw_positions(seed + 1, dims, tokens, reach, dtype),
    )


def _draw_positions(seed: int, dims: Dims, tokens: int, reach: float, dtype: DTypeLike) -> Num[Array, "T *A"]:
    steps = 4 if jnp.issubdtype(dtype, jnp.floating) else 1
    ends = steps * np.maximum(1, np.floor(reach * np.asarray(extent_of(dims)))).astype(np.int64)
    draws = np.random.default_rng(seed).integers(ends, size=(tokens, *ends.shape))
    return jnp.asarray((draws / steps).astype(dtype))


def queries_and_keys(
    encoding: Encoding, params: Params, probe: Probe
) -> tuple[Float[Array, "T H D"], Float[Array, "T H D"]]:
    """Return the rotated queries and keys of a probe, each key head repeated for its H/K query heads.

    Args:
        encoding: the record.
        params: parameters, merged and adapted (`settle`).
        probe: random tokens, positions and projections.
    """
    x = probe.x if encoding.embed is None else encoding.embed(params, probe.x, probe.positions)
    q = jnp.einsum("tc,chd->thd", x, probe.q_kernel)
    k = jnp.einsum("tc,chd->thd", x, probe.k_kernel)
    rotate_keys = encoding.rotate_keys or encoding.rotate
    if encoding.rotate is not None:
        q = encoding.rotate(params, q, probe.positions)
    if rotate_keys is not None:
        k = rotate_keys(params, k, probe.positions)
    return q, jnp.repeat(k, q.shape[1] // k.shape[1], axis=1)


@compiled
def dense_terms(encoding: Encoding, params: Params, dims: Dims, probe: Probe) -> Terms:
    """Run one dense attention layer: `logits = scale · (q·k) + bias`, and `relative_values` of their softmax.

    Args:
        encoding: the record.
        params: merged parameters of the model and one layer, not adapted.
        dims: the dims that the encoding was made for.
        probe: random tokens, positions and projections.

    Returns:
        `logits`, and `values`, the term that `relative_values` adds to the output, or None without that hook.
    """
    params = settle(encoding, params, dims)
    shared, heads = split_params(params)
    q, k = queries_and_keys(encoding, params, probe)
    products, bias = jnp.einsum("thd,shd->hts", q, k), pair_bias(encoding)
    for low, high, rotate, rotate_keys in encoding.bands:
        distance = jnp.abs(probe.positions[:, None] - probe.positions)
        inside = distance >= low if high is None else (distance >= low) & (distance < high)
        in_band = queries_and_keys(dataclasses.replace(encoding, rotate=rotate, rotate_keys=rotate_keys), params, probe)
        products = jnp.where(inside, jnp.einsum("thd,shd->hts", *in_band), products)

    def one_head(heads: Params, product: Array, q: Array, k: Array) -> tuple[Array, Array | None]:
        params_h = {**shared, **heads}
        logits = dims.scale * product
        if bias is not None:
            logits = logits + bias(params_h, q, k, probe.positions, probe.positions)
        if encoding.relative_values is None:
            return logits, None
        return logits, encoding.relative_values(params_h, jax.nn.softmax(logits), probe.positions, probe.positions)

    return Terms(*jax.vmap(one_head, in_axes=(0, 0, 1, 1))(heads, products, q, k))
