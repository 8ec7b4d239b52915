"""ALiBi: a penalty linear in the distance, one slope per head, fixed or learned; Euclidean distance on grids.

    logits[h, i, j] += -m_h · |p_j - p_i|

Reference:
    Press et al. 2022, "Train Short, Test Long" (arXiv 2108.12409), section 3, which found that
    learned slopes extrapolate less well; slopes as in the authors' `fairseq/models/transformer.py:get_slopes`.
    Fuller et al. 2023, "CROMA" (arXiv 2311.00566), section 3.2: two axes.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._extensions.slopes import scale_alibi_slopes
from pejax._ops.relative import axes_of, check_axes, float_differences, token_distance
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params, from_distance, no_params
from pejax._record.specs import Extension


@checked
def alibi_slopes(heads: int, *, bias_max: float = 8.0) -> Float[Array, " H"]:
    """Return the slope of each head, the steepest first where H is a power of two.

    `m_h = 2^(-8(h+1)/H)` for H a power of two; otherwise the slopes of the largest power of two P below H, followed by
    every second slope of 2P. `bias_max` takes the place of 8.

    Args:
        heads: H, any count from 1.
        bias_max: exponent of the flattest slope where H is a power of two, `2^-bias_max`.

    Returns:
        Positive slopes, logits per token.

    Raises:
        ValueError: fewer than one head, or a `bias_max` that is not positive and finite.

    Examples:
        >>> alibi_slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    if heads < 1:
        raise ValueError(f"heads must be at least 1, got {heads}")
    if not 0 < bias_max < math.inf:
        raise ValueError(f"bias_max must be positive and finite, got {bias_max}")
    power = 2 ** (heads.bit_length() - 1)
    geometric = lambda n: [2.0 ** (-bias_max * (h + 1) / n) for h in range(n)]
    return jnp.asarray(geometric(power) + geometric(2 * power)[0::2][: heads - power], jnp.float32)


@checked
def alibi_bias(
    q_positions: Num[Array, "T *A"], k_positions: Num[Array, "S *A"], slopes: Float[Array, " H"]
) -> Float[Array, "H T S"]:
    """Return `-m_h · |p_j - p_i|` for every head and pair.

    Args:
        q_positions: positions of the queries: `(T,)` in tokens, or `(T, A)` in patches, for which the distance is
            Euclidean. A second dimension is always read as axes: for a batch `(B, T)`, use `jax.vmap`, or
            `dot_product_attention` with hooks.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        slopes: logits per token, positive.

    Examples:
        >>> positions = jnp.arange(3)
        >>> alibi_bias(positions, positions, alibi_slopes(1) * 256)[0].tolist()
        [[-0.0, -1.0, -2.0], [-1.0, -0.0, -1.0], [-2.0, -1.0, -0.0]]
    """
    distance = token_distance(float_differences(q_positions, k_positions), axes_of(q_positions))
    return jax.vmap(lambda slope: -slope * distance)(slopes)


@encoding_factory("slopes")
def alibi(
    dims: Dims,
    *,
    slope_scale: float = 1.0,
    bias_max: float = 8.0,
    learned: bool = False,
    extend: Extension | None = None,
) -> Encoding:
    """Make ALiBi for these dims: `bias[h, i, j] = -slope_scale · m_h · |p_j - p_i|`, Euclidean where axes > 1.

    The slopes are constants by default. If the parameters contain slopes, `{"heads": {"slope": (H,)}}`, these are used
    instead and receive gradients.

    Args:
        dims: H determines the slopes, `axes` the distance, `extent` is the trained length or grid.
        slope_scale: factor of every slope, or of its initial value if `learned`.
        bias_max: exponent of the flattest slope, as in `alibi_slopes`: 8 as published, 16 in MPT-7B-StoryWriter.
        learned: whether the slopes are parameters: one per head, shared by all layers, initialized at the published
            slopes times `slope_scale`.
        extend: `slopes()` of `pejax.extensions`, or an extension of any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: a `slope_scale` or `bias_max` that is not positive, an extension that ALiBi does not support, or
            `slopes()` with `dims.extent` None.
    """
    if not slope_scale > 0:
        raise ValueError(f"alibi's slope_scale must be positive, got {slope_scale}")
    alibi_slopes(1, bias_max=bias_max)  # refuses it now

    def published() -> Params:
        return {"heads": {"slope": slope_scale * alibi_slopes(dims.heads, bias_max=bias_max)}}

    def init(key: Array) -> Params:
        del key
        return published()

    def flattened(trained: int | tuple[int, ...], params: Params, extent: Extent) -> Params:
        return {**params, "heads": {"slope": scale_alibi_slopes(params["heads"]["slope"], trained, extent)}}

    adapt = None
    if extend is not None:
        if dims.extent is None:
            raise ValueError("extend='slopes' needs the trained extent, got dims.extent=None")
        adapt = functools.partial(flattened, dims.extent)

    def distance(params: Params, relative: Array) -> Array:
        check_axes("alibi", relative, dims.axes)
        return -params["slope"] * token_distance(relative, dims.axes)

    return Encoding(
        init=init if learned else no_params,
        constants=None if learned else published,
        adapt=adapt,
        bias=from_distance(distance),
        distance_bias=distance,
        shift_invariant=True,
    )
