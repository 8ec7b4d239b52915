"""Write your own encoding and check it with pejax.testing: python examples/own_encoding.py"""

import jax
import jax.numpy as jnp

import pejax
from pejax.testing import assert_shift_invariant, assert_tile_consistent


def window_encoding(dims: pejax.Dims, *, length: float = 8.0) -> pejax.Encoding:
    """Make a smooth attention window with one learned length per head: `bias = -(distance / length)^2`."""

    def init(key: jax.Array) -> dict:
        del key
        return {"heads": {"log_length": jnp.full(dims.heads, jnp.log(length))}}

    def distance_bias(params: dict, relative: jax.Array) -> jax.Array:
        distance = relative.astype(jnp.float32)  # key position minus query position, in tokens
        return -jnp.square(distance / jnp.exp(params["log_length"]))  # params are those of one head

    return pejax.Encoding(init=init, distance_bias=distance_bias, shift_invariant=True, dims=dims)


dims = pejax.Dims(heads=4, head_dim=32, extent=64)
encoding = window_encoding(dims)
params = pejax.init_params(encoding, jax.random.key(0))

print(pejax.explain(encoding))
print(f"shift invariance: largest deviation {assert_shift_invariant(encoding, params, dims):.1e}")
print(f"tiles: largest deviation {assert_tile_consistent(encoding, params, dims):.1e}")

# Gradients flow to the parameters, and attention never stores the bias of all pairs at once.
q, k, v = jax.random.normal(jax.random.key(1), (3, 1, 64, 4, 32))
loss = lambda params: jnp.mean(pejax.attend(encoding, q, k, v, params=params) ** 2)
print("gradient of the window lengths:", jax.grad(loss)(params)["heads"]["log_length"])
