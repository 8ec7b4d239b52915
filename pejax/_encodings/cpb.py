"""Continuous position bias: a small network of the logarithm of the offset on every axis, for grids of any size.

    logits[h, i, j] += 16 · σ( w_h · relu(u a + b) ) - 8
    u_axis = sign(Δ) · log2(1 + 8|Δ| / (L - 1)) / 3,   Δ = p_j - p_i on that axis

L is the trained side of the axis, so u is ±1 across the trained grid and grows slowly beyond it. A softmax over patches
alone does not see the constant -8. With it, patches and tokens without a position start from the same bias, 0.

On a grid, `adapt` evaluates the network once for each offset between two patches, and pairs of patches look it up; `pi`
does the same for the offsets of a larger grid. At any other positions, and on a traced grid, the network is evaluated
pair by pair.

Reference:
    Liu et al. 2022, "Swin Transformer V2" (arXiv 2111.09883), section 3.3 and equations 3 and 4; the scaling by 8 and
    the sigmoid are in the authors' `swin_transformer_v2.py:WindowAttention`, which has no -8.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._calls.hook_calls import naming_missing
from pejax._encodings.factory import encoding_factory
from pejax._ops.offset_table import is_traced_grid, look_up_within, sides_of, table_cells, table_offsets
from pejax._ops.relative import axes_of, axis_shape, check_axes, check_table, float_differences
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params, from_distance, shared_or_per_layer
from pejax._record.specs import Extension

BOUND = 8.0
"""The largest bias, in logits."""
STD = 0.02
"""Standard deviation of the initial weights, before they are truncated at two of it."""
CHUNK = 8192
"""Offsets whose hidden units are held in memory at once."""


@checked
def cpb_bias(
    q_positions: Num[Array, "T *A"],
    k_positions: Num[Array, "S *A"],
    params: Params,
    *,
    extent: int | tuple[int, ...],
) -> Float[Array, "H T S"]:
    """Return `16 · σ(w_h · relu(u a + b)) - 8` for every head and pair, u the scaled logarithms of `p_j - p_i`.

    Args:
        q_positions: positions of the queries: `(T,)` in tokens, or `(T, A)` in patches.
        k_positions: positions of the keys, `(S,)` or `(S, A)`.
        params: under `all`: `a` `(W,)`, or `(A, W)` on A > 1 axes, and `b` `(W,)` of the hidden layer; under `heads`:
            `w` `(H, W)`.
        extent: the trained length or grid, which sets the unit of each axis.

    Returns:
        Logits, between -8 and 8.

    Raises:
        ValueError: parameters or an extent that do not have the axes of the positions.

    Examples:
        >>> import pejax
        >>> params = pejax.init_params(pejax.encodings.cpb(pejax.Dims(4, 16, axes=2, extent=(7, 7))), jax.random.key(0))
        >>> patches = pejax.grid_positions(7, 7)
        >>> cpb_bias(patches, patches, params, extent=(7, 7)).shape
        (4, 49, 49)
    """
    axes = axes_of(q_positions)
    with naming_missing("cpb_bias", params):
        shared, w = params["all"], params["heads"]["w"]
        check_table("cpb's a", shared["a"].shape[:-1], axes)
    relative = float_differences(q_positions, k_positions)
    terms = _evaluated(shared, w, relative.reshape(-1, axes), sides_of("cpb", extent, axes))
    return terms.T.reshape(len(w), *relative.shape[:2])


def _coordinates(relative: Num[Array, "R A"], sides: tuple[int, ...]) -> Float[Array, "R A"]:
    """Return `sign(Δ) · log2(1 + 8|Δ| / (L - 1)) / 3` on every axis; an axis of one patch counts as one of two."""
    spans = np.asarray([max(side - 1, 1) for side in sides], np.float32)
    relative = relative.astype(jnp.float32)
    return jnp.sign(relative) * jnp.log1p(jnp.abs(relative) * (8.0 / spans)) * np.float32(1 / np.log(8.0))


def _evaluated(
    shared: Params, w: Float[Array, "*H W"], relative: Num[Array, "R A"], sides: tuple[int, ...]
) -> Float[Array, "R *H"]:
    """Return the bias of each offset, of one head or of several."""

    def of_some(relative: Num[Array, "C A"]) -> Float[Array, "C *H"]:
        a = shared["a"].reshape(len(sides), -1)
        hidden = jnp.matmul(_coordinates(relative, sides), a, precision="highest") + shared["b"]
        score = jnp.matmul(jax.nn.relu(hidden), w.T, precision="highest")
        return BOUND * jnp.tanh(0.5 * score)

    count = len(relative)
    if count <= CHUNK:
        return of_some(relative)
    chunks = jnp.pad(relative, ((0, -count % CHUNK), (0, 0))).reshape(-1, CHUNK, len(sides))
    biases = lax.map(jax.checkpoint(of_some), chunks)
    return biases.reshape(-1, *w.shape[:-1])[:count]


@encoding_factory()
def cpb(dims: Dims, *, hidden: int = 512, share: str = "layer", extend: Extension | None = None) -> Encoding:
    """Make Swin V2's continuous position bias for these dims: `bias = 16 · σ(w_h · relu(u a + b)) - 8`.

    Learned: a and w, drawn from a normal distribution of standard deviation 0.02 that is truncated at two standard
    deviations, and b, initially 0. The heads share a and b. Swin V2's cosine attention is not part of the encoding.

    Args:
        dims: `extent` is the trained length or grid, which sets the unit of each axis.
        hidden: W, hidden units.
        share: "layer": one network per layer, as in Swin V2; "model": one for all layers.
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: no extent, `hidden` below 1, or an unknown `share`.
    """
    if hidden < 1:
        raise ValueError(f"cpb's hidden units must be at least 1, got {hidden}")
    sides = sides_of("cpb", dims.extent, dims.axes)
    axes = axis_shape(dims.axes)

    def init(key: Array) -> Params:
        first, second = jax.random.split(key)
        draw = lambda key, *shape: STD * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
        return {
            "all": {"a": draw(first, *axes, hidden), "b": jnp.zeros(hidden, jnp.float32)},
            "heads": {"w": draw(second, dims.heads, hidden)},
        }

    def adapt(params: Params, extent: Extent) -> Params:
        if is_traced_grid("cpb", extent, dims.axes):
            return params  # no table of offsets is of a traced size: the network is evaluated pair by pair
        grid = sides_of("cpb", extent, dims.axes)
        table = _evaluated(params["all"], params["heads"]["w"], jnp.asarray(table_offsets(grid)), sides)
        return {**params, "heads": {**params["heads"], "table": table.T.reshape(-1, *table_cells(grid))}}

    def distance(params: Params, relative: Array) -> Array:
        check_axes("cpb", relative, dims.axes)
        pairs = relative.reshape(-1, dims.axes)
        network = lambda params: _evaluated(params, params["w"], pairs, sides)
        return look_up_within("table", pairs, network, params)

    return Encoding(
        **shared_or_per_layer(share, init),
        adapt=adapt if dims.axes > 1 else None,  # on one axis, attention evaluates each distance once by itself
        bias=from_distance(distance),
        distance_bias=distance,
        shift_invariant=True,
        tabulate=True,
    )
