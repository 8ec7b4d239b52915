"""RoPE in your own attention function, and ALiBi in one call: python examples/rope_in_your_attention.py"""

import jax
import jax.numpy as jnp

import pejax


def my_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention on arrays of shape (batch, tokens, heads, head dim)."""
    logits = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    mask = jnp.tri(q.shape[1], k.shape[1], dtype=bool)
    weights = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf))
    return jnp.einsum("bhts,bshd->bthd", weights, v)


q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 16, 4, 32))

# RoPE: rotate queries and keys; the rest of the attention is unchanged.
positions = jnp.arange(16)
rotated = my_attention(pejax.rope_apply(q, positions), pejax.rope_apply(k, positions), v)

# Only distances matter: a million added to all positions gives the same output.
later = positions + 1_000_000
shifted = my_attention(pejax.rope_apply(q, later), pejax.rope_apply(k, later), v)
print(f"RoPE, shifted by a million: largest change {jnp.max(jnp.abs(shifted - rotated)):.1e}")

# The same in one call, and with ALiBi in place of RoPE.
dims = pejax.Dims(heads=4, head_dim=32, causal=True)
same = pejax.attend(pejax.encodings.rope(dims), q, k, v)
print(f"RoPE by attend: largest difference {jnp.max(jnp.abs(same - rotated)):.1e}")
alibi = pejax.attend(pejax.encodings.alibi(dims), q, k, v)
print(f"ALiBi by attend: output of shape {alibi.shape}")
