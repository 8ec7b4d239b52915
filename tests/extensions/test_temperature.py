"""Temperatures of queries: their formulas, and any encoding with one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import ENCODINGS, Dims, adapt, make_encoding
from pejax._extensions.temperature import llama4_temperature, log_n_temperature, scale_queries
from pejax._record.encoding import merge_params
from pejax.testing import assert_shift_invariant, draw_probe, queries_and_keys, settle
from tests.support.cases import mostly_slow

DIMS = Dims(heads=4, head_dim=8, kv_heads=2, extent=24)
POSITIONS = (0, 1, 22, 23, 24, 575, 8190, 8191, 8192, 16383, 10**6)


def test_log_n_is_one_within_the_trained_length_and_two_at_its_square():
    expected = [max(1.0, math.log(p + 1) / math.log(24)) for p in POSITIONS]
    for dtype in (jnp.int32, jnp.float32, jnp.uint32):
        np.testing.assert_allclose(log_n_temperature(jnp.asarray(POSITIONS, dtype), 24), expected, rtol=1e-6)
    np.testing.assert_allclose(log_n_temperature(jnp.asarray([23, 575]), 24), [1.0, 2.0], rtol=1e-6)


def test_llama4_rises_by_a_step_after_every_8192_tokens():
    expected = [0.1 * math.log1p(math.floor((p + 1) / 8192)) + 1 for p in POSITIONS]
    np.testing.assert_allclose(llama4_temperature(jnp.asarray(POSITIONS)), expected, rtol=1e-6)
    np.testing.assert_allclose(llama4_temperature(jnp.asarray([8190, 8191])), [1.0, 1 + 0.1 * math.log(2)], rtol=1e-6)
    other = llama4_temperature(jnp.asarray([5]), floor_length=2, scale=0.5)
    np.testing.assert_allclose(other, [0.5 * math.log(4) + 1], rtol=1e-6)


def test_without_an_offset_the_first_step_is_at_the_position_of_its_length():
    """As in Ministral 3 and Mistral 4."""
    at = jnp.asarray([16383, 16384, 32767, 32768])
    counted = llama4_temperature(at, floor_length=16384, offset=0)
    np.testing.assert_allclose(counted, 1 + 0.1 * np.log([1, 2, 2, 3]), rtol=1e-6)
    by_spec = make_encoding("none", DIMS, "llama4(floor_length=16384, offset=0)")
    x = jnp.ones((1, 4, DIMS.heads, DIMS.head_dim))
    np.testing.assert_allclose(by_spec.rotate({}, x, at)[0, :, 0, 0], counted, rtol=1e-6)


@pytest.mark.slow
def test_positions_below_zero_and_narrow_ones_give_finite_numbers_and_gradients():
    for temperature in (lambda p: log_n_temperature(p, 24), llama4_temperature):
        assert jnp.all(temperature(jnp.asarray([-5.0, -1.0, 0.0])) == 1.0)
        assert jnp.all(jnp.isfinite(jax.grad(lambda p, t=temperature: t(p).sum())(jnp.asarray([-5.0, 0.0, 90.0]))))
    np.testing.assert_allclose(
        log_n_temperature(jnp.asarray([255], jnp.uint8), 4), [math.log(256) / math.log(4)], rtol=1e-6
    )


@pytest.mark.parametrize("name", mostly_slow([name for name in ENCODINGS if name != "rope_axial"], ("rope", "t5")))
def test_any_encoding_has_its_queries_scaled_and_nothing_else(name):
    plain, scaled = make_encoding(name, DIMS), make_encoding(name, DIMS, "log_n(trained_length=3)")
    key = jax.random.key(0)
    params = settle(plain, merge_params(plain.init(key), plain.init_layer(key)), DIMS)
    probe = draw_probe(0, DIMS, reach=1.0)
    (q, k), (scaled_q, scaled_k) = (queries_and_keys(encoding, params, probe) for encoding in (plain, scaled))
    np.testing.assert_array_equal(scaled_k, k)
    np.testing.assert_allclose(scaled_q, q * log_n_temperature(probe.positions, 3)[:, None, None], rtol=1e-6)
    hooks = ("init", "init_layer", "adapt", "embed", "bias", "relative_values", "distance_bias")
    assert all(getattr(scaled, hook) is getattr(plain, hook) for hook in hooks)
    assert not scaled.shift_invariant


@pytest.mark.slow
def test_temperatures_multiply_and_a_sharpened_encoding_is_not_shift_invariant():
    encoding = make_encoding("rope", DIMS, "log_n(trained_length=3)+llama4(floor_length=4)")
    q = jnp.ones((2, 9, 4, 8), jnp.bfloat16)
    turned = encoding.rotate({}, q, jnp.arange(9))
    assert turned.dtype == jnp.bfloat16
    at = jnp.arange(9)
    sharpened = log_n_temperature(at, 3) * llama4_temperature(at, floor_length=4)
    lengths = jnp.linalg.norm(turned.astype(jnp.float32), axis=-1)
    np.testing.assert_allclose(lengths, np.broadcast_to(sharpened[None, :, None] * 8**0.5, (2, 9, 4)), rtol=2e-2)
    with pytest.raises(AssertionError):
        assert_shift_invariant(encoding, {}, DIMS)


GRID = Dims(heads=4, head_dim=8, kv_heads=2, axes=2, extent=(4, 6))


def test_on_a_grid_log_n_is_the_ratio_of_the_logarithms_of_patches():
    encoding = make_encoding("rope_axial", GRID, "log_n")
    assert encoding.shift_invariant
    where, traced = jnp.asarray([[0, 0], [2, 5]]), jax.jit(lambda extent: adapt(encoding, {}, extent))
    for extent, ratio in (((24, 24), 2.0), ((4, 6), 1.0), ((3, 5), 1.0), ((8, 12), math.log(96) / math.log(24))):
        adapted = adapt(encoding, {}, extent)
        q = encoding.rotate(adapted, jnp.ones((2, 4, 8)), where)
        k = encoding.rotate_keys(adapted, jnp.ones((2, 2, 8)), where)
        np.testing.assert_allclose(jnp.linalg.norm(q, axis=-1), np.full((2, 4), 8**0.5 * ratio), rtol=1e-6)
        np.testing.assert_allclose(jnp.linalg.norm(k, axis=-1), np.full((2, 2), 8**0.5), rtol=1e-6)
        [factor] = traced(jnp.asarray(extent)).values()
        assert float(factor) == pytest.approx(ratio, rel=1e-6)
    other = adapt(make_encoding("rope_axial", GRID, "log_n(trained_length=96)"), {}, (96, 96))
    assert [float(value) for value in other.values()] == pytest.approx([2.0], rel=1e-6)
    with pytest.raises(ValueError, match="log_n on 2 axes needs a grid of 2 sizes as extent, got 24"):
        adapt(encoding, {}, 24)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["rope_axial", "cpb", "rope_mixed", "learned"])
def test_on_a_grid_any_encoding_attends_with_scaled_queries(spec):
    """With pi, too, which scales positions before: the grid that log_n counts is the current one."""
    plain, scaled = make_encoding(spec, GRID, "pi"), make_encoding(spec, GRID, "pi+log_n+log_n(trained_length=12)")
    assert scaled is make_encoding(spec, GRID, "log_n+pi+log_n(trained_length=12)")
    key, where = jax.random.key(0), pejax.grid_positions(8, 12)
    params = settle(plain, merge_params(plain.init(key), plain.init_layer(key)), GRID)
    q = jax.random.normal(key, (96, 4, 8))
    k, v = jax.random.normal(jax.random.key(1), (2, 96, 2, 8))
    ratio = math.log(96) ** 2 / math.log(24) / math.log(12)
    at = {"positions": where, "extent": (8, 12), "params": params, "embedded": True}
    np.testing.assert_allclose(
        pejax.attend(scaled, q, k, v, **at), pejax.attend(plain, ratio * q, k, v, **at), atol=2e-5
    )
    grids = jnp.asarray([[8, 12], [4, 6]])
    batch = {"q": jnp.stack([q, q]), "k": jnp.stack([k, k]), "v": jnp.stack([v, v])}
    where = (
        jnp.where(jnp.arange(96)[None, :, None] < jnp.prod(grids, axis=1)[:, None, None], 1, 0) * where % grids[:, None]
    )
    rows = pejax.attend(scaled, **batch, **{**at, "positions": where, "extent": grids})
    single = pejax.attend(scaled, q, k, v, **{**at, "positions": where[1], "extent": (4, 6)})
    np.testing.assert_allclose(rows[1], single, atol=2e-5)


def test_positions_of_another_shape_are_refused():
    encoding = scale_queries(make_encoding("none", DIMS), llama4_temperature)
    with pytest.raises((ValueError, TypeError)):
        encoding.rotate({}, jnp.ones((2, 3, 4, 8)), jnp.zeros((3, 2), jnp.int32))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: log_n_temperature(jnp.zeros(1), 1), "trained_length must be at least 2, got 1"),
        (lambda: llama4_temperature(jnp.zeros(1), floor_length=0), "floor_length must be at least 1, got 0"),
        (lambda: llama4_temperature(jnp.zeros(1), scale=-0.1), "scale must be a finite number from 0, got -0.1"),
        (lambda: llama4_temperature(jnp.zeros(1), offset=-1), "offset must be at least 0, got -1"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
