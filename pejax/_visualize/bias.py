"""Pictures of what encodings add to the logits: per head, by distance, on a grid, and term by term."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._encoding import Dims, Encoding, Params, pair_bias, split_params
from pejax._encodings.alibi import alibi_slopes, scale_alibi_slopes
from pejax._encodings.shaw import shaw_logits
from pejax._encodings.t5 import t5_bucket
from pejax._visualize.layer import (
    bias_of,
    check_axes,
    check_count,
    check_hooks,
    extent_of,
    head_by_head,
    make_layer,
    products_of,
    refuse,
    seen_only,
    settled,
    trained_length,
    turned,
    weights_of,
)
from pejax._visualize.style import (
    Figure,
    Theme,
    chosen,
    color_bar,
    grid,
    heat_map,
    legend,
    line_style,
    mark_trained,
    new_figure,
    signs_of,
    theme_of,
    titled,
)


def plot_bias(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    length: int | None = None,
    heads: Sequence[int] | None = None,
    seed: int = 0,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw what an encoding adds to the logits, head by head: rows are queries, columns are keys.

    `bias[h, i, j]`, as ALiBi's `-m_h · |j - i|`; where it depends on the query, that of random queries

    Args:
        encoding: with a bias.
        dims: it was made for. A grid is drawn in raster order.
        params: its parameters, not yet adapted. None = the initial ones.
        length: T, tokens. None = the trained length, or the grid.
        heads: those drawn. None = at most eight, spread over all.
        seed: of queries and keys, where the bias depends on them.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: an encoding without a bias, a length below 1, a head that is not there, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Press et al. 2022, "Train Short, Test Long" (arXiv 2108.12409), figure 3.

    Example:
        >>> dims = pejax.Dims(heads=8, head_dim=64, causal=True)
        >>> figure = pejax.visualize.plot_bias(pejax.encodings.alibi(dims), dims, length=24)
    """
    picture, colors = "plot_bias", theme_of("plot_bias", theme)
    check_hooks(picture, encoding, "bias", "distance_bias")
    extent = extent_of(picture, dims, length)
    shown = chosen(picture, "heads", heads, dims.heads, 8)
    bias = seen_only(encoding, bias_of(encoding, make_layer(encoding, dims, params, extent, seed=seed)))
    matrices = {f"head {head}": bias[head] for head in shown}
    return _maps(matrices, colors, dims, titled(name, "bias of each head"), "added to the logit", signed=True)


