"""Pictures of attention: weights, entropy, logits by distance, longer inputs, word order, and the tiles visited."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.layer import (
    Layer,
    check_axes,
    check_count,
    check_encodings,
    check_width,
    extent_of,
    make_layer,
    refuse,
    seen_only,
    trained_length,
    weights_of,
)
from pejax._visualize.pair_maps import pair_maps
from pejax._visualize.style import Figure, chosen, theme_of, titled
from pejax._visualize.subject import Subject, dims_of


def plot_extrapolation(
    encodings: Mapping[str, Encoding],
    dims: Dims | None = None,
    params: Mapping[str, Params] | None = None,
    *,
    times: int = 4,
    head: int = 0,
    draws: int = 8,
    theme: str = "light",
) -> Figure:
    """Draw attention maps of inputs several times as long as in training, and where the trained length ends.

    Each panel is the mean over words of `w[head]` between copies of one word: `q = k` but for the position, so that
    only position tells them apart. Every row has its own scale, from 0 to its largest weight. Nothing is trained:
    this is what the encoding by itself does at positions never seen.

    Args:
        encodings: encodings by name.
        dims: dims that the encodings were made for, on one axis; their `extent` is the trained length. None =
            their own.
        params: parameters of each encoding, by name, not yet adapted. None, or a missing name = the initial ones.
        times: the length drawn, in trained lengths.
        head: index of the head that is drawn.
        draws: number of words, drawn from a normal distribution.
        theme: "light" or "dark".

    Raises:
        ValueError: no encoding, more than one axis, no trained length, times or draws below 1, a head that is not
            there, an encoding that refuses the length (a learned table that is not resized), or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Press et al. 2022, "Train Short, Test Long" (arXiv 2108.12409), section 2.

    Examples:
        >>> dims = pejax.Dims(heads=2, head_dim=16, extent=8, causal=True)
        >>> both = {"alibi": pejax.encodings.alibi(dims), "rope": pejax.encodings.rope(dims)}
        >>> figure = pejax.visualize.plot_extrapolation(both)
    """
    picture, colors = "plot_extrapolation", theme_of("plot_extrapolation", theme)
    check_encodings(picture, encodings)
    dims = dims_of(picture, dims, encodings)
    check_axes(picture, dims, 1)
    check_count(picture, times=times, draws=draws)
    check_width(picture, dims)
    trained = trained_length(dims)
    if trained is None:
        refuse(picture, "dims.extent must be the trained length", None)
    chosen(picture, "head", [head], dims.heads, 1)
    length = times * (trained or 1)
    maps = {}
    for name, encoding in encodings.items():
        own_params = None if params is None else params.get(name)
        total = sum(_weights_of_copies(encoding, dims, own_params, length, seed) for seed in range(draws))
        weights = seen_only(encoding, dims, total)[head]
        maps[name] = weights / np.maximum(np.nanmax(weights, axis=1, keepdims=True), 1e-30)
    source = "copies of random words, initial parameters" if params is None else "copies of random words"
    title = f"attention at {times} times the trained length, head {head}: {source}"
    label = "weight, of the largest in its row"
    return pair_maps(maps, colors, dims, title, label, signed=False, panel=(2.9, 3.0), shrink=0.7)


def _copies(encoding: Encoding, dims: Dims, params: Params | None, length: int, seed: int) -> Layer:
    """Return a layer of one word many times, its queries and keys the word itself."""
    word = jax.random.normal(jax.random.key(seed), (dims.width,), jnp.float32)
    words = jnp.broadcast_to(word, (length, dims.width))
    return make_layer(encoding, dims, params, length, x=words, project=False)


def _weights_of_copies(
    encoding: Encoding, dims: Dims, params: Params | None, length: int, seed: int
) -> Float[np.ndarray, "H T S"]:
    return np.asarray(weights_of(encoding, dims, _copies(encoding, dims, params, length, seed)))


class WeightPictures(Subject):
    """Pictures of attention weights: methods of `Pictures`."""

    def attention_weights(
        self,
        *,
        length: int | None = None,
        heads: Sequence[int] | None = None,
        seed: int = 0,
    ) -> Figure:
        """Draw the attention weights of one layer with random tokens and projections, head by head.

        `w[h, i, j] = softmax_j(scale · q_i·k_j + bias)`, with queries and keys as the encoding has them

        Args:
            length: T, tokens. None = the trained length, or the grid, in raster order.
            heads: heads that are drawn. None = at most eight, spread over all.
            seed: random seed of tokens and projections.

        Raises:
            ValueError: a length below 1, or a head that is not there.
            ImportError: matplotlib is not installed.

        Reference:
            Vaswani et al. 2017 (arXiv 1706.03762), equation 1.

        Examples:
            >>> dims = pejax.Dims(heads=4, head_dim=16, causal=True)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.alibi(dims)).attention_weights(length=16)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.attention_weights", self.colors
        extent = extent_of(picture, dims, length)
        indices = chosen(picture, "heads", heads, dims.heads, 8)
        weights = seen_only(
            encoding, dims, weights_of(encoding, dims, make_layer(encoding, dims, params, extent, seed=seed))
        )
        matrices = {f"head {head}": weights[head] for head in indices}
        return pair_maps(matrices, colors, dims, titled(self.name, "attention weights"), "weight", signed=False)
