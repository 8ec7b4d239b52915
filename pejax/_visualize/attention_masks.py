"""Pictures of masks and word order: tiles that attention skips, and words that it cannot tell apart."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pejax._attention.core.masks import visible, visible_blocks
from pejax._attention.core.options import Options
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._tokens.positions import TokenPositions
from pejax._visualize.layer import (
    check_axes,
    check_count,
    check_encodings,
    make_layer,
    positions_of,
    refuse,
    weights_of,
)
from pejax._visualize.style import WIDE, Canvas, Figure, theme_of
from pejax._visualize.subject import dims_of

ROUNDING = 1e-4
"""A difference below this part of the outputs is rounding, and gets no colors of its own."""


def plot_word_order(
    encodings: Mapping[str, Encoding],
    dims: Dims | None = None,
    params: Mapping[str, Params] | None = None,
    *,
    sentence: Sequence[str] = ("dog", "bites", "man"),
    seed: int = 0,
    theme: str = "light",
) -> Figure:
    """Draw the output of attention for each word of a sentence, and for the same words in reverse.

    Without position `attend(P x) = P attend(x)` for every permutation P: "dog bites man" and "man bites dog" give every
    word the same output. So does a bias of `|distance|` alone (ALiBi, KERPLE) where no mask is causal: it knows who is
    near, and not who comes first. Other encodings tell the two apart.

    Args:
        encodings: encodings by name; the first panel is `none` of the mapping if you put it there.
        dims: dims that the encodings were made for, on one axis, without a causal mask, which by itself tells positions
            apart. None = their own.
        params: parameters of each encoding, by name, not yet adapted. None, or a missing name = the initial ones.
        sentence: at least two words.
        seed: random seed of words and projections.
        theme: "light" or "dark".

    Raises:
        ValueError: no encoding, more than one axis, a causal model, fewer than two words, a word that is there twice,
            or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Kazemnejad et al. 2023 (arXiv 2305.19466), on what remains without an encoding.

    Examples:
        >>> dims = pejax.Dims(heads=2, head_dim=8, extent=8)
        >>> both = {"none": pejax.encodings.none(dims), "rope": pejax.encodings.rope(dims)}
        >>> figure = pejax.visualize.plot_word_order(both)
    """
    picture, colors = "plot_word_order", theme_of("plot_word_order", theme)
    check_encodings(picture, encodings)
    dims = dims_of(picture, dims, encodings)
    check_axes(picture, dims, 1)
    if dims.causal:
        refuse(picture, "dims.causal must be False: a causal mask tells positions apart by itself", True)
    if len(sentence) < 2 or len(set(sentence)) < len(sentence):
        refuse(picture, "sentence must be at least two different words", tuple(sentence))
    words = jax.random.normal(jax.random.key(seed), (len(sentence), dims.width), jnp.float32)
    size, title = (2.6, 1.1 + 0.2 * len(sentence)), "attention output of each word"
    canvas = Canvas(colors, len(encodings), 3, panel=size, title=title)
    for row, (name, encoding) in zip(canvas.panels, encodings.items(), strict=True):
        own_params = (params or {}).get(name)
        forward, backward = (_outputs(encoding, dims, own_params, x) for x in (words, words[::-1]))
        backward = backward[::-1]
        top = float(np.max(np.abs([forward, backward])))
        change = float(np.max(np.abs(backward - forward)))
        parts = {" ".join(sentence): forward, " ".join(reversed(sentence)): backward, "difference": backward - forward}
        tops = (top, top, change if change > ROUNDING * top else top)
        for axes, (label, matrix), own_top in zip(row, parts.items(), tops, strict=True):
            canvas.heat_map(axes, matrix, signed=True, top=own_top, bar="output" if axes is not row[0] else "")
            axes.set_yticks(range(len(sentence)), sentence)
            axes.set_title(label)
        row[0].set_ylabel(name, fontsize=11)
        row[2].set_title(f"difference: at most {change:.2g}")
    for axes in canvas.panels[-1]:
        axes.set_xlabel("channel of the first head")
    return canvas.figure


def _outputs(encoding: Encoding, dims: Dims, params: Params | None, words: Array) -> np.ndarray:
    """Return the output of the first head; the values are the first channels of the words."""
    layer = make_layer(encoding, dims, params, len(words), x=words)
    return np.asarray(weights_of(encoding, dims, layer)[0] @ layer.x[:, : dims.head_dim])


def plot_visited_tiles(
    *,
    length: int = 64,
    block: int = 8,
    window: int = 12,
    segments: Sequence[int] = (20, 30, 10),
    theme: str = "light",
) -> Figure:
    """Draw which pairs each mask shows, and which tiles of attention are visited for them.

    A tile of `block × block` pairs is visited unless the least and largest order and segment of its tokens say that no
    pair in it is seen. The rest is neither computed nor read.

    Args:
        length: T, tokens.
        block: side of a tile, tokens.
        window: window of the masks that have one, tokens.
        segments: lengths of packed sequences; what is left of T is padding.
        theme: "light" or "dark".

    Raises:
        ValueError: a length, block or window below 1, a length that is no multiple of the block, segments that do not
            fit, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Dao et al. 2022, "FlashAttention" (arXiv 2205.14135), section 3.

    Examples:
        >>> figure = pejax.visualize.plot_visited_tiles(length=32, segments=(12, 16))
    """
    picture, colors = "plot_visited_tiles", theme_of("plot_visited_tiles", theme)
    check_count(picture, length=length, block=block, window=window)
    if length % block:
        refuse(picture, f"length must be a multiple of block={block}", length)
    if not segments or min(segments) < 1 or sum(segments) > length:
        refuse(picture, f"segments must be lengths of at least 1 that fit into {length} tokens", tuple(segments))
    numbers = np.repeat(np.arange(1, len(segments) + 1), segments)
    packed = jnp.asarray(np.pad(numbers, (0, length - len(numbers))), jnp.int32)
    plain, order = TokenPositions(positions_of(length)), jnp.arange(length, dtype=jnp.int32)
    masks: dict[str, tuple[TokenPositions, Options]] = {
        "no mask": (plain, Options(1.0)),
        "causal": (plain, Options(1.0, causal=True)),
        f"window of {window}": (plain, Options(1.0, window=window)),
        f"causal, window of {window}": (plain, Options(1.0, causal=True, window=window)),
        "packed sequences, causal": (TokenPositions(order, order, segment_ids=packed), Options(1.0, causal=True)),
        f"distances from {window} on": (plain, Options(1.0, causal=True, distance_range=(window, length + 1))),
    }
    canvas = Canvas(colors, 3, 2, panel=(WIDE / 2, 2.7), sharex=True, sharey=True)
    count = length // block
    for axes, (label, (tokens, options)) in zip(canvas.panels.flat, masks.items(), strict=True):
        cut = jax.tree.map(lambda leaf: leaf.reshape(count, block), tokens)
        pairs, tiles = visible(options, tokens, tokens), visible_blocks(options, cut, cut)
        pairs = np.ones((length, length), bool) if pairs is None else np.asarray(pairs)
        tiles = np.ones((count, count), bool) if tiles is None else np.asarray(tiles)
        kinds = np.kron(tiles, np.ones((block, block))) * 0.45 + np.where(pairs, 0.45, 0.0)
        canvas.heat_map(axes, kinds, signed=False, top=1.0, aspect="equal")
        for edge in range(block, length, block):
            axes.axhline(edge - 0.5, color=colors.paper, linewidth=0.6)
            axes.axvline(edge - 0.5, color=colors.paper, linewidth=0.6)
        axes.set_title(f"{label}\n{int(tiles.sum())} of {tiles.size} tiles visited")
    canvas.label_outer("key, tokens", "query, tokens")
    import matplotlib
    from matplotlib.patches import Patch

    shades = matplotlib.colormaps[colors.sequential]([0.0, 0.45, 0.9])
    kinds = zip(shades, ("tile skipped", "tile visited, pair masked", "pair seen"), strict=True)
    handles = [Patch(facecolor=shade, edgecolor=colors.faint, label=kind) for shade, kind in kinds]
    canvas.legend(canvas.figure, handles=handles, loc="outside lower center", ncols=2)
    return canvas.figure
