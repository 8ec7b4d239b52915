"""Pictures of encodings of the input: as a heat map, as curves, and by the similarity of positions."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.layer import LENGTH, check_axes, check_count, check_hooks, exceeded, settled, trained_length
from pejax._visualize.style import WIDE, Canvas, Figure, chosen, titled
from pejax._visualize.subject import Subject


def added_table(
    picture: str, encoding: Encoding, dims: Dims, params: Params | None, length: int | None
) -> Float[np.ndarray, "T C"]:
    """Return the vectors that `embed` adds at positions 0 ... T-1: its results for tokens that are 0."""
    check_hooks(picture, encoding, "embed")
    check_axes(picture, dims, 1)
    if length is not None:
        check_count(picture, length=length)
    length = length or trained_length(dims) or 2 * LENGTH
    embed = encoding.embed
    assert embed is not None  # checked above
    zeros = jnp.zeros((length, dims.width), jnp.float32)
    return np.asarray(embed(settled(encoding, params, length), zeros, jnp.arange(length)))


def _end(dims: Dims, length: int) -> float | None:
    """Return the end of the trained positions, where the picture goes beyond them."""
    trained = exceeded(dims, length)
    return None if trained is None else trained - 0.5


class EmbeddingPictures(Subject):
    """Pictures of what is added to the input: methods of `Pictures`."""

    def embedding(
        self,
        *,
        length: int | None = None,
    ) -> Figure:
        """Draw the vectors that an encoding adds to the input as a heat map: a row per position, a column per channel.

        `E[p, c] = embed(0)[p, c]`, for the sinusoid `sin` and `cos` of `p · base^(-2i/C)` in turn

        Args:
            length: T, tokens. None = the trained length. The end of the trained positions is marked.

        Raises:
            ValueError: an encoding that embeds nothing, more than one axis, or a length below 1 or beyond a
                learned table.
            ImportError: matplotlib is not installed.

        Reference:
            Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), section 3.5.

        Examples:
            >>> dims = pejax.Dims(heads=4, head_dim=16, extent=64)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.sinusoidal(dims)).embedding(length=96)
        """
        encoding, dims, params = self.parts
        colors = self.colors
        table = added_table("Pictures.embedding", encoding, dims, params, length)
        canvas = Canvas(colors, panel=(WIDE, 3.6))
        axes = canvas.panels[0, 0]
        canvas.heat_map(axes, table, signed=True, bar="added to the input")
        end = _end(dims, len(table))
        canvas.mark_trained(axes, end, horizontal=True, label=f"trained length, {trained_length(dims)} tokens")
        if end is not None:
            canvas.legend(axes, loc="lower right")
        axes.set(xlabel="channel", ylabel="position, tokens", title=titled(self.name, "what is added to the input"))
        return canvas.figure

    def embedding_curves(
        self,
        *,
        length: int | None = None,
        channels: Sequence[int] | None = None,
    ) -> Figure:
        """Draw the numbers that an encoding adds to single channels against the position, one panel per channel.

        `p ↦ E[p, c]` as in `embedding`; a sinusoid's channels 2i and 2i + 1 share the wavelength `2π · base^(2i/C)`.

        Args:
            length: T, tokens. None = the trained length.
            channels: channels that are drawn. None = five, more of the first ones.

        Raises:
            ValueError: as `embedding`, or a channel that is not there.
            ImportError: matplotlib is not installed.

        Reference:
            Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), section 3.5.

        Examples:
            >>> dims = pejax.Dims(heads=4, head_dim=16, extent=64)
            >>> sinusoid = pejax.encodings.sinusoidal(dims)
            >>> figure = pejax.visualize.Pictures(sinusoid).embedding_curves(channels=[0, 16, 62])
        """
        encoding, dims, params = self.parts
        colors = self.colors
        table = added_table("Pictures.embedding_curves", encoding, dims, params, length)
        width = table.shape[1]
        choice = sorted({0, width // 8, width // 4, width // 2, width - 1}) if channels is None else channels
        indices = chosen("Pictures.embedding_curves", "channels", choice, width, 5)
        title = titled(self.name, "channels by position")
        canvas = Canvas(colors, len(indices), panel=(WIDE, 1.25), title=title, sharex=True, sharey=True)
        for i, (axes, channel) in enumerate(zip(canvas.panels[:, 0], indices, strict=True)):
            axes.plot(np.arange(len(table)), table[:, channel], linewidth=1.4, **canvas.line(i))
            axes.set_ylabel(f"channel {channel}")
            canvas.grid(axes)
            canvas.mark_trained(axes, _end(dims, len(table)))
        canvas.panels[-1, 0].set_xlabel("position, tokens")
        return canvas.figure

    def position_similarity(
        self,
        *,
        length: int | None = None,
    ) -> Figure:
        """Draw the similarity of positions: the cosine of the vectors that are added at every two of them.

        `cos(p, p') = E_p · E_p' / (|E_p| |E_p'|)`; for the sinusoid it is the mean over pairs i of `cos((p' - p) f_i)`:
        a function of the distance alone, that falls quickly, then slowly, and not monotonically.

        Args:
            length: T, tokens. None = the trained length.

        Raises:
            ValueError: as `embedding`.
            ImportError: matplotlib is not installed.

        Reference:
            Wang & Chen 2020, "What Do Position Embeddings Learn?" (arXiv 2010.04903), figure 1.

        Examples:
            >>> dims = pejax.Dims(heads=8, head_dim=64, extent=50)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.sinusoidal(dims)).position_similarity()
        """
        encoding, dims, params = self.parts
        colors = self.colors
        table = added_table("Pictures.position_similarity", encoding, dims, params, length).astype(np.float64)
        unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-30)
        cosines = unit @ unit.T
        canvas = Canvas(colors, 2, 1, panel=(WIDE, 3.4), title=titled(self.name, "how alike positions are"))
        left, right = canvas.panels[:, 0]
        canvas.heat_map(left, cosines, signed=True, top=1.0, aspect="equal", bar="cosine")
        canvas.mark_trained(left, _end(dims, len(table)), also_y=True)
        left.set(xlabel="position, tokens", ylabel="position, tokens", title="cosine of every two positions")
        for i, start in enumerate(sorted({0, len(table) // 2, len(table) - 1})):
            right.plot(np.arange(len(table)) - start, cosines[start], label=f"from position {start}", **canvas.line(i))
        right.set(xlabel="distance to the other position, tokens", ylabel="cosine", title="cosine by distance")
        canvas.grid(right)
        canvas.legend(right, loc="lower center")
        return canvas.figure
