"""Pairs of channels turned, as programs: one pass over the array, gradients of learned tables, nothing gathered."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pejax import rope_apply, rope_frequencies
from pejax._ops.rotary import PAIRINGS, rotate_pairs
from tests.support.cases import mostly_slow

X = np.random.default_rng(0).normal(size=(2, 6, 4, 12)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("learned", [False, True])
def test_pairs_of_float32_are_turned_in_one_pass(learned):
    """Nor are they taken apart, or put together by a concatenation; nor where the frequencies are learned too."""
    x, positions = jnp.asarray(X, jnp.float32), np.arange(6, dtype=np.int32)
    frequencies = jnp.asarray(rope_frequencies(X.shape[-1]))
    turn = lambda x, frequencies: rope_apply(x, positions, frequencies)
    run = jax.jit(lambda x, f, g: jax.vjp(turn, x, f)[1](g)[: 1 + learned])
    compiled = run.lower(x, frequencies, x).compile().as_text()
    assert not re.search(r"\[2,6,.* concatenate\(", compiled)
    d_x = run(x, frequencies, turn(x, frequencies))[0]
    np.testing.assert_allclose(d_x, x, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("rows", mostly_slow([(6, 1), (6, 4), (2, 6, 2), (1, 6, 4)], [(6, 4), (2, 6, 2)]), ids=str)
def test_gradients_of_tables_are_sums_over_all_that_they_turn(rows, pairing, dtype):
    """Of each table by itself and of both, with channels that stay beside those that turn, forwards and backwards."""
    draws = np.random.default_rng(1)
    tables = [jnp.asarray(draws.normal(size=(*rows, 5)), jnp.float32) for _ in "cs"]
    x, weights = (jnp.asarray(array, dtype) for array in (X, draws.normal(size=X.shape)))
    turn = lambda *tables: rotate_pairs(x, *tables, pairing=pairing)

    def loss(*tables):
        return jnp.sum((turn(*tables) * weights).astype(jnp.float32))

    parts = [np.asarray(array, np.float64)[..., :10] for array in (x, weights)]
    (x1, x2), (w1, w2) = (np.split(p, 2, -1) if pairing == "half" else (p[..., 0::2], p[..., 1::2]) for p in parts)
    of_tokens = (x1 * w1 + x2 * w2, x1 * w2 - x2 * w1)
    by_groups = [g.reshape(2, 6, rows[-1], -1, 5).sum(3) for g in of_tokens]
    expected = [g if rows[0] == 2 else g.sum(0, keepdims=len(rows) == 3) for g in by_groups]
    for which in ((0,), (1,), (0, 1)):
        result = jax.jit(jax.grad(loss, which))(*tables)
        target = [expected[i] for i in which]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), result, tuple(target))
    value, change = jax.jvp(turn, tables, tables)
    np.testing.assert_allclose(change[..., :10], value[..., :10], rtol=2 * float(jnp.finfo(dtype).eps), atol=1e-6)
    np.testing.assert_array_equal(change[..., 10:], 0)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [PartitionSpec("data"), PartitionSpec("data", None, "tensor")], ids=str)
def test_learned_frequencies_gather_no_queries(spec):
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    frequencies = jnp.asarray(rope_frequencies(12)) * jnp.ones((4, 1, 1))
    backwards = lambda x, f: jax.vjp(lambda x, f: rope_apply(x, np.arange(6), f), x, f)[1](x)
    x = jax.device_put(jnp.tile(X, (2, 1, 1, 1)), NamedSharding(mesh, spec))
    run = jax.jit(backwards)
    assert "all-gather" not in run.lower(x, frequencies).compile().as_text()
    for result, expected in zip(run(x, frequencies), backwards(np.asarray(x), frequencies), strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-4)
