"""An encoding inside `flax.nnx.MultiHeadAttention`: equal to the formula, masks honoured, parameters trained."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import Dims, TokenPositions, attend, attention_fn, make_encoding
from pejax._record.encoding import merge_params
from pejax._tokens.positions import grid_positions
from pejax.models import attention_module
from tests.support.cases import slow

DIMS = Dims(heads=2, head_dim=8, extent=8)


def make(spec: str, dims: Dims = DIMS, *, shared=None, embedded: bool = False, **options) -> nnx.MultiHeadAttention:
    """Make Flax's layer with this encoding, all its parameters arbitrary and nothing compiled."""
    layer = functools.partial(
        nnx.MultiHeadAttention, dims.heads, dims.width, num_kv_heads=dims.kv_heads, decode=False, **options
    )
    module = lambda rngs: attention_module(make_encoding(spec, dims), dims, rngs, shared=shared, embedded=embedded)
    static, shapes = nnx.split(nnx.eval_shape(lambda rngs: layer(attention_fn=module(rngs), rngs=rngs), nnx.Rngs(0)))
    draw = np.random.default_rng(0)

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        kind = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(draw.normal(size=leaf.shape, scale=0.5), leaf.dtype) if kind else jnp.zeros((), leaf.dtype)

    return nnx.merge(static, jax.tree.map(fill, shapes))


def draw_tokens(batch: int = 2, tokens: int = 8) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (batch, tokens, 16))


def by_hand(layer: nnx.MultiHeadAttention, x: jax.Array, positions: jax.Array, extent, **options) -> jax.Array:
    """Return what the layer should, from its projections and `attention_fn`."""
    module = layer.attention_fn
    parts = nnx.as_pure(module.position)
    attend = attention_fn(
        module.encoding,
        merge_params(parts["shared"], parts["layer"]),
        positions=positions,
        extent=extent,
        embedded=True,
        scale=module.dims.scale,
    )
    return layer.out(attend(layer.query(x), layer.key(x), layer.value(x), **options))


def raises_one_line(call, *parts: str) -> None:
    with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["rope_mixed", slow("shaw"), slow("t5")])
