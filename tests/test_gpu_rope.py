"""Queries and keys rotated in one pass: the same numbers as each by itself, and the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.attention.gpu_rope import rotate_queries_keys
from pejax.rotation import PAIRINGS, rotate_pairs

CASES = {
    "shared rows": {"heads": (6, 1), "groups": 1, "batched": False, "length": 12},
    "a row for each key head": {"heads": (8, 2), "groups": 2, "batched": True, "length": 7},
}


def draw(case, dtype=jnp.float32, count=8, lead=(2,)):
    """Return q, k, and the angles of a case."""
    rng, length = np.random.default_rng(0), case["length"]
    q, k = (jnp.asarray(rng.normal(size=(*lead, length, heads, 2 * count)), dtype) for heads in case["heads"])
    shape = (*(lead if case["batched"] else ()), length, case["groups"], count)
    return q, k, jnp.asarray(rng.normal(size=shape), jnp.float32)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("name", CASES)
def test_one_pass_is_two_rotations_in_value_and_every_gradient(name, pairing):
    q, k, angles = draw(CASES[name])

    def ours(q, k, angles):
        return rotate_queries_keys(q, k, jnp.cos(angles), jnp.sin(angles), pairing=pairing, interpret=True)

    def twice(q, k, angles):
        return tuple(rotate_pairs(x, jnp.cos(angles), jnp.sin(angles), pairing=pairing) for x in (q, k))

    got, want = (jax.jit(lambda *x, f=f: jax.vjp(f, *x)[1](twice(*x)))(q, k, angles) for f in (ours, twice))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)
    rounded = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)  # noqa: E731
    jax.tree.map(rounded, ours(q, k, angles), twice(q, k, angles))


def test_narrow_types_round_once():
    q, k, angles = draw(CASES["shared rows"], jnp.bfloat16, lead=())
    got = rotate_queries_keys(q, k, jnp.cos(angles), jnp.sin(angles), pairing="half", interpret=True)
    for x, y in zip((q, k), got, strict=True):
        assert y.dtype == jnp.bfloat16
        np.testing.assert_array_equal(y, rotate_pairs(x, jnp.cos(angles), jnp.sin(angles), pairing="half"))


def test_tables_that_nobody_learns_keep_no_queries_and_keys():
    q, k, angles = draw(CASES["shared rows"])
    rotate = lambda q, k: rotate_queries_keys(q, k, jnp.cos(angles), jnp.sin(angles), pairing="half", interpret=True)  # noqa: E731
    _, pull = jax.vjp(rotate, q, k)
    assert all(leaf.size < q.size for leaf in jax.tree.leaves(pull))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_kernel_lowers_to_triton(pairing, dtype):
    q, k, angles = draw(CASES["a row for each key head"], dtype, count=32)

    def loss(q, k):
        turned = rotate_queries_keys(q, k, jnp.cos(angles), jnp.sin(angles), pairing=pairing)
        return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in turned)

    text = jax.jit(jax.grad(loss, (0, 1))).trace(q, k).lower(lowering_platforms=("cuda",)).as_text()
    assert "pejax_rotate" in text


@pytest.mark.parametrize(
    ("shape", "pairing", "error"),
    [
        ((4, 2, 16), "quarter", ValueError),
        ((4, 2, 18), "half", NotImplementedError),
        ((4, 2, 12), "half", NotImplementedError),
    ],
)
def test_other_pairs_are_refused(shape, pairing, error):
    x, table = jnp.ones(shape), jnp.ones((4, 1, 6 if shape[-1] == 12 else 8))
    with pytest.raises(error):
        rotate_queries_keys(x, x, table, table, pairing=pairing)
