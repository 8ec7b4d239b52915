"""The sinusoidal encoding: its laws, its layouts, its two-dimensional forms, and peers."""

import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, make_encoding, sinusoidal_embedding
from tests.support.peers import peer

LAYOUTS = ["interleaved", "concat"]


def waves(positions: np.ndarray, omega: np.ndarray, layout: str) -> np.ndarray:
    """Return sines and cosines of position times omega in float64."""
    angles = np.multiply.outer(positions.astype(np.float64), omega)
    pairs = np.stack([np.sin(angles), np.cos(angles)], -1 if layout == "interleaved" else -2)
    return pairs.reshape(*positions.shape, 2 * len(omega))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inner_products_depend_on_the_distance_alone(layout):
    """p_i · p_{i+k} is the same for all i: sum_f cos(k f)."""
    table = np.asarray(sinusoidal_embedding(np.arange(3000, dtype=np.int32), 16, layout=layout), np.float64)
    omega = 10000.0 ** (-np.arange(8) / 8)
    for k in (0, 1, 17, 1000):
        products = np.einsum("tc,tc->t", table[: 3000 - k], table[k:])
        np.testing.assert_allclose(products, np.cos(k * omega).sum(), atol=2e-5)


def test_one_matrix_moves_every_position_by_k():
    """M_k, block diagonal of [[cos kf, sin kf], [-sin kf, cos kf]], maps PE(p) to PE(p + k) for all p."""
    positions = np.array([0, 1, 50, 999, 65000, -7], np.int32)
    k, omega = 37, 10000.0 ** (-np.arange(8) / 8)
    matrix = np.zeros((16, 16))
    for i, f in enumerate(omega):
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[np.cos(k * f), np.sin(k * f)], [-np.sin(k * f), np.cos(k * f)]]
    here, there = (np.asarray(sinusoidal_embedding(p, 16)) for p in (positions, positions + np.int32(k)))
    np.testing.assert_allclose(here @ matrix.T, there, atol=1e-5)


