"""Fourier features against the equations of their papers in NumPy's float64, and what coordinates are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import pejax
from pejax import Dims, adapt, grid_positions, make_encoding, normalized_positions
from tests.support.cases import normal, slow

SPACE = Dims(heads=2, head_dim=4, axes=3)
"""Points, whose positions are coordinates."""

PICTURE = Dims(heads=2, head_dim=4, axes=2, extent=(4, 6))
LINE = Dims(heads=2, head_dim=4, extent=16)
POINTS = np.random.default_rng(0).uniform(-1, 1, (7, 3)).astype(np.float32)


def params_of(encoding, extent=None):
    """Return parameters that are nowhere zero."""
    params = jax.tree.map(lambda leaf: leaf + 0.1 * normal(*leaf.shape), encoding.init(jax.random.key(1)))
    return adapt(encoding, params, extent)


def embedded(encoding, params, positions, width):
    """Return what is added at positions, in float64."""
    zeros = jnp.zeros((len(positions), width))
    return np.asarray(jax.jit(encoding.embed)(params, zeros, jnp.asarray(positions)), np.float64)


def features_of(encoding, params, positions):
    """Return the features themselves: with a projection that changes nothing."""
    count = len(params["projection"])
    return embedded(encoding, {**params, "projection": jnp.eye(count)}, positions, count)


def octaves(coordinates, count, scale=1.0):
    """Return `sin 2^k π s c, cos 2^k π s c`, k = 0 ... count - 1, for each coordinate: NeRF's equation 4."""
    rows = []
    for point in np.asarray(coordinates, float).reshape(len(coordinates), -1):
        waves = [
            (np.sin(2**k * np.pi * scale * c), np.cos(2**k * np.pi * scale * c)) for c in point for k in range(count)
        ]
        rows.append(np.ravel(waves))
    return np.asarray(rows)


@pytest.mark.parametrize(
    ("features", "scale"), [slow(60, 1.0), slow(12, 0.25), slow(144, 1.0), slow(6, 3.0), (36, 1.0)]
)
def test_powers_are_those_of_nerf(features, scale):
    wide = dataclasses.replace(SPACE, width=features)
    encoding = make_encoding(f"fourier(scale={scale}, features={features})", wide)
    result = features_of(encoding, params_of(encoding), POINTS)
    np.testing.assert_allclose(result, octaves(POINTS, features // 6, scale), atol=1e-6)


@pytest.mark.slow
def test_random_features_are_those_of_tancik_and_their_seed():
    wide = dataclasses.replace(SPACE, width=32)
    encoding = make_encoding("fourier(kind='random', scale=2.5, seed=3)", wide)
    directions = 2.5 * np.random.RandomState(3).standard_normal((3, 16))
    angles = 2 * np.pi * POINTS.astype(float) @ directions
    params = params_of(encoding)
    result = features_of(encoding, params, POINTS)
    np.testing.assert_allclose(result, np.concatenate([np.cos(angles), np.sin(angles)], axis=-1), atol=5e-6)
    assert set(encoding.init(jax.random.key(0))) == {"projection"}
    # of a checkpoint that says the seed, whatever the version of NumPy
    np.testing.assert_allclose(params["waves"][0, :3] / (2 * np.pi * 2.5), [1.7886285, 0.4365099, 0.0964975], rtol=1e-6)
    other = make_encoding("fourier(kind='random', scale=2.5, seed=4)", wide)
    assert np.abs(np.asarray(params_of(other)["waves"] - params["waves"])).max() > 1


@pytest.mark.slow
def test_learned_features_are_algorithm_1_of_li():
    encoding = make_encoding("fourier(kind='learned', scale=2.0, features=10)", SPACE)
    params = params_of(encoding)
    exact = {name: np.asarray(leaf, float) for name, leaf in params.items()}
    angles = POINTS.astype(float) @ exact["waves"]
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) / np.sqrt(10)
    hidden = waves @ exact["hidden"] + exact["hidden_bias"]
    erf = np.vectorize(lambda z: float(jax.lax.erf(jnp.float32(z))))
    expected = (hidden * 0.5 * (1 + erf(hidden / np.sqrt(2)))) @ exact["projection"] + exact["bias"]
    np.testing.assert_allclose(embedded(encoding, params, POINTS, SPACE.width), expected, atol=2e-6)
    drawn = encoding.init(jax.random.key(0))["waves"]
    assert 1.2 < float(jnp.std(drawn)) < 2.8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["powers", "random", "learned"])