def _maps(
    matrices: dict[str, np.ndarray],
    colors: Theme,
    dims: Dims,
    title: str,
    label: str,
    *,
    signed: bool,
    alone: bool = False,
) -> Figure:
    """Return one map of queries and keys per panel, with one scale, or one each."""
    columns = min(4, len(matrices))
    rows = -(-len(matrices) // columns)
    shared = {"sharex": True, "sharey": True}
    figure, panels = new_figure(colors, rows, columns, panel=(2.7, 2.7), title=title, **shared)
    tops = [float(np.nanmax(np.abs(one))) for one in matrices.values()]
    signs = None if alone else signs_of(list(matrices.values()))
    top, rooted = max(tops), signed and not alone and min(tops) < max(tops) / 8
    unit = "position, tokens" if dims.axes == 1 else "patch, raster order"
    image = None
    for axes, (heading, matrix) in zip(panels.flat, matrices.items(), strict=False):
        own = None if alone else top
        image = heat_map(axes, matrix, colors, signed=signed, top=own, signs=signs, rooted=rooted, aspect="equal")
        trained = trained_length(dims)
        if trained is not None and trained < len(matrix):
            mark_trained(axes, colors, trained - 0.5, also_y=True)
        axes.set_title(heading)
        if alone:
            color_bar(figure, image, axes, colors, label, shrink=0.8)
    for axes in panels.flat[len(matrices) :]:
        axes.set_axis_off()
    for i, axes in enumerate(panels.flat):
        if i + columns >= len(matrices):
            axes.set_xlabel(f"key {unit}")
            axes.xaxis.set_tick_params(labelbottom=True)
    for axes in panels[:, 0]:
        axes.set_ylabel(f"query {unit}")
    if image is not None and not alone:
        ticks = {"ticks": [float(f"{top * part:.3g}") * sign for sign in (-1, 1) for part in (1, 0.2, 0.02)] + [0.0]}
        color_bar(figure, image, list(panels.flat), colors, label, shrink=0.8, **(ticks if rooted else {}))
    return figure


def plot_bias_curves(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    length: int | None = None,
    heads: Sequence[int] | None = None,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw what an encoding adds to the logits against the distance, one curve per head.

    `d ↦ bias[h, i, i + d]` for the last query i; where the bias depends on the distance alone, for every query

    Args:
        encoding: with a bias that reads positions alone (`alibi`, `t5`, `kerple`, `fire`).
        dims: it was made for, on one axis.
        params: its parameters, not yet adapted. None = the initial ones.
        length: distances up to length - 1 are drawn, tokens. None = twice the trained length.
        heads: those drawn. None = at most eight.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: an encoding without a bias, more than one axis, a length below 1, a head that is not there, or an
            unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Chi et al. 2022, "KERPLE" (arXiv 2205.09921), section 4.

    Example:
        >>> dims = pejax.Dims(heads=8, head_dim=64, extent=32, causal=True)
        >>> figure = pejax.visualize.plot_bias_curves(pejax.encodings.alibi(dims), dims)
    """
    picture, colors = "plot_bias_curves", theme_of("plot_bias_curves", theme)
    check_hooks(picture, encoding, "bias", "distance_bias")
    check_axes(picture, dims, 1)
    trained = trained_length(dims)
    length = length if length is not None or trained is None else 2 * trained
    extent = extent_of(picture, dims, length)
    shown = chosen(picture, "heads", heads, dims.heads, 8)
    params = settled(encoding, params, extent)
    assert isinstance(extent, int)  # one axis
    distances, curves = _by_distance(encoding, dims, params, extent)
    figure, panels = new_figure(colors, panel=(6.4, 4.0))
    axes = panels[0, 0]
    for i, head in enumerate(shown):
        axes.plot(distances, curves[head], label=f"head {head}", linewidth=1.5, **line_style(colors, i))
    if trained is not None and trained < extent:
        for end in (trained - 1, 1 - trained)[: 2 - (min(distances) >= 0)]:
            mark_trained(axes, colors, end, label=f"trained: {trained} tokens" if end > 0 else "")
    label = "distance to the key before the query, tokens" if encoding.causal else "key - query, tokens"
    axes.set(xlabel=label, ylabel="added to the logit", title=titled(name, "bias by distance"))
    grid(axes, colors)
    legend(axes, colors, ncols=2)
    return figure


def _by_distance(
    encoding: Encoding, dims: Dims, params: Params, length: int
) -> tuple[np.ndarray, Float[np.ndarray, "H R"]]:
    """Return distances and the bias of each head there, read from the pairs of the last query (or the middle one)."""
    hook = pair_bias(encoding)
    assert hook is not None  # checked by the caller
    if encoding.relative_keys is not None or encoding.relative_values is not None:
        refuse("plot_bias_curves", "the bias must read positions alone", "one that reads queries")
    size = length if encoding.causal else 2 * length - 1
    zeros = jnp.zeros((size, dims.heads, dims.head_dim), jnp.float32)
    whole = np.asarray(head_by_head(hook, params, zeros, zeros, jnp.arange(size)))
    if encoding.causal:
        return np.arange(size), whole[:, -1, ::-1]
    return np.arange(size) - (length - 1), whole[:, length - 1]


def plot_slopes(
    *,
    heads: Sequence[int] = (8, 12, 16),
    trained_length: int | None = None,
    length: int | None = None,
    theme: str = "light",
) -> Figure:
    """Draw ALiBi's slopes against the heads, for models with these numbers of heads.

    `m_h = 2^(-8(h+1)/H)` for H a power of two, the steepest first; for others, `alibi_slopes`. With lengths, also the
    scaled slopes `m_h · L/L'`.

    Args:
        heads: H of each curve.
        trained_length: L, tokens.
        length: L', tokens.
        theme: "light" or "dark".

    Raises:
        ValueError: no H or one below 1, one of the lengths alone or below 1, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Press et al. 2022 (arXiv 2108.12409), section 3; Al-Khateeb et al. 2023 (arXiv 2310.13017), section 3.

    Example:
        >>> figure = pejax.visualize.plot_slopes(heads=(8, 12), trained_length=512, length=2048)
    """
    picture, colors = "plot_slopes", theme_of("plot_slopes", theme)
    if not heads:
        refuse(picture, "heads must be at least one number", tuple(heads))
    if (trained_length is None) != (length is None):
        refuse(picture, "trained_length and length go together", f"{trained_length} and {length}")
    check_count(picture, **{f"heads[{i}]": count for i, count in enumerate(heads)})
    figure, panels = new_figure(colors, panel=(6.0, 4.0))
    axes = panels[0, 0]
    for i, count in enumerate(heads):
        slopes, style = alibi_slopes(count), line_style(colors, i)
        size = max(9 - 2.5 * i, 3)  # of curves that coincide, all are seen
        axes.plot(np.arange(count), np.asarray(slopes), marker="o", markersize=size, label=f"{count} heads", **style)
        if trained_length is not None and length is not None:
            check_count(picture, trained_length=trained_length, length=length)
            scaled = np.asarray(scale_alibi_slopes(slopes, trained_length, length))
            note = f"{count} heads, scaled for {length} tokens, trained on {trained_length}"
            axes.plot(
                np.arange(count), scaled, marker="s", markersize=3, color=style["color"], linestyle=":", label=note
            )
    axes.set_yscale("log", base=2)
    axes.set(xlabel="head", ylabel="slope, logits per token", title="ALiBi: slope of each head")
    axes.xaxis.get_major_locator().set_params(integer=True)
    grid(axes, colors)
    legend(axes, colors)
    return figure


def plot_grid_bias(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    patch: tuple[int, int] | None = None,
    heads: Sequence[int] | None = None,
    seed: int = 0,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw what an encoding adds to the logits of one patch as a query, on the grid of the keys, head by head.

    `bias[h, patch, (row, column)]`, as ALiBi's `-m_h · sqrt(Δrow² + Δcolumn²)` in two dimensions

    Args:
        encoding: with a bias.
        dims: it was made for, on two axes; their `extent` is the grid.
        params: its parameters, not yet adapted. None = the initial ones.
        patch: (row, column) of the query. None = in the middle.
        heads: those drawn. None = at most four.
        seed: of queries and keys, where the bias depends on them.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: an encoding without a bias, other than two axes, no grid, a patch outside of it, a head that is not
            there, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Fuller et al. 2023, "CROMA" (arXiv 2311.00566), section 3.2.

    Example:
        >>> dims = pejax.Dims(heads=8, head_dim=64, axes=2, extent=(14, 14))
        >>> figure = pejax.visualize.plot_grid_bias(pejax.encodings.alibi(dims), dims, patch=(3, 9))
    """
    picture, colors = "plot_grid_bias", theme_of("plot_grid_bias", theme)
    check_hooks(picture, encoding, "bias", "distance_bias")
    check_axes(picture, dims, 2)
    extent = extent_of(picture, dims, None)
    assert isinstance(extent, tuple)  # two axes
    rows, columns = extent
    row, column = (rows // 2, columns // 2) if patch is None else patch
    if not (0 <= row < rows and 0 <= column < columns):
        refuse(picture, f"patch must be within the grid {extent}", patch)
    shown = chosen(picture, "heads", heads, dims.heads, 4)
    bias = np.asarray(bias_of(encoding, make_layer(encoding, dims, params, extent, seed=seed)))
    of_patch = bias[:, row * columns + column].reshape(-1, rows, columns)
    signs = signs_of([of_patch[head] for head in shown])
    title = titled(name, f"bias of the query at row {row}, column {column}")
    figure, panels = new_figure(colors, 1, len(shown), panel=(3.0, 2.9), title=title, sharey=True)
    for axes, head in zip(panels[0], shown, strict=True):
        image = heat_map(axes, of_patch[head], colors, signed=True, signs=signs, aspect="equal")
        axes.plot(
            column, row, "s", markersize=7, markerfacecolor="none", markeredgecolor=colors.mark, markeredgewidth=1.8
        )
        axes.set(title=f"head {head}", xlabel="column, patches")
        color_bar(figure, image, axes, colors, "added to the logit", shrink=0.75)
    panels[0, 0].set_ylabel("row, patches")
    return figure


def plot_logit_terms(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    length: int | None = None,
    head: int = 0,
    seed: int = 0,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw how the weights of one head come about: the product of queries and keys, the bias, their sum, its softmax.

    `w = softmax(scale · q·k + bias)`

    Args:
        encoding: any; without a bias that panel is 0 throughout.
        dims: it was made for. A grid is drawn in raster order.
        params: its parameters, not yet adapted. None = the initial ones.
        length: T, tokens. None = the trained length, or the grid.
        head: which one.
        seed: of tokens and projections.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: a length below 1, a head that is not there, an encoding in bands, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Press et al. 2022 (arXiv 2108.12409), figure 3; Fuller et al. 2023 (arXiv 2311.00566), section 3.2.

    Example:
        >>> dims = pejax.Dims(heads=8, head_dim=64, causal=True)
        >>> figure = pejax.visualize.plot_logit_terms(pejax.encodings.alibi(dims), dims, length=12, head=2)
    """
    picture, colors = "plot_logit_terms", theme_of("plot_logit_terms", theme)
    if encoding.bands:
        refuse(picture, "the encoding must rotate all pairs alike", f"{len(encoding.bands)} bands")
    extent = extent_of(picture, dims, length)
    chosen(picture, "head", [head], dims.heads, 1)
    layer = make_layer(encoding, dims, params, extent, seed=seed)
    products, bias = products_of(encoding, dims, layer)[head], bias_of(encoding, layer)[head]
    unit = "position, tokens" if dims.axes == 1 else "patch, raster order"
    title = titled(name, f"head {head}: logits = scale · q·k + bias")
    figure, panels = new_figure(colors, 1, 4, panel=(3.4, 3.2), title=title, sharey=True)
    parts = {"scale · q·k": products, "bias": bias, "logits": products + bias}
    for axes, (label, matrix) in zip(panels[0], parts.items(), strict=False):
        image = heat_map(axes, seen_only(encoding, matrix), colors, signed=True, aspect="equal")
        color_bar(figure, image, axes, colors, label, shrink=0.75)
        axes.set(title=label, xlabel=f"key {unit}")
    weights = seen_only(encoding, weights_of(encoding, dims, layer)[head])
    image = heat_map(panels[0, 3], weights, colors, signed=False, aspect="equal")
    color_bar(figure, image, panels[0, 3], colors, "weight", shrink=0.75)
    panels[0, 3].set(title="weights", xlabel=f"key {unit}")
    panels[0, 0].set_ylabel(f"query {unit}")
    return figure


def plot_t5_buckets(
    *, buckets: int = 32, max_distance: int = 128, reach: int | None = None, theme: str = "light"
) -> Figure:
    """Draw T5's buckets against the distance, with keys on both sides of the query and with keys before it alone.

    Bidirectional: `bucket(0) = 0`, keys before the query count from 1, keys after it from `buckets/2 + 1`. Exact up to
    a quarter of the buckets (half, where causal), then logarithmic; from `max_distance` on all share the last one.

    Args:
        buckets: in all, even.
        max_distance: tokens.
        reach: distances drawn, tokens. None = 1.25 · max_distance.
        theme: "light" or "dark".

    Raises:
        ValueError: what `t5_bucket` refuses, a reach below 1, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Raffel et al. 2020 (arXiv 1910.10683), section 2.1.

    Example:
        >>> figure = pejax.visualize.plot_t5_buckets()
    """
    picture, colors = "plot_t5_buckets", theme_of("plot_t5_buckets", theme)
    reach = int(1.25 * max_distance) if reach is None else reach
    check_count(picture, reach=reach)
    figure, panels = new_figure(colors, 1, 2, panel=(5.2, 3.8), title="T5: bucket of each distance", sharey=True)
    relative = np.arange(-reach, reach + 1)
    for axes, both in zip(panels[0], (True, False), strict=True):
        kept = relative if both else relative[relative <= 0]
        sides = (kept[kept <= 0], kept[kept > 0])
        for i, side in enumerate(sides[: 1 + both]):
            bucket = t5_bucket(jnp.asarray(side), bidirectional=both, buckets=buckets, max_distance=max_distance)
            label = ("keys before the query, and itself", "keys after the query")[i]
            axes.plot(
                side, np.asarray(bucket), drawstyle="steps-mid", linewidth=1.5, label=label, **line_style(colors, i)
            )
        for i, edge in enumerate((-max_distance, max_distance)[: 1 + both]):
            mark_trained(axes, colors, edge, label="" if i else f"max_distance, {max_distance} tokens")
        axes.set(title="bidirectional" if both else "causal", xlabel="key - query, tokens")
        grid(axes, colors)
        legend(axes, colors, loc="upper right" if not both else "best")
    panels[0, 0].set_ylabel("bucket")
    return figure


def plot_transformer_xl_terms(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    length: int | None = None,
    head: int = 0,
    seed: int = 0,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw the four terms of Transformer-XL's logits, each measured on the encoding itself.

    `logit = scale · (q_i · k_j + q_i · W r(i - j) + u · k_j + v · W r(i - j))`, in this order; r is a fixed sinusoid

    Args:
        encoding: `transformer_xl`, on one axis.
        dims: it was made for.
        params: its parameters, not yet adapted. None = the initial ones.
        length: T, tokens. None = the trained length.
        head: which one.
        seed: of tokens and projections.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: another encoding, more than one axis, a length below 1, a head that is not there, an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Dai et al. 2019, "Transformer-XL" (arXiv 1901.02860), section 3.3.

    Example:
        >>> dims = pejax.Dims(heads=4, head_dim=16, causal=True)
        >>> figure = pejax.visualize.plot_transformer_xl_terms(pejax.encodings.transformer_xl(dims), dims, length=24)
    """
    picture, colors = "plot_transformer_xl_terms", theme_of("plot_transformer_xl_terms", theme)
    check_axes(picture, dims, 1)
    check_hooks(picture, encoding, "relative_keys")
    extent = extent_of(picture, dims, length)
    chosen(picture, "head", [head], dims.heads, 1)
    layer = make_layer(encoding, dims, params, extent, seed=seed)
    q, k = turned(encoding, layer)
    hook, none = pair_bias(encoding), jnp.zeros_like(q)
    assert hook is not None  # relative_keys comes with a bias
    at = lambda q, k: head_by_head(hook, layer.params, q, k, layer.positions)[head]
    position = at(none, none)
    terms = {
        "content, content\nscale · q·k": products_of(encoding, dims, layer)[head],
        "content, position\nscale · q·Wr": at(q, none) - position,
        "any query, content\nscale · u·k": at(none, k) - position,
        "any query, position\nscale · v·Wr": position,
    }
    matrices = {label: seen_only(encoding, term) for label, term in terms.items()}
    return _maps(
        matrices, colors, dims, titled(name, f"head {head}: four terms"), "part of the logit", signed=True, alone=True
    )


def plot_shaw_table(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    length: int | None = None,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw which row of Shaw's table each pair of tokens reads, and the table.

    `row[i, j] = clip(j - i, -m, m) + m`: beyond m tokens all share the first or the last of the 2m + 1 rows

    Args:
        encoding: `shaw`, on one axis.
        dims: it was made for.
        params: its parameters, not yet adapted. None = the initial ones.
        length: T, tokens. None = the trained length.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: an encoding without such a table, more than one axis, a length below 1, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Shaw et al. 2018 (arXiv 1803.02155), equations 3 to 5.

    Example:
        >>> dims = pejax.Dims(heads=4, head_dim=16)
        >>> figure = pejax.visualize.plot_shaw_table(pejax.encodings.shaw(dims, clip=8), dims, length=32)
    """
    picture, colors = "plot_shaw_table", theme_of("plot_shaw_table", theme)
    check_axes(picture, dims, 1)
    extent = extent_of(picture, dims, length)
    assert isinstance(extent, int)  # one axis
    shared, _ = split_params(settled(encoding, params, extent))
    if "key_table" not in shared:
        refuse(picture, "the encoding must have a key_table, as shaw has", sorted(shared) or "no shared parameters")
    table = np.asarray(shared["key_table"])
    clip = (len(table) - 1) // 2
    # queries of one channel that is 1 meet a table whose rows are their own number
    at, numbers = jnp.arange(extent), jnp.arange(len(table), dtype=jnp.float32)[:, None]
    rows = np.asarray(shaw_logits(jnp.ones((extent, 1, 1), jnp.float32), at, at, numbers, scale=1.0))[0]
    figure, panels = new_figure(colors, 1, 3, panel=(4.2, 3.6), title=titled(name, "the clipped table"))
    image = heat_map(panels[0, 0], rows, colors, signed=False, aspect="equal")
    color_bar(figure, image, panels[0, 0], colors, "row of the table", shrink=0.85)
    panels[0, 0].set(title="row that each pair reads", xlabel="key position, tokens", ylabel="query position, tokens")
    middle = extent // 2
    panels[0, 1].plot(np.arange(extent) - middle, rows[middle], drawstyle="steps-mid", **line_style(colors, 0))
    for i, edge in enumerate((-clip, clip)):
        mark_trained(panels[0, 1], colors, edge, label="" if i else f"clip, {clip} tokens")
    panels[0, 1].set(title=f"of the query at {middle}", xlabel="key - query, tokens", ylabel="row of the table")
    grid(panels[0, 1], colors)
    legend(panels[0, 1], colors)
    image = heat_map(
        panels[0, 2], table, colors, signed=True, extent=(-0.5, table.shape[1] - 0.5, clip + 0.5, -clip - 0.5)
    )
    color_bar(figure, image, panels[0, 2], colors, "added to the key", shrink=0.85)
    panels[0, 2].set(title="the table of keys", xlabel="channel", ylabel="key - query, tokens")
    return figure
