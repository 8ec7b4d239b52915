"""Axial RoPE: each pair of channels is rotated by the position on one axis of the grid.

    R_p = diag over pairs t of the rotation by p_a(t) · θ_t

with a(t) the axis of pair t. By default θ_t = base^(-2·j/w), with w the width of that axis, its number of channels, and
j = 0 ... w/2 - 1 the index of pair t among its pairs; w = D/A if the axes share the head equally.

Reference:
    Heo et al. 2024, "Rotary Position Embedding for Vision Transformer" (arXiv 2403.13298), section 3.1; its code,
    naver-ai/rope-vit, has `layout="concat"`, `indexing="xy"`; its equations are written with `layout="alternate"`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._calls.arguments import checked
from pejax._calls.host import to_jax
from pejax._encodings.factory import encoding_factory
from pejax._extensions.base import Frequencies
from pejax._extensions.frequencies import extend_frequencies
from pejax._ops.axes import COMMON, SPECTRA, Order, axial_frequencies, axis_groups, on_axes, own_bases
from pejax._ops.checks import check_choice
from pejax._ops.periods import Periods, axis_rows, read_periods
from pejax._ops.phases import geometric_frequencies
from pejax._ops.rotary import PAIRINGS, rotate_at
from pejax._record.dims import Dims
from pejax._record.encoding import STEP, Encoding, Extent, Params
from pejax._record.presets import check_preset, preset_options
from pejax._record.specs import Extension
from pejax.extensions import ROTARY

LAYOUTS = ("concat", "alternate")
INDEXINGS = ("ij", "xy")
RESTS = ("last", "first")
BY_AXIS = "half_by_axis"
UNDIVIDED = {"layout": "concat", "spectrum": "own", "rest": "last"}
"""The options of a head that all turns with one axis."""

Number = TypeVar("Number", int, float)
Rotation: TypeAlias = Callable[[Array, Array, Frequencies, Any], Array]


class _Turning(NamedTuple):
    """The division of channels among axes.

    Attributes:
        frequencies: `(A, P)`, of the pairs of a head, or of all key heads together.
        bases: base of each axis, whose frequencies are `base^(-2j/w)`.
        widths: w, number of channels in the spectrum of each axis.
        blocks: number of channels of each axis, in the order of the channels.
    """

    frequencies: Float[np.ndarray, "A P"]
    bases: tuple[float, ...]
    widths: tuple[int, ...]
    blocks: tuple[int, ...]


@checked
def rope_axial_frequencies(
    head_dim: int,
    *,
    axes: int | None = None,
    widths: tuple[int, ...] | None = None,
    rotary_dim: int | None = None,
    base: float | tuple[float, ...] = 100.0,
    layout: Order = "concat",
    spectrum: str = "own",
    rest: str = "last",
) -> Float[np.ndarray, "A F"]:
    """Return the frequency of each pair on each axis. A pair has a nonzero frequency on one axis only.

    With n = w/2 pairs, axis a has the frequencies base^(-j/n), j = 0 ... n - 1. If all axes have n pairs, they are at
    pair a·n + j for "concat", and at pair j·A + a for "alternate".

    Args:
        head_dim: D, even.
        axes: A, at least 1. None = one per width, or 2.
        widths: w, channels that turn with each axis, even; (16, 56, 56) for time, height and width in Flux. None =
            equal shares of rotary_dim.
        rotary_dim: channels that turn, together. None = the sum of the widths, or D.
        base: base of the geometric progressions, one number or one per axis; the slowest pair of an axis turns by
            base^(1/n - 1) radians per patch.
        layout: "concat" (all pairs of the first axis, then all of the second, ...), "alternate" (consecutive pairs
            belong to consecutive axes, until the pairs of an axis are spent), or groups of axes: `((1, 2), (0,))` has
            the pairs of axes 1 and 2 in turn, then those of axis 0.
        spectrum: "own": each axis has all frequencies from 1 down, as above; "inclusive": base^(-j/(n-1)), so that the
            slowest pair has 1/base; "shared": pair t of all P has base^(-t/P), whatever its axis, as in Qwen2-VL;
            "dealt": these frequencies are dealt out to the axes in turn, and laid out afterwards, as in Pixtral.
        rest: place of the pairs that do not turn: "last", where the result leaves them out, or "first", where their
            frequencies are 0.

    Returns:
        Frequencies in radians per patch, F = rotary_dim/2, or D/2 with `rest="first"`, as a NumPy array: a constant
        under any trace.

    Raises:
        ValueError: fewer than one axis; widths that are not one per axis, odd, below 2 or more than D together; a
            rotary_dim that is odd, above D or another sum than that of the widths, or that 2A does not divide where
            there are no widths; bases that are not above 0, not one per axis, or not equal where axes share a spectrum;
            or an unknown layout, spectrum or rest.

    Reference:
        Heo et al. 2024, "Rotary Position Embedding for Vision Transformer" (arXiv 2403.13298), section 3.1.

    Examples:
        >>> rope_axial_frequencies(8).round(3).tolist()  # two pairs for the row, two for the column
        [[1.0, 0.10000000149011612, 0.0, 0.0], [0.0, 0.0, 1.0, 0.10000000149011612]]
        >>> rope_axial_frequencies(8, widths=(2, 6), base=1000.0).round(3).tolist()
        [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.10000000149011612, 0.009999999776482582]]
    """
    check_choice("spectrum", spectrum, SPECTRA)
    check_choice("rest", rest, RESTS)
    axes = (2 if widths is None else len(widths)) if axes is None else axes
    if axes < 1:
        raise ValueError(f"axes must be at least 1, got {axes}")
    widths, bases = _widths(head_dim, axes, widths, rotary_dim), _per_axis("base", base, axes)
    if spectrum in COMMON and len({*bases}) > 1:
        raise ValueError(f"base must be one number with spectrum={spectrum!r}, got {base}")
    groups = axis_groups("layout", layout, axes, LAYOUTS)
    frequencies = axial_frequencies([width // 2 for width in widths], bases, groups, spectrum)
    unturned = head_dim // 2 - frequencies.shape[1] if rest == "first" else 0
    return np.pad(frequencies, ((0, 0), (unturned, 0)))


def _widths(head_dim: int, axes: int, widths: tuple[int, ...] | None, rotary_dim: int | None) -> tuple[int, ...]:
    """Return the number of channels of each axis, checked."""
    if widths is None:
        name, turning = ("head_dim", head_dim) if rotary_dim is None else ("rotary_dim", rotary_dim)
        if turning < 1 or turning % (2 * axes):
            way = "" if turning % 2 or turning < 2 * axes else "; widths= divides the channels unequally"
            raise ValueError(f"{name} must be a multiple of 2·axes = {2 * axes}, got {turning}{way}")
        widths = (turning // axes,) * axes
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, got {head_dim}")
    if len(widths) != axes:
        raise ValueError(f"widths must be one per axis, axes={axes}, got {widths}")
    if min(widths) < 2 or any(width % 2 for width in widths):
        raise ValueError(f"widths must be even and at least 2, got {widths}")
    if sum(widths) > head_dim:
        raise ValueError(f"widths must be {head_dim} channels together at most, got {widths}, which are {sum(widths)}")
    if rotary_dim not in (None, sum(widths)):
        raise ValueError(f"rotary_dim must be the sum of the widths {widths}, {sum(widths)}, got {rotary_dim}")
    return widths


def _per_axis(name: str, value: Number | tuple[Number, ...], axes: int) -> tuple[Number, ...]:
    """Return one value per axis."""
    values = value if isinstance(value, tuple) else (value,) * axes
    if len(values) != axes:
        raise ValueError(f"{name} must be one number, or one per axis, axes={axes}, got {value}")
    return values


def _by_channel(
    dims: Dims,
    widths: tuple[int, ...] | None,
    rotary_dim: int | None,
    base: float | tuple[float, ...],
    across_heads: bool,
    options: dict[str, Any],
    step: int,
) -> _Turning:
    """Divide the channels of a head, or of all key heads together, among the axes; `step=-1` begins with the last."""
    channels = dims.head_dim * (dims.kv_heads if across_heads else 1)
    if across_heads and widths is None and rotary_dim is None:
        rotary_dim = channels - channels % (2 * dims.axes)
    widths, bases = _widths(channels, dims.axes, widths, rotary_dim), _per_axis("base", base, dims.axes)
    blocks = widths[::step]
    frequencies = rope_axial_frequencies(channels, widths=blocks, base=bases[::step], **options)[::step]
    if across_heads:
        frequencies = np.pad(frequencies, ((0, 0), (0, channels // 2 - frequencies.shape[1])))
    if options["spectrum"] in COMMON:
        return _Turning(frequencies, bases, (sum(widths),) * dims.axes, blocks)
    return _Turning(frequencies, own_bases([w // 2 for w in widths], bases, options["spectrum"]), widths, blocks)


def _by_head(
    dims: Dims, heads: tuple[int, ...], rotary_dim: int | None, base: float | tuple[float, ...], step: int
) -> _Turning:
    """Divide the key heads among the axes."""
    if len(heads) != dims.axes or min(heads) < 0 or sum(heads) != dims.kv_heads:
        rule = f"one count per axis, axes={dims.axes}, and kv_heads={dims.kv_heads} together"
        raise ValueError(f"heads must be {rule}, got {heads}")
    [turning], bases = _widths(dims.head_dim, 1, None, rotary_dim), _per_axis("base", base, dims.axes)
    spectra = np.stack([geometric_frequencies(turning // 2, base) for base in bases])
    axis = np.repeat(np.arange(dims.axes)[::step], heads[::step])
    frequencies = on_axes(spectra[axis].reshape(-1), np.repeat(axis, turning // 2), dims.axes)
    return _Turning(frequencies, bases, (turning,) * dims.axes, (turning,))


def _rotation(pairing: str, heads: int, blocks: Sequence[int]) -> Rotation:
    """Return the rotation `(x, positions, frequencies, attention_factor) -> x`.

    Args:
        pairing: "interleaved", "half" or "half_by_axis".
        heads: number of heads that the pairs belong to, 1 if all heads share them.
        blocks: number of channels of each axis, for "half_by_axis".
    """

    def rotation(x: Array, positions: Array, frequencies: Frequencies, factor: Any) -> Array:
        return rotate_at(x, positions, frequencies, pairing=pairing, attention_factor=factor)

    def by_head(x: Array, positions: Array, frequencies: Frequencies, factor: Any) -> Array:
        frequencies = frequencies.reshape(len(frequencies), heads, -1).swapaxes(0, 1)
        return rotation(x, positions, frequencies, factor.reshape(heads, -1) if np.ndim(factor) else factor)

    def by_axis(x: Array, positions: Array, frequencies: Frequencies, factor: Any) -> Array:
        parts, first = [], 0
        for width in blocks:
            pairs = slice(first // 2, (first + width) // 2)
            options = {"pairing": "half", "attention_factor": factor[pairs] if np.ndim(factor) else factor}
            parts.append(rotate_at(x[..., first : first + width], positions, frequencies[:, pairs], **options))
            first += width
        return jnp.concatenate([*parts, x[..., first:]], axis=-1)

    if pairing == BY_AXIS:
        return by_axis
    return rotation if heads == 1 else by_head


def _one(values: tuple[Number, ...]) -> Number | tuple[Number, ...]:
    """Return one number where all are equal."""
    return values[0] if len({*values}) == 1 else values


@encoding_factory(*ROTARY, "extension", preset_options=preset_options)
def rope_axial(
    dims: Dims,
    *,
    preset: str | None = None,
    base: float | tuple[float, ...] = 100.0,
    widths: tuple[int, ...] | None = None,
    rotary_dim: int | None = None,
    heads: tuple[int, ...] | None = None,
    layout: Order = "concat",
    spectrum: str = "own",
    rest: str = "last",
    across_heads: bool = False,
    indexing: str = "ij",
    pairing: str = "interleaved",
    periodic: Periods | None = None,
    extend: Extension | None = None,
) -> Encoding:
    """Make axial RoPE for these dims: the pairs are divided among the axes, with one geometric progression per axis.

    Args:
        dims: `head_dim` and `axes` determine the frequencies, `extent` is the trained grid.
        preset: name of a published model in `pejax.encodings.PRESETS`, "flux" or "wan", for the options that are not
            given. `pejax.explain` names them, and the positions of that model.
        base: base of the geometric progressions, one number or one per axis.
        widths: channels that turn with each axis, even. None = equal shares.
        rotary_dim: channels that turn, together. None = the sum of the widths, or head_dim.
        heads: number of key heads that turn with each axis, in order: (2, 3, 3) gives the first two heads to the first
            axis (multi-head RoPE). None = every head turns with all axes.
        layout: "concat", "alternate" or groups of axes, as in `rope_axial_frequencies`.
        spectrum: "own", "inclusive", "shared" or "dealt", as in `rope_axial_frequencies`.
        rest: "last" or "first", the place of the pairs that do not turn.
        across_heads: whether widths, layout, spectrum and rest are those of the channels of all key heads together, as
            in LTX, so that every head has other frequencies.
        indexing: "ij" = the first pairs rotate by the first position axis, the row; "xy" = by the last, the column.
        pairing: "interleaved", "half", or "half_by_axis", which pairs the first half of each axis' channels with the
            second; these must lie axis by axis.
        periodic: for each axis the period after which its positions repeat, in their unit, or None: (None, 360.0) of
            latitude and longitude in degrees. Each pair of such an axis makes a whole number of turns per period: from
            slow to fast the nearest one, but at least one more than the pair before it. Positions a period apart have
            the same angles, 359 and 1 are 2 apart, and extensions leave the axis as it is. With integer positions, at
            most half a period of different turns can be told apart. None = no axis repeats.
        extend: an extension of `pejax.extensions`, such as `yarn(factor=2)`, or several joined by `+`. It takes the
            width and the base of each axis. An extension without a factor takes it from the grid that `adapt` is given,
            axis by axis. None = no extension.

    Raises:
        ValueError: as in `rope_axial_frequencies`; heads that are not one count per axis, that are not the key heads
            together, or that come with another division of the channels; an unknown indexing or pairing; "half_by_axis"
            where channels do not lie axis by axis; an unknown preset, or dims of other axes or channels; periods that
            are not one per axis, not above 0, or beside a preset; or a value that the extension refuses.

    Reference:
        Huang et al. 2025, "Revisiting Multimodal Positional Encoding in Vision-Language Models" (arXiv 2510.23095):
        heads, there called multi-head RoPE.
    """
    if preset is not None:
        check_preset(preset, dims, widths)
    periods = read_periods(periodic, dims.axes, extend)
    if periods and preset is not None:
        raise ValueError(f"periodic must be None with a preset, whose frequencies are fixed, got {periodic}")
    check_choice("indexing", indexing, INDEXINGS)
    check_choice("pairing", pairing, (*PAIRINGS, BY_AXIS))
    options, step = {"layout": layout, "spectrum": spectrum, "rest": rest}, 1 if indexing == "ij" else -1
    if heads is not None and (widths is not None or across_heads or options != UNDIVIDED):
        raise ValueError(f"heads must come without another division of the channels, got heads={heads}")
    by_head = across_heads or heads is not None
    if pairing == BY_AXIS and (by_head or layout != "concat" or rest != "last"):
        raise ValueError(
            f"pairing={pairing!r} must come with channels axis by axis in each head, got layout={layout!r}"
        )
    turning = (
        _by_channel(dims, widths, rotary_dim, base, across_heads, options, step)
        if heads is None
        else _by_head(dims, heads, rotary_dim, base, step)
    )
    turn = _rotation(pairing, dims.kv_heads if by_head else 1, turning.blocks)
    frequencies, base_of, dim_of = turning.frequencies, _one(turning.bases), _one(turning.widths)
    rows = axis_rows(frequencies, periods)
    trained = dims.extent
    extension = extend_frequencies(extend, rows.free, base=base_of, rotary_dim=dim_of, trained_length=trained)

    def extended(extent: Extent | None, step: Any) -> tuple[Frequencies, Any]:
        frequencies, factor = extension.extend(rows.free, extent, step)
        return rows.beside(frequencies), factor

    fixed = None if extension.varies else extended(None, None)

    def adapt(params: Params, extent: Extent) -> Params:
        return {**params, "extended": jax.tree.map(jnp.float32, extended(extent, params.get(STEP)))}

    def rotate(params: Params, x: Array, positions: Array) -> Array:
        extended, factor = params["extended"] if fixed is None else fixed
        return turn(x, rows.at(to_jax("positions", positions), x.shape[:-2]), extended, factor)

    adapts = adapt if fixed is None else None
    return Encoding(adapt=adapts, rotate=rotate, shift_invariant=True, periods=periods)
