"""`attention_fn` inside the real `flax.linen.MultiHeadDotProductAttention`: nothing that Linen passes is lost."""

import functools
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import Dims, TokenPositions, adapt, attention_fn, dot_product_attention, make_encoding
from pejax._attention.core.hooks import attention_hooks
from pejax.models import attention_module
from tests.support.cases import slow

DIMS = Dims(heads=2, head_dim=4, extent=6)
PLAIN = make_encoding("none", DIMS)
ALIBI = make_encoding("alibi", DIMS)
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 8)), jnp.float32)
TOKENS = jnp.arange(6)


def layer(encoding=PLAIN, params=None, *, tokens=TOKENS, extent=6, options=None, **fields):
    """Make a Linen layer with the encoding inside."""
    function = attention_fn(encoding, params or {}, positions=tokens, extent=extent, **(options or {}))
    return nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=function, **fields)


@functools.cache
def drawn():
    """Return the parameters of a layer."""
    return jax.jit(nn.MultiHeadDotProductAttention(num_heads=2).init)(jax.random.key(0), X)


def test_it_takes_by_name_every_argument_that_flax_has():
    ours = set(inspect.signature(attention_fn(PLAIN, {}, positions=TOKENS)).parameters)
    assert set(inspect.signature(nn.dot_product_attention).parameters) <= ours
    assert set(inspect.signature(nnx.dot_product_attention).parameters) - {"promote_dtype"} <= ours


@pytest.mark.parametrize("lead", [slow((2, 1)), slow((2, 2)), slow((1, 1))])
def test_a_mask_is_honoured(lead):
    mask = jnp.asarray(np.random.default_rng(1).random((*lead, 6, 6)) < 0.6).at[..., 0].set(True)
    want = nn.MultiHeadDotProductAttention(num_heads=2).apply(drawn(), X, mask=mask)
    np.testing.assert_allclose(layer().apply(drawn(), X, mask=mask), want, atol=1e-6)
    assert np.abs(layer().apply(drawn(), X) - want).max() > 0.01
    with pytest.raises(NotImplementedError, match="blockwise: a mask or bias array has the size of the scores"):
        layer(options={"implementation": "blockwise"}).apply(drawn(), X, mask=mask)


def test_a_bias_is_honoured():
    rng = np.random.default_rng(2)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 6, 2, 4)), jnp.float32) for _ in range(3))
    bias = jnp.asarray(rng.normal(size=(2, 6, 6)), jnp.float32)
    function = attention_fn(PLAIN, {}, positions=TOKENS)
    np.testing.assert_allclose(function(q, k, v, bias=bias), nn.dot_product_attention(q, k, v, bias=bias), atol=1e-6)
    with pytest.raises(ValueError, match=r"bias must broadcast to \(\*B, H, T, S\) = \(2, 2, 6, 6\), got \(3, 6, 6\)"):
        function(q, k, v, bias=jnp.ones((3, 6, 6)))


def test_position_enters_as_in_attention_itself():
    rope = make_encoding("rope", DIMS)
    params = adapt(ALIBI, {}, 6)
    for encoding in (ALIBI, rope):
        q, k, v = (
            jnp.einsum("btc,chd->bthd", X, drawn()["params"][name]["kernel"]) for name in ("query", "key", "value")
        )
        if encoding is rope:
            q, k = (rope.rotate({}, x, TOKENS) for x in (q, k))
        hooks = attention_hooks(encoding, params, rotated=True)
        out = dot_product_attention(q, k, v, positions=TOKENS, causal=True, hooks=hooks)
        want = jnp.einsum("bthd,hdc->btc", out, drawn()["params"]["out"]["kernel"])
        got = layer(encoding, options={"causal": True}).apply(drawn(), X)
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_cross_attention_and_cached_decoding_bind_their_own_positions():
    model = layer(ALIBI, options={"causal": True})
    states = model.apply(drawn(), X)
    function = attention_fn(ALIBI, {}, positions=TOKENS[4:], k_positions=TOKENS, extent=6, causal=True)
    cross = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=function)
    np.testing.assert_allclose(cross.apply(drawn(), X[:, 4:], X), states[:, 4:], atol=1e-6)

    cache = nn.MultiHeadDotProductAttention(num_heads=2, decode=True).init(jax.random.key(0), X)["cache"]
    for i in range(6):
        function = attention_fn(ALIBI, {}, positions=TOKENS[i : i + 1], k_positions=TOKENS, extent=6)
        step = nn.MultiHeadDotProductAttention(num_heads=2, decode=True, attention_fn=function)
        out, state = step.apply({**drawn(), "cache": cache}, X[:, i : i + 1], mutable=["cache"])
        cache = state["cache"]
        np.testing.assert_allclose(out[:, 0], states[:, i], atol=1e-6)


