"""Derivatives of every kind of functions with a backward pass of their own are those of the plain function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax._ops.derivatives import Rules, differentiable, either
from pejax._ops.matmul import product, recompute
from tests.support.cases import normal, slow


def bent(x, kernel, bias):
    return jnp.sin(x @ kernel) * bias


X, KERNEL, BIAS = normal(2, 3, 4), normal(4, 4, seed=1), normal(4, seed=2)
FUNCTIONS = {
    "product": (product, lambda x, kernel, bias: x @ kernel + bias),
    "recompute": (recompute(bent), bent),
}


def total(function):
    return lambda x, kernel, bias: jnp.sum(jnp.sin(function(x, kernel, bias)) ** 2)


def in_a_loop(function):
    step = lambda x, _, kernel, bias: (jnp.tanh(function(x, kernel, bias)), None)
    return lambda x, kernel, bias: jnp.sum(jax.lax.scan(lambda x, i: step(x, i, kernel, bias), x, None, length=2)[0])


along = lambda args: tuple(map(jnp.cos, args))
KINDS = {
    "jvp": lambda f: lambda *args: jax.jvp(total(f), args, along(args))[1],
    "hessian": lambda f: jax.hessian(total(f), (0, 1)),
    "reverse over reverse": lambda f: jax.grad(lambda *args: jnp.sum(jax.grad(total(f), 1)(*args) ** 2), (0, 1, 2)),
    "reverse over forward": lambda f: jax.grad(lambda *args: jax.jvp(total(f), args, along(args))[1], (0, 1, 2)),
    "forward of one": lambda f: lambda *args: jax.jvp(lambda x: total(f)(x, *args[1:]), args[:1], along(args[:1]))[1],
    "gradient of one": lambda f: jax.grad(total(f), 1),
    "jvp of a batch": lambda f: lambda *args: jax.vmap(KINDS["jvp"](f), (0, None, None))(*args),
    "gradients of a batch": lambda f: lambda *args: jax.vmap(jax.grad(total(f), (0, 1)), (0, None, None))(*args),
    "gradient of a batch": lambda f: jax.grad(lambda *args: jnp.sum(jax.vmap(total(f), (0, None, None))(*args)), 1),
    "gradient of a loop": lambda f: jax.grad(in_a_loop(f), (0, 1, 2)),
    "hessian of a loop": lambda f: jax.hessian(in_a_loop(f), 2),
    "jvp of a loop": lambda f: lambda *args: jax.jvp(in_a_loop(f), args, along(args))[1],
    "gradient of a checkpoint": lambda f: jax.grad(jax.checkpoint(in_a_loop(f)), (0, 1, 2)),
}
OFTEN = ("jvp", "hessian", "reverse over forward", "gradient of one", "jvp of a batch")


@pytest.mark.parametrize("kind", [kind if kind in OFTEN else slow(kind) for kind in KINDS])
@pytest.mark.parametrize("name", ["product", slow("recompute")])
def test_derivatives_of_every_kind_are_those_of_the_plain_function(name, kind):
    ours, plain = FUNCTIONS[name]
    result, expected = (jax.jit(KINDS[kind](function))(X, KERNEL, BIAS) for function in (ours, plain))
    for ours, plain in zip(*map(jax.tree.leaves, (result, expected)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=2e-5)


def test_derivatives_of_derivatives_read_values_that_the_backward_pass_reads_as_bits():
    args = tuple(x.astype(jnp.bfloat16) for x in (X, KERNEL, BIAS))
    result, expected = (jax.jit(KINDS["reverse over forward"](f))(*args)[0] for f in FUNCTIONS["product"])
    scale = float(jnp.abs(expected).max())
    np.testing.assert_allclose(result.astype(jnp.float32), expected.astype(jnp.float32), atol=0.03 * scale)
    assert scale > 1


def test_rules_run_where_they_say():
    """The backward pass is `pull`, forward mode the change of `plain`; what is not differentiated runs alone."""

    def pull(n, x, saved, cotangents):
        assert cotangents[1] is None  # nothing reads this output
        return 10.0 * cotangents[0] * saved

    rules = Rules(
        run=lambda n, x: (x**n, x + 1.0),
        plain=lambda n, x: x ** (n + 1),
        save=lambda n, x, outputs: outputs[1],
        pull=pull,
        filled=False,
    )
    three, one, two = map(jnp.float32, (3.0, 1.0, 2.0))
    first = lambda x: differentiable(rules, 2, x)[0]
    assert first(three) == 9.0
    assert jax.grad(first)(three) == 40.0
    assert jax.jvp(first, (three,), (one,))[1] == 27.0
    assert jax.jvp(lambda x: differentiable(rules, 2, x)[1], (three,), (one,))[1] == 0.0
    alone = lambda x: either(lambda n, x: n * x, lambda n, x: x**n, 3, x)
    assert alone(two) == 6.0
    assert jax.grad(alone)(two) == 12.0
