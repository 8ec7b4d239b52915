"""Fourier features of coordinates: waves of fixed, random or learned frequencies, projected and added to the input.

    x'_n = x_n + projection · γ(c_n),   c_n the coordinates of token n

    powers     γ(c) = [sin 2^k π s c_a, cos 2^k π s c_a]   for each axis a and octave k = 0, 1, ...
    random     γ(c) = [cos 2π B c, sin 2π B c],   B constant, of normal numbers of standard deviation s
    learned    γ(c) = gelu(W [cos R c, sin R c] / √F + w) and a bias after the projection,   R trained, as B at first

s is the scale and F the number of features, sines and cosines together.

Reference:
    Mildenhall et al. 2020, "NeRF: Representing Scenes as Neural Radiance Fields for View Synthesis" (arXiv 2003.08934),
    equation 4: powers.
    Tancik et al. 2020, "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains" (arXiv
    2006.10739), section 6: random.
    Li et al. 2021, "Learnable Fourier Features for Multi-Dimensional Spatial Positional Encoding" (arXiv 2106.02795),
    algorithm 1: learned.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Num

from pejax._encodings.factory import encoding_factory
from pejax._ops.checks import check_choice, check_positions
from pejax._ops.periods import WORDS, frequency_words
from pejax._ops.phases import exact_cos_sin
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params
from pejax._record.specs import Extension

KINDS = ("powers", "random", "learned")
OCTAVES, MOST_OCTAVES = 10, 24
"""Octaves of each coordinate in NeRF, and those that coordinates in float32 tell apart."""
BEYOND = "within the trained extent, where kind='powers' repeats (extend='pi' scales positions into it)"
"""Where positions must be, for messages."""
LEAST, MOST = 1e-9, 1e9
"""Scales whose frequencies float32 holds."""


@encoding_factory()
def fourier(
    dims: Dims,
    *,
    kind: str = "powers",
    scale: float = 1.0,
    features: int | None = None,
    seed: int = 0,
    extend: Extension | None = None,
) -> Encoding:
    """Make Fourier features for these dims: waves of the coordinates, projected to the width and added to the input.

    The projection `(F, C)` is trained, whatever F is, and drawn as that of a linear layer, of variance 1/F.

    Coordinates: with an extent, positions are patches or tokens, and coordinates their centers between -1 and 1,
    `c_a = 2 (p_a + 1/2) / N_a - 1`. On a grid, N is the current one, so that any size of the same picture has the same
    coordinates; on one axis it is the trained length, so that a longer sequence goes beyond 1. Without an extent,
    positions are coordinates themselves, as floats: points in space, or times.

    Args:
        dims: `width` is C, `axes` the number of coordinates, `extent` the trained length or grid, None for positions
            that are coordinates.
        kind: "powers": octaves of each coordinate, as in NeRF; "random": waves in random directions, constants that
            `seed` determines; "learned": the same, trained, and followed by a layer of F hidden units, as in Li et al.,
            whose γ is 1/scale.
        scale: s: factor of the coordinates in "powers"; standard deviation of the frequencies in the others, in turns
            per unit of the coordinates if "random", in radians if "learned". The larger, the finer the detail.
        features: F, sines and cosines together, even. None = C, or for "powers" ten octaves of each axis, as in NeRF,
            with an extent no more of them than it tells apart: ⌊log2 N⌋, N its longest side.
        seed: seed of "random".
        extend: an extension of `pejax.extensions` that works on any encoding, such as `pi()`. None = no extension.

    Raises:
        ValueError: an unknown kind; features that are not a multiple of 2, or of 2·axes for "powers", or more than 24
            octaves; a scale that is not above 0, or above 1 for "powers" with an extent, in which the slowest wave
            would repeat; a seed below 0, or of a kind that draws none. For "powers", whose waves repeat, `adapt`
            refuses a longer sequence, and `embed` integers without an extent, and with one of N positions p ≤ -1 and
            p ≥ N; traced ones give NaN. Those less than a token beyond the ends, p < -1/2 and p > N - 1/2, as
            `augment_positions` draws them, are taken: at scale 1 they have the waves of p + N and p - N.
    """
    count = _checked(dims, kind, scale, features, seed)
    waves = functools.partial(_octaves, scale, count, dims.axes) if kind == "powers" else _waves
    on_grid = dims.extent is not None and dims.axes > 1

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 3)
        layer = lambda key, *shape: jax.random.normal(key, shape, jnp.float32) / math.sqrt(count)
        projection = {"projection": layer(keys[0], count, dims.width)}
        if kind != "learned":
            return projection
        return projection | {
            "waves": scale * jax.random.normal(keys[1], (dims.axes, count // 2), jnp.float32),
            "hidden": layer(keys[2], count, count),
            "hidden_bias": jnp.zeros(count, jnp.float32),
            "bias": jnp.zeros(dims.width, jnp.float32),
        }

    def constants() -> Params:
        drawn = np.random.RandomState(seed).standard_normal((dims.axes, count // 2))  # NumPy never changes its numbers
        return {"waves": jnp.asarray(math.tau * scale * drawn, jnp.float32)}

    def adapt(params: Params, extent: Extent) -> Params:
        if isinstance(dims.extent, int):
            length = 0 if isinstance(extent, Tracer) else int(np.max(extent))
            if length > dims.extent:
                raise ValueError(f"a sequence must be {BEYOND}, got length {length} beyond {dims.extent}")
            return params
        if np.shape(extent) != (dims.axes,):
            raise ValueError(f"fourier on {dims.axes} axes needs a grid of {dims.axes} sizes as extent, got {extent!r}")
        return {**params, "sides": jnp.asarray(extent, jnp.float32)}

    def embed(params: Params, x: Array, positions: Array) -> Array:
        check_positions(positions.shape, x.shape[:-1], dims.axes)
        if dims.extent is not None:
            sides = params["sides"] if on_grid else jnp.float32(dims.extent)
            positions = _centers(positions, sides, repeats=kind == "powers")
        elif kind == "powers" and jnp.issubdtype(positions.dtype, jnp.integer):
            rule = "must be coordinates in floats, such as normalized_positions, or have Dims(extent=)"
            raise ValueError(f"positions {rule}: the waves repeat every {2 / scale:g}, got {positions.dtype}")
        features = waves(params, positions)
        if kind == "learned":
            hidden = jnp.matmul(features / math.sqrt(count), params["hidden"], precision="highest")
            features = jax.nn.gelu(hidden + params["hidden_bias"], approximate=False)
        table = jnp.matmul(features, params["projection"], precision="highest") + params.get("bias", 0.0)
        return (x.astype(jnp.float32) + table).astype(x.dtype)

    return Encoding(
        init=init,
        constants=constants if kind == "random" else None,
        adapt=adapt if on_grid or (kind == "powers" and dims.extent is not None) else None,
        embed=embed,
    )


def _checked(dims: Dims, kind: str, scale: float, features: int | None, seed: int) -> int:
    """Return the number of features, all options checked."""
    check_choice("kind", kind, KINDS)
    if not LEAST <= scale <= MOST:
        raise ValueError(f"scale must be from {LEAST} to {MOST}, got {scale}")
    if kind == "powers" and dims.extent is not None and scale > 1:
        rule = "scale must be at most 1 with kind='powers' and an extent, in which the slowest wave would repeat"
        raise ValueError(f"{rule}, got {scale}")
    if not 0 <= seed < 2**32 or (seed and kind != "random"):
        rule = "seed must be from 0 to 2^32 - 1" if kind == "random" else f"seed must be 0 with kind={kind!r}"
        raise ValueError(f"{rule}, got {seed}")
    step = 2 * dims.axes if kind == "powers" else 2
    usual = step * _default_octaves(dims) if kind == "powers" else dims.width // 2 * 2
    count = usual if features is None else features
    if count < step or count % step or (kind == "powers" and count > step * MOST_OCTAVES):
        most = f", at most {step * MOST_OCTAVES}" if kind == "powers" else ""
        raise ValueError(f"features must be a multiple of {step}{most}, got {count}")
    return count


def _default_octaves(dims: Dims) -> int:
    """Return NeRF's number of octaves, or as many as have waves of at least two tokens on the longest side."""
    side = max(dims.extent) if isinstance(dims.extent, tuple) else dims.extent
    return OCTAVES if side is None else min(OCTAVES, max(1, side.bit_length() - 1))