@pytest.mark.parametrize("bound", [{}, {"positions": jnp.asarray([3])}])
def test_a_step_with_a_cache_is_refused_without_the_positions_of_both_sides(bound):
    """Linen does not tell an `attention_fn` which slot of the cache it has filled."""
    model = nn.MultiHeadDotProductAttention(2, decode=True, attention_fn=attention_fn(make_encoding("rope", DIMS)))
    cache = model.init(jax.random.key(0), X)["cache"]
    step = model.clone(attention_fn=attention_fn(make_encoding("rope", DIMS), **bound))
    with pytest.raises(ValueError, match=r"^(positions and )?k_positions must be given .* got T=1, S=6") as refusal:
        step.apply({**drawn(), "cache": cache}, X[:, :1], mutable=["cache"])
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["t5", slow("rope_mixed(axes=2)"), slow("shaw")])
def test_learned_parameters_train(spec):
    name, axes = spec.split("(")[0], 2 if "axes" in spec else 1
    dims = Dims(heads=2, head_dim=4, axes=axes, extent=6 if axes == 1 else (2, 3))
    encoding = make_encoding(name, dims)
    grid = jnp.stack([TOKENS // 3, TOKENS % 3], -1) if axes == 2 else TOKENS
    keys = jax.random.split(jax.random.key(1))
    params = {**encoding.init(keys[0]), **encoding.init_layer(keys[1])}

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            position = self.param("position", lambda key: params)
            return layer(encoding, position, tokens=grid, extent=dims.extent)(x)

    variables = Model().init(jax.random.key(2), X)
    loss = lambda variables: jnp.mean((Model().apply(variables, X) - X) ** 2)
    before, gradient = jax.jit(jax.value_and_grad(loss))(variables)
    moves = [float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient["params"]["position"])]
    assert moves
    assert min(moves) > 0
    only = jax.tree_util.tree_map_with_path(
        lambda path, x, g: x - 0.5 * g if "position" in str(path) else x, variables, gradient
    )
    assert loss(only) < before


@pytest.mark.slow
def test_dropout_is_honoured_shared_over_batch_and_heads_where_linen_says_so():
    same = jnp.broadcast_to(X[:1], X.shape)
    rngs = {"dropout": jax.random.key(3)}
    for shared in (True, False):
        model = layer(dropout_rate=0.5, broadcast_dropout=shared)
        out = model.apply(drawn(), same, deterministic=False, rngs=rngs)
        assert bool((out[0] == out[1]).all()) == shared
        np.testing.assert_array_equal(out, model.apply(drawn(), same, deterministic=False, rngs=rngs))
        np.testing.assert_allclose(
            model.apply(drawn(), same, deterministic=True), layer().apply(drawn(), same), atol=1e-6
        )
    q = jnp.ones((1, 6, 2, 4))
    with pytest.raises(ValueError, match="dropout_rng must be given where"):
        attention_fn(PLAIN, {}, positions=TOKENS)(q, q, q, dropout_rate=0.5)


@pytest.mark.slow
def test_weights_are_sown_and_the_computation_type_is_linens():
    _, state = layer(ALIBI).apply(drawn(), X, sow_weights=True, mutable=["intermediates"])
    (weights,) = jax.tree.leaves(state)
    assert weights.shape == (2, 2, 6, 6)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert layer(dtype=jnp.bfloat16).apply(drawn(), X).dtype == jnp.bfloat16
    assert layer(precision="highest").apply(drawn(), X).shape == X.shape


def test_what_cannot_be_served_is_refused():
    with pytest.raises(ValueError, match="apply its embed, then pass embedded=True"):
        attention_fn(make_encoding("sinusoidal", DIMS), {}, positions=TOKENS)
    assert attention_fn(make_encoding("sinusoidal", DIMS), {}, positions=TOKENS, embedded=True)
    with pytest.raises(ValueError, match="extent must be given, got None"):
        attention_fn(make_encoding("alibi(extend='slopes')", DIMS), {}, positions=TOKENS)
    with pytest.raises(ValueError, match="qk_attn_weights_einsum must be None"):
        layer(qk_attn_weights_einsum_cls=lambda: jnp.einsum, attn_weights_value_einsum_cls=lambda: jnp.einsum).apply(
            drawn(), X
        )
    with pytest.raises(ValueError, match=r"^positions must be .* T=6, got \(5,\)"):
        layer(tokens=TokenPositions(jnp.arange(5))).apply(drawn(), X)
    function = attention_fn(make_encoding("rope", DIMS))
    cached = nn.MultiHeadDotProductAttention(num_heads=2, decode=True, attention_fn=function)
    cache = jax.eval_shape(cached.init, jax.random.key(0), X)["cache"]
    step = lambda cache: cached.apply({**drawn(), "cache": cache}, X[:, :1], mutable=["cache"])
    with pytest.raises(ValueError, match=r"^positions and k_positions must be given .* got T=1, S=6"):
        jax.eval_shape(step, cache)


@pytest.mark.slow
def test_a_mask_of_zeros_and_ones_is_flax_own_and_an_additive_one_is_refused():
    """The habit of Hugging Face, 0 = seen and -1e9 = masked, would be read the wrong way round."""
    attend = attention_fn(make_encoding("none", Dims(heads=2, head_dim=8)))
    q = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 2, 8)), jnp.float32)
    numbers = nn.make_causal_mask(jnp.ones((2, 6)))
    assert numbers.dtype == jnp.float32
    want = attend(q, q, q, mask=numbers > 0)
    np.testing.assert_array_equal(attend(q, q, q, mask=numbers), want)
    np.testing.assert_array_equal(jax.jit(lambda mask: attend(q, q, q, mask=mask))(numbers), want)
    additive = jnp.where(numbers > 0, 0.0, -1e9)
    np.testing.assert_allclose(attend(q, q, q, bias=additive), want, atol=1e-6)
    for mask in (additive, jnp.zeros((2, 1, 6, 6))):
        with pytest.raises(ValueError, match=r"an additive mask goes into bias\), got numbers from .*0.0 to 0.0"):
            attend(q, q, q, mask=mask)
    assert jnp.all(jnp.isnan(jax.jit(lambda mask: attend(q, q, q, mask=mask))(additive)))


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.int32, jnp.uint8])
def test_a_mask_in_the_place_of_the_bias_is_refused(dtype):
    """Its numbers would be added to the logits: +1 where a key is seen."""
    q, mask = jnp.ones((1, 6, 2, 4)), jnp.tril(jnp.ones((6, 6), dtype))
    message = (
        rf"bias must be an array of floats or None, got {mask.dtype} .*: where a key is seen or not goes into mask"
    )
    for attend in (attention_fn(PLAIN), attention_module(PLAIN, DIMS, nnx.Rngs(0))):
        with pytest.raises(TypeError, match=message):
            attend(q, q, q, bias=mask)
        with pytest.raises(TypeError, match=message):
            jax.eval_shape(lambda mask, attend=attend: attend(q, q, q, mask), mask)
    jax.eval_shape(attention_fn(PLAIN), q, q, q, mask.astype(jnp.bfloat16))


def test_a_square_array_of_positions_is_a_batch_where_the_dims_have_one_axis():
    places = jnp.asarray([[0, 1, 2], [3, 5, 9], [0, 4, 5]])
    encoding = make_encoding("alibi", Dims(heads=2, head_dim=4, causal=True))
    q = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 2, 4)), jnp.float32)
    rows = [
        attention_fn(encoding, positions=row)(x[None], x[None], x[None])[0] for row, x in zip(places, q, strict=True)
    ]
    np.testing.assert_allclose(attention_fn(encoding, positions=places)(q, q, q), jnp.stack(rows), atol=1e-6)
    np.testing.assert_allclose(attention_fn(encoding)(q, q, q, input_positions=places), jnp.stack(rows), atol=1e-6)
