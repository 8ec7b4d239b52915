"""Exact phases at the farthest positions, and the laws of encodings, on the device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.hardware.outcomes import verdict
from pejax import Dims, init_params, make_encoding, rope_apply, rope_frequencies
from pejax._ops.phases import exact_cos_sin
from pejax.testing import assert_norm_preserved, assert_shift_invariant, assert_tile_consistent

FARTHEST = 2**24
LAWS = (assert_shift_invariant, assert_norm_preserved, assert_tile_consistent)


def phases(toy: bool) -> dict[str, Any]:
    """Return whether angles are exact at positions up to 2^24; float64 holds these products exactly."""
    count = 64 if toy else 4096
    positions = np.concatenate([np.arange(count), np.arange(FARTHEST - count, FARTHEST)]).astype(np.int32)
    frequencies = rope_frequencies(128)
    angles = positions[:, None].astype(np.float64) * np.asarray(frequencies, np.float64)
    cos, sin = jax.jit(exact_cos_sin)(positions, frequencies)
    x = np.random.default_rng(0).standard_normal((1, len(positions), 1, 128)).astype(np.float32)
    turned = jax.jit(rope_apply)(jnp.asarray(x), jnp.asarray(positions))
    even, odd = (x[0, :, 0, part::2].astype(np.float64) for part in (0, 1))
    wanted = even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)
    off = lambda a, b: float(np.max(np.abs(np.asarray(a, np.float64) - b)))
    errors = {"cos": off(cos, np.cos(angles)), "sin": off(sin, np.sin(angles))}
    rotated = [off(turned[0, :, 0, part::2], wanted[part]) / np.abs(x).max() for part in (0, 1)]
    return verdict({**errors, "rope_apply": max(rotated)}, 2e-6)


def laws(spec: str) -> dict[str, Any]:
    """Return whether an encoding keeps the laws of `pejax.testing` on the device, and by how much it is off."""
    dims = Dims(4, 16, axes=2 if "mixed" in spec else 1, extent=(7, 7) if "mixed" in spec else 49)
    encoding = make_encoding(spec, dims)
    params = init_params(encoding, jax.random.key(0))
    try:
        errors = {law.__name__.removeprefix("assert_"): law(encoding, params, dims) for law in LAWS}
    except AssertionError as broken:
        return {"outcome": "wrong", "message": str(broken).splitlines()[0]}
    return verdict(errors, 1e-5)
