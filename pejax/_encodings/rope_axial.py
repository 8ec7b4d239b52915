"""Axial RoPE: each pair of channels is rotated by the position on one axis of the grid.

    R_p = diag over pairs of the rotation by p_axis(i) · base^(-2·A·j(i)/D)

Reference:
    Heo et al. 2024, "Rotary Position Embedding for Vision Transformer" (arXiv 2403.13298), section 3.1; its code,
    naver-ai/rope-vit, has `layout="concat"`, `indexing="xy"`; its equations are written with `layout="alternate"`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._encoding import Dims, Encoding, Extent, Params
from pejax._encodings.factory import encoding_factory
from pejax._extensions.extension import Extension
from pejax._extensions.frequencies import extend_frequencies
from pejax._ops.checks import check_choice
from pejax._ops.phases import geometric_frequencies
from pejax._ops.rotary import PAIRINGS, rope_apply
from pejax.extensions import ROTARY

LAYOUTS = ("concat", "alternate")
INDEXINGS = ("ij", "xy")


def rope_axial_frequencies(
    head_dim: int, *, axes: int = 2, base: float = 100.0, layout: str = "concat"
) -> Float[np.ndarray, "A F"]:
    """Return the frequency of each pair on each axis: one of them is not zero.

    With n = D/(2A), axis a has frequency base^(-j/n) at pair a·n + j with "concat" and at j·A + a in "alternate".

    Args:
        head_dim: D, a multiple of 2A.
        axes: A, from 1.
        base: the slowest pair of an axis is rotated by base^(1/n - 1) radians per patch.
        layout: "concat" (the first axis first) or "alternate" (axis by axis).

    Returns:
        Radians per patch, F = D/2, as a NumPy array: a constant under any trace.

    Raises:
        ValueError: fewer than one axis, a head_dim that 2A does not divide, an unknown layout, or a base not above 0.

    Example:
        >>> rope_axial_frequencies(8).round(3).tolist()  # two pairs for the row, two for the column
        [[1.0, 0.10000000149011612, 0.0, 0.0], [0.0, 0.0, 1.0, 0.10000000149011612]]
    """
    check_choice("layout", layout, LAYOUTS)
    if axes < 1:
        raise ValueError(f"axes must be at least 1, got {axes}")
    if head_dim < 1 or head_dim % (2 * axes):
        raise ValueError(f"head_dim must be a multiple of 2·axes = {2 * axes}, got {head_dim}")
    blocks = np.eye(axes, dtype=np.float32)[:, :, None] * geometric_frequencies(head_dim // (2 * axes), base)
    return (blocks if layout == "concat" else blocks.transpose(0, 2, 1)).reshape(axes, head_dim // 2)


@encoding_factory(*ROTARY)
def rope_axial(
    dims: Dims,
    *,
    base: float = 100.0,
    layout: str = "concat",
    indexing: str = "ij",
    pairing: str = "interleaved",
    extend: Extension | None = None,
) -> Encoding:
    """Make axial RoPE for these dims: the pairs are dealt out to the axes, each with its own geometric progression.

    Args:
        dims: `head_dim` and `axes` give the frequencies, `extent` the trained grid.
        base: of the geometric progressions.
        layout: "concat" (one axis after the other) or "alternate" (axis by axis).
        indexing: "ij" = the first block belongs to the first axis, the row; "xy" = to the last, the column.
        pairing: "interleaved" or "half".
        extend: from `pejax.extensions`, such as `yarn(factor=2)`, or several joined by `+`. A factor that is not given
            follows from the grid, axis by axis, through `adapt`.

    Raises:
        ValueError: a head_dim that 2·axes does not divide, a base not above 0, an unknown layout, indexing or pairing,
            or what the extension refuses.
    """
    check_choice("indexing", indexing, INDEXINGS)
    check_choice("pairing", pairing, PAIRINGS)
    frequencies = rope_axial_frequencies(dims.head_dim, axes=dims.axes, base=base, layout=layout)
    frequencies = frequencies if indexing == "ij" else frequencies[::-1]
    per_axis = dims.head_dim // dims.axes
    extension = extend_frequencies(extend, frequencies, base=base, rotary_dim=per_axis, trained_length=dims.extent)
    fixed = None if extension.by_length else extension.extend(frequencies, None)

    def adapt(params: Params, extent: Extent) -> Params:
        return {**params, "extended": jax.tree.map(jnp.float32, extension.extend(frequencies, extent))}

    def rotate(params: Params, x: Array, positions: Array) -> Array:
        extended, factor = params["extended"] if fixed is None else fixed
        return rope_apply(x, positions, extended, pairing=pairing, attention_factor=factor)

    return Encoding(adapt=adapt if fixed is None else None, rotate=rotate, shift_invariant=True)
