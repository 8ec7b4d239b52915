"""Rows of a table between its rows: a loop in float64, torch's grid_sample, and what is outside."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.functions import lookup_embedding
from tests.support.peers import peer
from tests.support.resampling import cubic, draw, resize


@pytest.mark.parametrize("size", [(7,), (4, 6), (2, 3, 4)])
def test_whole_positions_read_the_rows_themselves(size):
    table = draw(*size, 5)
    places = np.array(list(itertools.product(*map(range, size))))
    places = places if len(size) > 1 else places[:, 0]
    for dtype in (np.int32, np.uint8, np.float32):
        rows = lookup_embedding(jnp.asarray(table), places.astype(dtype))
        np.testing.assert_array_equal(rows, table.reshape(-1, 5))


@pytest.mark.parametrize("size", [(7,), (1,), (5, 4)])
def test_positions_in_between_are_bicubic(size):
    table = draw(*size, 3)
    places = (
        np.random.default_rng(1).uniform(-0.99, 0.99, (9, len(size)))
        + np.array(size) * np.linspace(0, 0.999, 9)[:, None]
    )
    places = np.minimum(places, np.array(size) - 0.01).astype(np.float32)
    expected = np.zeros((9, 3))
    for n, place in enumerate(places.astype(np.float64)):
        for taps in itertools.product(*(range(-3, item + 3) for item in size)):
            weight = np.prod([cubic(tap - p, -0.75) for tap, p in zip(taps, place, strict=True)])
            expected[n] += weight * table[tuple(np.clip(taps, 0, np.array(size) - 1))]
    rows = lookup_embedding(jnp.asarray(table), places if len(size) > 1 else places[:, 0])
    np.testing.assert_allclose(rows, expected, rtol=0, atol=2e-6)


@pytest.mark.parity
def test_positions_in_between_are_those_of_torch_grid_sample():
    torch = peer("torch")
    table, places = draw(6, 4, 3), np.random.default_rng(1).uniform(-0.9, [5.9, 3.9], (20, 2))
    leaf = torch.tensor(table.astype(np.float64), requires_grad=True)
    points = torch.tensor(places, requires_grad=True)
    grid = (2 * points / torch.tensor([5.0, 3.0]) - 1).flip(-1)[None, None]
    image = leaf.permute(2, 0, 1)[None]
    expected = torch.nn.functional.grid_sample(image, grid, "bicubic", "border", True)[0, :, 0].T
    rows, pull = jax.jit(lambda *pair: jax.vjp(lookup_embedding, *pair))(table, places.astype(np.float32))
    np.testing.assert_allclose(rows, expected.detach().numpy(), rtol=0, atol=3e-6)
    expected.backward(torch.tensor(draw(20, 3).astype(np.float64)))
    for actual, exact in zip(pull(jnp.asarray(draw(20, 3))), (leaf.grad, points.grad), strict=True):
        np.testing.assert_allclose(actual, exact.numpy(), rtol=0, atol=2e-5)


def test_reading_at_the_centres_is_resizing():
    table = draw(5, 4, 3)
    centres = (np.mgrid[:8, :9].reshape(2, -1).T + 0.5) * (5 / 8, 4 / 9) - 0.5
    resized = resize(table.reshape(20, 3), (5, 4), (8, 9))
    rows = lookup_embedding(jnp.asarray(table), centres.astype(np.float32))
    np.testing.assert_allclose(rows, resized, rtol=0, atol=3e-6)


@pytest.mark.slow
def test_batches_of_positions_are_lifted():
    table = jnp.asarray(draw(4, 5, 3))
    places = np.random.default_rng(1).uniform(0, 3, (2, 3, 6, 2)).astype(np.float32)
    rows = np.asarray(lookup_embedding(table, places))
    assert rows.shape == (2, 3, 6, 3)
    np.testing.assert_allclose(rows[1, 2], lookup_embedding(table, places[1, 2]), rtol=0, atol=1e-6)
    assert lookup_embedding(table.astype(jnp.bfloat16), places).dtype == jnp.bfloat16
    assert lookup_embedding(table, places[:, :, :0]).shape == (2, 3, 0, 3)


@pytest.mark.parametrize("outside", [-1, 5, 2**31 - 1, -1.0, 5.0, 1e30, np.nan, -np.inf])
def test_positions_outside_are_an_error_or_nan_and_never_clamped(outside):
    table = jnp.asarray(draw(5, 2))
    positions = np.array([0, outside, 4], np.int32 if isinstance(outside, int) else np.float32)
    with pytest.raises(ValueError, match="positions must lie inside a table of size 5, got"):
        lookup_embedding(table, positions)
    rows, gradient = at_run_time(table, positions)
    np.testing.assert_array_equal(np.isnan(rows), [[False] * 2, [True] * 2, [False] * 2])
    np.testing.assert_array_equal(gradient, [[1, 1], [0, 0], [0, 0], [0, 0], [1, 1]])


@jax.jit
def at_run_time(table, positions):
    """Return the rows, and the gradient of the sum of those that are inside."""
    rows = lambda table: lookup_embedding(table, positions)
    return rows(table), jax.grad(lambda table: jnp.nansum(rows(table)))(table)


def test_one_axis_outside_is_outside():
    table = jnp.asarray(draw(3, 5, 2))
    with pytest.raises(ValueError, match=r"inside a table of size \(3, 5\), got \[3, 4\]"):
        lookup_embedding(table, np.array([[2, 4], [3, 4]]))
    rows = jax.jit(lookup_embedding)(table, np.array([[2, 4], [3, 4], [1, -1]]))
    np.testing.assert_array_equal(np.isnan(rows)[:, 0], [False, True, True])


def test_positions_of_other_axes_or_types_are_refused():
    with pytest.raises(ValueError, match=r"must end in the 2 axes of the table, got shape \(4, 3\)"):
        lookup_embedding(jnp.zeros((2, 3, 4)), jnp.zeros((4, 3), jnp.int32))
    with pytest.raises(TypeError, match="integers or floats, got complex64"):
        lookup_embedding(jnp.zeros((3, 4)), jnp.zeros(2, jnp.complex64))
