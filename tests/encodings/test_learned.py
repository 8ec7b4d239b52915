"""Learned tables: what `init` draws, what `adapt` resizes or refuses, what `embed` adds; and no encoding at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, grid_positions, interpolate_positions, make_encoding
from pejax._encodings.none import none
from pejax.functions import resize_embedding

LINE = Dims(heads=2, head_dim=3, extent=5)
GRID = Dims(heads=2, head_dim=3, axes=2, extent=(3, 4))


def made(spec, dims):
    encoding = make_encoding(spec, dims)
    return encoding, encoding.init(jax.random.key(0))


def embedded(encoding, params, positions, shape):
    """Return what `embed` adds to zeros of that shape."""
    return np.asarray(encoding.embed(params, jnp.zeros(shape, jnp.float32), jnp.asarray(positions)))


def test_tables_are_drawn_with_standard_deviation_002():
    _, params = made("learned", Dims(heads=2, head_dim=32, axes=2, extent=(16, 32)))
    table = np.asarray(params["table_0"])
    assert table.shape == (16, 32, 64)
    assert table.dtype == np.float32
    assert abs(table.std() - 0.02) < 2e-4
    assert abs(table.mean()) < 1e-3


def test_the_axes_of_a_factorised_table_are_drawn_apart():
    _, params = made("learned(factorized=True)", Dims(heads=2, head_dim=3, axes=2, extent=(4, 4)))
    assert [table.shape for table in params.values()] == [(4, 3), (4, 3)]
    assert not np.any(params["table_0"] == params["table_1"])


def test_each_token_gets_the_row_of_its_position():
    encoding, params = made("learned", LINE)
    table = np.asarray(params["table_0"])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)
    places = np.array([[4, 0, 0], [1, 2, 4]])
    np.testing.assert_allclose(encoding.embed(params, x, jnp.asarray(places)), x + table[places], rtol=0, atol=1e-7)
    shared = encoding.embed(params, x, jnp.asarray(places[0]))
    np.testing.assert_allclose(shared, x + table[places[0]], rtol=0, atol=1e-7)


def test_each_patch_gets_the_row_of_its_place_in_the_raster():
    encoding, params = made("learned", GRID)
    rows = embedded(encoding, params, grid_positions(3, 4), (2, 12, 6))
    np.testing.assert_array_equal(rows, np.broadcast_to(params["table_0"].reshape(12, 6), (2, 12, 6)))


def test_a_factorised_patch_gets_half_of_each_axis():
    encoding, params = made("learned(factorized=True)", GRID)
    rows = embedded(encoding, params, [[2, 3], [0, 1]], (2, 6))
    row, column = (np.asarray(params[name]) for name in ("table_0", "table_1"))
    np.testing.assert_array_equal(rows, np.concatenate([row[[2, 0]], column[[3, 1]]], axis=-1))


def test_half_precision_inputs_stay_half_precision():
    encoding, params = made("learned", LINE)
    params = {"table_0": params["table_0"].astype(jnp.float16)}
    x = jnp.ones((5, 6), jnp.bfloat16)
    result = encoding.embed(params, x, jnp.arange(5))
    assert result.dtype == jnp.bfloat16
    exact = (1.0 + np.asarray(params["table_0"], np.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(result), exact)


@pytest.mark.parametrize("options", ["", "method='bilinear'", "antialias=True", "method='align_corners'"])
def test_a_grid_table_is_resized_to_the_extent(options):
    encoding, params = made(f"learned({options})", GRID)
    ways = {"method": "bicubic", "antialias": "antialias" in options}
    if "method" in options:
        ways["method"] = options.split("'")[1]
    expected = resize_embedding(params["table_0"].reshape(12, 6), (3, 4), (7, 2), **ways)
    table = encoding.adapt(params, (7, 2))["table_0"]
    np.testing.assert_allclose(table.reshape(14, 6), expected, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(encoding.adapt(params, (3, 4))["table_0"], params["table_0"])


def test_each_table_of_a_factorised_grid_is_resized_to_its_own_side():
    encoding, params = made("learned(factorized=True)", GRID)
    resized = encoding.adapt(params, (3, 9))
    np.testing.assert_array_equal(resized["table_0"], params["table_0"])
    expected = resize_embedding(params["table_1"], 4, 9)
    np.testing.assert_allclose(resized["table_1"], expected, rtol=0, atol=1e-8)


def test_a_sequence_within_the_table_changes_nothing_and_a_longer_one_is_refused():
    encoding, params = made("learned", LINE)
    for length in (1, 5):
        np.testing.assert_array_equal(encoding.adapt(params, length)["table_0"], params["table_0"])
    with pytest.raises(ValueError, match="must be as long as the sequence, got a table of 5 for length 6"):
        encoding.adapt(params, 6)


def test_a_stretched_table_is_resized_to_longer_sequences_alone():
    encoding, params = made("learned(extend='resize', method='bilinear')", LINE)
    np.testing.assert_array_equal(encoding.adapt(params, 3)["table_0"], params["table_0"])
    expected = resize_embedding(params["table_0"], 5, 8, method="bilinear")
    np.testing.assert_allclose(encoding.adapt(params, 8)["table_0"], expected, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match="needs a length known when traced"):
        jax.jit(lambda params, length: encoding.adapt(params, length))(params, 8)


def test_a_stretched_table_is_the_same_at_a_length_known_only_at_run_time():
    encoding, params = made("learned(extend='resize')", LINE)
    x, positions = jnp.zeros((8, 6), jnp.float32), jnp.arange(8)
    traced = jax.jit(lambda params, length: encoding.embed(encoding.adapt(params, length), x, positions))
    for length in (3, 5, 8, 13):
        fixed, count = encoding.adapt(params, length)["table_0"], min(length, 8)
        np.testing.assert_allclose(traced(params, length)[:count], fixed[:count], rtol=0, atol=1e-7)


def test_a_length_known_only_at_run_time_gives_nan_beyond_the_table():
    encoding, params = made("learned", LINE)

    @jax.jit
    def added(params, positions):
        return encoding.embed(encoding.adapt(params, positions.max() + 1), jnp.zeros((3, 6), jnp.float32), positions)

    rows = added(params, jnp.asarray([0, 4, 5]))
    np.testing.assert_array_equal(np.isnan(rows)[:, 0], [False, False, True])
    np.testing.assert_array_equal(rows[:2], params["table_0"][jnp.asarray([0, 4])])


@pytest.mark.parametrize(
    ("dims", "spec", "positions", "trained", "length"),
    [
        (LINE, "learned", jnp.arange(20), 5, 20),
        pytest.param(GRID, "learned", grid_positions(9, 8), (3, 4), (9, 8), marks=pytest.mark.slow),
        pytest.param(GRID, "learned(factorized=True)", grid_positions(9, 8), (3, 4), (9, 8), marks=pytest.mark.slow),
    ],
)
def test_squeezed_positions_read_the_trained_table(dims, spec, positions, trained, length):
    encoding, params = made(spec, dims)
    constant = jax.tree.map(lambda table: jnp.full_like(table, 0.3), params)
    squeezed = interpolate_positions(positions, trained, length)
    shape = (len(positions), dims.width)
    np.testing.assert_allclose(embedded(encoding, constant, squeezed, shape), np.full(shape, 0.3), rtol=1e-6)
    rows = embedded(encoding, params, squeezed, shape)
    is_whole = np.all(np.asarray(squeezed) % 1 == 0, axis=tuple(range(1, squeezed.ndim)))
    assert is_whole.sum() >= 4
    np.testing.assert_array_equal(
        rows[is_whole], embedded(encoding, params, squeezed[is_whole].astype(jnp.int32), rows[is_whole].shape)
    )


def test_every_row_that_is_read_gets_its_gradient():
    encoding, params = made("learned", LINE)
    loss = jax.jit(jax.grad(lambda params, x, p: jnp.sum(encoding.embed(params, x, p))))
    counted = loss(params, jnp.zeros((2, 3, 6)), jnp.asarray([[0, 4, 4], [1, 4, 0]]))["table_0"]
    np.testing.assert_array_equal(counted[:, 0], [2, 1, 0, 0, 3])


@pytest.mark.parametrize(
    ("spec", "dims", "message"),
    [
        ("learned", Dims(heads=2, head_dim=3), "a table needs the trained extent, got dims.extent=None"),
        ("learned(method='cubic')", LINE, "method must be one of bicubic, bilinear, align_corners, got 'cubic'"),
        ("learned(method='align_corners', antialias=True)", GRID, "antialias must be False where"),
        ("learned(factorized=True)", LINE, "needs more than one axis, .* got axes=1, width=6"),
        ("learned(factorized=True)", Dims(heads=1, head_dim=5, axes=2, extent=(3, 4)), "got axes=2, width=5"),
        ("learned(extend='resize')", GRID, "for one axis: grids are always resampled, got axes=2"),
    ],
)
def test_what_a_table_cannot_serve_is_refused(spec, dims, message):
    with pytest.raises(ValueError, match=message):
        make_encoding(spec, dims)


@pytest.mark.parametrize("extent", [(5,), 0])
def test_a_sequence_has_a_length(extent):
    encoding, params = made("learned", LINE)
    with pytest.raises(ValueError, match="extent must be a positive length, got"):
        encoding.adapt(params, extent)


@pytest.mark.parametrize("extent", [12, (3, 4, 1), (0, 4)])
def test_a_grid_has_sides(extent):
    encoding, params = made("learned", GRID)
    with pytest.raises(ValueError, match="extent must be a tuple of 2 positive ints, got"):
        encoding.adapt(params, extent)


@pytest.mark.parametrize(
    ("dims", "shape"), [(LINE, (4,)), (LINE, (5, 2)), (LINE, (2, 2, 5)), (GRID, (5,)), (GRID, (5, 3)), (GRID, (4, 2))]
)
def test_positions_of_another_rank_or_length_are_refused(dims, shape):
    encoding, params = made("learned", dims)
    with pytest.raises(ValueError, match=f"on {dims.axes} axes must be .*got"):
        encoding.embed(params, jnp.zeros((2, 5, 6)), jnp.zeros(shape, jnp.int32))


def test_a_position_beyond_the_table_is_refused_where_it_is_known():
    encoding, params = made("learned", LINE)
    with pytest.raises(ValueError, match=r"positions must lie inside a table of size 5, got \[5\]"):
        encoding.embed(params, jnp.zeros((2, 6)), jnp.asarray([0, 5]))


def test_no_encoding_has_no_hook_and_no_parameter():
    for dims in (LINE, GRID, Dims(heads=2, head_dim=3)):
        encoding = none(dims)
        assert encoding.shift_invariant
        hooks = ("adapt", "embed", "rotate", "rotate_keys", "bias", "relative_values", "distance_bias")
        assert all(getattr(encoding, hook) is None for hook in hooks)
        assert encoding.init(jax.random.key(0)) == encoding.init_layer(jax.random.key(0)) == {}
