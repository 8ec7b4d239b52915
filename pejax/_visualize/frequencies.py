"""Pictures of frequencies: plane waves over an image, wavelengths before and after extensions, effects of training."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Array, Float

from pejax._extensions.base import Rotary
from pejax._extensions.linear import extend_linear
from pejax._extensions.longrope import extend_longrope
from pejax._extensions.ntk import extend_ntk
from pejax._extensions.yarn import extend_yarn
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.layer import check_axes, check_count, check_encodings, check_hooks, grid_of, refuse, settled
from pejax._visualize.style import SMALL, WIDE, Canvas, Figure, chosen, theme_of
from pejax._visualize.subject import dims_of
from pejax._visualize.turning import measured_frequencies, unit_vectors


def plot_plane_waves(
    encodings: Mapping[str, Encoding],
    dims: Dims | None = None,
    params: Mapping[str, Params] | None = None,
    *,
    pairs: Sequence[int] | None = None,
    head: int = 0,
    theme: str = "light",
) -> Figure:
    """Draw pairs of channels of rotary encodings as waves over the image, one row of panels per encoding.

    `cos(row · f_row + column · f_column)` for every patch. An axial pair has one of the two frequencies and varies
    along one axis. A mixed pair has both, and its wave runs in any direction.

    Args:
        encodings: encodings that rotate, by name.
        dims: dims that the encodings were made for, on two axes; their `extent` is the grid. None = their own.
        params: parameters of each encoding, by name, not yet adapted. None, or a missing name = the initial ones.
        pairs: pairs that are drawn. None = three, spread over all.
        head: index of the head whose pairs are drawn.
        theme: "light" or "dark".

    Raises:
        ValueError: no encoding or one that rotates nothing, other than two axes, no grid, a pair or head that is not
            there, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Heo et al. 2024 (arXiv 2403.13298), section 3.2 and figure 2.

    Examples:
        >>> dims = pejax.Dims(heads=2, head_dim=16, axes=2, extent=(8, 8))
        >>> both = {"axial": pejax.encodings.rope_axial(dims), "mixed": pejax.encodings.rope_mixed(dims)}
        >>> figure = pejax.visualize.plot_plane_waves(both)
    """
    picture, colors = "plot_plane_waves", theme_of("plot_plane_waves", theme)
    check_encodings(picture, encodings)
    dims = dims_of(picture, dims, encodings)
    check_axes(picture, dims, 2)
    for encoding in encodings.values():
        check_hooks(picture, encoding, "rotate")
    extent = grid_of(picture, dims)
    chosen(picture, "head", [head], dims.heads, 1)
    waves, turns = {}, {}
    for name, encoding in encodings.items():
        own_params = settled(encoding, None if params is None else params.get(name), extent)
        positions = np.array(list(np.ndindex(*extent)))
        cosines = unit_vectors(picture, encoding, dims, own_params, positions)[:, head, :, 0]
        waves[name] = cosines.reshape(*extent, -1)
        turns[name] = measured_frequencies(picture, encoding, dims, own_params)[head]
    indices = chosen(picture, "pairs", pairs, min(wave.shape[-1] for wave in waves.values()), 3)
    canvas = Canvas(colors, len(waves), len(indices), panel=(1.7, 2.1), sharex=True, sharey=True)
    for row, (name, wave) in zip(canvas.panels, waves.items(), strict=True):
        for axes, pair in zip(row, indices, strict=True):
            image = canvas.heat_map(axes, wave[..., pair], signed=True, top=1.0, aspect="equal")
            vertical, horizontal = turns[name][:, pair]
            axes.set_title(f"{name}\npair {pair}\n({vertical:.2g}, {horizontal:.2g})", fontsize=SMALL)
    canvas.label_outer("column, patches", "row, patches")
    canvas.title("cosine of each pair over the image\n(radians per row, radians per column)", 11)
    canvas.color_bar(image, canvas.panels, "cosine", shrink=0.7)
    return canvas.figure


def plot_wavelengths(
    frequencies: Float[Array | np.ndarray, " F"],
    *,
    base: float,
    trained_length: int,
    factor: float,
    long_factors: Sequence[float] | Float[Array | np.ndarray, " F"] | None = None,
    theme: str = "light",
) -> Figure:
    """Draw the wavelength of each pair against the trained length, before and after extensions to a longer context.

    `λ_i = 2π / f_i` tokens. Pairs above the line of the trained length never made a whole turn in training: these are
    the ones that a longer context takes to angles that were never seen.

    Args:
        frequencies: frequencies as `rope_frequencies` returns them, radians per token, all channels turning.
        base: base of the frequencies.
        trained_length: L, tokens.
        factor: s, ratio of the lengths: L' = s · L.
        long_factors: factors of LongRoPE, one per pair (`search_longrope`). None = LongRoPE is left out.
        theme: "light" or "dark".

    Raises:
        ValueError: frequencies that are not `(F,)` above 0, what an extension refuses, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Peng et al. 2023, "YaRN" (arXiv 2309.00071), section 3; Ding et al. 2024, "LongRoPE" (arXiv 2402.13753).

    Examples:
        >>> figure = pejax.visualize.plot_wavelengths(
        ...     pejax.rope_frequencies(128), base=10000.0, trained_length=4096, factor=8.0
        ... )
    """
    picture, colors = "plot_wavelengths", theme_of("plot_wavelengths", theme)
    frequencies = np.asarray(frequencies, np.float32)
    if frequencies.ndim != 1 or not len(frequencies) or not np.all(frequencies > 0):
        refuse(picture, "frequencies must be (F,), all above 0", f"shape {frequencies.shape}")
    check_count(picture, trained_length=trained_length)
    rotary, options = Rotary(base, 2 * len(frequencies)), {"trained_length": trained_length, "factor": factor}
    extended = {
        "trained": frequencies,
        "position interpolation": extend_linear(frequencies, rotary, **options)[0],
        "NTK": extend_ntk(frequencies, rotary, **options)[0],
        "YaRN": extend_yarn(frequencies, rotary, **options)[0],
    }
    length = int(factor * trained_length)
    if long_factors is not None:
        longer = rotary._replace(length=max(length, trained_length + 1))
        longrope = extend_longrope(frequencies, longer, **options, long_factors=long_factors)
        extended["LongRoPE"] = longrope[0]
    canvas = Canvas(colors, 2, 1, panel=(WIDE, 3.4), title=f"extended from {trained_length} to {length} tokens")
    left, right = canvas.panels[:, 0]
    for i, (name, scaled) in enumerate(extended.items()):
        scaled, style = np.asarray(scaled, np.float64), canvas.line(i)
        left.plot(2 * np.pi / scaled, label=name, linewidth=1.6, **style)
        right.plot(frequencies / scaled, linewidth=1.6, **style)
    canvas.mark_trained(left, trained_length, horizontal=True, label=f"trained length, {trained_length} tokens")
    left.axhline(length, color=colors.faint, linestyle=":", label=f"longer context, {length} tokens")
    left.set_yscale("log")
    left.set(xlabel="pair of channels", ylabel="wavelength, tokens", title="wavelength 2π / f")
    right.set(xlabel="pair of channels", ylabel="frequency divided by", title="by how much each frequency is divided")
    canvas.grid(left, right)
    canvas.legend(canvas.figure, loc="outside lower center", ncols=2)
    return canvas.figure


def plot_learned_frequencies(
    before: Float[Array | np.ndarray, "..."],
    after: Float[Array | np.ndarray, "..."],
    *,
    heads: Sequence[int] | None = None,
    theme: str = "light",
) -> Figure:
    """Draw learned frequencies before and after training, one panel per head.

    On two axes each pair is a point `(f_row, f_column)`, with a line to where training moved it. Its wave runs in
    this direction. On one axis `f_i` is drawn against the pair.

    Args:
        before: `(H, A, F)`, `params["frequencies"]` of `rope_mixed` at the start, on one or two axes, radians per token
            or patch.
        after: `(H, A, F)`, the same, trained.
        heads: heads that are drawn. None = at most four.
        theme: "light" or "dark".

    Raises:
        ValueError: arrays of different shapes, other than `(H, A, F)` with A = 1 or 2, a head that is not there, or an
            unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Heo et al. 2024 (arXiv 2403.13298), section 3.2.

    Examples:
        >>> before = pejax.rope_mixed_frequencies(jax.random.key(0), heads=2, head_dim=16)
        >>> figure = pejax.visualize.plot_learned_frequencies(before, 1.5 * before)
    """
    picture, colors = "plot_learned_frequencies", theme_of("plot_learned_frequencies", theme)
    before, after = np.asarray(before), np.asarray(after)
    if before.shape != after.shape or before.ndim != 3 or not before.size:
        refuse(picture, "before and after must be (H, A, F) alike", f"{before.shape} and {after.shape}")
    axes_count = before.shape[1]
    if axes_count > 2:
        refuse(picture, "axes must be 1 or 2", axes_count)
    indices = chosen(picture, "heads", heads, len(before), 4)
    title = "frequencies before and after training"
    canvas = Canvas.of(colors, len(indices), panel=(2.3, 2.5), title=title)
    for axes, head in zip(canvas.panels.flat, indices, strict=False):
        points = [(array[head][::-1] if axes_count == 2 else array[head]) for array in (before, after)]
        if axes_count == 2:
            axes.plot(*np.stack(points, axis=1), color=colors.faint, linewidth=0.8)
            reach = 1.1 * float(max(np.max(np.abs(before)), np.max(np.abs(after))))
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
            axes.set_box_aspect(1)
        for cloud, marker, color, label in zip(points, "o^", colors.lines[1::-1], ("before", "after"), strict=True):
            axes.plot(*cloud, marker, markersize=4, color=color, label=label)
        axes.set_title(f"head {head}")
        canvas.grid(axes)
    names = ("radians per column", "radians per row") if axes_count == 2 else ("pair of channels", "radians per token")
    canvas.label_outer(*names)
    handles, labels = canvas.panels[0, 0].get_legend_handles_labels()
    canvas.legend(canvas.figure, handles=handles, labels=labels, loc="outside lower center", ncols=2)
    return canvas.figure
