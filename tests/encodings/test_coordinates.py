"""Coordinates of patches, and positions disturbed in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import augment_positions, grid_positions, normalized_positions
from tests.support.biases import types_unchecked
from tests.support.cases import slow

KEY = jax.random.key(0)
GRID = grid_positions(3, 5)


@pytest.mark.parametrize(("by", "units"), [("separate", (3, 5)), slow("min", (3, 3)), slow("max", (5, 5))])
def test_coordinates_are_those_of_dinov3(by, units):
    rows, columns = ((np.arange(0.5, n) / unit) * 2 - 1 for n, unit in zip((3, 5), units, strict=True))
    expected = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1).reshape(-1, 2)
    result = normalized_positions(GRID, (3, 5), by)
    np.testing.assert_allclose(result, expected, atol=1e-6)
    np.testing.assert_allclose(normalized_positions(GRID[None], (3, 5), by=by)[0], expected, atol=1e-6)
    np.testing.assert_allclose(normalized_positions(jnp.arange(5), 5), np.arange(0.5, 5) / 5 * 2 - 1, atol=1e-6)
    of_each = normalized_positions(jnp.stack([GRID, GRID[:, ::-1]]), jnp.asarray([(3, 5), (5, 3)]), by=by)
    np.testing.assert_allclose(of_each, [expected, expected[:, ::-1]], atol=1e-6)
    traced = jax.jit(lambda extent: normalized_positions(GRID, extent, by=by))(jnp.asarray((3, 5)))
    np.testing.assert_allclose(traced, expected, atol=1e-6)


def test_nothing_asked_for_changes_nothing():
    assert augment_positions(KEY, GRID) is GRID


def drawn(count=400, positions=GRID, **options):
    """Return many draws, in float64."""
    one = jax.jit(jax.vmap(lambda key: augment_positions(key, positions, **options)))
    return np.asarray(one(jax.random.split(KEY, count)), np.float64)


def test_a_shift_is_one_number_per_axis_within_its_bound():
    shifts = drawn(shift=0.5) - np.asarray(GRID)
    np.testing.assert_allclose(shifts, np.broadcast_to(shifts[:, :1], shifts.shape), atol=1e-5)
    assert 0.49 < np.abs(shifts).max() <= 0.5 + 1e-5
    assert abs(np.corrcoef(*shifts[:, 0].T)[0, 1]) < 0.2
    np.testing.assert_allclose(shifts[:, 0].std(), 0.5 / np.sqrt(3), rtol=0.1)


@pytest.mark.slow
def test_a_jitter_is_one_factor_per_axis_and_a_rescaling_one_for_all():
    at = np.asarray(GRID, np.float64) + 1.0
    for name in ("jitter", "rescale"):
        factors = np.log(drawn(positions=jnp.asarray(at, jnp.float32), **{name: 2.0}) / at) / np.log(2.0)
        np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), atol=1e-5)
        assert 0.98 < np.abs(factors).max() <= 1 + 1e-5
        assert abs(factors.mean()) < 0.1
        together = np.corrcoef(*factors[:, 0].T)[0, 1]
        assert together > 0.999 if name == "rescale" else abs(together) < 0.2


def test_noise_is_a_number_per_token_and_axis():
    result = drawn(noise=0.25) - np.asarray(GRID)
    assert 0.24 < np.abs(result).max() <= 0.25 + 1e-5
    assert np.abs(np.corrcoef(result.reshape(400, -1).T) - np.eye(30)).max() < 0.3


@pytest.mark.slow
def test_shifts_come_before_factors_and_one_axis_is_one_axis():
    positions = augment_positions(KEY, jnp.zeros(4), shift=1.0, jitter=3.0)
    shifted, stretched = (
        augment_positions(KEY, jnp.zeros(4), shift=1.0),
        augment_positions(KEY, jnp.ones(4), jitter=3.0),
    )
    np.testing.assert_allclose(positions, shifted * stretched, rtol=1e-6)
    assert positions.shape == (4,)
    assert len(np.unique(np.asarray(positions))) == 1
    batch = augment_positions(KEY, jnp.stack([GRID, GRID]), shift=1.0, rescale=2.0)
    np.testing.assert_array_equal(batch[0], batch[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shift": -1.0}, "shift must be a finite number from 0, got -1.0"),
        ({"noise": float("nan")}, "noise must be a finite number, got nan"),
        ({"jitter": 0.5}, "jitter must be a finite number from 1, got 0.5"),
        ({"rescale": 0.0}, "rescale must be a finite number from 1, got 0.0"),
    ],
)
def test_bad_bounds_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        augment_positions(KEY, GRID, **options)


def test_bad_coordinates_are_refused():
    with pytest.raises(ValueError, match="by must be one of separate, min, max, got 'mean'"):
        normalized_positions(GRID, (3, 5), "mean")
    with pytest.raises(ValueError, match="must end in the 3 axes"):
        normalized_positions(GRID, (3, 5, 2))
    with pytest.raises(ValueError, match="extent must be positive"):
        normalized_positions(GRID, (3, 0))
    with pytest.raises(ValueError, match=r"a grid \(A,\), or grids \(\*B, A\), .* got shape \(3, 2\)"):
        normalized_positions(jnp.stack([GRID, GRID]), jnp.ones((3, 2), int))
    rough = GRID.astype(jnp.bfloat16)
    for refused in (lambda: normalized_positions(rough, (3, 5)), lambda: augment_positions(KEY, rough, shift=1.0)):
        with types_unchecked(), pytest.raises(TypeError, match="exact only up to 256"):
            refused()
