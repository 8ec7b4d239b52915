"""Biases on grids and in volumes that kernels look up by the difference of slots, against the dense reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, TokenPositions, adapt, attention_hooks, dot_product_attention, init_params, make_encoding
from tests.support.cases import slow
from tests.support.small_tiles import many_tiles

__all__ = ["many_tiles"]

pytestmark = pytest.mark.usefixtures("many_tiles")

QUICK = {"xla_backend_optimization_level": "0"}  # most of the time goes into compiling
H, K, D = 4, 2, 8

CASES = {  # spec, sides of the grid, tokens without a position before it, numbers of tokens that attend, and options
    "table, CLS, dropout": ("relative_table", (4, 5), 2, (22, 22), {"dropout": (jax.random.key(1), 0.3)}),
    "cpb, packed, cap": ("cpb(hidden=4)", (3, 6), 0, (18, 18), {"soft_cap": 2.0, "segments": True}),
    "t5, volume, cross, window": ("t5(buckets=8, max_distance=5)", (2, 3, 4), 1, (9, 25), {"window": 14}),
}


def step(name, implementation):
    """Return the output and all gradients of a case; tokens are in no order of the grid."""
    spec, sides, unplaced, lengths, options = CASES[name]
    options = dict(options)
    rng = np.random.default_rng(0)
    grid = np.stack(np.indices(sides), -1).reshape(-1, len(sides)) - 3
    encoding = make_encoding(spec, Dims(H, D, kv_heads=K, axes=len(sides), extent=sides))
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    params = jax.tree.map(lambda x: draw(*x.shape), init_params(encoding, jax.random.key(0)))
    packed = options.pop("segments", False)

    def tokens(length):
        chosen = rng.permutation(len(grid))[: length - unplaced]
        positions = np.concatenate([np.zeros((unplaced, len(sides)), int), grid[chosen]])
        segments = rng.integers(0, 3, (2, length)) if packed else None
        placed = np.arange(length) >= unplaced if unplaced else None
        fields = (None if x is None else jnp.asarray(x) for x in (positions, np.arange(length), placed, segments))
        return TokenPositions(*fields)

    q_tokens, k_tokens = map(tokens, lengths)
    k_tokens = q_tokens if lengths[0] == lengths[1] else k_tokens
    operands = (draw(2, length, heads, D) for length, heads in zip((*lengths, lengths[1]), (H, K, K), strict=True))
    weights = draw(2, lengths[0], H, D)

    def loss(q, k, v, params):
        hooks = attention_hooks(encoding, adapt(encoding, params, sides))
        call = {"positions": q_tokens, "k_positions": k_tokens, "hooks": hooks, "implementation": implementation}
        output, lse = dot_product_attention(q, k, v, **call, return_lse=True, **options)
        return jnp.sum(output * weights) + jnp.sum(jnp.where(jnp.isfinite(lse), lse, 0.0)), (output, lse)

    gradient = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)
    return jax.jit(gradient, compiler_options=QUICK)(*operands, params)


@pytest.mark.parametrize("implementation", ["tpu", slow("gpu")])
@pytest.mark.parametrize("name", ["table, CLS, dropout", *map(slow, [*CASES][1:])])
def test_a_lookup_on_a_grid_is_the_reference_in_value_and_every_gradient(name, implementation):
    ours, right = (jax.tree.leaves(step(name, x)) for x in (implementation, "reference"))
    for got, want in zip(map(np.asarray, ours), map(np.asarray, right), strict=True):
        size = np.abs(want[np.isfinite(want)]).max(initial=1)
        np.testing.assert_allclose(got, want, atol=1e-5 * size, rtol=0)


@pytest.mark.parametrize("implementation", ["gpu", "tpu"])
def test_a_grid_that_is_traced_is_refused_with_the_operation_that_needs_it(implementation):
    encoding = make_encoding("relative_table", Dims(2, 8, axes=2, extent=(4, 5)))
    hooks = attention_hooks(encoding, adapt(encoding, init_params(encoding, jax.random.key(0)), (4, 5)))
    x, positions = jnp.ones((1, 20, 2, 8)), jnp.asarray(np.indices((4, 5)).reshape(2, -1).T)
    attend = lambda positions: dot_product_attention(
        x, x, x, positions=positions, hooks=hooks, implementation=implementation
    )
    with pytest.raises(NotImplementedError, match="a distance_bias hook"):
        jax.eval_shape(attend, positions)
    assert jax.eval_shape(lambda: attend(positions)).shape == x.shape
