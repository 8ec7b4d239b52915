"""Planes, frequencies and unit vectors of a rotary encoding, measured on the encoding itself."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.layer import applied, check_hooks, refuse

POWERS = range(-4, 15)
"""Positions 2^power at which angles are measured: each one unwraps the next."""


def planes_of(picture: str, encoding: Encoding, dims: Dims, params: Params) -> list[tuple[int, int]]:
    """Return the two channels of each pair that turns, the fastest pair first in the published order.

    Raises:
        ValueError: the encoding rotates nothing.
    """
    check_hooks(picture, encoding, "rotate")
    turned = _turn(encoding, dims, params, jnp.eye(dims.head_dim, dtype=jnp.float32), np.ones((1, dims.axes)))[0, :, 0]
    moved = np.abs(turned - np.diag(np.diag(turned))) > 1e-7
    pairs = [(channel, int(np.argmax(row))) for channel, row in enumerate(moved) if row.any()]
    pairs = [pair for pair in pairs if pair[0] < pair[1]]
    if not pairs:
        refuse(picture, "the encoding must rotate some pair of channels", "one that rotates none")
    return pairs


def unit_vectors(
    picture: str, encoding: Encoding, dims: Dims, params: Params, positions: np.ndarray
) -> Float[np.ndarray, "T H F 2"]:
    """Return the vector (1, 0) of every pair as `rotate` turns it at these positions: its cosine and its sine.

    Args:
        picture: name of the picture, for errors.
        encoding: encoding that rotates.
        dims: dims that the encoding was made for.
        params: parameters of the encoding, adapted.
        positions: `(T, A)`, integers or floats, in tokens or patches.
    """
    pairs = planes_of(picture, encoding, dims, params)
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    vector = jnp.zeros((1, dims.head_dim), jnp.float32).at[0, first].set(1.0)
    turned = _turn(encoding, dims, params, vector, positions)[:, 0]
    return np.stack([turned[..., first], turned[..., second]], axis=-1)


def _turn(encoding: Encoding, dims: Dims, params: Params, vectors: Array, positions: np.ndarray) -> np.ndarray:
    """Return `(T, V, H, D)`: every vector at every position in every head."""
    rotate = encoding.rotate
    assert rotate is not None  # checked by the caller
    heads = dims.heads
    count, many = len(positions), len(vectors)
    x = jnp.broadcast_to(vectors[None, :, None], (count, many, heads, vectors.shape[-1]))
    at = jnp.asarray(positions if dims.axes > 1 else positions[:, 0])
    at = jnp.repeat(at.astype(jnp.int32) if at.dtype.kind in "iu" else at.astype(jnp.float32), many, axis=0)
    return np.asarray(applied(rotate, params, x.reshape(count * many, heads, -1), at)).reshape(x.shape)


def measured_frequencies(picture: str, encoding: Encoding, dims: Dims, params: Params) -> Float[np.ndarray, "H A F"]:
    """Return the angle by which each pair turns per unit of position on one axis: radians per token or patch.

    The angle at 2^k predicts the one at 2^(k+1) well enough to count whole turns, so slow pairs are read off at large
    positions and fast ones are never mistaken for slow ones.
    """
    steps = 2.0 ** np.array(list(POWERS))
    frequencies = []
    for axis in range(dims.axes):
        positions = np.zeros((len(steps), dims.axes))
        positions[:, axis] = steps
        cos, sin = np.moveaxis(unit_vectors(picture, encoding, dims, params, positions), -1, 0).astype(np.float64)
        angles = np.arctan2(sin, cos)
        frequency = angles[0] / steps[0]
        for step, angle in zip(steps[1:], angles[1:], strict=True):
            predicted = frequency * step
            frequency = (predicted + np.angle(np.exp(1j * (angle - predicted)))) / step
        frequencies.append(frequency)
    return np.stack(frequencies, axis=1)