def test_the_projection_is_drawn_so_that_features_of_any_number_have_one_variance(kind):
    for features in (60, 600 if kind != "powers" else 120):
        wide = Dims(heads=2, head_dim=128, axes=3)
        encoding = make_encoding(f"fourier(kind={kind!r}, features={features})", wide)
        params = adapt(encoding, encoding.init(jax.random.key(0)))
        added = embedded(encoding, params, POINTS, 256)
        low, high = (0.5, 0.9) if kind != "learned" else (0.002, 0.1)
        assert low < added.std() < high


@pytest.mark.parametrize("extent", [slow((4, 6)), slow((8, 3))])
def test_on_grids_coordinates_are_centers_of_patches(extent):
    encoding = make_encoding("fourier(features=8)", PICTURE)
    at, params = grid_positions(extent), params_of(encoding, extent)
    centers = np.asarray(normalized_positions(at, extent), float)
    expected = octaves(centers, 2) @ np.asarray(params["projection"], float)
    np.testing.assert_allclose(embedded(encoding, params, at, 8), expected, atol=3e-6)
    traced = jax.jit(lambda grid: adapt(encoding, params, grid))(jnp.asarray(extent))
    np.testing.assert_allclose(embedded(encoding, traced, at, 8), expected, atol=3e-6)


@pytest.mark.slow
def test_on_one_axis_coordinates_are_centers_of_the_trained_length():
    encoding = make_encoding("fourier(features=8)", LINE)
    params = params_of(encoding, 16)
    centers = (np.arange(16) + 0.5) / 8 - 1
    expected = octaves(centers, 4) @ np.asarray(params["projection"], float)
    np.testing.assert_allclose(embedded(encoding, params, np.arange(16), 8), expected, atol=3e-6)


@pytest.mark.slow
def test_positions_beyond_the_extent_are_refused_or_nan_where_waves_repeat():
    encoding = make_encoding("fourier", LINE)
    params, x = params_of(encoding, 16), jnp.zeros((17, 8))
    with pytest.raises(ValueError, match=r"a sequence must be within the trained extent, .* got length 17 beyond 16"):
        adapt(encoding, params, 17)
    with pytest.raises(ValueError, match=r"where kind='powers' repeats .extend='pi' .* got 16 of 16"):
        encoding.embed(params, x, jnp.arange(17))
    added = np.asarray(jax.jit(encoding.embed)(params, x, jnp.arange(17)))
    assert np.isfinite(added[:16]).all()
    assert np.isnan(added[16]).all()
    longer = make_encoding("fourier(extend='pi')", LINE)
    assert np.isfinite(embedded(longer, adapt(longer, params, 32), np.arange(32), 8)).all()
    far = make_encoding("fourier(kind='random')", LINE)
    assert np.isfinite(embedded(far, params_of(far), np.arange(99), 8)).all()


@pytest.mark.parametrize(("scale", "period"), [(0.5, "4"), (1.5, "1.33333"), (0.01, "200")])
def test_integer_positions_that_have_no_extent_are_refused_since_waves_repeat(scale, period):
    words = rf"must be coordinates in floats, such as normalized_positions, .*: the waves repeat every {period}, got "
    with pytest.raises(ValueError, match=f"{words}int32"):
        make_encoding(f"fourier(scale={scale})", SPACE).embed({}, jnp.zeros((5, 8)), jnp.zeros((5, 3), jnp.int32))


@pytest.mark.slow
def test_without_an_extent_waves_repeat_every_2_by_scale():
    encoding = make_encoding("fourier(scale=0.5)", SPACE)
    added = embedded(encoding, params_of(encoding), POINTS, 8)
    np.testing.assert_allclose(embedded(encoding, params_of(encoding), POINTS + 4, 8), added, atol=1e-4)
    assert np.abs(embedded(encoding, params_of(encoding), POINTS + 2, 8) - added).max() > 0.1


@pytest.mark.parametrize("place", [-1.0, -1.5, 16.0])
def test_positions_a_token_beyond_the_extent_are_refused(place):
    with pytest.raises(ValueError, match=f"must be within the trained extent, .* got {place} of 16"):
        make_encoding("fourier", LINE).embed({}, jnp.zeros((1, 8)), jnp.asarray([place]))


@pytest.mark.slow
def test_positions_less_than_a_token_beyond_the_ends_have_the_waves_of_the_other_end():
    encoding = make_encoding("fourier", LINE)
    params = params_of(encoding, 16)
    below, above = np.asarray([-0.75, -0.25, 15.75]), np.asarray([15.25, 15.75, -0.25])
    added = embedded(encoding, params, below, 8)
    np.testing.assert_allclose(added, embedded(encoding, params, above, 8), atol=1e-4)
    assert np.isfinite(added).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["powers", "random", "learned"])
