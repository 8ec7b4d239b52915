"""ALiBi: slopes of the peers for any head count, CROMA's formula on grids, and what the sources get wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import (
    Dims,
    adapt,
    alibi_slopes,
    attend,
    attention_fn,
    attention_hooks,
    dot_product_attention,
    grid_positions,
    make_encoding,
)
from tests.support.biases import compiled
from tests.support.cases import slow
from tests.support.peers import peer

alibi_bias = compiled("alibi_bias")


@pytest.mark.parity
def test_slopes_are_those_of_bloom_and_mpt_for_1_to_128_heads():
    torch, bloom, mpt = (
        peer(name)
        for name in ("torch", "transformers.models.bloom.modeling_bloom", "transformers.models.mpt.modeling_mpt")
    )
    for heads in range(1, 129):
        ours = np.asarray(alibi_slopes(heads))
        first_key = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].numpy()
        last_but_one = -mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0].numpy()
        np.testing.assert_allclose(ours, first_key, rtol=1e-5)
        np.testing.assert_allclose(ours, last_but_one, rtol=1e-6)


def test_slopes_of_8_and_12_heads_are_the_papers():
    """Head 0 is the steepest, and the first slope is the ratio itself, not its square."""
    eight = [2.0**-n for n in range(1, 9)]
    np.testing.assert_array_equal(alibi_slopes(8), np.float32(eight))
    np.testing.assert_array_equal(alibi_slopes(12), np.float32([*eight, *(2.0 ** -(n + 0.5) for n in range(4))]))
    np.testing.assert_array_equal(alibi_slopes(1), np.float32([2.0**-8]))


@pytest.mark.parity
@pytest.mark.parametrize("bias_max", [4, 16])
def test_slopes_of_another_exponent_are_those_of_mpt(bias_max):
    mpt = peer("transformers.models.mpt.modeling_mpt")
    for heads in (1, 6, 8, 112):
        theirs = -mpt.build_mpt_alibi_tensor(heads, 2, alibi_bias_max=bias_max)[:, 0, 0].numpy()
        np.testing.assert_allclose(alibi_slopes(heads, bias_max=bias_max), theirs, rtol=1e-6)


def test_the_exponent_of_the_flattest_slope():
    np.testing.assert_array_equal(alibi_slopes(4, bias_max=16.0), np.float32([2.0**-4, 2.0**-8, 2.0**-12, 2.0**-16]))
    np.testing.assert_array_equal(alibi_slopes(3, bias_max=16.0), np.float32([2.0**-8, 2.0**-16, 2.0**-4]))
    steep = make_encoding("alibi(bias_max=2, slope_scale=0.5)", Dims(heads=2, head_dim=4))
    np.testing.assert_array_equal(adapt(steep, {})["heads"]["slope"], [0.25, 0.125])
    with pytest.raises(ValueError, match="bias_max must be positive and finite, got 0"):
        make_encoding("alibi(bias_max=0)", Dims(heads=2, head_dim=4))


@pytest.mark.parametrize("grid", [(4, 4), (3, 5)])
def test_bias_on_a_grid_is_cromas(grid):
    positions = grid_positions(*grid)
    slopes = alibi_slopes(3)
    bias = np.asarray(alibi_bias(positions, positions, slopes))
    for head, slope in enumerate(np.asarray(slopes, np.float64)):
        for i, (y, x) in enumerate(np.ndindex(grid)):
            for j, (v, u) in enumerate(np.ndindex(grid)):
                assert bias[head, i, j] == pytest.approx(-slope * np.sqrt((y - v) ** 2 + (x - u) ** 2), rel=1e-6)


def test_bias_falls_with_the_distance_on_both_sides():
    bias = np.asarray(alibi_bias(jnp.arange(2, 5), jnp.arange(9), alibi_slopes(2)))
    distance = np.abs(np.arange(9)[None] - np.arange(2, 5)[:, None])
    np.testing.assert_array_equal(bias, -np.asarray(alibi_slopes(2))[:, None, None] * np.float32(distance))


def test_distances_of_narrow_and_unsigned_positions_do_not_wrap():
    wide = alibi_bias(jnp.arange(200), jnp.arange(200), alibi_slopes(1))
    for dtype in (jnp.uint8, jnp.uint32, jnp.int16, jnp.float32):
        narrow = jnp.arange(200).astype(dtype)
        np.testing.assert_array_equal(alibi_bias(narrow, narrow, alibi_slopes(1)), wide)


def test_the_factory_scales_slopes_and_stretches_them_beyond_the_trained_extent():
    dims = Dims(heads=4, head_dim=4, extent=32)
    slopes = lambda spec, extent: np.asarray(adapt(make_encoding(spec, dims), {}, extent)["heads"]["slope"])
    np.testing.assert_array_equal(slopes("alibi(slope_scale=2)", 32), 2 * np.asarray(alibi_slopes(4)))
    np.testing.assert_array_equal(slopes("alibi(extend='slopes')", 64), 0.5 * np.asarray(alibi_slopes(4)))
    np.testing.assert_array_equal(slopes("alibi(extend='slopes')", 16), alibi_slopes(4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [slow("alibi"), "alibi(learned=True)", slow("alibi(learned=True, extend='slopes')")],
)
def test_slopes_of_the_parameters_are_used_and_have_gradients_everywhere(spec):
    dims = Dims(heads=4, head_dim=4, extent=32)
    encoding, tokens, q = make_encoding(spec, dims), jnp.arange(6), jnp.ones((6, 4, 4))
    started = encoding.init(jax.random.key(0))
    if "learned" in spec:
        np.testing.assert_array_equal(started["heads"]["slope"], alibi_slopes(4))
    values = jnp.linspace(0.0, 1.0, 6 * 16).reshape(6, 4, 4)

    def reference(slopes):
        weights = jax.nn.softmax(2.0 + alibi_bias(tokens, tokens, slopes), axis=-1)
        return jnp.einsum("hts,shd,thd->h", weights, values, values)

    def ways(slopes):
        params = {"heads": {"slope": slopes}}
        settled = adapt(encoding, params, 6)
        run = attend(encoding, q, q, values, params=params, positions=tokens, extent=6)
        made = attention_fn(encoding, params, positions=tokens, extent=6)(q, q, values)
        hooked = dot_product_attention(q, q, values, positions=tokens, hooks=attention_hooks(encoding, settled))
        return jnp.stack([jnp.einsum("thd,thd->h", out, values) for out in (run, made, hooked)])

    mine = jnp.asarray([0.3, 0.1, 2.0, 0.01])
    expected, slopes = reference(mine), jax.jacrev(reference)(mine)
    np.testing.assert_allclose(ways(mine), jnp.stack([expected] * 3), rtol=1e-5)
    np.testing.assert_allclose(jax.jacrev(ways)(mine), jnp.stack([slopes] * 3), rtol=1e-4, atol=1e-5)


def test_gradient_of_the_slopes_is_minus_the_distance():
    positions = jnp.asarray([[0.0, 0.0], [3.0, 4.0]])
    gradient = jax.grad(lambda slopes: alibi_bias(positions, positions, slopes).sum())(alibi_slopes(2))
    np.testing.assert_allclose(gradient, [-10.0, -10.0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: alibi_slopes(0), "heads must be at least 1, got 0"),
        (lambda: make_encoding("alibi(slope_scale=0)", Dims(heads=2, head_dim=4)), "positive, got 0"),
        (lambda: make_encoding("alibi(extend='slopes')", Dims(heads=2, head_dim=4)), "trained extent"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
