"""RoPE: queries and keys are rotated by their position, so that their product depends on the distance alone.

    (R_m q) · (R_n k) = q · R_{n-m} k,   R_m = diag over pairs i of the rotation by m · base^(-2i/D)

Reference:
    Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2 and equation 34.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pejax._calls.arguments import checked
from pejax._calls.host import to_jax
from pejax._encodings.factory import encoding_factory
from pejax._extensions.frequencies import extend_frequencies
from pejax._ops.axes import Order, axis_groups, on_axes, pair_axes
from pejax._ops.checks import check_choice, check_position_type
from pejax._ops.periods import axis_rows, read_periods
from pejax._ops.phases import geometric_frequencies
from pejax._ops.rotary import PAIRINGS, rotate_at
from pejax._record.dims import Dims
from pejax._record.encoding import STEP, Encoding, Extent, Params
from pejax._record.specs import Extension
from pejax.extensions import ROTARY

LAYOUTS = ("leading", "proportional")
SECTION_ORDERS = ("chunked", "interleaved")


@checked
def rope_frequencies(
    head_dim: int, *, base: float = 10000.0, rotary_dim: int | None = None, layout: str = "leading"
) -> Float[np.ndarray, " F"]:
    """Return the frequency of each pair of rotated channels: `f_i = base^(-2i/rotary_dim)`, i < rotary_dim/2.

    `rope_apply` leaves channels from rotary_dim on unchanged, with either pairing. With `layout="proportional"`, as in
    Gemma's layers of full attention, all D channels make pairs with the frequencies `base^(-2i/D)`, of which all but
    the first rotary_dim/2 are 0: the slow pairs do not turn.

    Args:
        head_dim: D, even.
        base: base of the geometric progression; the slowest pair has a period of 2π · base^(1 - 2/rotary_dim) tokens.
        rotary_dim: number of rotated channels, even. None = D.
        layout: "leading" or "proportional".

    Returns:
        F = rotary_dim/2 frequencies, or D/2 if proportional, radians per token, as a NumPy array: a constant under any
        trace.

    Raises:
        ValueError: an odd or non-positive head_dim, a rotary_dim that is odd or outside 2 ... D, an unknown layout, or
            a base not above 0.

    Examples:
        >>> rope_frequencies(4).tolist()  # radians per token
        [1.0, 0.009999999776482582]
    """
    check_choice("layout", layout, LAYOUTS)
    turning = _checked_rotary_dim(head_dim, rotary_dim) // 2
    if layout == "leading":
        return geometric_frequencies(turning, base)
    return np.where(np.arange(head_dim // 2) < turning, geometric_frequencies(head_dim // 2, base), np.float32(0.0))


def frequencies_by_section(
    frequencies: Float[np.ndarray, " F"], sections: Sequence[int], order: Order = "chunked"
) -> Float[np.ndarray, "A F"]:
    """Return frequencies per axis: the pairs keep their frequencies, and each turns with one axis.

    Args:
        frequencies: frequencies of the pairs, in order.
        sections: number of pairs of each axis.
        order: "chunked" (all pairs of axis 0, then those of axis 1, ...), "interleaved" (the axes in turn, until their
            pairs are spent), or groups of axes, one group after the other.

    Raises:
        ValueError: sections with a negative count, or that do not add up to F; an unknown order.
    """
    if min(sections) < 0 or sum(sections) != len(frequencies):
        raise ValueError(f"sections must count {len(frequencies)} pairs together, got {tuple(sections)}")
    groups = axis_groups("section_order", order, len(sections), SECTION_ORDERS)
    return on_axes(frequencies, pair_axes(sections, groups), len(sections))


def _checked_rotary_dim(head_dim: int, rotary_dim: int | None) -> int:
    """Return the number of rotated channels, after checking it."""
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim must be even and at least 2, got {head_dim}")
    rotated = head_dim if rotary_dim is None else rotary_dim
    if rotated % 2 or not 2 <= rotated <= head_dim:
        raise ValueError(f"rotary_dim must be even and from 2 to head_dim={head_dim}, got {rotary_dim}")
    return rotated


@checked
def pairing_permutation(
    head_dim: int, *, source: str, target: str, rotary_dim: int | None = None
) -> Int[np.ndarray, " D"]:
    """Return the permutation of channels that converts a head from one pairing to the other.

    `rope(x[..., order], pairing=target) == rope(x, pairing=source)[..., order]`, bit for bit, where `order` is the
    result and `rope` is `rope_apply` with the frequencies `rope_frequencies(head_dim, rotary_dim=rotary_dim)`. To
    convert trained weights, permute the channels of every head in W_q and W_k, `(C, H, D)`, by `w[..., order]`: with
    `pairing=target` the logits are then the same as before.

    Args:
        head_dim: D, even.
        source: the pairing that x has now, "interleaved" or "half".
        target: the pairing to convert to.
        rotary_dim: number of rotated channels, even; channels from there on keep their place. None = D.

    Raises:
        ValueError: an unknown pairing, an odd head_dim, or a rotary_dim that is odd or outside 2 ... D.

    Examples:
        >>> pairing_permutation(8, source="interleaved", target="half").tolist()
        [0, 2, 4, 6, 1, 3, 5, 7]
    """
    check_choice("source", source, PAIRINGS)
    check_choice("target", target, PAIRINGS)
    rotated, order = _checked_rotary_dim(head_dim, rotary_dim), np.arange(head_dim)
    if source != target:
        split = (-1, 2) if source == "interleaved" else (2, -1)
        order[:rotated] = order[:rotated].reshape(split).T.reshape(-1)
    return order


@encoding_factory(*ROTARY, "extension")
def rope(
    dims: Dims,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    pairing: str = "interleaved",
    layout: str = "leading",
    sections: tuple[int, ...] | None = None,
    section_order: Order = "chunked",
    periodic: float | None = None,
    extend: Extension | None = None,
) -> Encoding:
    """Make RoPE for these dims: pair i of every head is rotated by position · base^(-2i/rotary_dim).

    The first `rotary_dim` channels of a head are rotated, the others are unchanged, with either pairing ("half" pairs
    channel i with rotary_dim/2 + i). On grids the position is the raster index, row by row, of the grid that `adapt`
    is given; with `sections`, every pair turns by the position on one axis instead (Qwen2-VL's M-RoPE: time, height,
    width), so that a token with the same position on all axes turns as in a text.

    Args:
        dims: `head_dim` determines the frequencies, `extent` is the trained length or grid; with `axes` > 1, positions
            are (row, column, ...).
        base: base of the geometric progression of frequencies.
        rotary_dim: number of rotated channels. None = head_dim.
        pairing: "interleaved" (RoFormer) or "half" (Llama's public weights).
        layout: "leading" or "proportional", as in `rope_frequencies`.
        sections: number of pairs that turn with each axis: (16, 24, 24) in Qwen2-VL. None = the raster index.
        section_order: the axes of the pairs from fast to slow. "chunked": one axis after the other (Qwen2-VL);
            "interleaved": the axes in turn, until their pairs are spent (Qwen3-VL, with sections (24, 20, 20)); or
            groups of axes, one after the other: `((1, 2), (0,))` in ERNIE 4.5 VL, with sections (20, 22, 22).
        periodic: the period after which positions repeat, on one axis: 24.0 of hours of the day. Each pair makes a
            whole number of turns per period, as in `rope_axial`. None = positions do not repeat.
        extend: an extension of `pejax.extensions`, such as `yarn(factor=8)`, or several joined by `+`. An extension
            without a factor takes it from the length that `adapt` is given. None = no extension.

    Raises:
        ValueError: an odd head_dim, a rotary_dim that is odd or outside 2 ... head_dim, a base not above 0, an unknown
            pairing, layout or order, sections that are not one per axis or do not add up, an order without sections, a
            period that is not above 0, on several axes or with an extension, or a value that the extension refuses.

    Reference:
        Wang et al. 2024, "Qwen2-VL" (arXiv 2409.12191), section 2.1: sections.
    """
    check_choice("pairing", pairing, PAIRINGS)
    frequencies = rope_frequencies(dims.head_dim, base=base, rotary_dim=rotary_dim, layout=layout)
    exponent_dim = 2 * len(frequencies)
    if sections is None and section_order != "chunked":
        raise ValueError(f"section_order must come with sections, got {section_order!r} alone")
    if sections is not None:
        if len(sections) != dims.axes:
            raise ValueError(f"sections must be one count of pairs per axis, axes={dims.axes}, got {sections}")
        frequencies = frequencies_by_section(frequencies, sections, section_order)
    if periodic is not None and dims.axes > 1:
        raise ValueError(
            f"periodic must be None on axes={dims.axes}, where rope_axial has one per axis, got {periodic}"
        )
    periods = read_periods(None if periodic is None else (periodic,), 1, extend)
    raster = dims.axes > 1 and sections is None
    trained = math.prod(dims.extent) if raster and isinstance(dims.extent, tuple) else dims.extent
    extension = extend_frequencies(extend, frequencies, base=base, rotary_dim=exponent_dim, trained_length=trained)
    rows = axis_rows(frequencies, periods)
    fixed = None if extension.varies else extension.extend(rows.beside(rows.free), None, None)

    def adapt(params: Params, extent: Extent) -> Params:
        if raster:
            if np.shape(extent) != (dims.axes,):
                raise ValueError(
                    f"rope on {dims.axes} axes needs a grid of {dims.axes} sizes as extent, got {extent!r}"
                )
            strides = [_tokens(extent[axis + 1 :]) for axis in range(dims.axes)]  # pyright: ignore[reportIndexIssue]
            params = {**params, "strides": jnp.asarray(strides, jnp.int32)}
        if fixed is None:
            length = _tokens(extent) if raster else extent
            extended = extension.extend(frequencies, length, params.get(STEP))
            params = {**params, "extended": jax.tree.map(jnp.float32, extended)}
        return params

    def rotate(params: Params, x: Array, positions: Array) -> Array:
        positions = to_jax("positions", positions)
        check_position_type(positions)
        if raster:
            if positions.shape[-1:] != (dims.axes,):
                raise ValueError(f"positions must end in {dims.axes} axes, got shape {positions.shape}")
            kind = jnp.int32 if jnp.issubdtype(positions.dtype, jnp.integer) else jnp.float32
            positions = jnp.sum(positions.astype(kind) * params["strides"].astype(kind), axis=-1)
        extended, factor = params["extended"] if fixed is None else fixed
        positions = rows.at(positions, x.shape[:-2])
        return rotate_at(x, positions, extended, pairing=pairing, attention_factor=factor)

    adapts = adapt if raster or fixed is None else None
    return Encoding(adapt=adapts, rotate=rotate, shift_invariant=True, periods=periods)


def _tokens(extent: Extent) -> int | Array:
    """Return the length, or the number of tokens of a grid."""
    if isinstance(extent, tuple):
        return math.prod(extent)
    return jnp.prod(extent) if np.ndim(extent) else extent
