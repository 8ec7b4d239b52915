"""Pictures of longer contexts: positions squeezed, the bounds behind it, and logits beyond and between trained ones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._encodings.rope import rope_frequencies
from pejax._extensions.interpolation import interpolate_positions
from pejax._ops.phases import exact_cos_sin
from pejax._ops.rotary import rope_apply
from pejax._visualize.layer import check_count, refuse
from pejax._visualize.style import SMALL, WIDE, Canvas, Figure, theme_of


def plot_interpolated_positions(
    *,
    trained_length: int = 2048,
    length: int = 4096,
    wavelength: float = 3000.0,
    theme: str = "light",
) -> Figure:
    """Draw the positions of a longer sequence before and after position interpolation, on the wave of one slow pair.

    `p' = p · L/L'`: positions 0 ... L' - 1 come to lie between those that training saw.

    Args:
        trained_length: L, tokens.
        length: L', tokens, above L.
        wavelength: wavelength of the pair, tokens; its cosine is drawn.
        theme: "light" or "dark".

    Raises:
        ValueError: a length below 1, one not above the trained length, a wavelength that is not positive, or an unknown
            theme.
        ImportError: matplotlib is not installed.

    Reference:
        Chen et al. 2023 (arXiv 2306.15595), figure 1 and equation 3.

    Examples:
        >>> figure = pejax.visualize.plot_interpolated_positions(trained_length=2048, length=4096)
    """
    picture, colors = "plot_interpolated_positions", theme_of("plot_interpolated_positions", theme)
    check_count(picture, trained_length=trained_length, length=length)
    if length <= trained_length:
        refuse(picture, f"length must be above trained_length={trained_length}", length)
    if not wavelength > 0:
        refuse(picture, "wavelength must be above 0", wavelength)
    frequency = np.array([2 * np.pi / wavelength], np.float32)
    step = max(1, trained_length // 32)
    cosine = lambda at: np.asarray(rope_apply(jnp.tile(jnp.float32([1, 0]), (len(at), 1, 1)), at, frequency))[:, 0, 0]
    within, beyond = np.arange(0, trained_length, step), np.arange(0, length, step)
    squeezed = np.asarray(interpolate_positions(jnp.asarray(beyond), trained_length, length))
    rows = {
        f"trained: positions 0 to {trained_length - 1}": within,
        f"extrapolated: positions 0 to {length - 1}": beyond,
        f"interpolated: {length} tokens at positions below {trained_length}": squeezed,
    }
    canvas = Canvas(colors, 3, panel=(WIDE, 1.9), sharex=True, sharey=True)
    wave = np.arange(length, dtype=np.float32)
    for axes, (label, at) in zip(canvas.panels[:, 0], rows.items(), strict=True):
        axes.plot(wave, cosine(wave), color=colors.faint, linewidth=1.0, zorder=0)
        seen = at <= trained_length - 1
        axes.plot(at[seen], cosine(at[seen]), ".", markersize=6, color=colors.lines[0], label="in the trained range")
        if not seen.all():
            unseen = at[~seen]
            axes.plot(unseen, cosine(unseen), "x", markersize=5, color=colors.mark, label="never seen in training")
        canvas.mark_trained(axes, trained_length - 1)
        axes.set(title=label, ylabel="cosine", ylim=(-1.25, 1.25))
        canvas.legend(axes, loc="upper left", bbox_to_anchor=(0.15, 1.02))  # where no curve is
        canvas.grid(axes)
    canvas.panels[-1, 0].set_xlabel(f"position, tokens; every {step}th is drawn\nthe dashed line ends the trained ones")
    return canvas.figure


def _harmonics(length: int, head_dim: int, base: float, parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return distances from 0 to `length` in steps of 1 / parts, and `e^(i s f_j)` at each, `(R, F)`."""
    distances = np.arange(length * parts + 1) / parts
    cos, sin = exact_cos_sin(distances.astype(np.float32), rope_frequencies(head_dim, base=base))
    return distances, np.asarray(cos, np.float64) + 1j * np.asarray(sin, np.float64)


