"""A bias that `pi` tabulates is that of every pair: on the grid it was made for, and pair by pair anywhere else."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from pejax import ENCODINGS, Dims, attend, grid_positions, init_params, make_encoding
from pejax._extensions.interpolation import TABLE, interpolate_encoding
from pejax._record.encoding import split_params
from tests.support.cases import close, mostly_slow, normal, slow

DIMS = Dims(heads=4, head_dim=12, axes=2, extent=(3, 2))
FINER = (7, 3)
"""Both axes are scaled, by factors that no binary fraction is."""
TABULATED = [name for name in ENCODINGS if make_encoding(name, DIMS).tabulate]


def drawn(spec: str) -> tuple:
    """Return the record with `pi`, the same without tables, and parameters far from their initial values."""
    plain = make_encoding(spec, DIMS)
    params = jax.tree.map(lambda leaf: leaf + normal(*leaf.shape), init_params(plain, jax.random.key(0)))
    return (
        interpolate_encoding(plain, DIMS),
        interpolate_encoding(dataclasses.replace(plain, tabulate=False), DIMS),
        params,
    )


@pytest.mark.parametrize("spec", mostly_slow(TABULATED, ["t5"]))
@pytest.mark.parametrize("shift", mostly_slow([0, 5, 0.25, "far"], [0.25]))
def test_the_table_holds_the_bias_of_every_pair(spec, shift):
    """At the patches of the grid and a shift of them; at others, the network or table is asked pair by pair."""
    tabulated, by_pairs, params = drawn(spec)
    at = grid_positions(*FINER)
    at = at * jnp.asarray([1, 4]) if shift == "far" else at.astype(type(shift)) + shift
    result, x = [], jnp.zeros((len(at), 12))
    for encoding in (tabulated, by_pairs):
        shared, heads = split_params(encoding.adapt(params, FINER))
        assert (TABLE in heads) == encoding.tabulate
        one = lambda item, encoding=encoding, shared=shared: encoding.bias({**shared, **item}, x, x, at, at)
        result.append(jax.jit(jax.vmap(one))(heads))
    close(*result, 1e-6)
    assert float(jnp.ptp(result[0])) > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [slow("reference"), "cpu", slow("blockwise")])
@pytest.mark.parametrize("spec", mostly_slow(TABULATED, ["t5"]))
def test_attention_and_its_gradients_are_those_of_pairs(spec, implementation):
    *encodings, params = drawn(spec)
    q, k, v = normal(3, 21, 4, 12)
    options = {"positions": grid_positions(*FINER), "extent": FINER, "axes": 2, "implementation": implementation}

    def total(encoding, q, k, v, params):
        out = attend(encoding, q, k, v, params=params, **options)
        return jnp.sum(jnp.sin(out)), out

    slopes = lambda encoding: jax.value_and_grad(total, (1, 2, 3, 4), has_aux=True)(encoding, q, k, v, params)
    result, expected = jax.jit(lambda: [slopes(encoding) for encoding in encodings])()
    close(result[0][1], expected[0][1], 2e-5)
    close(result[1], expected[1], 1e-4)


@pytest.mark.slow
def test_a_grid_within_the_trained_one_has_no_such_table():
    tabulated, _, params = drawn("cpb")
    assert TABLE not in tabulated.adapt(params, DIMS.extent)["heads"]
    assert TABLE in tabulated.adapt(params, (3, 3))["heads"]
