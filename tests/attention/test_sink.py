"""Attention sinks: one more key per head, with a logit of its own and a value of zero."""

import functools
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
    alibi_slopes,
    attend,
    attention_hooks,
    attention_weights,
    dot_product_attention,
    explain_attention,
    make_encoding,
    merge_attention,
)
from pejax._attention.xla import blockwise, cpu
from tests.support.biases import types_unchecked
from tests.support.cases import close, normal, slow

QUICK = {"xla_backend_optimization_level": "0"}
T, H, K, D = 24, 4, 2, 8
SINK = jnp.asarray([0.5, -1.0, 2.0, 0.0])
ALIBI = make_encoding("alibi", Dims(H, D, kv_heads=K, causal=True))
TOKENS = TokenPositions(jnp.arange(T), segment_ids=jnp.asarray([0] * 2 + [1] * 12 + [2] * 10))
OPTIONS = {"causal": True, "window": 9, "soft_cap": 3.0}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let short sequences have many tiles."""
    monkeypatch.setattr(blockwise, "BLOCK", 8)
    monkeypatch.setattr(cpu, "BLOCK", 16)
    monkeypatch.setattr(cpu, "BACKWARD", 8)


def arrays():
    return normal(1, T, H, D), normal(1, T, K, D, seed=1), normal(1, T, K, D, seed=2)


def with_a_column(q, k, v, sink):
    """Return output, log-sum-exp and weights by softmax over the keys and one more, dense and written out."""
    k, v = (jnp.repeat(x, H // K, axis=2) for x in (k, v))
    at = jnp.arange(T)
    distances = (at[:, None] - at[None, :]).astype(jnp.float32)
    slopes = alibi_slopes(H)
    logits = D**-0.5 * jnp.einsum("bthd,bshd->bhts", q, k, precision="highest") - slopes[:, None, None] * jnp.abs(
        distances
    )
    logits = 3.0 * jnp.tanh(logits / 3.0)
    same = TOKENS.segment_ids[:, None] == TOKENS.segment_ids[None, :]
    seen = same & (TOKENS.segment_ids != 0)[None, :] & (distances >= 0) & (distances < 9)
    logits = jnp.where(seen, logits, -jnp.inf)
    column = jnp.broadcast_to(sink[:, None, None], (1, H, T, 1))
    weights = jax.nn.softmax(jnp.concatenate([logits, column], axis=-1))[..., :-1]
    lse = jax.nn.logsumexp(jnp.concatenate([logits, column], axis=-1), axis=-1)
    return jnp.einsum("bhts,bshd->bthd", weights, v, precision="highest"), jnp.moveaxis(lse, 1, 2), weights


def step(attention):
    """Return a function to output and log-sum-exp, and the gradients of q, k, v and the sink."""

    def loss(*arrays):
        output, lse = attention(*arrays)[:2]
        return jnp.sum(normal(*output.shape, seed=5) * output) + jnp.sum(normal(*lse.shape, seed=6) * lse), (
            output,
            lse,
        )

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True), compiler_options=QUICK)


def ours(implementation):
    def run(q, k, v, sink):
        return dot_product_attention(
            q, k, v, positions=TOKENS, hooks=attention_hooks(ALIBI, {}), sink=sink, return_lse=True,
            implementation=implementation, **OPTIONS,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("implementation", [slow("reference"), slow("blockwise"), "cpu", slow("gpu"), slow("tpu")])
def test_a_sink_is_one_more_key_whose_value_is_zero(implementation):
    got, want = step(ours(implementation))(*arrays(), SINK), step(with_a_column)(*arrays(), SINK)
    close(got, want, 2e-5)
    output = got[1][0]
    assert (output[:, :2] == 0).all()  # padding sees nothing
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))


@pytest.mark.slow
def test_weights_leave_out_what_the_sink_takes():
    q, k, v = arrays()
    weights = attention_weights(q, k, positions=TOKENS, hooks=attention_hooks(ALIBI, {}), sink=SINK, **OPTIONS)
    close(weights, with_a_column(q, k, v, SINK)[2])
    totals = weights.sum(-1)
    assert (totals[..., :2] == 0).all()
    assert ((totals[..., 2:] > 0) & (totals[..., 2:] < 1)).all()


@pytest.mark.slow
def test_the_gradient_of_a_sink_is_its_slope():
    """Central differences in float64."""
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(x, jnp.float64) for x in arrays())
        total = lambda sink: jnp.sum(jnp.sin(ours("reference")(q, k, v, sink)[0]))
        sink, h = jnp.asarray(SINK, jnp.float64), 1e-5
        slopes = [(total(sink + h * unit) - total(sink - h * unit)) / (2 * h) for unit in jnp.eye(H, dtype=jnp.float64)]
        np.testing.assert_allclose(jax.grad(total)(sink), slopes, rtol=1e-7)


@pytest.mark.slow
def test_numbers_computed_apart():
    """T = D = 4, scale 0.5, causal, row 3 of one head, in float64 by other code."""
    g = lambda s: jnp.asarray(np.sin(s + 1.7 * np.arange(16)).reshape(4, 1, 4), jnp.float32)
    run = functools.partial(dot_product_attention, g(0.1), g(0.2), g(0.3), scale=0.5, causal=True, return_lse=True)
    output, lse = run(sink=jnp.asarray([0.5]))
    np.testing.assert_allclose(output[3, 0], [0.693265, 0.107139, -0.720873, 0.078622], atol=1e-6)
    assert run()[1][3, 0] == pytest.approx(2.104580, abs=1e-6)
    assert lse[3, 0] == pytest.approx(math.log(math.exp(2.104580) + math.exp(0.5)), abs=1e-6)


@pytest.mark.slow
def test_a_sink_of_minus_infinity_is_none_and_a_large_one_takes_everything():
    q, k, v = arrays()
    run = lambda level: ours("reference")(q, k, v, jnp.full(H, level))[0]
    plain = dot_product_attention(q, k, v, positions=TOKENS, hooks=attention_hooks(ALIBI, {}), **OPTIONS)
    np.testing.assert_array_equal(run(-jnp.inf), plain)
    np.testing.assert_allclose(run(100.0), 0.0, atol=1e-30)


@pytest.mark.slow
def test_merged_parts_take_the_sink_of_one_of_them():
    q, k, v = arrays()
    part = functools.partial(dot_product_attention, q, k, v, causal=True, return_lse=True)
    merged = merge_attention([part(distance_range=(0, 3), sink=SINK), part(distance_range=(3, T))])
    close(merged, part(sink=SINK), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("extend", [None, "self_extend(window=8, group=2)"])
def test_any_encoding_takes_a_sink_and_bands_take_it_once(extend):
    rope = make_encoding("rope", Dims(H, D, kv_heads=K, causal=True, extent=T), extend)
    q, k, v = arrays()
    run = lambda **options: attend(rope, q, k, v, **options)
    shares = run(sink=SINK) / run()
    spread = shares.max(-1) - shares.min(-1)
    np.testing.assert_allclose(spread, 0, atol=1e-5)  # one factor per query and head
    np.testing.assert_allclose(run(sink=jnp.full(H, -jnp.inf)), run(), rtol=1e-6)
    first = jax.nn.sigmoid(D**-0.5 * jnp.einsum("bhd,bhd->bh", q[:, 0], jnp.repeat(k[:, 0], 2, axis=1)) - SINK)
    np.testing.assert_allclose(shares[:, 0].mean(-1), first, rtol=1e-5)  # the first query sees itself alone


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ring", slow("gather")])
@pytest.mark.parametrize("kind", ["Auto", slow("Explicit")])
def test_over_many_devices_as_on_one(method, kind):
    mesh = jax.make_mesh((2, 4), ("tensor", "sequence"), axis_types=(AxisType[kind],) * 2)
    options = {"positions": TOKENS, "hooks": attention_hooks(ALIBI, {}), "return_lse": True, **OPTIONS}

    def over(sharding):
        return lambda q, k, v, sink: dot_product_attention(q, k, v, sink=sink, sharding=sharding, **options)

    got = step(over(Sharding(mesh, heads="tensor", sequence="sequence", method=method)))(*arrays(), SINK)
    close(got, step(over(None))(*arrays(), SINK), 1e-5)


@pytest.mark.slow
def test_half_precision_stays_half():
    q, k, v = (x.astype(jnp.bfloat16) for x in arrays())
    output, lse = ours("blockwise")(q, k, v, SINK.astype(jnp.bfloat16))
    assert (output.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    want = with_a_column(*(x.astype(jnp.float32) for x in (q, k, v)), SINK)[0]
    np.testing.assert_allclose(output.astype(jnp.float32), want, atol=2e-2)


def test_an_explanation_takes_a_sink():
    q, k, v = arrays()
    assert "runs" in explain_attention(q, k, v, sink=SINK)


@pytest.mark.parametrize(
    ("sink", "kind", "message"),
    [
        (jnp.ones(3), ValueError, "sink must be an array of floats (H) or None, got float32 (3,)"),
        (jnp.ones(4, int), TypeError, "sink must be an array of floats (H) or None, got int32"),
        pytest.param(0.5, ValueError, "sink must be an array of floats (H) or None, got 0.5", marks=pytest.mark.slow),
    ],
)
def test_what_is_no_sink_is_refused(sink, kind, message):
    with types_unchecked(), pytest.raises(kind, match=re.escape(message)):
        dot_product_attention(*arrays(), sink=sink)
