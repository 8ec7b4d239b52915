"""What every bias keeps to: finite gradients, float32, and positions on the axes it was made for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax import ENCODINGS, Dims, adapt, dot_product_attention, grid_positions, make_encoding
from pejax._attention.core.hooks import attention_hooks
from pejax._ops.relative import relative_positions
from pejax._record.encoding import merge_params, split_params
from tests.support.biases import types_unchecked
from tests.support.cases import mostly_slow

LINE, GRID = Dims(heads=4, head_dim=4, extent=4), Dims(heads=4, head_dim=4, axes=2, extent=(4, 4))


def is_finite_bias(name):
    """Return whether an encoding adds a bias to the logits, and hides no key by it."""
    encoding = make_encoding(name, GRID)
    return encoding.bias is not None and not encoding.hides


NAMES = [*filter(is_finite_bias, ENCODINGS), "kerple(variant='power')", "fire(signed=True)"]
KEY = jax.random.key(0)
MEETING = jnp.asarray([0.0, 0.0, 1.5, 200.0])


def make(spec, dims):
    """Return an encoding and the function that draws one layer's parameters, passed through `adapt`."""
    encoding = make_encoding(spec, dims)

    def settled(key):
        params = merge_params(encoding.init(key), encoding.init_layer(key))
        return adapt(encoding, params, dims.extent)

    return encoding, settled


def first_head(params):
    """Return what the hooks of the first head are given."""
    shared, heads = split_params(params)
    return {**shared, **jax.tree.map(lambda leaf: leaf[0], heads)}


@pytest.mark.slow
@pytest.mark.parametrize("dims", [LINE, GRID], ids=["line", "grid"])
@pytest.mark.parametrize("spec", mostly_slow(NAMES, ["alibi", "fire", "shaw"]))
def test_gradients_are_finite_where_tokens_meet_and_where_they_are_far(spec, dims):
    encoding, settled = make(spec, dims)
    params = jax.jit(lambda key: first_head(settled(key)))(KEY)
    q, k = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4)), jnp.float32)
    at = MEETING if dims.axes == 1 else jnp.stack([MEETING, MEETING], axis=-1)

    def total(params, q, k, at):
        bias = encoding.bias(params, q, k, at, at)
        assert bias.dtype == jnp.float32
        weights = jax.nn.softmax(bias)
        return bias.sum() + (
            0.0 if encoding.relative_values is None else encoding.relative_values(params, weights, at, at).sum()
        )

    gradients = jax.jit(jax.grad(total, (0, 1, 2, 3)))(params, q, k, at)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("spec", NAMES)
def test_positions_on_other_axes_are_refused_in_one_line(spec):
    q, grid, line = jnp.zeros((4, 4)), grid_positions(2, 2), jnp.arange(4)
    for dims, positions in ((LINE, grid), (GRID, line), (GRID, jnp.zeros((4, 3)))):
        encoding, settled = make(spec, dims)
        bias = lambda key: encoding.bias(first_head(settled(key)), q, q, positions, positions)  # noqa: B023
        with pytest.raises(ValueError, match=f"on {dims.axes} axes needs positions") as error:
            jax.eval_shape(bias, KEY)
        assert "\n" not in str(error.value)
        if encoding.relative_values is not None:
            values = lambda key: encoding.relative_values(first_head(settled(key)), q, positions, positions)  # noqa: B023
            with pytest.raises(ValueError, match=f"on {dims.axes} axes needs positions"):
                jax.eval_shape(values, KEY)


def test_attention_passes_the_refusal_on():
    encoding, settled = make("t5", GRID)
    q, line = jnp.zeros((5, 4, 4)), jnp.arange(5)
    with pytest.raises(ValueError, match="t5 on 2 axes needs positions \\(T, 2\\), got \\(T\\)"):
        dot_product_attention(q, q, q, positions=line, k_positions=line, hooks=attention_hooks(encoding, settled(KEY)))


def test_queries_and_keys_on_different_axes_are_refused():
    with types_unchecked(), pytest.raises(ValueError, match="must share axes"):
        relative_positions(jnp.zeros((4, 2)), jnp.zeros(4))


@pytest.mark.parametrize("spec", NAMES)
def test_half_precision_queries_give_a_float32_bias(spec):
    encoding, settled = make(spec, LINE)
    q = jnp.ones((3, 4), jnp.bfloat16)
    at = jnp.arange(3)
    shape = jax.eval_shape(lambda key: encoding.bias(first_head(settled(key)), q, q, at, at), KEY)
    assert (shape.shape, shape.dtype) == ((3, 3), jnp.float32)
