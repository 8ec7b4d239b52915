"""Continuous position bias: its formula in float64, Swin V2's own numbers, and the table of offsets it is read from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, TokenPositions, adapt, attend, grid_positions, init_params, make_encoding
from pejax._encodings import cpb
from pejax._encodings.cpb import _coordinates
from pejax.functions import cpb_bias
from tests.support.cases import normal, slow
from tests.support.peers import peer

IMAGE = Dims(heads=3, head_dim=4, axes=2, extent=(4, 7))
KEY = jax.random.key(0)


def drawn(dims=IMAGE, spec="cpb(hidden=8)"):
    """Return the encoding and parameters far enough from their initial values to matter."""
    encoding = make_encoding(spec, dims)
    return encoding, jax.tree.map(lambda leaf: leaf + normal(*leaf.shape), init_params(encoding, KEY))


def by_hand(params, h, offset, sides):
    """Return the bias of one head and offset, in float64."""
    p = {name: np.asarray(x, np.float64) for name, x in (*params["all"].items(), *params["heads"].items())}
    u = [np.sign(d) * np.log2(1 + 8 * abs(d) / (side - 1)) / 3 for d, side in zip(offset, sides, strict=True)]
    score = p["w"][h] @ np.maximum(np.asarray(u) @ p["a"].reshape(len(sides), -1) + p["b"], 0)
    return 16 / (1 + np.exp(-score)) - 8


def test_coordinates_of_a_grid_of_7_within_and_beyond_it():
    result = _coordinates(jnp.asarray([[1, -1], [3, 0], [6, 6], [15, -15]]), (7, 7))
    expected = [[0.407464, -0.407464], [0.773976, 0.0], [1.056642, 1.056642], [1.464106, -1.464106]]
    np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("axes", [slow(1), 2, slow(3)])
def test_cpb_is_its_formula(axes):
    sides = (4, 7, 3)[:axes]
    dims = Dims(heads=2, head_dim=4, axes=axes, extent=sides if axes > 1 else sides[0])
    _, params = drawn(dims)
    at = jnp.asarray(np.random.default_rng(0).integers(0, 20, (6, axes)), jnp.int32)
    bias = cpb_bias(at if axes > 1 else at[:, 0], at if axes > 1 else at[:, 0], params, extent=dims.extent)
    for h, i, j in np.ndindex(bias.shape):
        assert bias[h, i, j] == pytest.approx(by_hand(params, h, np.asarray(at[j] - at[i]), sides), abs=2e-5)


def test_a_gradient_through_the_table_saves_no_hidden_units():
    """A lookup in a table of 1,225 pairs saves its rows, not what the network would need, 64 numbers per pair."""
    encoding, params = drawn(spec="cpb(hidden=64)")
    settled = adapt(encoding, params, (5, 7))
    head_params = {**settled["all"], **jax.tree.map(lambda leaf: leaf[0], settled["heads"])}
    at = grid_positions(5, 7)
    offsets = (at[None] - at[:, None]).reshape(-1, 2)
    _, gradient = jax.vjp(lambda params: encoding.distance_bias(params, offsets), head_params)
    assert max(leaf.size for leaf in jax.tree.leaves(gradient)) <= offsets.size


@pytest.mark.slow
@pytest.mark.parametrize("grid", [slow((4, 7)), (5, 3), slow((1, 6))], ids=str)
@pytest.mark.parametrize("kind", [jnp.int32, jnp.float32])
def test_the_record_gives_the_functions_numbers_on_any_grid(grid, kind):
    """Read from a table of the grid, or evaluated pair by pair: at floats, and at offsets beyond the grid."""
    encoding, params = drawn()
    settled = adapt(encoding, params, grid)
    assert settled["heads"]["table"].shape == (3, 2 * grid[0] - 1, 2 * grid[1] - 1)
    hook = jax.vmap(lambda heads, relative: encoding.distance_bias({**settled["all"], **heads}, relative), (0, None))
    for scale in (1, 2):
        at = (scale * grid_positions(*grid)).astype(kind)
        expected = cpb_bias(at[:1], at, params, extent=IMAGE.extent)[:, 0]
        np.testing.assert_allclose(hook(settled["heads"], at - at[0]), expected, atol=1e-5)


@pytest.mark.slow
def test_many_offsets_are_evaluated_in_parts(monkeypatch):
    _, params = drawn()
    at = grid_positions(3, 4)
    bias = cpb_bias(at, at, params, extent=IMAGE.extent)
    monkeypatch.setattr(cpb, "CHUNK", 50)
    np.testing.assert_allclose(cpb_bias(at, at, params, extent=IMAGE.extent), bias, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [jnp.int32, slow(jnp.float32)])
def test_every_parameter_has_the_gradient_of_plain_attention(kind):
    """Through the table, and pair by pair."""
    encoding, params = drawn()
    at, q = grid_positions(4, 7).astype(kind), normal(28, 3, 4)

    def ours(params):
        return attend(encoding, q, q, q, params=params, positions=at, extent=(4, 7), implementation="cpu")

    def plain(params):
        logits = 0.5 * jnp.einsum("thd,shd->hts", q, q) + cpb_bias(at, at, params, extent=(4, 7))
        return jnp.einsum("hts,shd->thd", jax.nn.softmax(logits), q)

    (value, result), (expected_value, expected) = (
        jax.jit(jax.value_and_grad(lambda params, f=f: jnp.mean(f(params) ** 2)))(params) for f in (ours, plain)
    )
    assert float(value) == pytest.approx(float(expected_value), rel=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), result, expected)
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(result))


@pytest.mark.slow
def test_it_starts_from_no_bias_so_that_unplaced_tokens_are_as_near_as_patches():
    encoding = make_encoding("cpb", IMAGE)
    params = init_params(encoding, KEY)
    at = grid_positions(4, 7)
    assert float(jnp.abs(cpb_bias(at, at, params, extent=(4, 7))).max()) < 0.1
    assert params["all"]["a"].shape == (2, 512)
    for leaf in (params["all"]["a"], params["heads"]["w"]):
        assert 0.03 < float(jnp.abs(leaf).max()) <= 0.04
        assert 0.016 < float(leaf.std()) < 0.019
    assert not params["all"]["b"].any()


@pytest.mark.slow
def test_tokens_without_a_position_get_no_bias_from_either_side():
    """A network of large weights leaves the weights of such a pair to the content alone."""
    encoding, params = drawn()
    tokens = TokenPositions(
        jnp.concatenate([jnp.zeros((1, 2), jnp.int32), grid_positions(2, 2)]), None, jnp.arange(5) > 0
    )
    q = k = jnp.zeros((5, 3, 4))
    v = jnp.zeros((5, 3, 4)).at[0].set(1.0)
    out = attend(encoding, q, k, v, params=params, positions=tokens, extent=(2, 2))[..., 0]
    bias = cpb_bias(grid_positions(2, 2), grid_positions(2, 2), params, extent=IMAGE.extent)
    np.testing.assert_allclose(out[0], 0.2, rtol=1e-5)
    np.testing.assert_allclose(out[1:].T, 1 / (1 + jnp.exp(bias).sum(-1)), rtol=1e-4)


def test_parameters_may_be_each_layers_own_or_shared():
    by_layer, shared = (make_encoding(spec, IMAGE) for spec in ("cpb", "cpb(share='model')"))
    assert by_layer.init(KEY) == {} == shared.init_layer(KEY)
    assert jax.eval_shape(by_layer.init_layer, KEY) == jax.eval_shape(shared.init, KEY)


@pytest.mark.parametrize(
    ("spec", "dims", "words"),
    [
        ("cpb(hidden=0)", IMAGE, "hidden units must be at least 1, got 0"),
        ("cpb(share='all')", IMAGE, "share must be one of model, layer, got 'all'"),
        ("cpb", Dims(heads=3, head_dim=4, axes=2), "cpb: extent must be a tuple of 2 positive ints, got None"),
        ("cpb", Dims(heads=3, head_dim=4), "cpb: extent must be a known length, got None"),
    ],
)
def test_bad_options_are_refused(spec, dims, words):
    with pytest.raises(ValueError, match=words):
        make_encoding(spec, dims)


def test_extents_and_parameters_of_other_axes_are_refused():
    encoding, params = drawn()
    with pytest.raises(ValueError, match="extent must be a tuple of 2 positive ints, got 9"):
        adapt(encoding, params, 9)
    with pytest.raises(ValueError, match="cpb's a must have axis dimension"):
        cpb_bias(jnp.arange(3), jnp.arange(3), params, extent=4)


@pytest.mark.parity
def test_it_is_the_bias_of_transformers_less_8():
    torch, swin = (peer(name) for name in ("torch", "transformers.models.swinv2.modeling_swinv2"))
    configuration = peer("transformers").Swinv2Config(qkv_bias=True)
    layer = swin.Swinv2SelfAttention(configuration, dim=24, num_heads=3, window_size=(7, 7)).eval()
    with torch.no_grad():
        for weights in layer.continuous_position_bias_mlp.parameters():
            weights.copy_(torch.tensor(np.array(0.3 * normal(*weights.shape, seed=weights.ndim))))
        table = layer.continuous_position_bias_mlp(layer.relative_coords_table).view(-1, 3)
        index = layer.relative_position_index.view(-1)
        theirs = 16 * torch.sigmoid(table[index].view(49, 49, 3).permute(2, 0, 1)).numpy() - 8
    first, last = layer.continuous_position_bias_mlp[0], layer.continuous_position_bias_mlp[-1]
    numbers = lambda weights: jnp.asarray(weights.detach().numpy())
    # Theirs is a function of query - key.
    params = {"all": {"a": -numbers(first.weight).T, "b": numbers(first.bias)}, "heads": {"w": numbers(last.weight)}}
    at = grid_positions(7, 7)
    ours = functools.partial(cpb_bias, params=params, extent=(7, 7))(at, at)
    assert np.ptp(theirs) > 1
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
