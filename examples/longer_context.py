"""Decode beyond the trained length with YaRN and a cache of keys and values: python examples/longer_context.py"""

import jax
import jax.numpy as jnp

import pejax

TRAINED, LENGTH, HEADS, HEAD_DIM = 32, 128, 4, 32
dims = pejax.Dims(heads=HEADS, head_dim=HEAD_DIM, extent=TRAINED, causal=True)
yarn = pejax.extensions.yarn(factor=LENGTH / TRAINED)
rope = pejax.encodings.rope(dims, extend=yarn)
print(f"{yarn}: rotated keys can be cached: {pejax.caches_rotated_keys(rope)}")


@jax.jit
def decode_step(cache: tuple[jax.Array, jax.Array], token: tuple[jax.Array, ...]) -> tuple:
    """Write one token's key and value into the cache, and attend to all keys up to this one."""
    position, q, k, v = token  # (), then (B, H, D)
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(kept, new[:, None], position, axis=1)
        for kept, new in zip(cache, (k, v), strict=True)
    )
    here, places = position[None], jnp.arange(LENGTH)  # keys after this token are masked
    out = pejax.attend(rope, q[:, None], keys, values, positions=here, k_positions=places)
    return (keys, values), out[:, 0]


q, k, v = jax.random.normal(jax.random.key(0), (3, 1, LENGTH, HEADS, HEAD_DIM))  # in a model: projections
empty = (jnp.zeros_like(k), jnp.zeros_like(v))
by_token = (jnp.arange(LENGTH), *(jnp.moveaxis(x, 1, 0) for x in (q, k, v)))
_, decoded = jax.lax.scan(decode_step, empty, by_token)
at_once = pejax.attend(rope, q, k, v)
difference = jnp.max(jnp.abs(jnp.moveaxis(decoded, 0, 1) - at_once))
print(f"{LENGTH} tokens, trained on {TRAINED}: decoding and one forward pass differ by at most {difference:.1e}")
