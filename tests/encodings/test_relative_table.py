"""A table of offsets: BEiT's and Swin's numbers, other grids, offsets between and beyond its cells."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, adapt, attend, grid_positions, init_params, make_encoding
from pejax._ops.resize import resize_grid
from pejax.functions import relative_table_bias
from tests.support.biases import types_unchecked
from tests.support.cases import normal
from tests.support.peers import peer

IMAGE = Dims(heads=3, head_dim=4, axes=2, extent=(3, 4))
KEY = jax.random.key(0)


def hook_of(encoding, params):
    """Return the function of offsets `(R, A)` of all heads."""
    one = lambda heads, relative: encoding.distance_bias({**params.get("all", {}), **heads}, relative)
    return jax.vmap(one, (0, None))


def test_every_offset_reads_its_own_cell():
    table, at = normal(3, 5, 7), grid_positions(3, 4)
    bias = relative_table_bias(at, at, table)
    for (i, (y, x)), (j, (v, u)) in itertools.product(enumerate(np.ndindex(3, 4)), repeat=2):
        np.testing.assert_array_equal(bias[:, i, j], table[:, v - y + 2, u - x + 3])
    encoding = make_encoding("relative_table", IMAGE)
    settled = adapt(encoding, {"heads": {"table": table}}, (3, 4))
    np.testing.assert_array_equal(settled["heads"]["table"], table)
    np.testing.assert_array_equal(hook_of(encoding, settled)(settled["heads"], at - at[5]), bias[:, 5])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [jnp.int32, jnp.float32])
def test_offsets_beyond_the_table_read_its_border(kind):
    table = normal(2, 5)
    at = jnp.asarray([-9, -2, 0, 2, 9]).astype(kind)
    bias = relative_table_bias(jnp.zeros(1, kind), at, table)[:, 0]
    np.testing.assert_allclose(bias, table[:, jnp.asarray([0, 0, 2, 4, 4])], rtol=1e-6)


@pytest.mark.slow
def test_the_record_resamples_the_table_to_another_grid():
    encoding = make_encoding("relative_table", IMAGE)
    table, grid = normal(3, 5, 7), (5, 6)
    settled = adapt(encoding, {"heads": {"table": table}}, grid)
    expected = jnp.stack([resize_grid(item[..., None], (9, 11))[..., 0] for item in table])
    np.testing.assert_allclose(settled["heads"]["table"], expected, atol=1e-6)
    at = grid_positions(*grid)
    bias = relative_table_bias(at, at, expected)
    result = hook_of(encoding, settled)(settled["heads"], at - at[7])
    np.testing.assert_allclose(result, bias[:, 7], atol=1e-6)
    linear = make_encoding("relative_table(method='bilinear')", IMAGE)
    assert float(jnp.abs(adapt(linear, {"heads": {"table": table}}, grid)["heads"]["table"] - expected).max()) > 1e-2


@pytest.mark.slow
def test_interpolated_positions_read_between_the_cells_and_whole_ones_the_cells():
    table = normal(1, 9)
    at = jnp.asarray([0.0, 1.0, 1.5, 2.0])
    bias = relative_table_bias(at[:1], at, table)[0, 0]
    row = table[0, 3:9]
    between = -0.09375 * (row[1] + row[4]) + 0.59375 * (row[2] + row[3])
    np.testing.assert_allclose(bias, [row[1], row[2], between, row[3]], atol=1e-6)


@pytest.mark.slow
def test_it_starts_from_0_in_each_layer_and_every_cell_that_is_read_gets_a_gradient():
    encoding = make_encoding("relative_table", IMAGE)
    assert encoding.init(KEY) == {}
    params = init_params(encoding, KEY)
    assert params["heads"]["table"].shape == (3, 5, 7)
    assert not params["heads"]["table"].any()
    q, at = normal(12, 3, 4), grid_positions(3, 4)

    def total(params, implementation):
        options = {"positions": at, "extent": (3, 4), "implementation": implementation}
        return jnp.sum(attend(encoding, q, q, q, params=params, **options) ** 2)

    tiled, dense = (jax.jit(jax.grad(total), static_argnums=1)(params, name) for name in ("cpu", "reference"))
    np.testing.assert_allclose(tiled["heads"]["table"], dense["heads"]["table"], atol=1e-4)
    assert np.abs(tiled["heads"]["table"]).min() > 0
    shared = make_encoding("relative_table(share='model')", IMAGE)
    assert jax.eval_shape(shared.init, KEY) == jax.eval_shape(encoding.init_layer, KEY)


@pytest.mark.parametrize(
    ("spec", "dims", "words"),
    [
        ("relative_table(method='nearest')", IMAGE, "relative_table's method must be one of"),
        ("relative_table(share='all')", IMAGE, "share must be one of model, layer, got 'all'"),
        ("relative_table", Dims(heads=3, head_dim=4), "relative_table: extent must be a known length, got None"),
    ],
)
def test_bad_options_are_refused(spec, dims, words):
    with pytest.raises(ValueError, match=words):
        make_encoding(spec, dims)


@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 7), (3, 5, 7, 3)])
def test_tables_of_another_shape_are_refused(shape):
    at = grid_positions(3, 4)
    with types_unchecked(), pytest.raises(ValueError, match="relative table must be \\(H, 2n - 1, 2n - 1\\)"):
        relative_table_bias(at, at, jnp.zeros(shape))


@pytest.mark.parity
@pytest.mark.parametrize("grid", [(3, 3), (5, 4)], ids=str)
def test_patches_have_the_bias_of_beit_in_transformers(grid):
    """On the trained grid, and on another, for which transformers resamples bilinearly."""
    torch, beit = (peer(name) for name in ("torch", "transformers.models.beit.modeling_beit"))
    configuration = peer("transformers").BeitConfig(num_attention_heads=3, hidden_size=12, image_size=48, patch_size=16)
    layer, drawn, tokens = beit.BeitRelativePositionBias(configuration), normal(25 + 3, 3), grid[0] * grid[1] + 1
    with torch.no_grad():
        layer.relative_position_bias_table.copy_(torch.tensor(np.array(drawn)))
        theirs = layer(grid).numpy().reshape(3, tokens, tokens)[:, 1:, 1:]
    table = jnp.moveaxis(drawn[:-3].reshape(5, 5, 3), -1, 0)[:, ::-1, ::-1]
    dims = Dims(heads=3, head_dim=4, axes=2, extent=(3, 3))
    encoding = make_encoding("relative_table(method='bilinear')", dims)
    table = adapt(encoding, {"heads": {"table": table}}, grid)["heads"]["table"]
    at = grid_positions(*grid)
    np.testing.assert_allclose(relative_table_bias(at, at, table), theirs, atol=1e-6)


@pytest.mark.parity
def test_patches_have_the_bias_of_swin_in_transformers():
    torch, swin = (peer(name) for name in ("torch", "transformers.models.swin.modeling_swin"))
    layer = swin.SwinRelativePositionBias(num_heads=3, window_size=(4, 4))
    drawn = normal(49, 3)
    with torch.no_grad():
        layer.relative_position_bias_table.copy_(torch.tensor(np.array(drawn)))
        theirs = layer().numpy()[0]
    table = jnp.moveaxis(drawn.reshape(7, 7, 3), -1, 0)[:, ::-1, ::-1]
    at = grid_positions(4, 4)
    np.testing.assert_allclose(relative_table_bias(at, at, table), theirs, atol=1e-6)
