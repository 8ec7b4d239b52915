"""KERPLE: a kernel of the distance with two learned positive parameters per head, r1 and r2.

    log:    logits[h, i, j] += -r1_h · log(1 + r2_h · |p_j - p_i|)
    power:  logits[h, i, j] += -r1_h · |p_j - p_i|^r2_h

On grids |·| is the Euclidean distance.

Reference:
    Chi et al. 2022, "KERPLE" (arXiv 2205.09921), equation 3; initial values and bounds as in the authors'
    `ParallelKerpleLog` and `ParallelKerplePower`, where r1 and r2 are called p and a (log), a and p (power).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._ops.checks import check_choice
from pejax._ops.relative import axes_of, check_axes, float_differences, token_distance
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, from_distance, shared_or_per_layer
from pejax._record.specs import Extension

VARIANTS = ("log", "power")
LEAST = 0.01
"""The least value of r1 and r2."""
LARGEST_POWER = 2.0
"""The largest exponent for which the kernel is conditionally positive definite."""


@checked
def kerple_bias(
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    r1: Float[Array, " H"],
    r2: Float[Array, " H"],
    *,
    variant: str = "log",
) -> Float[Array, "H T S"]:
    """Return `-r1_h · log(1 + r2_h · d)`, or `-r1_h · d^r2_h`, with `d = |p_j - p_i|`, for every head and pair.

    Args:
        q_positions: positions of the queries: `(T,)` in tokens, or `(T, A)` in patches, for which the distance is
            Euclidean.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        r1: positive; in logits (log), or logits per token^r2 (power).
        r2: positive; per token (log), or an exponent of at most 2 (power).
        variant: "log" or "power".

    Returns:
        Logits.

    Raises:
        ValueError: an unknown variant.

    Examples:
        >>> positions, ones = jnp.arange(3), jnp.ones(1)
        >>> kerple_bias(positions, positions, ones, ones, variant="power")[0].tolist()
        [[-0.0, -1.0, -2.0], [-1.0, -0.0, -1.0], [-2.0, -1.0, -0.0]]
    """
    check_choice("kerple's variant", variant, VARIANTS)
    d = token_distance(float_differences(q_positions, k_positions), axes_of(q_positions))
    return jax.vmap(lambda r1, r2: _kernel(variant, d, r1, r2))(r1, r2)


def _kernel(variant: str, d: Float[Array, "*R"], r1: Float[Array, ""], r2: Float[Array, ""]) -> Float[Array, "*R"]:
    if variant == "log":
        return -r1 * jnp.log1p(r2 * d)
    distinct = d > 0
    return -r1 * jnp.where(distinct, jnp.where(distinct, d, 1.0) ** r2, 0.0)


@encoding_factory()
def kerple(dims: Dims, *, variant: str = "log", share: str = "model", extend: Extension | None = None) -> Encoding:
    """Make KERPLE for these dims: `bias = -r1_h · log(1 + r2_h · d)`, or `-r1_h · d^r2_h`, d Euclidean where axes > 1.

    Initial values are uniform: r1 in (0, 2) and r2 in (0, 1) for "log", r1 in (0, 1) and r2 in (0, 2) for "power". The
    bias clips both to at least 0.01, and the exponent to at most 2. Gradients ignore the clipping (straight-through),
    so that no head gets stuck at a bound.

    Args:
        dims: H and `axes`.
        variant: "log" or "power".
        share: "model": all layers share one r1 and one r2 per head; "layer": each layer has its own.
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: an unknown variant or `share`.
    """
    check_choice("kerple's variant", variant, VARIANTS)
    tops = {"log": (2.0, 1.0), "power": (1.0, 2.0)}[variant]
    largest = LARGEST_POWER if variant == "power" else None

    def init(key: Array) -> Params:
        draws = [jax.random.uniform(subkey, (dims.heads,), jnp.float32) for subkey in jax.random.split(key)]
        return {"heads": {"r1": tops[0] * draws[0], "r2": tops[1] * draws[1]}}

    def distance(params: Params, relative: Array) -> Array:
        check_axes("kerple", relative, dims.axes)
        r1, r2 = _bounded(params["r1"], None), _bounded(params["r2"], largest)
        return _kernel(variant, token_distance(relative, dims.axes), r1, r2)

    hooks = shared_or_per_layer(share, init)
    return Encoding(**hooks, bias=from_distance(distance), distance_bias=distance, shift_invariant=True)


def _bounded(x: Float[Array, ""], largest: float | None) -> Float[Array, ""]:
    """Return x within its bounds, with the gradient of x itself."""
    return x + jax.lax.stop_gradient(jnp.clip(x, LEAST, largest) - x)
