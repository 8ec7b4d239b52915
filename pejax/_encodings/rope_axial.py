"""Axial RoPE: each pair of channels is rotated by the position on one axis of the grid.

    R_p = diag over pairs i of the rotation by p_axis(i) · base^(-2·A·j(i)/D)

with axis(i) the axis of pair i, and j(i) = 0 ... D/(2A) - 1 its index among the pairs of that axis.

Reference:
    Heo et al. 2024, "Rotary Position Embedding for Vision Transformer" (arXiv 2403.13298), section 3.1; its code,
    naver-ai/rope-vit, has `layout="concat"`, `indexing="xy"`; its equations are written with `layout="alternate"`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._arguments import checked
from pejax._dims import Dims
from pejax._encoding import Encoding, Extent, Params
from pejax._encodings.factory import encoding_factory
from pejax._extensions.frequencies import extend_frequencies
from pejax._ops.checks import check_choice
from pejax._ops.phases import geometric_frequencies
from pejax._ops.rotary import PAIRINGS, rope_apply
from pejax._specs import Extension
from pejax.extensions import ROTARY

LAYOUTS = ("concat", "alternate")
INDEXINGS = ("ij", "xy")


@checked
def rope_axial_frequencies(
    head_dim: int, *, axes: int = 2, base: float = 100.0, layout: str = "concat"
) -> Float[np.ndarray, "A F"]:
    """Return the frequency of each pair on each axis. A pair has a nonzero frequency on one axis only.

    With n = D/(2A), axis a has frequency base^(-j/n) at pair a·n + j for "concat", and at pair j·A + a for "alternate".

    Args:
        head_dim: D, a multiple of 2A.
        axes: A, at least 1.
        base: base of the geometric progression; the slowest pair of an axis turns by base^(1/n - 1) radians per patch.
        layout: "concat" (all pairs of the first axis, then all of the second, ...) or "alternate" (consecutive pairs
            belong to consecutive axes).

    Returns:
        Frequencies in radians per patch, F = D/2, as a NumPy array: a constant under any trace.

    Raises:
        ValueError: fewer than one axis, a head_dim that 2A does not divide, an unknown layout, or a base not above 0.

    Examples:
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
    """Make axial RoPE for these dims: the pairs are divided among the axes, with one geometric progression per axis.

    Args:
        dims: `head_dim` and `axes` determine the frequencies, `extent` is the trained grid.
        base: base of the geometric progressions.
        layout: "concat" or "alternate", as in `rope_axial_frequencies`.
        indexing: "ij" = the first pairs rotate by the first position axis, the row; "xy" = by the last, the column.
        pairing: "interleaved" or "half".
        extend: an extension of `pejax.extensions`, such as `yarn(factor=2)`, or several joined by `+`. An extension
            without a factor takes it from the grid that `adapt` is given, axis by axis. None = no extension.

    Raises:
        ValueError: a head_dim that 2·axes does not divide, a base not above 0, an unknown layout, indexing or pairing,
            or a value that the extension refuses.
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
