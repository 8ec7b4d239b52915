"""Windows (before, after): every implementation equals the dense mask, as `local_window_size` of `jax.nn` does."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from pejax import (
    Dims,
    Sharding,
    TokenPositions,
    attend,
    attention_fn,
    dot_product_attention,
    explain_attention,
    init_params,
    make_encoding,
)
from pejax._attention.core.options import as_window, narrower
from pejax.models import AttentionConfig, Decoder, LayerConfig, MlpConfig, NormConfig, Rolling, TransformerConfig
from pejax.specs import parse
from tests.attention.test_mosaic_attention import needs_jax
from tests.support.cases import slow

T, H, K, D = 50, 2, 1, 8
WINDOWS = [(7, 2), (0, 5), (12, 0), (2, 2**40)]


def arrays(dtype=jnp.float32, length=T, dim=D):
    """Return queries, keys, values and weights of the outputs."""
    rng = np.random.default_rng(1)
    shapes = [(2, length, heads, dim) for heads in (H, K, K, H)]
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def band(order, window):
    """Return which keys each query sees, as the rule is written."""
    gap = np.asarray(order)[:, None] - np.asarray(order)
    return (-window[1] <= gap) & (gap <= window[0])


def value_and_gradients(attention, q, k, v, weights):
    """Return the output and the gradients of q, k and v."""

    def loss(q, k, v):
        output = attention(q, k, v)
        return jnp.sum(output.astype(jnp.float32) * weights), output

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "length", "window"),
    [
        *itertools.product(("dense", "reference", "blockwise", "cpu"), (50,), WINDOWS),
        *itertools.product(("gpu", "tpu"), (150,), [(70, 20), (0, 90)]),  # in several tiles
        *(pytest.param("mosaic_gpu", 150, window, marks=needs_jax) for window in [(70, 20), (0, 90)]),
    ],
    ids=str,
)
def test_a_window_is_the_dense_mask_in_value_and_every_gradient(implementation, length, window):
    dtype, dim = (jnp.float16, 64) if implementation == "mosaic_gpu" else (jnp.float32, D)
    order = np.arange(length) if length > 50 else np.random.default_rng(0).permutation(length)
    t5 = make_encoding("t5(buckets=8, max_distance=20)", Dims(H, dim, kv_heads=K))
    params = init_params(t5, jax.random.key(0))
    *qkv, weights = arrays(dtype, length, dim)
    positions = TokenPositions(jnp.arange(length), order=jnp.asarray(order))
    ours = lambda *qkv: attend(
        t5, *qkv, params=params, positions=positions, window=window, implementation=implementation
    )
    dense = lambda *qkv: attention_fn(t5, params, implementation="reference")(
        *qkv, mask=jnp.asarray(band(order, window))
    )
    expected = value_and_gradients(dense, *(x.astype(jnp.float32) for x in (*qkv, weights)))
    atol = 2e-2 if dtype == jnp.float16 else 2e-5
    result = value_and_gradients(ours, *qkv, weights.astype(jnp.float32))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=atol), result, expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ring", "gather"])
def test_a_window_over_shards_of_the_sequence_is_that_of_one_device(method):
    *qkv, weights = arrays(length=48)
    mesh = jax.make_mesh((4,), ("sequence",), axis_types=(AxisType.Auto,))
    split = Sharding(mesh, sequence="sequence", method=method)
    run = lambda sharding: value_and_gradients(
        lambda *qkv: dot_product_attention(*qkv, window=(5, 14), sharding=sharding), *qkv, weights
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), run(split), run(None))


@pytest.mark.parametrize("causal", [slow(True), False])
@pytest.mark.parametrize("window", [slow((6, 0)), (3, 9)], ids=str)
def test_it_is_the_local_window_of_jax(window, causal):
    """Where keys after the query are masked, the window shows none of them: there, too."""
    q, k, v, _ = arrays()
    theirs = jax.nn.dot_product_attention(q, k, v, local_window_size=window, is_causal=causal)
    np.testing.assert_allclose(dot_product_attention(q, k, v, window=window, causal=causal), theirs, atol=2e-6)


def test_a_window_that_one_number_says_is_that_number():
    assert [as_window(window, False) for window in (4, (3, 3), (0, 0), (3, 2), (0, 1))] == [4, 4, 1, (3, 2), (0, 1)]
    assert [as_window(window, True) for window in (4, (3, 3), (0, 0), (3, 2), (0, 1))] == [4, 4, 1, 4, 1]
    assert [narrower(4, None), narrower(None, (1, 2)), narrower(3, (1, 5)), narrower((4, 0), 2)] == [
        4, (1, 2), (1, 2), (1, 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("window", "error", "message"),
    [
        ((3,), ValueError, r"window must be .*a tuple \(an int, an int\)"),
        ((3, -1), ValueError, r"window must be \(before, after\), each at least 0 tokens, got \(3, -1\)"),
        ((3, 1.5), TypeError, r"window must be .*a tuple \(an int, an int\)"),
        ("3,1", TypeError, r"window must be .*a tuple \(an int, an int\)"),
    ],
    ids=str,
)
def test_what_is_no_window_is_refused_in_one_line(window, error, message):
    q, k, v, _ = arrays()
    with pytest.raises(error, match=message) as refusal:
        dot_product_attention(q, k, v, window=window)
    assert "\n" not in str(refusal.value)


def test_fused_kernels_refuse_a_window_that_is_not_causal_by_name():
    q, k, v, _ = arrays(jnp.bfloat16)
    lines = explain_attention(q, k, v, window=[3, 1], implementation="cudnn")
    assert "cudnn: fused kernels take a window only where causal" in lines


def model_of(window, causal, layers=1):
    norm = NormConfig("rms", epsilon=1e-5)
    attention = AttentionConfig(H, K, D, pe=parse("rope(base=4)"), window=window)
    layer = LayerConfig(attention, MlpConfig(8, "silu", gated=True), norm)
    sizes = {"vocab": 16, "width": 16, "length": 12, "norm": norm, "head": None, "causal": causal}
    return Decoder(TransformerConfig(layers=(layer,) * layers, **sizes), rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_a_layer_of_a_streaming_encoder_sees_its_window_alone():
    model, ids = model_of((3, 1), causal=False), jnp.arange(12)[None] % 5
    states = lambda x: model.stack(x, None, 12)[0][0]
    moved = jax.jacobian(states)(model.embedding(ids))[:, :, 0]
    np.testing.assert_array_equal(np.abs(moved).sum((1, 3)) > 0, band(np.arange(12), (3, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("slots", [12, Rolling(5, 0, renumber=False)])
def test_a_window_of_both_sides_in_a_causal_model_is_that_before_the_query(slots):
    ids, tokens = jnp.arange(12)[None] % 5, TokenPositions(jnp.arange(12))
    models = [model_of(window, causal=True, layers=2) for window in (4, (3, 2))]
    whole, both_sides = (model.states(ids) for model in models)
    np.testing.assert_array_equal(whole, both_sides)
    cache, rows = models[1].stack.empty_cache(1, slots), []
    for first, last in ((0, 5), (5, 6), (6, 12)):
        part = TokenPositions(tokens.positions[first:last])
        x = models[1].embedding(ids[:, first:last])
        states, cache = models[1].stack(x, part, 12, cache=cache)
        rows.append(states)
    np.testing.assert_allclose(jnp.concatenate(rows, axis=1), whole, atol=1e-5)
