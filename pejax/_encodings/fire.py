"""FIRE: a small learned function of the distance, measured against the position of the query.

    logits[h, i, j] += f_h( log(|c · d| + 1) / (log(|c · n| + 1) + ε) ),   d = p_j - p_i
    f_h(x) = w_h · relu(a x + b) + β_h,   ε = 1e-6

L is the threshold in tokens times its learned multiplier. Under a causal mask the normalizer is `n = max(p_i, L)`, and
|d| never exceeds p_i. Without a causal mask |d| may exceed p_i, so the normalizer is `n = max(p_i, p_j, L)`. Either way
|d| <= n for positions from 0 on, which keeps x within [0, 1], as in the paper.

`signed` makes the direction of the distance a second input of the same network, which is not in the paper. The hidden
layer is then `relu(a x + e sign(d) + b)`, and keys before and after the query get biases of their own.

Reference:
    Li et al. 2024, "Functional Interpolation for Relative Positions" (arXiv 2310.04418), equation 4 and appendix.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._calls.hook_calls import naming_missing
from pejax._encodings.factory import encoding_factory
from pejax._ops.relative import axes_of, axis_shape, check_axes, check_table, relative_positions, sum_over_axes
from pejax._ops.relu_network import Side, Units, log_distance, network
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, shared_or_per_layer
from pejax._record.specs import Extension

THRESHOLD = 512.0
EPSILON = 1e-6


@checked
def fire_bias(
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    params: Params,
    *,
    causal: bool,
    threshold: float = THRESHOLD,
) -> Float[Array, "H T S"]:
    """Return FIRE's bias for every head and pair, on A > 1 axes the sum of one such term per axis.

    Args:
        q_positions: positions of the queries in tokens, `(T,)` or `(T, A)`.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        params: under `all`: `a` and `b` `(W,)` of the hidden layer, `c` and `multiplier` `()`, and where FIRE is signed
            `e` `(W,)`; under `heads`: `w` `(H, W)` and `bias` `(H,)`. On A > 1 axes, arrays in `all` begin with A, and
            A follows H in `heads`.
        causal: whether keys after the query are masked.
        threshold: in tokens; L = |multiplier · threshold|.

    Returns:
        Logits.

    Raises:
        ValueError: parameters that do not have the axes of the positions.

    Examples:
        >>> import pejax
        >>> params = pejax.encodings.fire(pejax.Dims(heads=4, head_dim=16)).init(jax.random.key(0))
        >>> fire_bias(jnp.arange(6), jnp.arange(8), params, causal=False).shape
        (4, 6, 8)
    """
    axes = axes_of(q_positions)

    def head(heads: Params) -> Float[Array, "T S"]:
        return _bias({**params["all"], **heads}, q_positions, k_positions, axes, causal, threshold)

    with naming_missing("fire_bias", params):
        check_table("fire's c", params["all"]["c"].shape, axes)
        return jax.vmap(head)(params["heads"])


def _bias(
    params: Params, q_positions: Array, k_positions: Array, axes: int, causal: bool, threshold: float
) -> Float[Array, "T S"]:
    def term(params: Params, q_positions: Num[Array, " T"], k_positions: Num[Array, " S"]) -> Float[Array, "T S"]:
        if 0 in (*q_positions.shape, *k_positions.shape):
            return jnp.zeros((*q_positions.shape, *k_positions.shape), jnp.float32)
        least = jnp.abs(params["multiplier"] * threshold)

        def side(positions: Num[Array, " T"], free: bool = False) -> Side:
            normalizer = jnp.maximum(positions.astype(jnp.float32), least)
            inverse = 1.0 / (log_distance(normalizer, params["c"]) + EPSILON)
            return Side(positions, jnp.full_like(inverse, jnp.inf) if free else inverse)

        sides = side(q_positions), side(k_positions, causal)
        a, b, w = params["a"], params["b"], params["w"]
        if "e" not in params:
            return network(*sides, params["c"], Units(a, b, w)) + params["bias"]
        relative = relative_positions(q_positions, k_positions)
        before, after = (network(*sides, params["c"], Units(a, b + turn, w)) for turn in (-params["e"], params["e"]))
        value = jnp.vdot(jax.nn.relu(b), w, precision="highest")
        return jnp.where(relative < 0, before, jnp.where(relative > 0, after, value)) + params["bias"]

    return sum_over_axes(term, axes, params, q_positions, k_positions)


@encoding_factory()
def fire(
    dims: Dims,
    *,
    hidden: int = 32,
    threshold: float | None = None,
    share: str = "model",
    signed: bool = False,
    extend: Extension | None = None,
) -> Encoding:
    """Make FIRE for these dims: `bias = f_h(log(|c d| + 1) / (log(|c n| + 1) + ε))`, one network per axis, summed.

    Learned: the network (the heads share its hidden layer), c, initially 0.1, and the multiplier of the threshold,
    initially 1. Weights and biases are drawn uniformly between `-fan_in^-0.5` and `fan_in^-0.5`, where the fan_in of
    the hidden layer is 1, or 2 if `signed`.

    Args:
        dims: `causal` selects the normalizer: `max(p_i, L)` with a causal mask, else `max(p_i, p_j, L)`.
        hidden: W, hidden units.
        threshold: L at the initial multiplier, in tokens. None = 512 as in the paper, or the longest side of the
            trained extent if that is shorter.
        share: "model": one network for all layers (FIRE-S in the paper); "layer": one per layer (FIRE in the paper).
        signed: whether the sign of the distance is a second input of the network, so that the bias tells left from
            right and above from below. Under a causal mask, all keys but the query's own are on one side.
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: `hidden` below 1, a threshold that is not positive, or an unknown `share`.
    """
    if hidden < 1:
        raise ValueError(f"fire's hidden units must be at least 1, got {hidden}")
    if threshold is None:
        sides = dims.extent if isinstance(dims.extent, tuple) else (dims.extent or THRESHOLD,)
        threshold = min(THRESHOLD, float(max(sides)))
    if not threshold > 0:
        raise ValueError(f"fire's threshold must be positive, got {threshold}")
    axes = axis_shape(dims.axes)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 4)
        uniform = lambda key, *shape: jax.random.uniform(key, shape, jnp.float32, -1.0, 1.0)
        bound = 2**-0.5 if signed else 1.0
        direction = {"e": bound * uniform(jax.random.fold_in(key, len(keys)), *axes, hidden)} if signed else {}
        return {
            "all": {
                "a": bound * uniform(keys[0], *axes, hidden),
                "b": bound * uniform(keys[1], *axes, hidden),
                **direction,
                "c": jnp.full(axes, 0.1, jnp.float32),
                "multiplier": jnp.ones(axes, jnp.float32),
            },
            "heads": {
                "w": hidden**-0.5 * uniform(keys[2], dims.heads, *axes, hidden),
                "bias": hidden**-0.5 * uniform(keys[3], dims.heads, *axes),
            },
        }

    def bias(params: Params, q: Array, k: Array, q_positions: Array, k_positions: Array) -> Array:
        del q, k
        check_axes("fire", q_positions, dims.axes)
        return _bias(params, q_positions, k_positions, dims.axes, dims.causal, threshold)

    return Encoding(**shared_or_per_layer(share, init), bias=bias)
