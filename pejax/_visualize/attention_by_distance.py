"""Pictures of attention over lengths and distances: entropy, and products of queries and keys."""

import textwrap
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.attention_maps import _copies
from pejax._visualize.layer import (
    bias_of,
    check_axes,
    check_count,
    check_encodings,
    check_width,
    exceeded,
    make_layer,
    products_of,
    refuse,
    twice_trained,
    weights_of,
)
from pejax._visualize.style import WIDE, Canvas, Figure, theme_of, titled
from pejax._visualize.subject import Subject, dims_of


def entropies(
    encoding: Encoding, dims: Dims, params: Params | None, length: int, draws: int
) -> Float[np.ndarray, "N H"]:
    """Return the mean entropy of a row of weights, in nats, for each draw of tokens and projections and each head."""
    rows = []
    for seed in range(draws):
        weights = weights_of(encoding, dims, make_layer(encoding, dims, params, length, seed=seed))
        rows.append(-jnp.sum(jax.scipy.special.xlogy(weights, weights), axis=-1).mean(axis=-1))
    return np.asarray(rows)


SAME = 0.06
"""Curves that are nowhere farther apart are drawn as one, nats."""


def _coinciding(curves: Mapping[str, Float[np.ndarray, " L"]]) -> list[list[str]]:
    """Return the names of curves, those together that coincide with the first of them."""
    groups: list[list[str]] = []
    for name, curve in curves.items():
        matches = (names for names in groups if np.max(np.abs(curves[names[0]] - curve)) < SAME)
        group = next(matches, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def plot_attention_entropy(
    encodings: Mapping[str, Encoding],
    dims: Dims | None = None,
    params: Mapping[str, Params] | None = None,
    *,
    lengths: Sequence[int] = (8, 16, 32, 64, 128, 256),
    draws: int = 4,
    theme: str = "light",
) -> Figure:
    """Draw how spread attention is against the length: the entropy of its weights, for several encodings.

    `H = -Σ_j w_ij ln w_ij`, nats, the mean over queries, draws and heads of random tokens and projections. Encodings
    whose curves coincide share one. A second panel has each head of the encodings whose heads differ. It is `ln T` for
    uniform weights over T keys (causal: the mean of `ln(i + 1)`).

    Args:
        encodings: encodings by name.
        dims: dims that the encodings were made for, on one axis. None = their own.
        params: parameters of each encoding, by name, not yet adapted. None, or a missing name = the initial ones.
        lengths: T, tokens, at least two of them.
        draws: number of draws of tokens and projections.
        theme: "light" or "dark".

    Raises:
        ValueError: no encoding, more than one axis, fewer than two lengths or one below 1, no draw, an encoding that
            refuses a length, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su 2021, https://kexue.fm/archives/8823, whose log-n scaling keeps this entropy from growing.

    Examples:
        >>> dims = pejax.Dims(heads=2, head_dim=16)
        >>> both = {"alibi": pejax.encodings.alibi(dims), "rope": pejax.encodings.rope(dims)}
        >>> figure = pejax.visualize.plot_attention_entropy(both, lengths=(8, 16), draws=1)
    """
    picture, colors = "plot_attention_entropy", theme_of("plot_attention_entropy", theme)
    check_encodings(picture, encodings)
    dims = dims_of(picture, dims, encodings)
    check_axes(picture, dims, 1)
    check_count(picture, draws=draws, **{f"lengths[{i}]": length for i, length in enumerate(lengths)})
    if len(lengths) < 2:
        refuse(picture, "lengths must be at least two", tuple(lengths))
    lengths = sorted(lengths)
    measured = {
        name: np.stack([entropies(encoding, dims, (params or {}).get(name), length, draws) for length in lengths])
        for name, encoding in encodings.items()
    }
    by_head = {name: values.mean(axis=1) for name, values in measured.items()}
    by_head = {name: heads for name, heads in by_head.items() if np.ptp(heads[-1]) > 0.5}
    canvas = Canvas(colors, 2 if by_head else 1, 1, panel=(WIDE, 3.6), sharex=True)
    left = canvas.panels[0, 0]
    rows = [np.log(np.arange(1, n + 1)).mean() if dims.causal else np.log(n) for n in lengths]
    curves = {name: values.mean(axis=(1, 2)) for name, values in measured.items()}
    together = _coinciding(curves)
    for i, names in enumerate(together):
        style = {"marker": "os^Dv"[i % 5], "markersize": 5, **canvas.line(i)}
        left.plot(lengths, curves[names[0]], label=textwrap.fill(", ".join(names), 26), linewidth=1.5, **style)
    left.set_title("mean over heads" if dims.heads > 1 else "one head")
    right = canvas.panels[-1, 0]
    for name, heads in by_head.items():
        style = canvas.line(next(i for i, names in enumerate(together) if name in names))
        right.plot(lengths, heads, linewidth=1.0, **style)
        right.plot([], [], label=f"{name}, each head", **style)
        right.set_title("encodings whose heads differ by more than 0.5 nats")
    for axes in canvas.panels.flat:
        axes.plot(lengths, rows, color=colors.faint, linewidth=3, zorder=0, label="uniform weights")
        if isinstance(dims.extent, int) and lengths[0] < dims.extent < lengths[-1]:
            canvas.mark_trained(axes, dims.extent, label=f"trained length, {dims.extent} tokens")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_ylabel("attention entropy, nats")
        canvas.grid(axes)
    right.set_xlabel("length, tokens")
    handles, labels = left.get_legend_handles_labels()
    canvas.legend(canvas.figure, handles=handles, labels=labels, loc="outside lower center", ncols=2)
    if by_head:
        named = dict(zip(*right.get_legend_handles_labels()[::-1], strict=True))
        head_labels = [f"{name}, each head" for name in by_head]
        canvas.legend(right, handles=[named[label] for label in head_labels], labels=head_labels, loc="upper left")
    return canvas.figure


def logits_by_distance(
    encoding: Encoding, dims: Dims, params: Params | None, length: int, draws: int
) -> Float[np.ndarray, "N H R"]:
    """Return the logits of the last of `length` equal words with all of them, at distances 0, 1, ... before it."""
    rows = []
    for seed in range(draws):
        layer = _copies(encoding, dims, params, length, seed)
        logits = products_of(encoding, dims, layer) + bias_of(encoding, layer)
        rows.append(np.asarray(logits)[:, -1, ::-1])
    return np.stack(rows)


class DistancePictures(Subject):
    """Pictures of logits by distance: methods of `Pictures`."""

    def logits_by_distance(
        self,
        *,
        length: int | None = None,
        draws: int = 32,
    ) -> Figure:
        """Draw the logit between two copies of a word against their distance: the mean over words, its spread, a word.

        `scale · q·k + bias` with `q = k` but for the position. RoPE's mean, `scale · |q|² · mean_i cos(d f_i)`, falls
        and rises again: it is no decay, and single words differ from it.

        Args:
            length: distances up to length - 1, tokens. None = twice the trained length.
            draws: number of words, drawn from a normal distribution; all heads of each are used.

        Raises:
            ValueError: an encoding in bands, more than one axis, another width, or a length or draws below 1.
            ImportError: matplotlib is not installed.

        Reference:
            Su et al. 2021 (arXiv 2104.09864), section 3.4.3, on a bound that decays; the product itself does not.

        Examples:
            >>> dims = pejax.Dims(heads=1, head_dim=64, extent=32)
            >>> figure = pejax.visualize.Pictures(pejax.encodings.rope(dims)).logits_by_distance(draws=4)
        """
        encoding, dims, params = self.parts
        picture, colors = "Pictures.logits_by_distance", self.colors
        check_axes(picture, dims, 1)
        check_count(picture, draws=draws)
        if encoding.bands:
            refuse(picture, "the encoding must rotate all pairs alike", f"{len(encoding.bands)} bands")
        check_width(picture, dims)
        extent = twice_trained(picture, dims, length)
        logits = logits_by_distance(encoding, dims, params, extent, draws)
        flat = np.ma.masked_invalid(logits.reshape(-1, extent))  # without keys that are hidden from a head
        mean, deviation = flat.mean(axis=0), flat.std(axis=0)
        canvas = Canvas(colors, panel=(WIDE, 3.6))
        axes, at = canvas.panels[0, 0], np.arange(extent)
        axes.fill_between(at, mean - deviation, mean + deviation, color=colors.lines[0], alpha=0.25, linewidth=0,
                          label="± one deviation")  # fmt: skip
        axes.plot(at, flat[0], color=colors.lines[1], linewidth=1.0, label="one word")
        axes.plot(at, mean, color=colors.lines[0], linewidth=1.8, label=f"mean of {len(flat)} words")
        trained = exceeded(dims, extent)
        if trained is not None:
            canvas.mark_trained(axes, trained - 1, label=f"trained: {trained} tokens")
        title = titled(self.name, "logit between two copies of a word")
        axes.set(xlabel="distance, tokens", ylabel="logit", title=title)
        canvas.grid(axes)
        canvas.legend(canvas.figure, loc="outside lower center", ncols=2)
        return canvas.figure