def test_positions_stay_distinct_over_65536():
    """No two rows are equal, and neighbours stay sin(1/2) apart in the fastest wave alone."""
    table = np.asarray(sinusoidal_embedding(np.arange(2**16, dtype=np.int32), 32))
    assert len(np.unique(table.round(4), axis=0)) == 2**16
    np.testing.assert_allclose(np.hypot(*(table[1:, :2] - table[:-1, :2]).T), 2 * np.sin(0.5), atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_channels_are_where_the_layout_says(layout):
    positions = np.array([[0, 3, 2**24], [1, -5, 12345]], np.int32)
    table = sinusoidal_embedding(positions, 8, base=16.0, layout=layout)
    np.testing.assert_allclose(table, waves(positions, np.array([1, 0.5, 0.25, 0.125]), layout), atol=2e-6)
    assert table.dtype == jnp.float32


def test_two_axes_are_the_published_table():
    """MoCo v3: a quarter of the width each for sin and cos of the column, then of the row."""
    width, rows, columns = 16, 3, 5
    xy = np.stack([np.tile(np.arange(columns), rows), np.repeat(np.arange(rows), columns)], -1).astype(np.int32)
    omega = 1 / 10000 ** (np.arange(width // 4) / (width // 4))
    expected = np.concatenate([waves(xy[:, a], omega, "concat") for a in range(2)], axis=1)
    np.testing.assert_allclose(sinusoidal_embedding(xy, width, axes=2, layout="concat"), expected, atol=1e-6)
    spaced_to_the_end = 1 / 10000 ** (np.arange(4) / 3)  # big_vision: the last wave has the base itself as its period
    expected = np.concatenate([waves(xy[:, a], spaced_to_the_end, "concat") for a in range(2)], axis=1)
    table = sinusoidal_embedding(xy, width, axes=2, layout="concat", base=10000.0 ** (4 / 3))
    np.testing.assert_allclose(table, expected, atol=2e-6)


@pytest.mark.slow
def test_embed_adds_in_float32_and_keeps_the_type():
    encoding = make_encoding("sinusoidal", Dims(heads=2, head_dim=6, axes=2))
    grid = np.stack(np.divmod(np.arange(6, dtype=np.int32), 3), axis=-1)
    x = np.random.default_rng(0).normal(size=(2, 6, 12)).astype(np.float32)
    table = np.asarray(sinusoidal_embedding(grid, 12, axes=2))
    np.testing.assert_array_equal(encoding.embed({}, jnp.asarray(x), jnp.asarray(grid)), x + table)
    columns_first = make_encoding("sinusoidal(indexing='xy')", Dims(heads=2, head_dim=6, axes=2))
    swapped = np.concatenate([table[:, 6:], table[:, :6]], axis=1)
    np.testing.assert_array_equal(columns_first.embed({}, jnp.asarray(x), jnp.asarray(grid)), x + swapped)
    low = jnp.asarray(x, jnp.bfloat16)
    once = (low.astype(jnp.float32) + table).astype(jnp.bfloat16)
    np.testing.assert_array_equal(encoding.embed({}, low, jnp.stack([grid, grid])), once)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: sinusoidal_embedding(p, 7), "width must be a multiple of 2·axes = 2, got 7"),
        (lambda p: sinusoidal_embedding(p, 6, axes=2), "width must be a multiple of 2·axes = 4, got 6"),
        (lambda p: sinusoidal_embedding(p, 6, axes=0), "axes must be at least 1, got 0"),
        (lambda p: sinusoidal_embedding(p, 8, axes=2), r"positions must end in 2 axes, got shape \(6,\)"),
        (
            lambda p: sinusoidal_embedding(p, 8, layout="mixed"),
            "layout must be one of interleaved, concat, got 'mixed'",
        ),
        (lambda p: sinusoidal_embedding(p, 8, base=0.0), "base must be a finite number above 0, got 0.0"),
        (lambda p: make_encoding("sinusoidal", Dims(heads=2, head_dim=3, axes=2)), "multiple of 2·axes = 4, got 6"),
        (lambda p: make_encoding("sinusoidal(layout='sin')", Dims(heads=2, head_dim=4)), "layout must be one of"),
        (
            lambda p: make_encoding("sinusoidal(indexing='yx')", Dims(heads=2, head_dim=4)),
            "indexing must be one of ij, xy, got 'yx'",
        ),
        (
            lambda p: make_encoding("sinusoidal", Dims(heads=2, head_dim=4)).embed(
                {}, jnp.ones((2, 5, 8)), jnp.asarray(p)
            ),
            r"must be \(5,\) or \(2, 5\), got \(6,\)",
        ),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.arange(6, dtype=np.int32))


@pytest.mark.parity
def test_transformers_tables():
    """XLM's one axis, interleaved; ViT-MAE's two, the row first, or the column as its public weights have it."""
    torch = peer("torch")
    xlm = peer("transformers.models.xlm.modeling_xlm")
    theirs = xlm.create_sinusoidal_embeddings(128, 32, torch.zeros(128, 32))
    np.testing.assert_allclose(sinusoidal_embedding(np.arange(128, dtype=np.int32), 32), theirs.numpy(), atol=1e-5)
    mae = peer("transformers.models.vit_mae.modeling_vit_mae")
    theirs = mae.build_2d_sinusoidal_position_embedding(3, 5, 32).numpy()
    rows_columns = np.stack(np.divmod(np.arange(15, dtype=np.int32), 5), axis=-1)
    np.testing.assert_allclose(sinusoidal_embedding(rows_columns, 32, axes=2, layout="concat"), theirs, atol=1e-6)
    columns_first = make_encoding("sinusoidal(layout='concat', indexing='xy')", Dims(heads=2, head_dim=16, axes=2))
    ours = columns_first.embed({}, jnp.zeros((15, 32)), jnp.asarray(rows_columns))
    np.testing.assert_allclose(ours, np.concatenate([theirs[:, 16:], theirs[:, :16]], 1), atol=1e-6)
