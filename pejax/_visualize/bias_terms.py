"""Pictures of the terms and tables behind a bias: ALiBi on logits, T5, Transformer-XL, Shaw."""

import jax.numpy as jnp
import numpy as np

from pejax._encodings.shaw import shaw_logits
from pejax._encodings.t5 import t5_bucket
from pejax._record.encoding import split_params
from pejax._visualize.layer import (
    bias_of,
    bias_of_pairs,
    check_axes,
    check_count,
    check_hooks,
    extent_of,
    head_by_head,
    length_of,
    make_layer,
    products_of,
    refuse,
    seen_only,
    settled,
    turned,
    weights_of,
)
from pejax._visualize.pair_maps import pair_maps
from pejax._visualize.style import WIDE, Canvas, Figure, chosen, theme_of, titled
from pejax._visualize.subject import Subject


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

    Examples:
        >>> figure = pejax.visualize.plot_t5_buckets()
    """
    picture, colors = "plot_t5_buckets", theme_of("plot_t5_buckets", theme)
    reach = int(1.25 * max_distance) if reach is None else reach
    check_count(picture, reach=reach)
    canvas = Canvas(colors, 2, 1, panel=(WIDE, 3.2), title="T5: bucket of each distance", sharex=True)
    relative = np.arange(-reach, reach + 1)
    for axes, bidirectional in zip(canvas.panels[:, 0], (True, False), strict=True):
        distances = relative if bidirectional else relative[relative <= 0]
        sides = (distances[distances <= 0], distances[distances > 0])
        for i, side in enumerate(sides[: 1 + bidirectional]):
            bucket = t5_bucket(
                jnp.asarray(side), bidirectional=bidirectional, buckets=buckets, max_distance=max_distance
            )
            label = ("keys before the query, and itself", "keys after the query")[i]
            axes.plot(side, np.asarray(bucket), drawstyle="steps-mid", linewidth=1.5, label=label, **canvas.line(i))
        for i, edge in enumerate((-max_distance, max_distance)[: 1 + bidirectional]):
            canvas.mark_trained(axes, edge, label="" if i else f"max_distance, {max_distance} tokens")
        axes.set(title="bidirectional" if bidirectional else "causal", ylabel="bucket")
        canvas.grid(axes)
    handles, labels = canvas.panels[0, 0].get_legend_handles_labels()
    canvas.legend(canvas.figure, handles=handles, labels=labels, loc="outside lower center")
    canvas.panels[-1, 0].set_xlabel("key - query, tokens")
    return canvas.figure


class LogitPictures(Subject):
    """Pictures of the terms of the logits: methods of `Pictures`."""

    def logit_terms(
        self,
        *,
        length: int | None = None,
        head: int = 0,
        seed: int = 0,
    ) -> Figure:
        """Draw how the weights of one head come about: products of queries and keys, the bias, their sum, its softmax.

        `w = softmax(scale · q·k + bias)`

        Args:
            length: T, tokens. None = the trained length, or the grid, in raster order.
            head: index of the head that is drawn.
            seed: random seed of tokens and projections.

        Raises:
            ValueError: a length below 1, a head that is not there, or an encoding in bands.
            ImportError: matplotlib is not installed.

        Reference:
            Press et al. 2022 (arXiv 2108.12409), figure 3; Fuller et al. 2023 (arXiv 2311.00566), section 3.2.

        Examples:
            >>> dims = pejax.Dims(heads=8, head_dim=64, causal=True)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.alibi(dims)).logit_terms(length=12, head=2)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.logit_terms", self.colors
        if encoding.bands:
            refuse(picture, "the encoding must rotate all pairs alike", f"{len(encoding.bands)} bands")
        extent = extent_of(picture, dims, length)
        chosen(picture, "head", [head], dims.heads, 1)
        layer = make_layer(encoding, dims, params, extent, seed=seed)
        products, bias = products_of(encoding, dims, layer)[head], bias_of(encoding, layer)[head]
        unit = "position, tokens" if dims.axes == 1 else "patch, raster order"
        title = titled(self.name, f"head {head}: logits = scale · q·k + bias")
        canvas = Canvas(colors, 2, 2, panel=(2.8, 2.25), title=title, sharex=True, sharey=True)
        weights = weights_of(encoding, dims, layer)[head]
        parts = {"scale · q·k": products, "bias": bias, "logits": products + bias, "weights": weights}
        for axes, (label, matrix) in zip(canvas.panels.flat, parts.items(), strict=True):
            bar = {"bar": "weight" if label == "weights" else label, "shrink": 0.75}
            canvas.heat_map(axes, seen_only(encoding, dims, matrix), signed=label != "weights", aspect="equal", **bar)
            axes.set_title(label)
        canvas.label_outer(f"key {unit}", f"query {unit}")
        return canvas.figure

    def transformer_xl_terms(
        self,
        *,
        length: int | None = None,
        head: int = 0,
        seed: int = 0,
    ) -> Figure:
        """Draw the four terms of Transformer-XL's logits, each measured on the encoding itself.

        `logit = scale · (q_i · k_j + q_i · W r(i - j) + u · k_j + v · W r(i - j))`, in this order; r is a sinusoid

        Args:
            length: T, tokens. None = the trained length.
            head: index of the head that is drawn.
            seed: random seed of tokens and projections.

        Raises:
            ValueError: another encoding, more than one axis, a length below 1, or a head that is not there.
            ImportError: matplotlib is not installed.

        Reference:
            Dai et al. 2019, "Transformer-XL" (arXiv 1901.02860), section 3.3.

        Examples:
            >>> dims = pejax.Dims(heads=4, head_dim=16, causal=True)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.transformer_xl(dims)).transformer_xl_terms(length=24)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.transformer_xl_terms", self.colors
        check_axes(picture, dims, 1)
        check_hooks(picture, encoding, "relative_keys")
        extent = extent_of(picture, dims, length)
        chosen(picture, "head", [head], dims.heads, 1)
        layer = make_layer(encoding, dims, params, extent, seed=seed)
        q, k = turned(encoding, layer)
        hook, none = bias_of_pairs(picture, encoding), jnp.zeros_like(q)
        at = lambda q, k: head_by_head(hook, layer.params, q, k, layer.positions)[head]
        position = at(none, none)
        terms = {
            "content, content\nscale · q·k": products_of(encoding, dims, layer)[head],
            "content, position\nscale · q·Wr": at(q, none) - position,
            "any query, content\nscale · u·k": at(none, k) - position,
            "any query, position\nscale · v·Wr": position,
        }
        matrices = {label: seen_only(encoding, dims, term) for label, term in terms.items()}
        title = titled(self.name, f"head {head}: four terms")
        return pair_maps(matrices, colors, dims, title, "part of the logit", signed=True, alone=True)

    def shaw_table(
        self,
        *,
        length: int | None = None,
    ) -> Figure:
        """Draw which row of Shaw's table each pair of tokens reads, and the table.

        `row[i, j] = clip(j - i, -m, m) + m`: beyond m tokens all share the first or the last of the 2m + 1 rows

        Args:
            length: T, tokens. None = the trained length.

        Raises:
            ValueError: an encoding without such a table, more than one axis, or a length below 1.
            ImportError: matplotlib is not installed.

        Reference:
            Shaw et al. 2018 (arXiv 1803.02155), equations 3 to 5.

        Examples:
            >>> dims = pejax.Dims(heads=4, head_dim=16)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.shaw(dims, clip=8)).shaw_table(length=32)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.shaw_table", self.colors
        check_axes(picture, dims, 1)
        extent = length_of(picture, dims, length)
        shared, _ = split_params(settled(encoding, params, extent))
        if "key_table" not in shared:
            refuse(picture, "the encoding must have a key_table, as shaw has", sorted(shared) or "no shared parameters")
        table = np.asarray(shared["key_table"])
        clip = (len(table) - 1) // 2
        # queries of one channel that is 1 meet a table whose rows are their own number
        at, numbers = jnp.arange(extent), jnp.arange(len(table), dtype=jnp.float32)[:, None]
        rows = np.asarray(shaw_logits(jnp.ones((extent, 1, 1), jnp.float32), at, at, numbers, scale=1.0))[0]
        canvas = Canvas(colors, 3, 1, panel=(WIDE, 3.2), title=titled(self.name, "the clipped table"))
        left, middle, right = canvas.panels[:, 0]
        canvas.heat_map(left, rows, signed=False, aspect="equal", bar="row of the table", shrink=0.85)
        left.set(title="row that each pair reads", xlabel="key position, tokens", ylabel="query position, tokens")
        query = extent // 2
        middle.plot(np.arange(extent) - query, rows[query], drawstyle="steps-mid", **canvas.line(0))
        for i, edge in enumerate((-clip, clip)):
            canvas.mark_trained(middle, edge, label="" if i else f"clip, {clip} tokens")
        middle.set(title=f"of the query at {query}", xlabel="key - query, tokens", ylabel="row of the table")
        canvas.grid(middle)
        canvas.legend(middle)
        corners = (-0.5, table.shape[1] - 0.5, clip + 0.5, -clip - 0.5)
        canvas.heat_map(right, table, signed=True, extent=corners, bar="added to the key", shrink=0.85)
        right.set(title="the table of keys", xlabel="channel", ylabel="key - query, tokens")
        return canvas.figure
