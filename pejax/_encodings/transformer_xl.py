"""Transformer-XL: queries times a projected sinusoid of the distance, with two learned vectors added to the queries.

    logits[h, i, j] += scale · ( (q_i + v_h) · W_h^T r(p_i - p_j) + u_h · k_j ),   r(d) = [sin(d w), cos(d w)]

Together with scale · q·k, this is the paper's sum of four terms. r is fixed and has C channels: the sines, then the
cosines, of d times the frequencies `w_f = base^(-2f/C)`.

This needs no T × S × C array and no relative shift: with y = W_h (q_i + v_h) = [s, c],

    y · r(p_i - p_j) = (s sin p_i w + c cos p_i w) · cos p_j w + (c sin p_i w - s cos p_i w) · sin p_j w

is one matrix product of width C, for any positions of queries and keys.

Reference:
    Dai et al. 2019, "Transformer-XL" (arXiv 1901.02860), section 3.3; code: kimiyoung/transformer-xl
    `pytorch/mem_transformer.py`, where u is `r_w_bias`, v is `r_r_bias` and W is `r_net`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._ops.phases import exact_cos_sin, geometric_frequencies
from pejax._ops.relative import axes_of, axis_shape, check_axes, check_table, sum_over_axes
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._record.specs import Extension


@checked
def transformer_xl_logits(
    q: Float[Array, "T H D"],
    k: Float[Array, "S K D"],
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    u: Float[Array, "H D"],
    v: Float[Array, "H *A D"],
    w_r: Float[Array, "H *A C D"],
    *,
    scale: float | None = None,
    base: float = 10000.0,
) -> Float[Array, "H T S"]:
    """Return `scale · ((q_i + v_h) · W_h^T r(p_i - p_j) + u_h · k_j)`, which Transformer-XL adds to `scale · q·k`.

    On A > 1 axes the term in r is a sum over the axes, each with its own v and W.

    Args:
        q: queries, unscaled.
        k: keys; query head h reads key head h // (H/K).
        q_positions: positions of the queries in tokens, `(T,)` or `(T, A)`, integer or float.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        u: vector added to the query in its product with the key.
        v: vector added to the query in its product with the sinusoid.
        w_r: matrix W_r that projects the C channels of the sinusoid, sines first, to the D channels of a head.
        scale: factor that multiplies q·k; None = D^-0.5.
        base: base of the geometric progression of frequencies.

    Returns:
        Logits.

    Raises:
        ValueError: an odd C, an H that is not a multiple of K, or parameters that lack the axes of the positions.
    """
    axes = axes_of(q_positions)
    check_table("transformer_xl's w_r", w_r.shape[1:-2], axes)
    heads, key_heads = q.shape[1], k.shape[1]
    if heads % key_heads:
        raise ValueError(f"heads must be a multiple of key heads, got {heads} and {key_heads}")
    scale = float(q.shape[-1] ** -0.5) if scale is None else scale
    frequencies = _frequencies(w_r.shape[-2], base)

    def head(params: Params, q: Array, k: Array) -> Float[Array, "T S"]:
        return scale * _bias(params, q, k, q_positions, k_positions, axes, frequencies)

    k = jnp.repeat(k, heads // key_heads, axis=1)
    return jax.vmap(head, in_axes=(0, 1, 1))({"u": u, "v": v, "w_r": w_r}, q, k)


def _frequencies(channels: int, base: float) -> Float[np.ndarray, " F"]:
    if channels % 2:
        raise ValueError(f"transformer_xl needs an even width for its sinusoid, got {channels}")
    return geometric_frequencies(channels // 2, base)


def _bias(
    params: Params,
    q: Float[Array, "T D"],
    k: Float[Array, "S D"],
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    axes: int,
    frequencies: Float[np.ndarray, " F"],
) -> Float[Array, "T S"]:
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)

    def term(params: Params, q_positions: Num[Array, " T"], k_positions: Num[Array, " S"]) -> Float[Array, "T S"]:
        y = (q + params["v"]) @ params["w_r"].T
        s, c = jnp.split(y, 2, axis=-1)
        cos_q, sin_q = exact_cos_sin(q_positions, frequencies)
        of_query = jnp.concatenate([s * sin_q + c * cos_q, c * sin_q - s * cos_q], axis=-1)
        of_key = jnp.concatenate(exact_cos_sin(k_positions, frequencies), axis=-1)
        return of_query @ of_key.T

    per_axis = {"v": params["v"], "w_r": params["w_r"]}
    return sum_over_axes(term, axes, per_axis, q_positions, k_positions) + k @ params["u"]


@encoding_factory()
def transformer_xl(dims: Dims, *, base: float = 10000.0, extend: Extension | None = None) -> Encoding:
    """Make Transformer-XL's encoding for these dims, with u, v and W_r in every layer.

    `bias = scale · ((q_i + v_h) · W_h^T r(p_i - p_j) + u_h · k_j)`, the term in r summed over axes, each with its own v
    and W. All parameters are drawn from a normal distribution of standard deviation 0.02.

    Args:
        dims: `width` is C, the channels of the sinusoid; H, D, `axes` and `scale` are read as well.
        base: base of the geometric progression of frequencies.
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: an odd width, or a base that is not positive.
    """
    frequencies = _frequencies(dims.width, base)
    axes = axis_shape(dims.axes)

    def init_layer(key: Array) -> Params:
        heads, width, head_dim = dims.heads, dims.width, dims.head_dim
        shapes = {"u": (heads, head_dim), "v": (heads, *axes, head_dim), "w_r": (heads, *axes, width, head_dim)}
        keys = jax.random.split(key, len(shapes))
        normal = lambda key, shape: 0.02 * jax.random.normal(key, shape, jnp.float32)
        return {"heads": {name: normal(subkey, shapes[name]) for name, subkey in zip(shapes, keys, strict=True)}}

    def bias(params: Params, q: Array, k: Array, q_positions: Array, k_positions: Array) -> Array:
        check_axes("transformer_xl", q_positions, dims.axes)
        return dims.scale * _bias(params, q, k, q_positions, k_positions, dims.axes, frequencies)

    def vectors(params: Params, relative: Int[Array, " R"]) -> tuple[Array, Array, Array]:
        cos, sin = exact_cos_sin(-relative, frequencies)
        return (
            dims.scale * (jnp.concatenate([sin, cos], axis=-1) @ params["w_r"]),
            params["v"],
            dims.scale * params["u"],
        )

    one_axis = vectors if dims.axes == 1 else None
    return Encoding(init_layer=init_layer, bias=bias, relative_keys=one_axis, shift_invariant=True)
