"""The decoder: one model for every encoding, causal, packed documents apart, and its options."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import Encoding, TokenPositions, attend, attention_fn, explain, extensions, make_encoding
from pejax.models import Decoder, Execution, NormConfig, decoder
from pejax.models.parts.attention import LayerContext
from pejax.models.parts.block import Block, LayerKind
from pejax.models.parts.layers import RMSNorm
from pejax.models.stack.transformer import sequence_tokens
from tests.support.cases import mostly_slow, slow
from tests.support.decoders import FAST, LENGTH, TEXT_ENCODINGS, TINY, ids_of, logits, make

PACKED = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 0, 0, 0, 0, 0], [7, 7, 7, 7, 7, 0, 0, 0, 0]])


@functools.partial(jax.jit, static_argnames="static", compiler_options=FAST)
def slopes(static, params, x, at):
    """Return the gradient, with respect to all token vectors, of what the model makes of token `adapt`."""

    def seen(x):
        model = nnx.merge(static, params)
        tokens = sequence_tokens(jnp.zeros(x.shape[:2], jnp.int32), None)
        return jnp.sum(jnp.sin(model.stack(x, tokens, x.shape[1])[0][0, at]))

    return jax.grad(seen)(x)


def test_every_encoding_of_the_sources_serves_text():
    named = {"none", "sinusoidal", "learned", "shaw", "t5", "transformer_xl", "kerple", "fire", "alibi", "rope"}
    assert named <= set(TEXT_ENCODINGS)


@pytest.mark.parametrize("pe", mostly_slow(TEXT_ENCODINGS, ("rope",)))
def test_no_gradient_comes_from_later_tokens(pe):
    static, params = nnx.split(make(pe=pe))
    result = slopes(static, params, jax.random.normal(jax.random.key(0), (1, 7, 16)), 3)
    size = np.abs(np.asarray(result[0])).max(axis=-1)
    assert (size[4:] == 0).all()
    assert (size[:4] > 1e-6).all()


@pytest.mark.parametrize("pe", mostly_slow(TEXT_ENCODINGS, ("rope", "t5")))
def test_packed_documents_are_read_as_if_alone(pe):
    ids = ids_of(1, 9)
    rows = jnp.concatenate([ids, ids, jnp.roll(ids, -4, axis=1)])
    together, first, second = logits(make(pe=pe), rows, PACKED)
    np.testing.assert_allclose(together[:4], first[:4], atol=2e-5)
    np.testing.assert_allclose(together[4:], second[:5], atol=2e-5)
    assert float(jnp.abs(first[0] - second[0]).max()) > 1e-3


@pytest.mark.parametrize("given", ["ids", "segments", "positions", "mask"])
def test_attention_gets_positions_only_where_tokens_are_not_in_order(given):
    """Without them it compiles to less: on a GPU, to cuDNN alone."""
    seen, ids = [], ids_of(1, 9)
    others = {
        "segments": {"segment_ids": jnp.ones_like(ids)},
        "positions": {"tokens": TokenPositions(jnp.arange(9))},
        "mask": {"attention_mask": jnp.ones_like(ids)},
    }

    class Watching(Execution):
        def attention(self, q, k, v, **options):
            seen.append("positions" in options)
            return super().attention(q, k, v, **options)

    model = make(pe="rope")
    jax.eval_shape(lambda: model(ids, execution=Watching(), **others.get(given, {})))
    assert seen
    assert all(item == (given != "ids") for item in seen)


@pytest.mark.slow
def test_without_position_and_mask_a_permutation_of_words_permutes_the_answers():
    dog_bites_man, man_bites_dog, swap = jnp.array([[3, 5, 8, 9]]), jnp.array([[8, 5, 3, 9]]), jnp.array([2, 1, 0, 3])
    blind = make(pe="none", causal=False)
    np.testing.assert_allclose(logits(blind, dog_bites_man)[0], logits(blind, man_bites_dog)[0, swap], atol=1e-5)
    for model in (make(pe="none"), make(pe="rope", causal=False), make(pe="alibi", causal=False)):
        change = jnp.abs(logits(model, dog_bites_man)[0] - logits(model, man_bites_dog)[0, swap]).max()
        assert float(change) > 1e-3, model.config


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        slow({}),
        {"style": "gpt2"},
        slow({"qk_norm": True, "soft_cap": 5.0, "tied": True}),
        slow({"pe": "shaw", "dtype": "bfloat16"}),
    ],
    ids=str,
)
def test_gradients_reach_every_parameter(options):
    static, params = nnx.split(make(**options))
    ids = ids_of(2, 8)

    @functools.partial(jax.jit, compiler_options=FAST)
    def gradient(params):
        return jax.grad(lambda p: jnp.square(nnx.merge(static, p)(ids)).mean())(params)

    drawn = np.unique(np.asarray(ids))
    for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(gradient(params))):
        name, leaf = jax.tree_util.keystr(path), np.asarray(leaf)
        leaf = leaf[drawn] if "embedding" in name else leaf
        assert np.isfinite(leaf).all(), name
        assert np.abs(leaf).max() > 0, name


@pytest.mark.slow
def test_a_soft_cap_and_qk_norm_are_what_they_say():
    plain, capped = (logits(make(soft_cap=cap), ids_of(1, 6)) for cap in (None, 0.01))
    even = logits(make(soft_cap=1e-6), ids_of(1, 6))
    np.testing.assert_allclose(capped, even, atol=2e-2)
    assert float(jnp.abs(plain - even).max()) > 5e-2
    model = make(qk_norm=True)
    norm: RMSNorm = jax.tree.map(lambda leaf: leaf[0], nnx.split(model.stack.layers.blocks.attention.norm_q)[1])
    assert norm["scale"].shape == (model.stack.dims.head_dim,)


def test_rms_norm_is_its_formula():
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    norm = RMSNorm(NormConfig("rms"), 8)
    norm.scale[...] = jnp.arange(8.0)
    wide = x.astype(np.float64)
    expected = np.arange(8) * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(norm(jnp.asarray(x)), expected, atol=1e-6)


@pytest.mark.slow
def test_the_first_loss_is_that_of_a_uniform_guess():
    model = jax.jit(lambda: nnx.state(Decoder(decoder(**TINY), rngs=nnx.Rngs(0))), compiler_options=FAST)()
    static, _ = nnx.split(make())
    np.testing.assert_array_equal(logits(nnx.merge(static, model), ids_of(1, 5)), 0.0)


@pytest.mark.slow
def test_an_encoding_of_ones_own_takes_the_place_of_the_named_one():
    mine = Encoding(rotate=lambda params, x, positions: x * (1.0 + positions[:, None, None].astype(x.dtype)))
    config = decoder(**TINY, pe="none")
    model = nnx.merge(
        nnx.split(nnx.eval_shape(lambda: Decoder(config, mine, rngs=nnx.Rngs(0))))[0], nnx.split(make())[1]
    )
    same = nnx.merge(nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))[0], nnx.split(make())[1])
    mine_now, none_now = logits(model, ids_of(1, 6)), logits(same, ids_of(1, 6))
    np.testing.assert_allclose(mine_now[0, 0], none_now[0, 0], atol=1e-5)
    assert float(jnp.abs(mine_now - none_now).max()) > 1e-3


def test_bands_are_told_and_refused_where_they_cannot_be_served():
    banded = make_encoding("rope", decoder(**TINY).dims, "rerope")
    assert "bands: rotates differently for each range of distances" in explain(banded)
    raises("attention_fn serves no encoding with bands", lambda: attention_fn(banded, {}, positions=jnp.arange(3)))


def raises(message: str, call) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)


def test_what_cannot_be_is_refused_in_one_line():
    raises("vocab must be at least 1, got 0", lambda: decoder(**(TINY | {"vocab": 0})))
    raises("style must be one of llama, gpt2, got 'bert'", lambda: decoder(style="bert"))
    raises("dtype must be one of float32, bfloat16, got 'float16'", lambda: decoder(dtype="float16"))
    raises("hidden must be at least 1, got 0", lambda: decoder(hidden=0))
    raises("unknown encoding 'rop'; did you mean 'rope'?", lambda: make(pe="rop"))
    too_long = ids_of(1, LENGTH + 1)
    raises(f"a table of {LENGTH} for length {LENGTH + 1}", lambda: logits(make(pe="learned"), too_long))


@pytest.mark.slow
def test_calls_that_say_too_little_or_too_much_are_refused():
    model, here = make(pe="rope", extend=extensions.yarn()), TokenPositions(jnp.arange(3))
    q = jnp.ones((2, 3, 4, 4))
    calling = functools.partial(attend, model.stack.encoding, q, q, q, positions=here)
    raises("depends on the length or grid: extent must be given, got None", calling)
    raises(
        "extent must be one length, (B,) or (B, T) of q (2, 3, 4, 4), got (3,)", lambda: calling(extent=jnp.arange(3))
    )
    options = {"segment_ids": jnp.ones((1, 3), jnp.int32), "tokens": here}
    raises("at most one of segment_ids, tokens, attention_mask may be given", lambda: model(ids_of(1, 3), **options))
    raises("ids must be (B, T), both at least 1, got (1, 0)", lambda: model(jnp.zeros((1, 0), jnp.int32)))
    crossed = make_crossed(model)
    where = LayerContext({}, here, 3)
    raises("needs the states of an encoder, got cross_context=None", lambda: crossed(jnp.ones((1, 3, 16)), where))


def make_crossed(model: Decoder) -> Block:
    dims, block = model.stack.dims, model.config.layers[0]
    crossed = dataclasses.replace(block, cross=block.attention)
    return Block(LayerKind(crossed, dims, Encoding(), (dims, Encoding())), dtype="float32", rngs=nnx.Rngs(0))
