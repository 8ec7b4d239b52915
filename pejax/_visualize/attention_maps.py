"""Pictures of attention: weights, entropy, logits by distance, longer inputs, word order, and the tiles visited."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._attention.core.masks import visible, visible_blocks
from pejax._attention.core.options import Options
from pejax._encoding import Dims, Encoding, Params
from pejax._positions import TokenPositions
from pejax._visualize.bias import _maps
from pejax._visualize.layer import (
    Layer,
    bias_of,
    check_axes,
    check_count,
    check_encodings,
    check_width,
    extent_of,
    make_layer,
    positions_of,
    products_of,
    refuse,
    seen_only,
    trained_length,
    weights_of,
)
from pejax._visualize.style import (
    Figure,
    chosen,
    color_bar,
    grid,
    heat_map,
    legend,
    line_style,
    mark_trained,
    new_figure,
    theme_of,
    titled,
)


def plot_attention_weights(
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
    """Draw the attention weights of one layer with random tokens and projections, head by head.

    `w[h, i, j] = softmax_j(scale · q_i·k_j + bias)`, with queries and keys as the encoding has them

    Args:
        encoding: any.
        dims: it was made for. A grid is drawn in raster order.
        params: its parameters, not yet adapted. None = the initial ones.
        length: T, tokens. None = the trained length, or the grid.
        heads: those drawn. None = at most eight, spread over all.
        seed: of tokens and projections.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: a length below 1, a head that is not there, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Vaswani et al. 2017 (arXiv 1706.03762), equation 1.

    Example:
        >>> dims = pejax.Dims(heads=4, head_dim=16, causal=True)
        >>> figure = pejax.visualize.plot_attention_weights(pejax.encodings.alibi(dims), dims, length=16)
    """
    picture, colors = "plot_attention_weights", theme_of("plot_attention_weights", theme)
    extent = extent_of(picture, dims, length)
    shown = chosen(picture, "heads", heads, dims.heads, 8)
    weights = seen_only(encoding, weights_of(encoding, dims, make_layer(encoding, dims, params, extent, seed=seed)))
    matrices = {f"head {head}": weights[head] for head in shown}
    return _maps(matrices, colors, dims, titled(name, "attention weights"), "weight", signed=False)


def plot_extrapolation(
    encodings: Mapping[str, Encoding],
    dims: Dims,
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
        encodings: by name.
        dims: they were made for, on one axis; their `extent` is the trained length.
        params: of each encoding, by name, not yet adapted. None, or a name that is not there = the initial ones.
        times: the length drawn, in trained lengths.
        head: which one.
        draws: words, normal.
        theme: "light" or "dark".

    Raises:
        ValueError: no encoding, more than one axis, no trained length, times or draws below 1, a head that is not
            there, an encoding that refuses the length (a learned table that is not resized), or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Press et al. 2022, "Train Short, Test Long" (arXiv 2108.12409), section 2.

    Example:
        >>> dims = pejax.Dims(heads=2, head_dim=16, extent=8, causal=True)
        >>> both = {"alibi": pejax.encodings.alibi(dims), "rope": pejax.encodings.rope(dims)}
        >>> figure = pejax.visualize.plot_extrapolation(both, dims)
    """
    picture, colors = "plot_extrapolation", theme_of("plot_extrapolation", theme)
    check_encodings(picture, encodings)
    check_axes(picture, dims, 1)
    check_count(picture, times=times, draws=draws)
    check_width(picture, dims)
    trained = trained_length(dims)
    if trained is None:
        refuse(picture, "dims.extent must be the trained length", None)
    chosen(picture, "head", [head], dims.heads, 1)
    length = times * (trained or 1)
    columns = min(4, len(encodings))
    rows = -(-len(encodings) // columns)
    title = f"attention at {times} times the trained length, head {head}"
    figure, panels = new_figure(colors, rows, columns, panel=(2.9, 3.0), title=title, sharex=True, sharey=True)
    image = None
    for axes, (name, encoding) in zip(panels.flat, encodings.items(), strict=False):
        own = None if params is None else params.get(name)
        total = sum(_weights_of_copies(encoding, dims, own, length, seed) for seed in range(draws))
        weights = seen_only(encoding, total)[head]
        weights /= np.maximum(np.nanmax(weights, axis=1, keepdims=True), 1e-30)
        image = heat_map(axes, weights, colors, signed=False, top=1.0, aspect="equal")
        mark_trained(axes, colors, (trained or 1) - 0.5, also_y=True)
        axes.set_title(name)
    for axes in panels.flat[len(encodings) :]:
        axes.set_axis_off()
    for i, axes in enumerate(panels.flat):
        if i + columns >= len(encodings):
            axes.set_xlabel("key position, tokens")
            axes.xaxis.set_tick_params(labelbottom=True)
    for axes in panels[:, 0]:
        axes.set_ylabel("query position, tokens")
    color_bar(figure, image, list(panels.flat), colors, "weight, of the largest in its row", shrink=0.7)
    return figure


def _copies(encoding: Encoding, dims: Dims, params: Params | None, length: int, seed: int) -> Layer:
    """Return a layer of one word many times, its queries and keys the word itself."""
    word = jax.random.normal(jax.random.key(seed), (dims.width,), jnp.float32)
    words = jnp.broadcast_to(word, (length, dims.width))
    return make_layer(encoding, dims, params, length, x=words, project=False)


def _weights_of_copies(
    encoding: Encoding, dims: Dims, params: Params | None, length: int, seed: int
) -> Float[np.ndarray, "H T S"]:
    return np.asarray(weights_of(encoding, dims, _copies(encoding, dims, params, length, seed)))


def entropies(
    encoding: Encoding, dims: Dims, params: Params | None, length: int, draws: int
) -> Float[np.ndarray, "N H"]:
    """Return the mean entropy of a row of weights, in nats, for each draw of tokens and projections and each head."""
    found = []
    for seed in range(draws):
        weights = weights_of(encoding, dims, make_layer(encoding, dims, params, length, seed=seed))
        found.append(-jnp.sum(jax.scipy.special.xlogy(weights, weights), axis=-1).mean(axis=-1))
    return np.asarray(found)


def plot_attention_entropy(
    encodings: Mapping[str, Encoding],
    dims: Dims,
    params: Mapping[str, Params] | None = None,
    *,
    lengths: Sequence[int] = (8, 16, 32, 64, 128, 256),
    draws: int = 4,
    theme: str = "light",
) -> Figure:
    """Draw how spread attention is against the length: the entropy of its weights, for several encodings.

    `H = -Σ_j w_ij ln w_ij`, nats, the mean over queries, draws and heads. A second panel has each head of the encodings
    whose heads differ. It is `ln T` for uniform weights over T keys (causal: the mean of `ln(i + 1)`).

    Args:
        encodings: by name.
        dims: they were made for, on one axis.
        params: of each encoding, by name, not yet adapted. None, or a name that is not there = the initial ones.
        lengths: T, tokens, at least two of them.
        draws: of tokens and projections.
        theme: "light" or "dark".

    Raises:
        ValueError: no encoding, more than one axis, fewer than two lengths or one below 1, no draw, an encoding that
            refuses a length, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su 2021, https://kexue.fm/archives/8823, whose log-n scaling keeps this entropy from growing.

    Example:
        >>> dims = pejax.Dims(heads=2, head_dim=16)
        >>> both = {"alibi": pejax.encodings.alibi(dims), "rope": pejax.encodings.rope(dims)}
        >>> figure = pejax.visualize.plot_attention_entropy(both, dims, lengths=(8, 16), draws=1)
    """
    picture, colors = "plot_attention_entropy", theme_of("plot_attention_entropy", theme)
    check_encodings(picture, encodings)
    check_axes(picture, dims, 1)
    check_count(picture, draws=draws, **{f"lengths[{i}]": length for i, length in enumerate(lengths)})
    if len(lengths) < 2:
        refuse(picture, "lengths must be at least two", tuple(lengths))
    lengths = sorted(lengths)
    found = {
        name: np.stack([entropies(one, dims, (params or {}).get(name), length, draws) for length in lengths])
        for name, one in encodings.items()
    }
    apart = {name: values.mean(axis=1) for name, values in found.items()}
    apart = {name: heads for name, heads in apart.items() if np.ptp(heads[-1]) > 0.5}
    figure, panels = new_figure(colors, 1, 2 if apart else 1, panel=(5.8, 4.4), sharey=True)
    left = panels[0, 0]
    rows = [np.log(np.arange(1, n + 1)).mean() if dims.causal else np.log(n) for n in lengths]
    for i, (name, values) in enumerate(found.items()):
        mean = values.mean(axis=(1, 2))
        size = max(3.0, 9.0 - i)  # of curves that coincide, all are seen
        style = {"marker": "os^Dv"[i % 5], "markersize": size, **line_style(colors, i)}
        left.plot(lengths, mean, label=name, linewidth=1.5, **style)
    left.set_title("mean over heads" if dims.heads > 1 else "one head")
    for name, heads in apart.items():
        style = line_style(colors, list(found).index(name))
        panels[0, 1].plot(lengths, heads, linewidth=1.0, **style)
        panels[0, 1].plot([], [], label=f"{name}, each head", **style)
        panels[0, 1].set_title("encodings whose heads differ by more than 0.5 nats")
    for axes in panels.flat:
        axes.plot(lengths, rows, color=colors.faint, linewidth=3, zorder=0, label="uniform weights")
        if isinstance(dims.extent, int) and lengths[0] < dims.extent < lengths[-1]:
            mark_trained(axes, colors, dims.extent, label=f"trained length, {dims.extent} tokens")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xlabel("length, tokens")
        grid(axes, colors)
    handles, labels = left.get_legend_handles_labels()
    legend(figure, colors, handles=handles, labels=labels, loc="outside right upper")
    if apart:
        named = dict(zip(*panels[0, 1].get_legend_handles_labels()[::-1], strict=True))
        own = [f"{name}, each head" for name in apart]
        legend(panels[0, 1], colors, handles=[named[label] for label in own], labels=own, loc="upper left")
    left.set_ylabel("attention entropy, nats")
    return figure


def logits_by_distance(
    encoding: Encoding, dims: Dims, params: Params | None, length: int, draws: int
) -> Float[np.ndarray, "N H R"]:
    """Return the logits of the last of `length` equal words for all of them, at distances 0, 1, ... before it."""
    found = []
    for seed in range(draws):
        layer = _copies(encoding, dims, params, length, seed)
        logits = products_of(encoding, dims, layer) + bias_of(encoding, layer)
        found.append(np.asarray(logits)[:, -1, ::-1])
    return np.stack(found)


def plot_logits_by_distance(
    encoding: Encoding,
    dims: Dims,
    params: Params | None = None,
    *,
    length: int | None = None,
    draws: int = 32,
    name: str | None = None,
    theme: str = "light",
) -> Figure:
    """Draw the logit between two copies of one word against their distance: the mean over words, its spread, one word.

    `scale · q·k + bias` with `q = k` but for the position. RoPE's mean, `scale · |q|² · mean_i cos(d f_i)`, falls and
    rises again: it is no decay, and single words differ from it.

    Args:
        encoding: any that does not rotate in bands.
        dims: it was made for, on one axis, with width = heads · head_dim.
        params: its parameters, not yet adapted. None = the initial ones.
        length: distances up to length - 1, tokens. None = twice the trained length.
        draws: words, normal; all heads of each are used.
        name: of the encoding, for the title.
        theme: "light" or "dark".

    Raises:
        ValueError: an encoding in bands, more than one axis, another width, a length or draws below 1, or an unknown
            theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021 (arXiv 2104.09864), section 3.4.3, on a bound that decays; the product itself does not.

    Example:
        >>> dims = pejax.Dims(heads=1, head_dim=64, extent=32)
        >>> figure = pejax.visualize.plot_logits_by_distance(pejax.encodings.rope(dims), dims, draws=4)
    """
    picture, colors = "plot_logits_by_distance", theme_of("plot_logits_by_distance", theme)
    check_axes(picture, dims, 1)
    check_count(picture, draws=draws)
    if encoding.bands:
        refuse(picture, "the encoding must rotate all pairs alike", f"{len(encoding.bands)} bands")
    check_width(picture, dims)
    trained = trained_length(dims)
    extent = extent_of(picture, dims, length if length is not None or trained is None else 2 * trained)
    assert isinstance(extent, int)  # one axis
    logits = logits_by_distance(encoding, dims, params, extent, draws)
    flat = logits.reshape(-1, extent)
    mean, deviation = flat.mean(axis=0), flat.std(axis=0)
    figure, panels = new_figure(colors, panel=(6.6, 4.0))
    axes, at = panels[0, 0], np.arange(extent)
    axes.fill_between(at, mean - deviation, mean + deviation, color=colors.lines[0], alpha=0.25, linewidth=0,
                      label="one standard deviation (words, heads)")  # fmt: skip
    axes.plot(at, flat[0], color=colors.lines[1], linewidth=1.0, label="one word")
    axes.plot(at, mean, color=colors.lines[0], linewidth=1.8, label=f"mean of {len(flat)} words")
    if trained is not None and trained < extent:
        mark_trained(axes, colors, trained - 1, label=f"trained length, {trained} tokens")
    title = titled(name, "logit between two copies of a word")
    axes.set(xlabel="distance, tokens", ylabel="logit", title=title)
    grid(axes, colors)
    legend(figure, colors, loc="outside lower center", ncols=2)
    return figure


def plot_word_order(
    encodings: Mapping[str, Encoding],
    dims: Dims,
    params: Mapping[str, Params] | None = None,
    *,
    sentence: Sequence[str] = ("dog", "bites", "man"),
    seed: int = 0,
    theme: str = "light",
) -> Figure:
    """Draw what attention makes of each word of a sentence, and of the same words in reverse.

    Without position `attend(P x) = P attend(x)` for every permutation P: "dog bites man" and "man bites dog" give every
    word the same output. So does a bias of `|distance|` alone (ALiBi, KERPLE) where no mask is causal: it knows who is
    near, and not who comes first. Other encodings tell the two apart.

    Args:
        encodings: by name; the first panel is `none` of the mapping if you put it there.
        dims: they were made for, on one axis, without a causal mask (which by itself tells positions apart).
        params: of each encoding, by name, not yet adapted. None, or a name that is not there = the initial ones.
        sentence: at least two words.
        seed: of words and projections.
        theme: "light" or "dark".

    Raises:
        ValueError: no encoding, more than one axis, a causal model, fewer than two words, a word that is there twice,
            or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Kazemnejad et al. 2023 (arXiv 2305.19466), on what remains without an encoding.

    Example:
        >>> dims = pejax.Dims(heads=2, head_dim=8, extent=8)
        >>> both = {"none": pejax.encodings.none(dims), "rope": pejax.encodings.rope(dims)}
        >>> figure = pejax.visualize.plot_word_order(both, dims)
    """
    picture, colors = "plot_word_order", theme_of("plot_word_order", theme)
    check_encodings(picture, encodings)
    check_axes(picture, dims, 1)
    if dims.causal:
        refuse(picture, "dims.causal must be False: a causal mask tells positions apart by itself", True)
    if len(sentence) < 2 or len(set(sentence)) < len(sentence):
        refuse(picture, "sentence must be at least two different words", tuple(sentence))
    words = jax.random.normal(jax.random.key(seed), (len(sentence), dims.width), jnp.float32)
    figure, panels = new_figure(
        colors, len(encodings), 3, panel=(3.5, 1.3 + 0.22 * len(sentence)), title="attention output of each word"
    )
    rows = list(sentence)
    for row, (name, encoding) in zip(panels, encodings.items(), strict=True):
        own = (params or {}).get(name)
        forward, backward = (_outputs(encoding, dims, own, x) for x in (words, words[::-1]))
        backward = backward[::-1]
        top = float(np.max(np.abs([forward, backward])))
        parts = {" ".join(sentence): forward, " ".join(reversed(sentence)): backward, "difference": backward - forward}
        for axes, (label, matrix) in zip(row, parts.items(), strict=True):
            image = heat_map(axes, matrix, colors, signed=True, top=top)
            axes.set_yticks(range(len(rows)), rows)
            axes.set_title(label)
        row[0].set_ylabel(name, fontsize=11)
        row[2].set_title(f"difference: at most {np.max(np.abs(backward - forward)):.2g}")
        color_bar(figure, image, list(row), colors, "output", pad=0.01)
    for axes in panels[-1]:
        axes.set_xlabel("channel of the first head")
    return figure


def _outputs(encoding: Encoding, dims: Dims, params: Params | None, words: Array) -> np.ndarray:
    """Return the output of the first head: the words' own first channels as values, weighted."""
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
        window: of the masks with a window, tokens.
        segments: lengths of packed sequences; what is left of T is padding.
        theme: "light" or "dark".

    Raises:
        ValueError: a length, block or window below 1, a length that is no multiple of the block, segments that do not
            fit, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Dao et al. 2022, "FlashAttention" (arXiv 2205.14135), section 3.

    Example:
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
        f"distances from {window} on": (
            plain,
            Options(1.0, causal=True, distance_range=(window, length + 1)),
        ),
    }
    figure, panels = new_figure(colors, 2, 3, panel=(3.2, 3.3), sharex=True, sharey=True)
    count = length // block
    for axes, (label, (tokens, options)) in zip(panels.flat, masks.items(), strict=True):
        cut = jax.tree.map(lambda leaf: leaf.reshape(count, block), tokens)
        pairs, tiles = visible(options, tokens, tokens), visible_blocks(options, cut, cut)
        pairs = np.ones((length, length), bool) if pairs is None else np.asarray(pairs)
        tiles = np.ones((count, count), bool) if tiles is None else np.asarray(tiles)
        kinds = np.kron(tiles, np.ones((block, block))) * 0.45 + np.where(pairs, 0.45, 0.0)
        heat_map(axes, kinds, colors, signed=False, top=1.0, aspect="equal")
        for edge in range(block, length, block):
            axes.axhline(edge - 0.5, color=colors.paper, linewidth=0.6)
            axes.axvline(edge - 0.5, color=colors.paper, linewidth=0.6)
        axes.set_title(f"{label}\n{int(tiles.sum())} of {tiles.size} tiles visited")
    for axes in panels[-1]:
        axes.set_xlabel("key, tokens")
    for axes in panels[:, 0]:
        axes.set_ylabel("query, tokens")
    import matplotlib
    from matplotlib.patches import Patch

    shades = matplotlib.colormaps[colors.sequential]([0.0, 0.45, 0.9])
    names = ("tile skipped", "tile visited, pair masked", "pair seen")
    handles = [
        Patch(facecolor=shade, edgecolor=colors.faint, label=name) for shade, name in zip(shades, names, strict=True)
    ]
    legend(figure, colors, handles=handles, loc="outside lower center", ncols=3)
    return figure