def plot_decay_bounds(
    *,
    head_dim: int = 128,
    base: float = 10000.0,
    trained_length: int = 256,
    seed: int = 0,
    theme: str = "light",
) -> Figure:
    """Draw two bounds of RoPE's products: RoFormer's on the product, and that of interpolation between distances.

    With `a(s) = R_s q · k = Re Σ_j h_j e^(i s f_j)`, F pairs, and `A_j(s) = Σ_{l<j} e^(i s f_l)`:

    `|a(s)| <= max_j |h_{j+1} - h_j| · Σ_{j=1..F} |A_j(s)|` (Abel's summation, h_F = 0)

    `|a(s) - line through the two nearest whole distances| <= max_j |h_j| · Σ_j f_j² / 8`

    The first falls with the distance, but not monotonically, and lies far above the products: it is no decay of the
    attention. The second, at trained distances, is hundreds of times smaller.

    Args:
        head_dim: D, even.
        base: base of the frequencies.
        trained_length: L, tokens; twice as many are drawn.
        seed: random seed of one query and key, normal.
        theme: "light" or "dark".

    Raises:
        ValueError: a trained length below 1, an odd head_dim, a base that is not above 0, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Su et al. 2021 (arXiv 2104.09864), section 3.4.3; Chen et al. 2023 (arXiv 2306.15595), theorem 2.1, where Σ f_j²
        is simplified to
        d / (4 ln base).

    Examples:
        >>> figure = pejax.visualize.plot_decay_bounds(head_dim=64, trained_length=64)
    """
    picture, colors = "plot_decay_bounds", theme_of("plot_decay_bounds", theme)
    check_count(picture, trained_length=trained_length)
    parts = 4
    distances, waves = _harmonics(2 * trained_length, head_dim, base, parts)
    sums = np.abs(np.cumsum(waves, axis=1))
    q, k = np.asarray(jax.random.normal(jax.random.key(seed), (2, head_dim // 2, 2), jnp.float32), np.float64)
    h = (q[:, 0] + 1j * q[:, 1]) * (k[:, 0] - 1j * k[:, 1])
    product = (waves * h).sum(axis=1).real
    abel = np.max(np.abs(np.diff(np.append(h, 0)))) * sums.sum(axis=1)
    marks = np.arange(0, len(distances), parts)
    error = np.abs(product - np.interp(distances, distances[marks], product[marks]))
    error = error[:-1].reshape(-1, parts).max(axis=1)
    curve = float(np.max(np.abs(h)) * np.sum(rope_frequencies(head_dim, base=base).astype(np.float64) ** 2) / 8)
    canvas = Canvas(colors, 2, 1, panel=(WIDE, 3.2))
    left, right = canvas.panels[:, 0]
    left.plot(distances, sums.mean(axis=1), color=colors.lines[0], linewidth=1.2)
    canvas.mark_trained(left, trained_length - 1)
    left.set(title="RoFormer's curve: mean over j of |A_j(s)|", xlabel="distance s, tokens", ylabel="relative bound")
    right.plot(distances, abel, label="bound of the product (RoFormer)", color=colors.lines[0], linewidth=1.2)
    size, error = np.maximum(np.abs(product), 1e-3), np.maximum(error, 1e-6)
    right.plot(distances, size, label="|q·k|, one draw", color=colors.lines[1], linewidth=0.9)
    right.axhline(curve, label="bound of the interpolation error (PI)", color=colors.lines[2], linewidth=1.6)
    right.plot(distances[marks[:-1]], error, label="interpolation error", color=colors.lines[3], linewidth=0.9)
    canvas.mark_trained(right, trained_length - 1, label=f"trained length, {trained_length} tokens")
    right.set_yscale("log")
    right.set(title="bounds, and what they bound", xlabel="distance s, tokens", ylabel="unscaled logit")
    right.set_ylim(top=30 * float(np.max(abel)))
    canvas.grid(left, right)
    canvas.legend(right, loc="upper right", ncols=1)
    return canvas.figure


KNOTS = 12
"""Random logits over the trained length: so few that a function of RoPE can pass through all of them."""


class Fit(NamedTuple):
    """Smooth random logits at some trained distances, and a logit function of RoPE through them.

    Every `a(s) = R_s q · k` is a sum of cosines and sines of `s f_j` with D coefficients.
    """

    where: Float[np.ndarray, " P"]
    wanted: Float[np.ndarray, " P"]
    frequencies: Float[np.ndarray, " F"]
    coefficients: Float[np.ndarray, " D"]

    def logits(self, distances: np.ndarray) -> Float[np.ndarray, " R"]:
        """Return the function at these distances, tokens."""
        return _waves(distances, self.frequencies) @ self.coefficients


def _waves(distances: np.ndarray, frequencies: np.ndarray) -> Float[np.ndarray, "R D"]:
    """Return cosines and sines, in float64: the coefficients are so large that float32 would show."""
    angles = np.asarray(distances, np.float64)[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def fitted_logits(head_dim: int, base: float, trained_length: int, points: int, seed: int) -> Fit:
    """Fit a logit function by least squares to logits between `KNOTS` random ones in -1 ... 1, joined smoothly."""
    draw = np.random.default_rng(seed)
    where = np.sort(draw.choice(trained_length, points, replace=False)).astype(np.float64)
    knots, at = draw.uniform(-1.0, 1.0, KNOTS), where * (KNOTS - 1) / trained_length
    before, part = at.astype(int), (1 - np.cos(np.pi * (at % 1))) / 2
    targets = knots[before] * (1 - part) + knots[before + 1] * part
    frequencies = rope_frequencies(head_dim, base=base).astype(np.float64)
    return Fit(where, targets, frequencies, np.linalg.lstsq(_waves(where, frequencies), targets, rcond=1e-6)[0])


def plot_logit_extrapolation(
    *,
    head_dim: int = 128,
    base: float = 10000.0,
    trained_length: int = 2048,
    points: int = 100,
    seed: int = 0,
    theme: str = "light",
) -> Figure:
    """Draw a logit as a function of the distance that behaves in training: beyond the trained length, and in between.

    `a(s) = Σ_j (α_j cos(s f_j) + β_j sin(s f_j))`, the form of every `R_s q · k`, is fitted by least squares to points
    of a smooth random curve in -1 ... 1. Beyond the trained length it leaves that range far behind, between the points
    it does not. It shows what the form allows: slow pairs get large coefficients that cancel in training and not beyond
    it.

    Args:
        head_dim: D, even.
        base: base of the frequencies.
        trained_length: L, tokens; twice as many are drawn.
        points: trained distances with a given logit, at most L.
        seed: random seed of the points.
        theme: "light" or "dark".

    Raises:
        ValueError: a trained length below 1, points outside 1 ... L, an odd head_dim, or an unknown theme.
        ImportError: matplotlib is not installed.

    Reference:
        Chen et al. 2023 (arXiv 2306.15595), figure 2.

    Examples:
        >>> figure = pejax.visualize.plot_logit_extrapolation(trained_length=512, points=200)
    """
    picture, colors = "plot_logit_extrapolation", theme_of("plot_logit_extrapolation", theme)
    check_count(picture, trained_length=trained_length)
    if not 1 <= points <= trained_length:
        refuse(picture, f"points must be from 1 to trained_length={trained_length}", points)
    fit = fitted_logits(head_dim, base, trained_length, points, seed)
    within, beyond = np.arange(trained_length), np.arange(2 * trained_length)
    near = trained_length // 2 + np.arange(0, 8, 0.02)
    canvas = Canvas(colors, 3, 1, panel=(WIDE, 2.7))
    titles = ("fitted within the trained length", "extrapolated to twice the length", "interpolated between tokens")
    for axes, at, title in zip(canvas.panels[:, 0], (within, beyond, near), titles, strict=True):
        logits = fit.logits(at)
        axes.plot(at, logits, color=colors.lines[0], linewidth=1.2, label="logit a(s)")
        axes.set(title=title, xlabel="distance s, tokens", ylabel="logit")
        if at is within:
            axes.plot(fit.where, fit.wanted, "o", markersize=3.5, color=colors.lines[1], label="given logits")
        if at is beyond:
            canvas.mark_trained(axes, trained_length - 1, label=f"trained length, {trained_length} tokens")
            text = f"largest beyond it: {np.max(np.abs(logits[trained_length:])):.3g}"
            axes.annotate(text, (0.04, 0.04), xycoords="axes fraction", fontsize=SMALL, color=colors.ink)
        if at is near:
            tokens = np.arange(0, 8, 1.0) + near[0]
            axes.plot(tokens, fit.logits(tokens), "o", markersize=4, color=colors.lines[2], label="whole distances")
        low, high = axes.get_ylim()
        axes.set_ylim(top=high + 0.3 * (high - low))  # room for the legend
        canvas.grid(axes)
        canvas.legend(axes, loc="upper left")
    return canvas.figure
