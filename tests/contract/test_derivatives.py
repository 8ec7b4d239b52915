"""Derivatives beyond the gradient: right, or refused in words that say what to take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import Dims, attention_hooks, dot_product_attention, make_encoding
from pejax._attention.backends import IMPLEMENTATIONS
from pejax._ops.backward import with_backward
from pejax.functions import shaw_logits
from tests.support.cases import normal, slow

TILED = [name for name in IMPLEMENTATIONS if name not in ("reference", "dense", "cudnn", "mosaic_gpu")]
T5 = make_encoding("t5", Dims(heads=2, head_dim=8))
X = normal(1, 12, 2, 8)


def attend(x, name):
    """Return attention of x to itself by the implementation of that name."""
    hooks = attention_hooks(T5, T5.init(jax.random.key(0)))
    return dot_product_attention(x, x, x, positions=jnp.arange(12), implementation=name, hooks=hooks)


def loss(name):
    """Return a loss of attention by the implementation of that name."""
    return lambda x: jnp.sum(attend(x, name) ** 2)


FORWARD = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
    "jacfwd": jax.jacfwd,
    "of many": lambda f: lambda x: jax.jvp(jax.vmap(f), (x[None],), (jnp.cos(x)[None],))[1],
}
OTHERS = {
    "reverse over reverse": lambda f: jax.grad(lambda x: jnp.vdot(x, jax.grad(f)(x))),
    "forward over reverse": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1],
    "reverse over forward": lambda f: jax.grad(lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]),
}


@pytest.mark.parametrize("kind", ["jvp", slow("jacfwd"), slow("of many")])
@pytest.mark.parametrize("name", ["cpu", *(slow(name) for name in TILED if name != "cpu")])
def test_tiles_have_forward_mode(name, kind):
    tangent, expected = (jax.jit(FORWARD[kind](loss(one)))(X) for one in (name, "reference"))
    np.testing.assert_allclose(tangent, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", TILED)
def test_the_tangent_of_tiles_may_be_the_target_of_a_loss(name):
    """As in MeanFlow: the output has gradients, its change along the flow counts as constant."""

    def total(x, name):
        f = lambda x: attend(x, name)
        output, change = jax.jvp(f, (x,), (jnp.sin(x),))
        return jnp.sum((output - jax.lax.stop_gradient(change)) ** 2)

    gradient, expected = (jax.jit(jax.grad(total), static_argnums=1)(X, one) for one in (name, "reference"))
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", TILED)
def test_tiles_refuse_other_derivatives_and_say_what_to_take(name, kind):
    with pytest.raises(NotImplementedError, match=r"first derivatives.*implementation=.reference."):
        jax.jit(OTHERS[kind](loss(name))).lower(X)


def in_layers(x):
    """Sum attention in tiles over layers in a loop, each kept by its input alone."""
    layer = jax.checkpoint(
        lambda x, _: (x + dot_product_attention(x, x, x, positions=jnp.arange(12), implementation="cpu"), None)
    )
    return jnp.sum(jax.lax.scan(layer, x, None, length=2)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "gradient",
    [
        jax.grad(in_layers),
        lambda x: jax.vmap(jax.grad(in_layers))(x[None])[0],
        jax.grad(lambda x: jnp.sum(jax.vmap(in_layers)(x[None]))),
        jax.jacrev(in_layers),
    ],
)
def test_gradients_of_tiles_go_through_every_transformation(gradient):
    dense = lambda x: dot_product_attention(x, x, x, positions=jnp.arange(12), implementation="reference")
    expected = jax.grad(lambda x: jnp.sum((lambda y: y + dense(y))(x + dense(x))))(X)
    np.testing.assert_allclose(jax.jit(gradient)(X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_shaw_logits_have_every_derivative():
    q, table, at = normal(6, 2, 4), normal(5, 4), jnp.arange(6)
    logits = lambda table: jnp.sum(shaw_logits(q, at, at, table) ** 2)
    ways = jax.jacfwd(jax.jacfwd(logits)), jax.jacrev(jax.jacrev(logits)), jax.hessian(logits)
    forward, reverse, mixed = (jax.jit(way)(table) for way in ways)
    np.testing.assert_allclose(forward, reverse, rtol=1e-5)
    np.testing.assert_allclose(forward, mixed, rtol=1e-5)
    assert jnp.max(jnp.abs(forward)) > 1


def test_gradients_of_gradients_are_refused_in_loops_too():
    with pytest.raises(NotImplementedError, match=r"implementation=.reference."):
        jax.eval_shape(jax.grad(lambda x: jnp.vdot(x, jax.grad(in_layers)(x))), X)


@pytest.mark.slow
def test_a_backward_pass_of_its_own_is_the_one_that_runs():
    """In reverse mode, under `vmap` and in a loop too; all other derivatives are those of the plain function."""
    power = lambda x, n: x ** n.astype(x.dtype)
    tenfold = lambda operands, d: [10 * d * operands[0] ** 2]
    x, n = jnp.arange(1.0, 4.0), jnp.full(3, 3)
    total = lambda x: jnp.sum(with_backward(power, power, tenfold)(x, n))
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(jax.lax.map(total, x)))(x[None])[0], 10 * x**2)
    np.testing.assert_allclose(jax.vmap(jax.grad(total))(x[None])[0], 10 * x**2)
    np.testing.assert_allclose(jax.jvp(total, (x,), (x,))[1], jnp.sum(3 * x**3))
