"""Pictures of biases: per head, by distance, and on a grid."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.layer import (
    bias_of,
    bias_of_pairs,
    check_axes,
    check_hooks,
    exceeded,
    extent_of,
    grid_of,
    head_by_head,
    is_causal,
    make_layer,
    refuse,
    seen_only,
    settled,
    twice_trained,
)
from pejax._visualize.pair_maps import pair_maps
from pejax._visualize.style import WIDE, Canvas, Figure, chosen, scale_ticks, shared_scale, titled
from pejax._visualize.subject import Subject


def _by_distance(
    encoding: Encoding, dims: Dims, params: Params, length: int
) -> tuple[np.ndarray, Float[np.ndarray, "H R"]]:
    """Return distances and the bias of each head there, read from the pairs of the last query (or the middle one)."""
    hook = bias_of_pairs("Pictures.bias_curves", encoding)
    if encoding.relative_keys is not None or encoding.relative_values is not None:
        refuse("Pictures.bias_curves", "the bias must read positions alone", "one that reads queries")
    size = length if is_causal(encoding, dims) else 2 * length - 1
    zeros = jnp.zeros((size, dims.heads, dims.head_dim), jnp.float32)
    matrix = np.asarray(head_by_head(hook, params, zeros, zeros, jnp.arange(size)))
    if is_causal(encoding, dims):
        return np.arange(size), matrix[:, -1, ::-1]
    return np.arange(size) - (length - 1), matrix[:, length - 1]


class BiasPictures(Subject):
    """Pictures of the bias: methods of `Pictures`."""

    def bias(
        self,
        *,
        length: int | None = None,
        heads: Sequence[int] | None = None,
        seed: int = 0,
    ) -> Figure:
        """Draw the bias of an encoding, head by head: rows are queries, columns are keys.

        `bias[h, i, j]`, as ALiBi's `-m_h · |j - i|`; where it depends on the query, that of random queries

        Args:
            length: T, tokens. None = the trained length, or the grid, in raster order.
            heads: heads that are drawn. None = at most eight, spread over all.
            seed: random seed of queries and keys, where the bias depends on them.

        Raises:
            ValueError: an encoding without a bias, a length below 1, or a head that is not there.
            ImportError: matplotlib is not installed.

        Reference:
            Press et al. 2022, "Train Short, Test Long" (arXiv 2108.12409), figure 3.

        Examples:
            >>> dims = pejax.Dims(heads=8, head_dim=64, causal=True)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.alibi(dims)).bias(length=24)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.bias", self.colors
        check_hooks(picture, encoding, "bias", "distance_bias")
        extent = extent_of(picture, dims, length)
        indices = chosen(picture, "heads", heads, dims.heads, 8)
        bias = seen_only(encoding, dims, bias_of(encoding, make_layer(encoding, dims, params, extent, seed=seed)))
        matrices = {f"head {head}": bias[head] for head in indices}
        return pair_maps(
            matrices, colors, dims, titled(self.name, "bias of each head"), "added to the logit", signed=True
        )

    def bias_curves(
        self,
        *,
        length: int | None = None,
        heads: Sequence[int] | None = None,
    ) -> Figure:
        """Draw the bias of an encoding against the distance, one curve per head.

        `d ↦ bias[h, i, i + d]` for the last query i; where the bias depends on the distance alone, for every query

        Args:
            length: distances up to length - 1 are drawn, tokens. None = twice the trained length.
            heads: heads that are drawn. None = at most eight.

        Raises:
            ValueError: an encoding without a bias, more than one axis, a length below 1, or a head that is not there.
            ImportError: matplotlib is not installed.

        Reference:
            Chi et al. 2022, "KERPLE" (arXiv 2205.09921), section 4.

        Examples:
            >>> dims = pejax.Dims(heads=8, head_dim=64, extent=32, causal=True)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.alibi(dims)).bias_curves()
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.bias_curves", self.colors
        check_hooks(picture, encoding, "bias", "distance_bias")
        check_axes(picture, dims, 1)
        extent = twice_trained(picture, dims, length)
        indices = chosen(picture, "heads", heads, dims.heads, 8)
        params = settled(encoding, params, extent)
        distances, curves = _by_distance(encoding, dims, params, extent)
        canvas = Canvas(colors, panel=(WIDE, 3.6))
        axes = canvas.panels[0, 0]
        for i, head in enumerate(indices):
            axes.plot(distances, curves[head], label=f"head {head}", linewidth=1.5, **canvas.line(i))
        trained = exceeded(dims, extent)
        if trained is not None:
            for end in (trained - 1, 1 - trained)[: 2 - (min(distances) >= 0)]:
                canvas.mark_trained(axes, end, label=f"trained: {trained} tokens" if end > 0 else "")
        label = "distance to the key before the query, tokens" if is_causal(encoding, dims) else "key - query, tokens"
        axes.set(xlabel=label, ylabel="added to the logit", title=titled(self.name, "bias by distance"))
        canvas.grid(axes)
        canvas.legend(canvas.figure, loc="outside lower center", ncols=3)
        return canvas.figure

    def grid_bias(
        self,
        *,
        patch: tuple[int, int] | None = None,
        heads: Sequence[int] | None = None,
        seed: int = 0,
    ) -> Figure:
        """Draw the bias of one patch as a query, on the grid of the keys, head by head, in the colors of one scale.

        `bias[h, patch, (row, column)]`, as ALiBi's `-m_h · sqrt(Δrow² + Δcolumn²)` in two dimensions

        Args:
            patch: (row, column) of the query. None = in the middle.
            heads: heads that are drawn. None = at most four.
            seed: random seed of queries and keys, where the bias depends on them.

        Raises:
            ValueError: an encoding without a bias, other than two axes, no grid, a patch outside of it, or a head that
                is not there.
            ImportError: matplotlib is not installed.

        Reference:
            Fuller et al. 2023, "CROMA" (arXiv 2311.00566), section 3.2.

        Examples:
            >>> dims = pejax.Dims(heads=8, head_dim=64, axes=2, extent=(14, 14))
            >>> figure = pejax.visualize.Pictures(pejax.encodings.alibi(dims)).grid_bias(patch=(3, 9))
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.grid_bias", self.colors
        check_hooks(picture, encoding, "bias", "distance_bias")
        check_axes(picture, dims, 2)
        extent = grid_of(picture, dims)
        rows, columns = extent
        row, column = (rows // 2, columns // 2) if patch is None else patch
        if not (0 <= row < rows and 0 <= column < columns):
            refuse(picture, f"patch must be within the grid {extent}", patch)
        indices = chosen(picture, "heads", heads, dims.heads, 4)
        bias = np.asarray(bias_of(encoding, make_layer(encoding, dims, params, extent, seed=seed)))
        of_patch = bias[:, row * columns + column].reshape(-1, rows, columns)
        scale = shared_scale([of_patch[head] for head in indices])
        title = titled(self.name, f"bias of the query at row {row}, column {column}")
        canvas = Canvas.of(colors, len(indices), panel=(2.3, 2.05), title=title, sharex=True, sharey=True)
        for axes, head in zip(canvas.panels.flat, indices, strict=False):
            image = canvas.heat_map(axes, of_patch[head], signed=True, aspect="equal", **scale)
            axes.plot(column, row, "s", markersize=7, color=colors.mark, markerfacecolor="none", markeredgewidth=1.8)
            axes.set_title(f"head {head}")
            axes.locator_params(integer=True)
        canvas.label_outer("column, patches", "row, patches")
        canvas.color_bar(image, canvas.panels, "added to the logit", shrink=0.75, **scale_ticks(scale))
        return canvas.figure
