"""Sinusoidal encoding: fixed sines and cosines of the position, added to the input; on grids one block per axis.

    PE(p)_{2i} = sin(p · base^(-2i/C)),   PE(p)_{2i+1} = cos(p · base^(-2i/C))

Reference:
    Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), section 3.5.
    Chen et al. 2021, "An Empirical Study of Training Self-Supervised Vision Transformers" (arXiv 2104.02057): two axes.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._encodings.factory import encoding_factory
from pejax._ops.checks import check_choice, check_positions
from pejax._ops.phases import exact_cos_sin, geometric_frequencies
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._record.specs import Extension

LAYOUTS = ("interleaved", "concat")
INDEXINGS = ("ij", "xy")


@checked
def sinusoidal_embedding(
    positions: Num[Array | np.ndarray, "..."],
    width: int,
    *,
    axes: int = 1,
    base: float = 10000.0,
    layout: str = "interleaved",
) -> Float[Array, "*BT C"]:
    """Return sines and cosines of the positions at geometrically spaced frequencies, with phases exact at any position.

    Each axis has c = width/axes channels, in the order of the axes, and frequencies f_i = base^(-2i/c), i < c/2:
    "interleaved" puts sin(p·f_i) at channel 2i and cos(p·f_i) at 2i+1, "concat" all sines before all cosines.
    (tensor2tensor and big_vision divide i by c/2 - 1 instead of c/2: for their frequencies, pass base^(c/(c-2)).)

    Args:
        positions: `(*B, T)`, or `(*B, T, A)` where axes = A > 1; integer or float, in tokens or patches.
        width: C, a multiple of 2·axes.
        axes: A, at least 1.
        base: base of the geometric progression of frequencies.
        layout: "interleaved" or "concat".

    Returns:
        float32 between -1 and 1.

    Raises:
        ValueError: a width that 2·axes does not divide, fewer than one axis, positions with another number of axes, an
            unknown layout, or a base not above 0.

    Examples:
        >>> sinusoidal_embedding(jnp.arange(2), 4).round(4).tolist()
        [[0.0, 1.0, 0.0, 1.0], [0.8414999842643738, 0.5403000116348267, 0.009999999776482582, 1.0]]
    """
    frequencies = _frequencies(width, axes, base)
    check_choice("layout", layout, LAYOUTS)
    positions = jnp.asarray(positions)
    if axes > 1 and positions.shape[-1:] != (axes,):
        raise ValueError(f"positions must end in {axes} axes, got shape {positions.shape}")

    def waves(position: Array) -> Array:
        cos, sin = exact_cos_sin(position, frequencies)
        pairs = jnp.stack([sin, cos], axis=-1 if layout == "interleaved" else -2)
        return pairs.reshape(*position.shape, width // axes)

    return waves(positions) if axes == 1 else jnp.concatenate([waves(positions[..., a]) for a in range(axes)], axis=-1)


def _frequencies(width: int, axes: int, base: float) -> Float[np.ndarray, " F"]:
    if axes < 1:
        raise ValueError(f"axes must be at least 1, got {axes}")
    if width < 1 or width % (2 * axes):
        raise ValueError(f"width must be a multiple of 2·axes = {2 * axes}, got {width}")
    return geometric_frequencies(width // (2 * axes), base)


@encoding_factory()
def sinusoidal(
    dims: Dims,
    *,
    base: float = 10000.0,
    layout: str = "interleaved",
    indexing: str = "ij",
    extend: Extension | None = None,
) -> Encoding:
    """Make the sinusoidal encoding for these dims: it is added to the input once, and has no parameters.

    Args:
        dims: `width` and `axes` determine the channels of each axis.
        base: base of the geometric progression of frequencies.
        layout: "interleaved" or "concat", as in `sinusoidal_embedding`.
        indexing: "ij" = the first channels encode the first axis, the row; "xy" = they encode the last axis, the column
            (MAE's and MoCo v3's public weights, with `layout="concat"`).
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: a width that 2·axes does not divide, a base not above 0, or an unknown layout or indexing.
    """
    _frequencies(dims.width, dims.axes, base)
    check_choice("layout", layout, LAYOUTS)
    check_choice("indexing", indexing, INDEXINGS)

    def embed(params: Params, x: Array, positions: Array) -> Array:
        del params
        check_positions(positions.shape, x.shape[:-1], dims.axes)
        if dims.axes > 1 and indexing == "xy":
            positions = positions[..., ::-1]
        table = sinusoidal_embedding(positions, dims.width, axes=dims.axes, base=base, layout=layout)
        return (x.astype(jnp.float32) + table).astype(x.dtype)

    return Encoding(embed=embed)