def test_the_gradient_of_coordinates_is_that_of_differences(kind):
    encoding = make_encoding(f"fourier(kind={kind!r}, features=12)", SPACE)
    params, weight = params_of(encoding), normal(7, 8)
    total = lambda at: jnp.sum(weight * encoding.embed(params, jnp.zeros((7, 8)), at))
    step = 1e-3 * normal(7, 3, seed=2)
    along = float(jnp.vdot(jax.grad(total)(jnp.asarray(POINTS)), step))
    np.testing.assert_allclose(along, (total(POINTS + step) - total(POINTS - step)) / 2, rtol=1e-2, atol=1e-4)


REFUSED = {
    "fourier(kind='sin')": "kind must be one of powers, random, learned, got 'sin'",
    "fourier(features=14)": "features must be a multiple of 6, at most 144, got 14",
    "fourier(features=150)": "features must be a multiple of 6, at most 144, got 150",
    "fourier(kind='random', features=3)": "features must be a multiple of 2, got 3",
    "fourier(kind='learned', features=0)": "features must be a multiple of 2, got 0",
    "fourier(scale=0.0)": "scale must be from 1e-09 to 1000000000.0, got 0.0",
    "fourier(kind='random', seed=-1)": "seed must be from 0 to 2^32 - 1, got -1",
    "fourier(seed=1)": "seed must be 0 with kind='powers', got 1",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_options_that_do_not_fit_are_refused(spec):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - compared whole
        make_encoding(spec, SPACE)
    assert str(refusal.value) == f"fourier: {REFUSED[spec]}"


@pytest.mark.parametrize(("extent", "octaves"), [(None, 10), (2, 1), (1, 1), (63, 5), (64, 6), (10**6, 10)])
def test_no_wave_is_shorter_than_two_tokens(extent, octaves):
    encoding = make_encoding("fourier", Dims(heads=2, head_dim=4, extent=extent))
    assert jax.eval_shape(encoding.init, jax.random.key(0))["projection"].shape[0] == 2 * octaves
    on_grid = make_encoding("fourier", Dims(heads=2, head_dim=4, axes=2, extent=(1, extent or 1024)))
    assert jax.eval_shape(on_grid.init, jax.random.key(0))["projection"].shape[0] == 4 * octaves


def test_the_slowest_wave_must_not_repeat_within_the_extent():
    with pytest.raises(ValueError, match=r"scale must be at most 1 with kind='powers' and an extent, .* got 2.0"):
        make_encoding("fourier(scale=2.0)", PICTURE)
    assert make_encoding("fourier(kind='random', scale=2.0)", PICTURE).embed


def test_the_words_of_others_lead_here():
    with pytest.raises(ValueError, match=r"unknown encoding 'rff'; did you mean 'fourier'\?"):
        make_encoding("rff", LINE)


@pytest.mark.slow
def test_costs_are_counted_at_coordinates():
    assert "cost: embed" in pejax.explain(make_encoding("fourier", SPACE), SPACE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["powers", "random", "learned"])
def test_a_vision_transformer_trains_a_step_and_sees_centers(kind):
    from pejax.models import ViT, vit

    config = vit(
        image_size=12, patch=3, channels=1, classes=3, width=32, layers=1, heads=2, pe=f"fourier(kind={kind!r})"
    )
    model = ViT(config, rngs=nnx.Rngs(0))
    assert model.dims.extent == (4, 4)
    optimizer = nnx.Optimizer(model, optax.sgd(0.05), wrt=nnx.Param)
    images, labels = normal(6, 12, 12, 1), jnp.arange(6) % 3

    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    before, losses = jax.tree.map(jnp.array, nnx.state(model, nnx.Param)["position"]), []
    for _ in range(4):
        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        losses.append(float(value))
    assert losses[-1] < losses[0]
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, nnx.state(model, nnx.Param)["position"])
    assert min(jax.tree.leaves(moved)) > 0
    # the same as an encoding that is given the centers
    params = model.encoding_params()
    spec = f"fourier(kind={kind!r}, features={len(params['projection'])})"
    points = make_encoding(spec, dataclasses.replace(model.dims, extent=None))
    at = grid_positions(4, 4)
    centers = normalized_positions(at, (4, 4))
    inside = embedded(model.encoding, adapt(model.encoding, params, (4, 4)), at, 32)
    np.testing.assert_allclose(inside, embedded(points, adapt(points, params), centers, 32), atol=1e-6)
