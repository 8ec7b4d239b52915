"""The cross-entropy in chunks is that of optax, on one device and on eight, in value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pejax.models import Execution
from tests.support.cases import mostly_slow, slow
from train.devices.mesh import make_mesh, training_execution
from train.lm import cross_entropy

B, T, C, V = 4, 16, 8, 40


def operands(dtype=jnp.float32, vocab: int = V):
    draw = np.random.default_rng(0)
    states = jnp.asarray(3 * draw.normal(size=(B, T, C)), dtype)
    columns = jnp.asarray(draw.normal(size=(C, vocab)), jnp.float32)
    weights = jnp.asarray(draw.normal(size=(B, T)), jnp.float32)
    return states, columns, jnp.asarray(draw.integers(vocab, size=(B, T)), jnp.int32), weights


def expected(states, columns, labels):
    logits = jnp.matmul(states.astype(jnp.float32), columns.astype(states.dtype).astype(jnp.float32))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


@pytest.mark.parametrize("at_once", mostly_slow([1, 7 * V, B * T * V - 1, B * T * V], [7 * V]))
@pytest.mark.parametrize(
    ("sizes", "vocab"),
    [slow("", V), ("data=2,tensor=2,sequence=2", V), slow("fsdp=2,tensor=4", V), slow("tensor=8", V + 1)],
)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_chunks_change_neither_value_nor_gradient(monkeypatch, platform, sizes, vocab, at_once):
    monkeypatch.setattr(cross_entropy, "platform", lambda: platform)
    states, columns, labels, weights = operands(vocab=vocab)
    execution = training_execution(make_mesh(0, sizes)) if sizes else Execution()
    run = jax.jit(lambda x, w: cross_entropy.cross_entropy(x, w, labels, execution, at_once=at_once))
    np.testing.assert_allclose(run(states, columns), expected(states, columns, labels), rtol=1e-6, atol=1e-6)
    total = lambda x, w: 3 * cross_entropy.weighted_cross_entropy(x, w, labels, weights, execution, at_once=at_once)
    value, gradients = jax.jit(jax.value_and_grad(total, (0, 1)))(states, columns)
    weighed = lambda x, w: 3 * jnp.sum(weights * expected(x, w, labels))
    reference, references = jax.value_and_grad(weighed, (0, 1))(states, columns)
    np.testing.assert_allclose(value, reference, rtol=1e-5)
    for gradient, slope in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1.2e-5)


def test_forward_mode_gives_the_slope_along_a_direction(monkeypatch):
    monkeypatch.setattr(cross_entropy, "platform", lambda: "gpu")
    states, columns, labels, weights = operands()
    total = lambda x, w: cross_entropy.weighted_cross_entropy(x, w, labels, weights, at_once=7 * V)
    slope = jax.jit(lambda *x: jax.jvp(total, x, tuple(map(jnp.cos, x)))[1])(states, columns)
    gradients = jax.grad(lambda x, w: jnp.sum(weights * expected(x, w, labels)), (0, 1))(states, columns)
    along = sum(jnp.vdot(jnp.cos(x), gradient) for x, gradient in zip((states, columns), gradients, strict=True))
    np.testing.assert_allclose(slope, along, rtol=1e-4)


@pytest.mark.parametrize("platform", ["gpu", slow("cpu")])
def test_bfloat16_states_give_a_float32_loss_and_a_gradient_of_each_type(monkeypatch, platform):
    monkeypatch.setattr(cross_entropy, "platform", lambda: platform)
    states, columns, labels, weights = operands(jnp.bfloat16, vocab=V + 1)  # a GPU multiplies by 64 columns
    losses = cross_entropy.cross_entropy(states, columns, labels, at_once=5 * V)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses, expected(states, columns, labels), rtol=1e-5, atol=1e-5)
    total = lambda x, w: cross_entropy.weighted_cross_entropy(x, w, labels, weights, at_once=5 * V)
    value, slopes = jax.value_and_grad(total, (0, 1))(states, columns)
    np.testing.assert_allclose(value, jnp.sum(weights * expected(states, columns, labels)), rtol=1e-5)
    assert [slope.dtype for slope in slopes] == [jnp.bfloat16, jnp.float32]
    exact = jax.grad(lambda x, w: jnp.sum(weights * expected(x, w, labels)), (0, 1))(
        states.astype(jnp.float32), columns.astype(jnp.bfloat16).astype(jnp.float32)
    )
    for slope, reference in zip(slopes, exact, strict=True):
        np.testing.assert_allclose(slope.astype(jnp.float32), reference, atol=2**-7 * float(jnp.abs(reference).max()))


def test_columns_that_fill_a_shard_on_a_gpu_are_no_tokens(monkeypatch):
    monkeypatch.setattr(cross_entropy, "platform", lambda: "gpu")
    states, columns, labels, weights = operands(jnp.bfloat16)
    execution = training_execution(make_mesh(0, "data=2,tensor=2,sequence=2"))  # 20 columns each, filled up to 64
    total = jax.jit(lambda x, w: cross_entropy.weighted_cross_entropy(x, w, labels, weights, execution))
    assert float(total(states, columns)) == pytest.approx(
        float(jnp.sum(weights * expected(states, columns, labels))), rel=1e-5
    )


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_losses_of_tokens_have_gradients_in_the_memory_of_a_chunk(monkeypatch, platform):
    monkeypatch.setattr(cross_entropy, "platform", lambda: platform)
    states, columns, labels, weights = operands()
    losses = lambda x, w: jnp.sum(weights * cross_entropy.cross_entropy(x, w, labels, at_once=7 * V))
    reference = lambda x, w: jnp.sum(weights * expected(x, w, labels))
    for slope, other in zip(*(jax.grad(loss, (0, 1))(states, columns) for loss in (losses, reference)), strict=True):
        np.testing.assert_allclose(slope, other, rtol=1e-5, atol=4e-6)
    saved = jax.eval_shape(lambda: jax.vjp(losses, states, columns)[1])
    assert max(leaf.size for leaf in jax.tree.leaves(saved)) <= 2 * states.size


@pytest.mark.parametrize(("platform", "at_once"), [("cpu", 7 * V), ("gpu", None)])
def test_what_is_no_token_has_no_loss(monkeypatch, platform, at_once):
    monkeypatch.setattr(cross_entropy, "platform", lambda: platform)
    states, columns, labels, weights = operands()
    for wrong in (-1, V):
        total = cross_entropy.weighted_cross_entropy(
            states, columns, labels.at[1, 2].set(wrong), weights, at_once=at_once
        )
        assert np.isnan(total)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_batch_without_tokens_has_no_loss_and_no_gradient(monkeypatch, platform):
    monkeypatch.setattr(cross_entropy, "platform", lambda: platform)
    states, columns, labels, weights = operands()
    total = lambda x, w: cross_entropy.weighted_cross_entropy(x, w, labels[:0], weights[:0])
    value, slopes = jax.value_and_grad(total, (0, 1))(states[:0], columns.astype(jnp.bfloat16))
    assert float(value) == 0.0
    assert [slope.dtype for slope in slopes] == [jnp.float32, jnp.bfloat16]
    assert not slopes[1].any()


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_logits_of_any_size_give_finite_losses(monkeypatch, platform):
    monkeypatch.setattr(cross_entropy, "platform", lambda: platform)
    states, columns, labels, weights = operands()
    columns = jnp.abs(columns)
    states = states.at[0].set(1e4).at[1].set(-1e4).at[2].set(0.0)
    total = lambda x: cross_entropy.weighted_cross_entropy(x, columns, labels, weights, at_once=5 * V)
    value, slope = jax.value_and_grad(total)(states)
    np.testing.assert_allclose(value, jnp.sum(weights * expected(states, columns, labels)), rtol=1e-5)
    assert np.isfinite(slope).all()


def test_memory_is_that_of_a_chunk():
    shapes = jax.eval_shape(lambda: tuple(jnp.zeros(s, jnp.float32) for s in ((1, 4096, 16), (16, 4096), (1, 4096))))
    labels = jax.ShapeDtypeStruct((1, 4096), jnp.int32)

    def temporary(at_once: int) -> int:
        loss = lambda x, w, a, labels: cross_entropy.weighted_cross_entropy(x, w, labels, a, at_once=at_once)
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes, labels).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(2**24) >= 4 * 2**24
    assert temporary(2**20) <= 4 * 4 * 2**20
