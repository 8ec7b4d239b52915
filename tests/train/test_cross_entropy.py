"""The cross-entropy in chunks is that of optax, on one device and on eight, in value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pejax.models import Execution
from tests.support.cases import mostly_slow, slow
from train.devices.mesh import make_mesh, training_execution
from train.lm.cross_entropy import cross_entropy

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
def test_chunks_change_neither_value_nor_gradient(sizes, vocab, at_once):
    states, columns, labels, weights = operands(vocab=vocab)
    execution = training_execution(make_mesh(0, sizes)) if sizes else Execution()
    weighed = lambda losses: jnp.sum(weights * losses)
    run = jax.jit(lambda x, w: cross_entropy(x, w, labels, execution, at_once=at_once))
    np.testing.assert_allclose(run(states, columns), expected(states, columns, labels), rtol=1e-6, atol=1e-6)
    gradients = jax.jit(jax.grad(lambda x, w: weighed(run(x, w)), (0, 1)))(states, columns)
    references = jax.grad(lambda x, w: weighed(expected(x, w, labels)), (0, 1))(states, columns)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-5, atol=4e-6)


@pytest.mark.slow
def test_bfloat16_states_give_float32_losses_and_a_gradient_of_each_type():
    states, columns, labels, _ = operands(jnp.bfloat16)
    losses = cross_entropy(states, columns, labels, at_once=5 * V)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses, expected(states, columns, labels), rtol=1e-5, atol=1e-5)
    slopes = jax.grad(lambda x, w: cross_entropy(x, w, labels, at_once=5 * V).mean(), (0, 1))(states, columns)
    assert [slope.dtype for slope in slopes] == [jnp.bfloat16, jnp.float32]


def test_memory_is_that_of_a_chunk():
    shapes = jax.eval_shape(lambda: tuple(jnp.zeros(s, jnp.float32) for s in ((1, 4096, 16), (16, 4096))))
    labels = jax.ShapeDtypeStruct((1, 4096), jnp.int32)

    def temporary(at_once: int) -> int:
        loss = lambda x, w, labels: cross_entropy(x, w, labels, at_once=at_once).mean()
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes, labels).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(2**24) >= 4 * 2**24
    assert temporary(2**20) <= 4 * 4 * 2**20
