"""What padding holds, NaN too, reaches neither outputs nor gradients, whatever the implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import (
    Dims,
    attend,
    attention_fn,
    attention_weights,
    encodings,
    init_params,
    linear_attention,
    packed_positions,
)
from tests.support.cases import close, normal, slow

SEGMENTS = jnp.asarray([[1] * 5 + [2] * 6 + [0] * 5, [0] * 3 + [4] * 13])
KEPT = (SEGMENTS != 0)[..., None, None]
ARRAYS = normal(2, 16, 4, 8), normal(2, 16, 2, 8, seed=1), normal(2, 16, 2, 8, seed=2)
POISONED = tuple(jnp.where(KEPT, x, jnp.nan) for x in ARRAYS)
IMPLEMENTATIONS = ("reference", "cpu", *map(slow, ("dense", "blockwise", "gpu", "tpu")))


def gradients(call, arrays, params):
    def loss(arrays, params):
        out = call(*arrays, params)
        return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(arrays, params)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["t5", slow("rope"), slow("shaw"), slow("transformer_xl")])
def test_padding_may_hold_anything(name, implementation):
    encoding = getattr(encodings, name)(Dims(heads=4, head_dim=8, kv_heads=2, causal=True))
    params, tokens = init_params(encoding, jax.random.key(0)), packed_positions(SEGMENTS)

    def call(q, k, v, params):
        return attend(encoding, q, k, v, params=params, positions=tokens, implementation=implementation)

    try:
        result = gradients(call, POISONED, params)
    except NotImplementedError:
        pytest.skip("the kernels do not take this hook")
    close(result, gradients(call, ARRAYS, params), 1e-6)
    assert (jnp.where(KEPT, 0.0, result[1]) == 0).all()


@pytest.mark.slow
def test_of_keys_and_queries_that_a_mask_hides_from_all():
    """As Flax's layers call it."""
    alibi = encodings.alibi(Dims(heads=4, head_dim=8, kv_heads=2))
    by_key, by_query = KEPT[..., 0, 0][:, None, None], KEPT[..., 0, 0][:, None, :, None]
    for mask in (by_key & by_query, jnp.broadcast_to(by_key & by_query, (2, 4, 16, 16)).astype(jnp.float32)):
        call = lambda q, k, v, params, mask=mask: attention_fn(alibi)(q, k, v, mask=mask)
        close(gradients(call, POISONED, {}), gradients(call, ARRAYS, {}), 1e-6)
    shared = jnp.arange(16) < 9  # one mask (S,) for all
    arrays = [x.at[:, 9:].set(jnp.nan) for x in ARRAYS[1:]]
    np.testing.assert_array_equal(
        attention_fn(alibi)(ARRAYS[0], *arrays, mask=shared), attention_fn(alibi)(*ARRAYS, mask=shared)
    )


@pytest.mark.slow
def test_in_linear_attention_and_in_the_weights():
    rope, tokens = encodings.rope(Dims(heads=4, head_dim=8, kv_heads=2, causal=True)), packed_positions(SEGMENTS)
    call = lambda q, k, v, params: linear_attention(rope, q, k, v, positions=tokens)
    close(gradients(call, POISONED, {}), gradients(call, ARRAYS, {}), 1e-6)
    weights = lambda q, k, v: attention_weights(q, k, positions=tokens)
    np.testing.assert_array_equal(weights(*POISONED), weights(*ARRAYS))
