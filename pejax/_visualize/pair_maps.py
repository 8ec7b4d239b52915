"""Maps of pairs of tokens, several in one figure: rows are queries, columns are keys."""

import numpy as np

from pejax._record.dims import Dims
from pejax._visualize.layer import exceeded
from pejax._visualize.style import WIDE, Canvas, Figure, Theme, scale_ticks, shared_scale


def pair_maps(
    matrices: dict[str, np.ndarray],
    colors: Theme,
    dims: Dims,
    title: str,
    label: str,
    *,
    signed: bool,
    alone: bool = False,
    panel: tuple[float, float] | None = None,
    shrink: float = 0.8,
) -> Figure:
    """Draw one map per panel, up to four in two columns, more in three.

    Args:
        matrices: numbers `(T, S)` by the title of their panel.
        colors: the theme.
        dims: dims of the encoding; where the maps exceed its trained length, that is marked.
        title: title above all panels.
        label: label of the color bar.
        signed: whether numbers may be negative.
        alone: whether every map has a scale and a color bar of its own; else all share one.
        panel: width and height of a panel, inches. None = those that fit into the usual width.
        shrink: height of the color bar, as a part of that of its panels.
    """
    columns = min(2 if len(matrices) <= 4 else 3, len(matrices))
    panel = panel or ((2.8, 2.5) if alone else (1.2 * WIDE / columns, 1.15 * WIDE / columns))
    rows = -(-len(matrices) // columns)
    canvas = Canvas(colors, rows, columns, panel=panel, title=title, sharex=True, sharey=True)
    panels = canvas.panels.flat
    scale = {} if alone else shared_scale(list(matrices.values()), rooted=signed)
    unit = "position, tokens" if dims.axes == 1 else "patch, raster order"
    for axes, (heading, matrix) in zip(panels, matrices.items(), strict=False):
        bar = label if alone else ""
        image = canvas.heat_map(axes, matrix, signed=signed, aspect="equal", bar=bar, shrink=shrink, **scale)
        trained = exceeded(dims, len(matrix))
        canvas.mark_trained(axes, None if trained is None else trained - 0.5, also_y=True)
        axes.set_title(heading)
    for axes in panels[len(matrices) :]:
        axes.set_axis_off()
    canvas.label_outer("", f"query {unit}")
    for axes in panels[max(0, len(matrices) - columns) :]:  # in the last row, or above an empty panel of it
        axes.set_xlabel(f"key {unit}")
        axes.xaxis.set_tick_params(labelbottom=True)
    if not alone:
        canvas.color_bar(image, canvas.panels, label, shrink=shrink, **scale_ticks(scale))
    return canvas.figure
