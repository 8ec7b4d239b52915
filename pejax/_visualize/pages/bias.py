"""Biases over a grid to play with: the query's patch is movable."""

from typing import Any

import numpy as np
from jaxtyping import Float

from pejax._visualize.layer import bias_of, make_layer
from pejax._visualize.pages.frame import choice, page, panel, slider
from pejax._visualize.trained import IMAGES

SIDE = 14
"""Side of the largest grid, patches."""
LABELS = {
    "alibi": "ALiBi",
    "lookhere": "LookHere",
    "t5": "T5",
    "kerple": "KERPLE",
    "fire": "FIRE",
    "cpb": "cpb (Swin V2)",
}


def bias_table(name: str) -> dict[str, Any]:
    """Return the bias of every head as tables that are smaller than all pairs of patches.

    Where it depends on the difference of the positions, that is `offset[h][row + 13][column + 13]`. FIRE also reads the
    positions, but adds one term per axis: `rows[h][query][key] + columns[h][query][key]`.
    """
    encoding, dims, extent = IMAGES.encoding(name), IMAGES.dims, (SIDE, SIDE)
    bias = np.asarray(bias_of(encoding, make_layer(encoding, dims, IMAGES.params(name), extent)), np.float64)
    bias = bias.reshape(dims.heads, *extent, *extent)
    if not encoding.shift_invariant:
        columns = bias[:, 0, :, 0, :] - bias[:, :1, 0, 0, :1]
        return {"rows": _listed(bias[:, :, 0, :, 0]), "columns": _listed(columns)}
    offset, last = np.empty((dims.heads, 2 * SIDE - 1, 2 * SIDE - 1)), SIDE - 1
    for row in (0, last):
        for column in (0, last):
            seen = (slice(last - row, last - row + SIDE), slice(last - column, last - column + SIDE))
            offset[:, *seen] = bias[:, row, column]
    return {"offset": _listed(offset)}


def _listed(table: Float[np.ndarray, "..."]) -> list[Any]:
    """Return nested lists of numbers with three decimals; None where a key is hidden."""
    numbers = (np.round(table, 3) + 0.0).astype(object)
    numbers[~np.isfinite(table)] = None
    return numbers.tolist()


def bias_page() -> str:
    """Return a page on biases over a grid of patches: ALiBi, LookHere, T5, KERPLE, FIRE and cpb, head by head.

    Its controls are the encoding, the grid, and the patch of the query. Learned parameters are those after a small
    training on a grid of 7 x 7 patches, and the biases are those of the library.

    Returns:
        HTML that needs no network: write it into a file and open it in a browser.

    Reference:
        Press et al. 2022 (arXiv 2108.12409); Raffel et al. 2020 (arXiv 1910.10683); Chi et al. 2022 (arXiv 2205.09921);
        Li et al. 2024 (arXiv 2310.04418); Liu et al. 2022 (arXiv 2111.09883); Fuller et al. 2024 (arXiv 2405.13985).

    Examples:
        >>> page = pejax.visualize.bias_page()
    """
    tables = {name: bias_table(name) for name in LABELS}
    slopes = tables["alibi"]["offset"]
    panels = [panel(f"head{h}", f"head {h}", _still(slopes[h]), size=(210, 210)) for h in range(IMAGES.dims.heads)]
    panels.append(panel("scale", "added to the logit, in all heads", size=(360, 50)))
    return page(
        "Biases over a grid",
        "What each encoding adds to the logit of a query, for every key of the grid. Touch or click a patch to move the"
        " query there. ALiBi and LookHere are fixed; T5, KERPLE, FIRE and cpb are shown as trained: each was the only"
        " encoding of a small vision transformer, for four epochs of Fashion-MNIST at 7 × 7 patches.",
        controls=[
            choice("encoding", "encoding", LABELS, "alibi"),
            choice("grid", "grid", {"7": "7 × 7 (trained)", "14": "14 × 14"}, "7"),
            slider("row", "row of the query", (0, 6), 2),
            slider("column", "column of the query", (0, 6), 4),
        ],
        panels=panels,
        still="The still shows ALiBi with the query at row 2, column 4.",
        script="bias.js",
        data={"side": SIDE, "tables": tables},
    )


def _still(offset: list[list[float]], row: int = 2, column: int = 4) -> str:
    """Return the patches of one head of ALiBi."""
    patch = '<rect class="{kind}" x="{x}" y="{y}" width="29" height="29" fill-opacity="{shade:.2f}"/>'
    top, patches = 2.2, []
    for r in range(7):
        for c in range(7):
            shade = (-offset[r - row + SIDE - 1][c - column + SIDE - 1] / top) ** 0.5
            patches.append(patch.format(kind="below", x=30 * c, y=30 * r, shade=shade))
    return "".join(patches) + patch.format(kind="query", x=30 * column, y=30 * row, shade=0)
