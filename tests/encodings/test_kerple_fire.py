"""KERPLE and FIRE: learned functions of the distance, against their formulas in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, grid_positions, make_encoding
from pejax._ops import relu_network
from pejax._record.encoding import split_params
from tests.support.biases import compiled, types_unchecked
from tests.support.cases import slow

fire_bias, kerple_bias = compiled("fire_bias"), compiled("kerple_bias")

KEY = jax.random.key(0)
AT = jnp.arange(9)


def drawn(encoding):
    """Return initial parameters, in dictionaries that may be changed."""
    return jax.jit(encoding.init)(KEY)


def whole_bias(encoding, params, positions):
    """Return `(H, T, T)` from the hook of an encoding that reads no queries."""
    shared, heads = split_params(params)
    nothing = jnp.zeros((len(positions), 1))
    head = lambda heads: encoding.bias({**shared, **heads}, nothing, nothing, positions, positions)
    return jax.jit(jax.vmap(head))(heads)


# KERPLE


@pytest.mark.parametrize("variant", ["log", "power"])
@pytest.mark.parametrize("axes", [1, 2])
def test_kerple_is_its_formula(variant, axes):
    r1, r2 = jnp.asarray([0.5, 1.5]), jnp.asarray([0.25, 1.75])
    at = AT if axes == 1 else grid_positions(3, 3)
    points = np.asarray(at, np.float64).reshape(9, -1)
    d = np.linalg.norm(points[None] - points[:, None], axis=-1)
    bias = kerple_bias(at, at, r1, r2, variant=variant)
    for h in (0, 1):
        a, b = float(r1[h]), float(r2[h])
        expected = -a * np.log(1 + b * d) if variant == "log" else -a * d**b
        np.testing.assert_allclose(bias[h], expected, rtol=2e-6)
    encoding = make_encoding(f"kerple(variant={variant!r})", Dims(heads=2, head_dim=4, axes=axes))
    np.testing.assert_allclose(whole_bias(encoding, {"heads": {"r1": r1, "r2": r2}}, at), bias, rtol=1e-6)


@pytest.mark.parametrize(("variant", "tops"), [("log", (2.0, 1.0)), ("power", (1.0, 2.0))])
def test_kerple_starts_uniform(variant, tops):
    heads = drawn(make_encoding(f"kerple(variant={variant!r})", Dims(heads=1000, head_dim=1)))["heads"]
    for name, top in zip(("r1", "r2"), tops, strict=True):
        assert heads[name].shape == (1000,)
        assert 0 <= float(heads[name].min()) < 0.01 * top
        assert 0.99 * top < float(heads[name].max()) <= top
        assert float(heads[name].mean()) == pytest.approx(top / 2, rel=0.05)


def test_kerple_reads_its_numbers_within_bounds_without_getting_stuck_on_them():
    encoding = make_encoding("kerple(variant='power')", Dims(heads=1, head_dim=4))
    low, high = jnp.float32(-3.0), jnp.float32(5.0)
    value = lambda r1, r2: encoding.distance_bias({"r1": r1, "r2": r2}, jnp.asarray([3]))[0]
    assert float(value(low, high)) == pytest.approx(-0.01 * 9, rel=1e-4)
    assert float(value(low, low)) == pytest.approx(-0.01 * 3**0.01, rel=1e-4)
    r1, r2 = jax.grad(value, (0, 1))(low, high)
    assert float(r1) == pytest.approx(-9, rel=1e-5)
    assert float(r2) == pytest.approx(-0.01 * 9 * np.log(3), rel=1e-3)


@pytest.mark.parametrize("variant", ["log", "power"])
def test_kerple_has_finite_gradients_where_tokens_meet(variant):
    total = lambda at, r1, r2: kerple_bias(at, at, r1, r2, variant=variant).sum()
    for at in (jnp.zeros(3), jnp.zeros((3, 2))):
        gradients = jax.jit(jax.grad(total, (0, 1, 2)))(at, jnp.ones(2), jnp.asarray([0.5, 0.5]))
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, 0.0)


# FIRE


def fire_by_hand(params, h, i, j, *, causal, threshold):
    """Return the bias of one head and pair on one axis, in float64."""
    p, heads = ({name: np.asarray(x, np.float64) for name, x in params[group].items()} for group in ("all", "heads"))
    log = lambda x: np.log(abs(p["c"] * x) + 1)
    normaliser = max(i, threshold * p["multiplier"], *([] if causal else [j]))
    x = log(i - j) / (log(normaliser) + 1e-6)
    turn = p["e"] * np.sign(j - i) if "e" in p else 0
    return heads["w"][h] @ np.maximum(p["a"] * x + turn + p["b"], 0) + heads["bias"][h]


@pytest.mark.parametrize(("causal", "signed"), [(True, False), slow(True, True), slow(False, True), slow(False, False)])
def test_fire_is_its_formula(causal, signed):
    dims = Dims(heads=2, head_dim=4, causal=causal)
    params = drawn(make_encoding(f"fire(signed={signed})", dims))
    params["all"]["multiplier"] = jnp.float32(1.25)
    at = jnp.asarray([0, 1, 3, 4, 9, 40])
    bias = fire_bias(at, at, params, causal=causal, threshold=4.0)
    for h, i, j in np.ndindex(bias.shape):
        expected = fire_by_hand(params, h, int(at[i]), int(at[j]), causal=causal, threshold=4.0)
        assert bias[h, i, j] == pytest.approx(expected, abs=2e-6)
    np.testing.assert_allclose(whole_bias(make_encoding("fire(threshold=4)", dims), params, at), bias, atol=1e-6)


@pytest.mark.slow
def test_signed_fire_tells_left_from_right_and_no_direction_is_unsigned_fire():
    dims = Dims(heads=2, head_dim=4, axes=2, extent=(3, 4))
    plain, signed = (drawn(make_encoding(f"fire(signed={value})", dims)) for value in (False, True))
    assert "e" not in plain["all"]
    for name in ("a", "b"):
        np.testing.assert_allclose(signed["all"][name], plain["all"][name] * 2**-0.5, rtol=1e-6)
    at = grid_positions(3, 4)
    measure = lambda params: np.asarray(fire_bias(at, at, params, causal=False, threshold=4.0))
    assert np.abs(measure(plain) - measure(plain).swapaxes(1, 2)).max() < 1e-6
    assert np.abs(measure(signed) - measure(signed).swapaxes(1, 2)).max() > 0.05
    blind = {**plain, "all": {**plain["all"], "e": jnp.zeros_like(plain["all"]["a"])}}
    np.testing.assert_allclose(measure(blind), measure(plain), atol=1e-6)


@pytest.mark.slow
def test_fire_on_a_grid_sums_one_network_an_axis():
    at = grid_positions(3, 4)
    params = drawn(make_encoding("fire", Dims(heads=2, head_dim=4, axes=2)))
    bias = fire_bias(at, at, params, causal=False, threshold=2.0)
    pick = lambda a: {
        "all": {name: leaf[a] for name, leaf in params["all"].items()},
        "heads": {name: leaf[:, a] for name, leaf in params["heads"].items()},
    }
    one = [fire_bias(at[:, a], at[:, a], pick(a), causal=False, threshold=2.0) for a in (0, 1)]
    np.testing.assert_allclose(bias, one[0] + one[1], atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_fire_measures_every_visible_distance_within_0_and_1(causal):
    """A network that returns its input shows the normalised distance: 0 at the query, 1 over all of a long past."""
    unit = {"a": jnp.ones(1), "b": jnp.zeros(1), "c": jnp.float32(0.1), "multiplier": jnp.float32(1.0)}
    params = {"all": unit, "heads": {"w": jnp.ones((1, 1)), "bias": jnp.zeros(1)}}
    at = jnp.arange(0, 40, 3)
    x = np.asarray(fire_bias(at, at, params, causal=causal, threshold=8.0)[0])
    seen = np.tril(np.ones(x.shape, bool)) | (not causal)
    assert x[seen].min() >= 0
    assert x[seen].max() <= 1
    np.testing.assert_array_equal(np.diag(x), 0)
    np.testing.assert_allclose(x[3:, 0], 1, atol=1e-5)
    assert x[1, 0] < 0.5


@pytest.mark.slow
def test_fire_has_finite_gradients_everywhere():
    params = drawn(make_encoding("fire", Dims(heads=2, head_dim=4)))
    at = jnp.asarray([0.0, 0.0, 2.5, 30.0])
    total = lambda params, at: fire_bias(at, at, params, causal=False, threshold=8.0).sum()
    gradient = jax.jit(jax.grad(total, (0, 1)))
    for c in (0.1, 0.0):
        params["all"]["c"] = jnp.float32(c)
        for leaf in jax.tree.leaves(gradient(params, at)):
            assert np.isfinite(leaf).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extent", "threshold"),
    [(16, 16.0), slow(4096, 512.0), (None, 512.0), slow((3, 20), 20.0)],
    ids=str,
)
def test_the_threshold_follows_a_short_extent(extent, threshold):
    axes = len(extent) if isinstance(extent, tuple) else 1
    at = jnp.arange(24) if axes == 1 else 3 * grid_positions(4, 6)
    encoding = make_encoding("fire", Dims(heads=2, head_dim=4, axes=axes, extent=extent, causal=True))
    params = drawn(encoding)
    expected = fire_bias(at, at, params, causal=True, threshold=threshold)
    np.testing.assert_allclose(whole_bias(encoding, params, at), expected, atol=1e-6)


def test_fire_starts_like_a_linear_layer():
    params = drawn(make_encoding("fire(hidden=400)", Dims(heads=2, head_dim=4)))
    shared, heads = split_params(params)
    assert float(shared["c"]) == pytest.approx(0.1)
    assert float(shared["multiplier"]) == 1.0
    for leaf, bound in ((shared["a"], 1.0), (shared["b"], 1.0), (heads["w"], 0.05)):
        assert 0.95 * bound < float(jnp.abs(leaf).max()) <= bound
        assert abs(float(leaf.mean())) < 0.1 * bound


# Options


@pytest.mark.parametrize("name", ["kerple", "fire"])
def test_parameters_may_be_shared_or_each_layers_own(name):
    dims = Dims(heads=2, head_dim=4)
    shared, by_layer = make_encoding(name, dims), make_encoding(f"{name}(share='layer')", dims)
    assert shared.init_layer(KEY) == {} == by_layer.init(KEY)
    assert jax.eval_shape(shared.init, KEY) == jax.eval_shape(by_layer.init_layer, KEY)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("kerple(variant='linear')", "variant must be one of log, power, got 'linear'"),
        ("kerple(share='all')", "share must be one of model, layer, got 'all'"),
        ("fire(share='all')", "share must be one of model, layer, got 'all'"),
        ("fire(hidden=0)", "hidden units must be at least 1, got 0"),
        ("fire(threshold=0)", "threshold must be positive, got 0"),
    ],
)
def test_bad_options_are_refused(spec, words):
    with pytest.raises(ValueError, match=words):
        make_encoding(spec, Dims(heads=2, head_dim=4))


def test_parameters_without_the_axes_of_the_positions_are_refused():
    params = drawn(make_encoding("fire", Dims(heads=2, head_dim=4)))
    with types_unchecked(), pytest.raises(ValueError, match="fire's c must have axis dimension \\(2,\\) as"):
        fire_bias(grid_positions(2, 2), grid_positions(2, 2), params, causal=False)
    with pytest.raises(ValueError, match="variant must be one of"):
        kerple_bias(AT, AT, jnp.ones(1), jnp.ones(1), variant="cosine")


# FIRE by blocks


PLACES = {
    "anywhere": np.random.default_rng(1).integers(0, 60, 40),
    "counting on": np.r_[7:26, 3:24],
    "but for the last key": np.r_[7:26, 3:23, 24],
    "but for the first query": np.r_[6, 8:26, 3:24],
}
"""Of 19 queries and 21 keys."""


@pytest.mark.slow
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("kind", [jnp.int32, pytest.param(jnp.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("causal", [True, slow(False)])
def test_blocks_of_pairs_add_up_to_the_network_pair_by_pair(monkeypatch, kind, causal, places):
    """Values and every gradient, with blocks that do not divide the lengths, a unit without a knot and one at 0."""
    monkeypatch.setattr(relu_network, "BLOCK", 8)
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.uniform(-1, 1, shape), jnp.float32)
    units = relu_network.Units(draw(16).at[0].set(0.0), draw(16).at[1].set(0.0), draw(16))
    at = jnp.asarray(PLACES[places], kind)
    inverse = 1 / jnp.log1p(0.1 * jnp.maximum(at.astype(jnp.float32), 9.0))
    queries = relu_network.Side(at[:19], inverse[:19])
    keys = relu_network.Side(at[19:], jnp.full(21, jnp.inf) if causal else inverse[19:])
    weigh = draw(19, 21)

    def total(network, c, units, queries, keys):
        return jnp.sum(weigh * network(queries, keys, c, units))

    def measured(network):
        gradients = jax.grad(total, (1, 2, 3, 4), allow_int=True)(network, jnp.float32(0.1), units, queries, keys)
        floats = [x for x in jax.tree.leaves(gradients) if x.dtype == jnp.float32]
        return network(queries, keys, jnp.float32(0.1), units), floats

    networks = relu_network.network, relu_network.pair_by_pair
    ours, plain = (jax.jit(functools.partial(measured, f))() for f in networks)
    assert len(plain[1]) == 4 + 2 * (1 + (kind == jnp.float32))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5), ours, plain)