def _centers(positions: Num[Array, "..."], sides: Float[Array, "*A"], *, repeats: bool) -> Float[Array, "..."]:
    """Return centers of tokens or patches, -1 to 1; where waves repeat, a token beyond the ends is refused or NaN."""
    places = positions.astype(jnp.float32)
    centers = 2.0 * (places + 0.5) / sides - 1.0
    if not repeats:
        return centers
    outside = (places <= -1.0) | (places >= sides)
    if not isinstance(outside, Tracer) and outside.any():
        raise ValueError(f"positions must be {BEYOND}, got {positions[outside][0]} of {sides}")
    return jnp.where(outside, jnp.nan, centers)


def _octaves(scale: float, count: int, axes: int, params: Params, coordinates: Num[Array, "..."]) -> Array:
    """Return `sin 2^k π s c` and `cos 2^k π s c` of every octave k, `(*B, T, F)`, axis by axis."""
    del params
    octaves = [2**k for k in range(count // (2 * axes))]
    words = np.stack(frequency_words(octaves, 2.0 / scale))
    by_axis = coordinates if axes > 1 else coordinates[..., None]
    cos, sin = exact_cos_sin(jnp.stack([by_axis] * WORDS, axis=-1), words)
    return jnp.stack([sin, cos], axis=-1).reshape(*by_axis.shape[:-1], count)


def _waves(params: Params, coordinates: Num[Array, "..."]) -> Float[Array, "*BT F"]:
    """Return cosines and sines of the coordinates times the frequencies `(A, F/2)`."""
    cos, sin = exact_cos_sin(coordinates, params["waves"])
    return jnp.concatenate([cos, sin], axis=-1)