def test_a_step_of_gradient_descent_changes_every_position_parameter(spec):
    layer, x = make(spec), draw_tokens()
    # One token without position: a constant that a head adds to all its logits would change nothing.
    tokens = TokenPositions(jnp.maximum(jnp.arange(8) - 1, 0), has_position=jnp.arange(8) > 0)
    before = jax.tree.map(jnp.array, nnx.as_pure(layer.attention_fn.position))

    @nnx.jit
    def step(layer: nnx.MultiHeadAttention, x: jax.Array) -> jax.Array:
        with layer.attention_fn.at(tokens):
            loss, gradients = nnx.value_and_grad(lambda layer: jnp.square(layer(x)).mean())(layer)
        nnx.update(layer, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(layer, nnx.Param), gradients))
        return loss

    losses = [float(step(layer, x)) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
    after = nnx.as_pure(layer.attention_fn.position)
    moved = jax.tree.map(lambda old, new: bool((old != new).any()), before, after)
    assert jax.tree.leaves(moved)
    assert all(jax.tree.leaves(moved)), moved


@pytest.mark.parametrize("spec", ["rope", "t5", slow("shaw"), slow("alibi")])
def test_the_layer_is_its_projections_around_attention(spec):
    layer, x = make(spec), draw_tokens()
    np.testing.assert_allclose(layer(x), by_hand(layer, x, jnp.arange(8), 8), atol=1e-5)


@pytest.mark.slow
def test_with_no_encoding_it_is_flax_own_attention():
    dims = Dims(heads=4, head_dim=4, kv_heads=2)
    ours, x = make("none", dims), draw_tokens()
    mask = jax.random.bernoulli(jax.random.key(2), 0.6, (2, 4, 8, 8)) | jnp.eye(8, dtype=bool)
    static, params = nnx.split(ours)
    theirs = nnx.merge(static, params)
    theirs.attention_fn = nnx.dot_product_attention
    for options in ({}, {"mask": mask}, {"is_causal": True}):
        np.testing.assert_allclose(ours(x, **options), theirs(x, **options), atol=1e-5, err_msg=str(options))


@pytest.mark.slow
def test_the_mask_hides_keys_and_dims_causal_hides_the_future():
    x = draw_tokens()
    changed = x.at[:, 5:].add(1.0)
    tail = jnp.broadcast_to(jnp.arange(8) < 5, (2, 1, 8, 8))
    masked, causal = make("t5"), make("t5", Dims(heads=2, head_dim=8, extent=8, causal=True))
    np.testing.assert_allclose(masked(changed, mask=tail)[:, :5], masked(x, mask=tail)[:, :5], atol=1e-6)
    np.testing.assert_allclose(causal(changed)[:, :5], causal(x)[:, :5], atol=1e-6)
    assert float(jnp.abs(masked(changed) - masked(x))[:, :5].max()) > 1e-3


@pytest.mark.slow
def test_dropout_is_flax_switch():
    layer, x = make("alibi", dropout_rate=0.5), draw_tokens()
    quiet = layer(x, deterministic=True)
    first, again, second = (layer(x, deterministic=False, rngs=nnx.Rngs(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert float(jnp.abs(first - second).max()) > 1e-3
    assert float(jnp.abs(first - quiet).max()) > 1e-3


def test_weights_are_sown_on_request():
    layer, x = make("alibi"), draw_tokens()
    output, captured = nnx.capture(layer, nnx.Intermediate)(x, sow_weights=True)
    np.testing.assert_allclose(output, layer(x), atol=1e-6)
    sown = jax.tree.leaves(captured)
    assert [weights.shape for weights in sown] == [(2, 2, 8, 8)]
    np.testing.assert_allclose(sown[0].sum(-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("spec", ["rope", "t5"])
def test_cached_decoding_with_bound_positions_equals_the_full_forward(spec):
    layer, x = make(spec), draw_tokens()
    cached_layer = nnx.merge(*nnx.split(layer))
    cached_layer.init_cache((2, 8, 16))

    @nnx.jit
    def step(layer: nnx.MultiHeadAttention, x: jax.Array, position: jax.Array) -> jax.Array:
        with layer.attention_fn.at(position, jnp.arange(8), extent=8):
            return layer(x, decode=True)

    steps = [step(cached_layer, x[:, t : t + 1], jnp.array([t])) for t in range(8)]
    np.testing.assert_allclose(jnp.concatenate(steps, axis=1), layer(x, is_causal=True), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("extend", [slow("dynamic_ntk"), "pi"])
def test_a_step_adapts_to_how_far_it_has_come_and_not_to_the_size_of_the_cache(extend):
    encoding = make_encoding("rope", Dims(heads=2, head_dim=8, extent=4), extend)
    module = attention_module(encoding, Dims(heads=2, head_dim=8, extent=4), nnx.Rngs(0))
    q, cache = jax.random.normal(jax.random.key(0), (2, 1, 32, 2, 8))
    step, mask = jnp.array([6]), jnp.arange(32)[None, None, None] <= 6

    @nnx.jit
    def run(module, step):
        with module.at(step, jnp.arange(32)):
            return module(q[:, 6:7], cache, cache, mask=mask)

    printed = attention_fn(encoding, {}, positions=step, k_positions=jnp.arange(32), extent=7)(
        q[:, 6:7], cache, cache, mask=mask
    )
    np.testing.assert_allclose(run(module, step), printed, atol=1e-6)
    output = attention_fn(encoding, {}, positions=jnp.arange(7), extent=7, causal=True)(
        q[:, :7], cache[:, :7], cache[:, :7]
    )
    np.testing.assert_allclose(printed, output[:, 6:], atol=1e-5)


@pytest.mark.slow
def test_a_step_of_a_schedule_reaches_the_encoding_and_one_program_has_all_steps():
    encoding = make_encoding("rope", Dims(heads=2, head_dim=8, extent=4), "by_step(above='linear(factor=4)')")
    module, traces = attention_module(encoding, encoding.dims, nnx.Rngs(0)), []
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 8, 2, 8))

    @nnx.jit
    def run(module, step):
        traces.append(step)
        with module.at(jnp.arange(8), step=step):
            return module(q, k, k)

    for step in (0.0, 0.5, 1.0):
        divided = 4.0**step
        expected = make_encoding("rope", encoding.dims, f"linear(factor={divided})")
        np.testing.assert_allclose(run(module, step), attend(expected, q, k, k), atol=1e-5)
    assert len(traces) == 1


def test_decoding_without_positions_is_refused_and_binding_ends_with_its_block():
    layer, x = make("rope"), draw_tokens()
    layer.init_cache((2, 8, 16))
    raises_one_line(lambda: layer(x[:, :1], decode=True), "at(q, k)", "1 queries", "8 keys")
    free = layer(x)
    with layer.attention_fn.at(2 * jnp.arange(8)):
        assert float(jnp.abs(layer(x) - free).max()) > 1e-3
        with layer.attention_fn.at(jnp.arange(8) + 5):
            np.testing.assert_allclose(layer(x), free, atol=1e-5)
        assert float(jnp.abs(layer(x) - free).max()) > 1e-3
    np.testing.assert_array_equal(layer(x), free)
    with pytest.raises(ValueError, match="multiple"), layer.attention_fn.at(jnp.arange(8)):
        raise ValueError("multiple")
    np.testing.assert_array_equal(layer(x), free)


@pytest.mark.slow
def test_images_have_the_trained_grid_or_say_theirs():
    dims = Dims(heads=2, head_dim=8, axes=2, extent=(2, 4))
    layer, x = make("rope_axial", dims), draw_tokens()
    grid = grid_positions(2, 4)
    np.testing.assert_allclose(layer(x), by_hand(layer, x, grid, (2, 4)), atol=1e-5)
    raises_one_line(lambda: layer(draw_tokens(tokens=9)), "9 tokens", "(2, 4)")
    prefixed = TokenPositions(jnp.concatenate([jnp.zeros((1, 2), grid.dtype), grid]), has_position=jnp.arange(9) > 0)
    with layer.attention_fn.at(prefixed, extent=(2, 4)):
        assert layer(draw_tokens(tokens=9)).shape == (2, 9, 16)
    unknown = make("rope_axial", Dims(heads=2, head_dim=8, axes=2))
    raises_one_line(lambda: unknown(x), "dims.extent=None")


@pytest.mark.slow
def test_positions_that_a_compiled_call_does_not_read_are_refused():
    """A function of `jax.jit` keeps the grid of its first trace, and would attend with it."""
    layer, x = make("rope_mixed", Dims(heads=2, head_dim=8, axes=2, extent=(2, 4))), draw_tokens()
    at = functools.partial(layer.attention_fn.at, grid_positions(4, 2), extent=(4, 2))
    with at():
        want = layer(x)
    call = lambda layer, x: layer(x)
    passed, global_, cached = nnx.jit(call), jax.jit(lambda x: layer(x)), nnx.cached_partial(nnx.jit(call), layer)
    trained = passed(layer, x), global_(x), cached(x)
    assert float(jnp.abs(trained[0] - want).max()) > 1e-2
    for _ in range(2):
        with at():
            np.testing.assert_allclose(passed(layer, x), want, atol=1e-5)
    for holder in (global_, cached):
        with pytest.raises(RuntimeError, match="got a block in which nothing has read them"), at():
            holder(x)
    np.testing.assert_allclose(passed(layer, x), trained[0], atol=1e-6)


@pytest.mark.slow
def test_one_table_may_serve_all_layers():
    rngs, encoding = nnx.Rngs(0), make_encoding("t5", DIMS)
    first = attention_module(encoding, DIMS, rngs)
    second = attention_module(encoding, DIMS, rngs, shared=first)
    separate = attention_module(encoding, DIMS, rngs)
    stack = nnx.List([first, second])
    assert len(jax.tree.leaves(nnx.state(stack))) == len(jax.tree.leaves(nnx.state(first))) == 1
    assert len(jax.tree.leaves(nnx.state(nnx.List([first, separate])))) == 2
    x = draw_tokens().reshape(2, 8, 2, 8)
    gradients = nnx.grad(lambda stack: sum(jnp.square(layer(x, x, x)).sum() for layer in stack))(stack)
    leaves, alone = jax.tree.leaves(gradients), jax.tree.leaves(nnx.grad(lambda m: jnp.square(m(x, x, x)).sum())(first))
    np.testing.assert_allclose(leaves[0], 2 * alone[0], rtol=1e-4, atol=1e-6)


def test_an_embedded_encoding_must_be_said_to_be_embedded():
    encoding = make_encoding("sinusoidal", DIMS)
    raises_one_line(lambda: attention_module(encoding, DIMS, nnx.Rngs(0)), "embedded=True")
    layer, x = make("sinusoidal", embedded=True), draw_tokens()
    np.testing.assert_allclose(layer(x), make("none")(x), atol=1e-5)


def test_heads_of_another_layer_are_refused():
    module = attention_module(make_encoding("rope", DIMS), DIMS, nnx.Rngs(0))
    wrong = jnp.zeros((2, 8, 4, 4))
    raises_one_line(lambda: module(wrong, wrong, wrong), "heads=2", "head_dim=8", "(2, 8, 4, 4)")
