"""Distances of any two whole positions, against Python's integers: none wraps at 32 bits."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import ENCODINGS, Dims, TokenPositions, dot_product_attention, init_params
from pejax._attention.core.hooks import attention_hooks
from pejax._attention.core.masks import visible
from pejax._attention.core.options import Options
from pejax._ops.clipped_lookup import pick
from pejax._ops.relative import difference, float_differences, relative_positions
from pejax._record.encoding import split_params
from tests.support.biases import compiled
from tests.support.cases import normal, slow

LEAST, MOST = -(2**31), 2**31 - 1
ENDS = (LEAST, LEAST + 1, -(2**30), -70_000, -3, -1, 0, 1, 2, 65_535, 2**30 + 1, MOST - 1, MOST)
AT = jnp.asarray(ENDS, jnp.int32)
EXACT = np.asarray([[k - q for k in ENDS] for q in ENDS], np.float64)  # up to 2^32: exact
LIMITED = np.clip(EXACT, -MOST, MOST)
DISTANCE = np.abs(EXACT)
GRID = jnp.asarray([*itertools.product(ENDS[::4], ENDS[1::5])], jnp.int32)
ON_GRID = np.asarray(GRID, np.float64)[None] - np.asarray(GRID, np.float64)[:, None]
SLOPES = jnp.asarray([1.0, 2.0**-8], jnp.float32)


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.slow
def test_differences_are_limited_and_as_floats_exact_but_for_one_rounding():
    np.testing.assert_array_equal(np.asarray(relative_positions(AT, AT), np.float64), LIMITED)
    np.testing.assert_array_equal(float_differences(AT, AT), EXACT.astype(np.float32))
    unsigned = jnp.asarray([0, 5, 2**31, 2**32 - 1], jnp.uint32)
    exact = np.asarray(unsigned, np.float64)[None] - np.asarray(unsigned, np.float64)[:, None]
    np.testing.assert_array_equal(
        np.asarray(relative_positions(unsigned, unsigned), np.float64), np.clip(exact, -MOST, MOST)
    )
    np.testing.assert_array_equal(float_differences(unsigned, unsigned), exact.astype(np.float32))
    mixed = relative_positions(jnp.asarray([-1, 3], jnp.int32), unsigned)
    np.testing.assert_array_equal(mixed, [[1, 6, MOST, MOST], [-3, 2, MOST - 3, MOST - 3]])
    draws = np.random.default_rng(0).integers(LEAST, MOST, (2, 2000))
    q, k = jnp.asarray(draws, jnp.int32)
    np.testing.assert_array_equal(difference(q, k), np.clip(draws[1] - draws[0], -MOST, MOST))


def test_biases_of_the_distance_are_those_of_the_unsigned_difference():
    slopes = np.asarray(SLOPES, np.float64)[:, None, None]
    close(compiled("alibi_bias")(AT, AT, SLOPES), -slopes * DISTANCE)
    close(compiled("alibi_bias")(GRID, GRID, SLOPES), -slopes * np.sqrt((ON_GRID**2).sum(-1)))
    close(compiled("kerple_bias")(AT, AT, SLOPES, SLOPES), -slopes * np.log1p(slopes * DISTANCE))
    power = compiled("kerple_bias")(AT, AT, SLOPES, SLOPES, variant="power")
    np.testing.assert_allclose(power, -slopes * np.where(DISTANCE > 0, DISTANCE, 0) ** slopes, rtol=1e-5)
    cones = jnp.asarray([[[1.0]], [[-1.0]]])
    seen = np.asarray([[[1]], [[-1]]]) * EXACT >= 0
    close(compiled("lookhere_bias")(AT, AT, SLOPES, cones), np.where(seen, -slopes * DISTANCE, -np.inf))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_of_t5(bidirectional):
    def bucket(relative):
        side = 16 if bidirectional else 32
        n, exact = abs(relative) if bidirectional else max(-relative, 0), side // 2
        far = exact + int(math.log(n / exact) / math.log(128 / exact) * (side - exact)) if n >= exact else n
        return min(far, side - 1) + (side if bidirectional and relative > 0 else 0)

    ends = [*ENDS, LEAST, -7, 9]
    result = compiled("t5_bucket")(jnp.asarray(ends, jnp.int32), bidirectional=bidirectional)
    assert result.tolist() == [bucket(r) for r in ends]
    table = jnp.arange(32.0)[None]
    biases = compiled("t5_bias")(AT, AT, table, bidirectional=bidirectional)[0]
    assert biases.tolist() == [[bucket(k - q) for k in ENDS] for q in ENDS]
    assert compiled("t5_bucket")(jnp.asarray([-128, 127], jnp.int8), bidirectional=True).tolist() == [15, 31]


@pytest.mark.slow
def test_clipped_and_tabulated_distances():
    rows = np.clip(EXACT, -2, 2).astype(int) + 2
    table = jnp.asarray([[5.0, 1.0, 4.0, 2.0, 3.0]])
    np.testing.assert_array_equal(compiled("relative_table_bias")(AT, AT, table)[0], np.asarray(table)[0][rows])
    logits = compiled("shaw_logits")(jnp.ones((len(AT), 1, 1)), AT, AT, table.T, scale=1.0)
    np.testing.assert_array_equal(logits[0], np.asarray(table)[0][rows])
    wrapping = jnp.asarray([MOST, LEAST], jnp.int32)  # one more each, were they to wrap
    scores = jnp.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    np.testing.assert_array_equal(pick(scores, wrapping, wrapping), [[2.0, 1.0], [6.0, 5.0]])


@pytest.mark.slow
def test_networks_of_the_distance():
    dims = Dims(heads=2, head_dim=4, extent=8)
    params = init_params(ENCODINGS["cpb"](dims, hidden=16), jax.random.key(0))
    a, b, w = (np.asarray(x, np.float64) for x in (params["all"]["a"], params["all"]["b"], params["heads"]["w"]))
    u = np.sign(EXACT) * np.log2(1 + 8 * DISTANCE / 7) / 3
    expected = 16 / (1 + np.exp(-np.einsum("hw,tsw->hts", w, np.maximum(u[..., None] * a + b, 0)))) - 8
    np.testing.assert_allclose(compiled("cpb_bias")(AT, AT, params, extent=8), expected, atol=1e-5)
    params = init_params(ENCODINGS["fire"](dims, hidden=16), jax.random.key(0))
    a, b, c, w, bias = (
        np.asarray(params[part][name], np.float64)
        for part, name in (("all", "a"), ("all", "b"), ("all", "c"), ("heads", "w"), ("heads", "bias"))
    )
    at = np.asarray(ENDS, np.float64)
    n = np.maximum(np.maximum(at[:, None], at[None]), 8.0)
    x = np.log1p(abs(c) * DISTANCE) / (np.log1p(abs(c) * n) + 1e-6)
    expected = np.einsum("hw,tsw->hts", w, np.maximum(x[..., None] * a + b, 0)) + bias[:, None, None]
    result = compiled("fire_bias")(AT, AT, params, causal=False, threshold=8.0)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("causal", "window", "between"), [(True, 5, None), (False, MOST, None), (False, None, (3, 2**31 + 5))]
)
def test_masks(causal, window, between):
    tokens = TokenPositions(AT)
    seen = visible(Options(scale=1.0, causal=causal, window=window, distance_range=between), tokens, tokens)
    low, high = between or (0, 2**40)
    inside = ((window or 2**40) > DISTANCE) & (low <= DISTANCE) & (high > DISTANCE)
    np.testing.assert_array_equal(seen, inside & ((EXACT <= 0) | (not causal)))


IMPLEMENTATIONS = ("cpu", *map(slow, ("reference", "dense", "blockwise", "gpu", "tpu")))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("spec", ["alibi", *map(slow, ("t5", "kerple", "relative_table", "fire", "shaw"))])
def test_attention_limits_differences_in_every_implementation(spec, implementation):
    """At consecutive positions far from the keys, too, for which implementations count distances from the first."""
    encoding = ENCODINGS[spec](Dims(heads=1, head_dim=4, extent=8))
    params = jax.tree.map(lambda leaf: leaf + normal(*leaf.shape), init_params(encoding, jax.random.key(0)))
    hooks = attention_hooks(encoding, params)
    shared, heads = split_params(params if encoding.constants is None else encoding.constants())
    params_h = {**shared, **jax.tree.map(lambda leaf: leaf[0], heads)}
    for q_at, k_at in (
        (AT, AT),
        (LEAST + jnp.arange(4), MOST - 5 + jnp.arange(6)),
        (MOST - 5 + jnp.arange(6), LEAST + jnp.arange(4)),
        (jnp.asarray([MOST, LEAST]), jnp.asarray([MOST, LEAST])),
    ):
        q_at, k_at = q_at.astype(jnp.int32), k_at.astype(jnp.int32)
        q, v = (
            jnp.ones((len(q_at), 1, 4)),
            jnp.asarray(np.random.default_rng(1).normal(size=(len(k_at), 1, 4)), jnp.float32),
        )
        try:
            result = dot_product_attention(
                q, 0 * v, v, positions=q_at, k_positions=k_at, hooks=hooks, implementation=implementation
            )
        except NotImplementedError:
            pytest.skip("the kernels do not take this hook")
        relative = np.clip(np.asarray(k_at, np.int64)[None] - np.asarray(q_at, np.int64)[:, None], -MOST, MOST)
        if encoding.distance_bias is None:
            bias = encoding.bias(params_h, q[:, 0], q[:1, 0] + 0 * v[:, 0], q_at, k_at)
        else:
            flat = encoding.distance_bias(params_h, jnp.asarray(relative.reshape(-1), jnp.int32))
            bias = flat.reshape(relative.shape)
        weights = jax.nn.softmax(bias)
        expected = weights @ v[:, 0]
        if encoding.relative_values is not None:
            expected = expected + encoding.relative_values(params_h, weights, q_at, k_at)
        np.testing.assert_allclose(result[:, 0], expected, atol=1e-5)
