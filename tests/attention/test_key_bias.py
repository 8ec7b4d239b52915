"""A bias of the keys: a number for each key and head, in every implementation, with its gradient."""

import functools
import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from pejax import (
    Dims,
    Sharding,
    TokenPositions,
    attend,
    attention_weights,
    dot_product_attention,
    explain_attention,
    make_encoding,
)
from tests.support.biases import types_unchecked
from tests.support.cases import close, normal, slow

T, H, K, D = 24, 4, 2, 8
TOKENS = TokenPositions(jnp.arange(T), segment_ids=jnp.repeat(jnp.asarray([1, 2, 0]), jnp.asarray([10, 10, 4])))
OPTIONS = {"positions": TOKENS, "causal": True, "window": 9}
TILED = ["cpu", slow("blockwise"), slow("gpu"), slow("tpu")]


def arrays():
    """Draw q, k, v and a bias of the keys."""
    return normal(2, T, H, D), normal(2, T, K, D, seed=1), normal(2, T, K, D, seed=2), normal(2, T, H, seed=3)


def in_float64(q, k, v, bias, cap):
    """Return the output of attention written out pair by pair."""
    q, k, v, bias = (np.asarray(x, np.float64) for x in (q, k, v, bias))
    segments, out = np.asarray(TOKENS.segment_ids), np.zeros_like(q)
    for b, i, h in np.ndindex(2, T, H):
        seen = [j for j in range(max(0, i - 8), i + 1) if segments[i] == segments[j] != 0]
        logits = D**-0.5 * k[b, seen, h // 2] @ q[b, i, h]
        logits = (logits if cap is None else cap * np.tanh(logits / cap)) + bias[b, seen, h]
        weights = np.exp(logits)
        out[b, i, h] = weights @ v[b, seen, h // 2] / max(weights.sum(), 1e-300)
    return out


@functools.partial(jax.jit, static_argnames=("cap", "implementation", "sharding"))
def step(q, k, v, bias, cap=None, implementation="reference", sharding=None):
    """Return the output, and the gradients of q, k, v and the bias."""

    def loss(*arrays):
        options = {**OPTIONS, "soft_cap": cap, "implementation": implementation, "sharding": sharding}
        out = dot_product_attention(*arrays[:3], key_bias=arrays[3], **options)
        return jnp.sum(jnp.sin(out)), out

    slopes, out = jax.grad(loss, (0, 1, 2, 3), has_aux=True)(q, k, v, bias)
    return out, slopes


@pytest.mark.slow
@pytest.mark.parametrize("cap", [None, slow(1.5), 0.7])
def test_the_reference_adds_it_after_the_cap(cap):
    np.testing.assert_allclose(step(*arrays(), cap=cap)[0], in_float64(*arrays(), cap), atol=2e-6)


def test_its_gradient_is_the_slope_of_the_loss():
    q, k, v, bias = arrays()
    loss = lambda bias: np.sin(in_float64(q, k, v, bias, 0.7)).sum()
    slopes = step(*arrays(), cap=0.7)[1][3]
    for place in ((0, 0, 0), (0, 5, 3), (1, 12, 2), (1, 22, 1)):  # the last is padding
        moved = np.zeros(bias.shape)
        moved[place] = 1e-4
        slope = (loss(np.asarray(bias, np.float64) + moved) - loss(np.asarray(bias, np.float64) - moved)) / 2e-4
        np.testing.assert_allclose(slopes[place], slope, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("implementation", TILED)
def test_every_implementation_is_the_reference_in_value_and_every_gradient(implementation, cap):
    close(step(*arrays(), cap=cap, implementation=implementation), step(*arrays(), cap=cap), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ring", slow("gather")])
def test_over_many_devices_as_on_one(method):
    mesh = jax.make_mesh((2, 4), ("tensor", "sequence"), axis_types=(AxisType.Auto,) * 2)
    sharding = Sharding(mesh, heads="tensor", sequence="sequence", method=method)
    close(step(*arrays(), implementation=None, sharding=sharding), step(*arrays()), 1e-5)


@pytest.mark.slow
def test_a_key_of_ln_3_counts_three_times():
    q, k, v, _ = arrays()
    bias = jnp.zeros((2, T, H)).at[:, 4].set(math.log(3))
    three = np.r_[:4, 4, 4, 4, 5:T]
    repeated = jax.tree.map(lambda leaf: leaf[three], TOKENS)
    options = {"causal": True, "positions": TOKENS}
    thrice = dot_product_attention(q, k[:, three], v[:, three], k_positions=repeated, **options)
    close(dot_product_attention(q, k, v, key_bias=bias, **options), thrice, 1e-5)
    weights = attention_weights(q, k, key_bias=bias, **options)
    close(jnp.einsum("bhts,bshd->bthd", weights, jnp.repeat(v, H // K, axis=2)), thrice)


def test_no_keys_and_no_examples_have_biases_too():
    q, k, _, _ = arrays()
    nothing = {"positions": jnp.arange(T), "k_positions": jnp.arange(0), "key_bias": jnp.zeros((2, 0, H))}
    assert not jnp.any(dot_product_attention(q, k[:, :0], k[:, :0], **nothing))
    assert dot_product_attention(q[:0], k[:0], k[:0], key_bias=jnp.zeros((0, T, H))).shape == (0, T, H, D)


@pytest.mark.parametrize("spec", [slow("alibi"), slow("rope(extend='self_extend(window=4, group=5)')")])
def test_attend_takes_it_with_any_encoding_also_in_bands_and_at_an_extent_for_each_example(spec):
    encoding = make_encoding(spec, Dims(heads=H, head_dim=D, kv_heads=K, causal=True, extent=T))
    q, k, v, bias = arrays()
    same = jnp.full((2, T, H), 2.5)  # drops out of the softmax
    plain = attend(encoding, q, k, v)
    close(attend(encoding, q, k, v, key_bias=same), plain, 1e-5)
    moved = attend(encoding, q, k, v, key_bias=bias)
    assert jnp.max(jnp.abs(moved - plain)) > 0.1
    adapting = make_encoding("rope", encoding.dims, "dynamic_ntk")
    by_example = attend(adapting, q, k, v, key_bias=bias, extent=jnp.asarray([T, 2 * T]))
    close(by_example[0], attend(adapting, q[0], k[0], v[0], key_bias=bias[0], extent=T), 1e-5)


def test_fused_kernels_leave_it_to_others():
    x = jnp.ones((1, 4, 2, 64), jnp.bfloat16)
    text = explain_attention(x, x, x, key_bias=jnp.zeros((1, 4, 2)), implementation="cudnn")
    assert "neither key_bias nor unplaced_bias" in text


@pytest.mark.parametrize(
    ("bias", "kind", "message"),
    [
        (jnp.zeros((2, H, T)), ValueError, f"key_bias must be (*B, S, H) = (2, {T}, {H}), got shape (2, {H}, {T})"),
        (jnp.zeros((2, T, H), int), TypeError, "key_bias must be a floating-point array (*B, S, H), got int32"),
        (0.5, TypeError, "key_bias must be a floating-point array (*B, S, H), got float"),
    ],
)
def test_anything_else_is_refused(bias, kind, message):
    q, k, v, _ = arrays()
    with types_unchecked(), pytest.raises(kind, match=re.escape(message)):
        inspect.unwrap(dot_product_attention)(q, k, v, key_bias=bias)
