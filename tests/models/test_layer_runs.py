"""Layers of several kinds: repeated patterns, periods of encodings, and models that have them."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax.models import (
    Decoder,
    EncoderDecoder,
    Execution,
    ViT,
    decoder,
    encoder_decoder,
    generate,
    generate_answers,
    vit,
)
from pejax.models.configs.pattern import patterns
from pejax.models.stack.transformer import sequence_tokens
from pejax.specs import parse, parse_pattern
from tests.support.cases import close, mostly_slow, normal

FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

PUBLISHED = {
    "llama": ("f" * 32, "(f)x32"),
    "gemma3-27b": (("sssssf" * 11)[:62], "(sssssf)x10 (s)x2"),
    "modernbert-base": ("0" + "ssf" * 7, "(0)x1 (ssf)x7"),
    "smollm3": ("rrrn" * 9, "(rrrn)x9"),
    "gpt-oss": ("sf" * 12, "(sf)x12"),
    "qwen2 with max_window_layers": ("f" * 28 + "s" * 4, "(f)x28 (s)x4"),
    "deepseek-v3": ("d" * 3 + "m" * 58, "(d)x3 (m)x58"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_patterns_of_published_models(name):
    layers, expected = PUBLISHED[name]
    result = patterns(tuple(layers))
    assert " ".join(f"({''.join(pattern)})x{repeats}" for pattern, repeats in result) == expected
    assert "".join("".join(pattern) * repeats for pattern, repeats in result) == layers


def test_any_list_of_layers_is_its_patterns():
    draw = np.random.default_rng(0)
    for _ in range(50):
        layers = tuple(draw.integers(0, 3, draw.integers(1, 20)).tolist())
        result = patterns(layers)
        assert sum((item.layers * item.repeats for item in result), ()) == layers
        assert sum(len(item.layers) for item in result) <= len(layers)


@pytest.mark.parametrize(
    ("pe", "layers", "wanted"),
    [
        ("rope", 2, ["rope"] * 2),
        ("learned+rope", 2, ["learned+rope"] * 2),
        ("rope(base=1e4)*2 + rope(base=1e6)", 4, ["rope(base=1e4)"] * 2 + ["rope(base=1e6)", "rope(base=1e4)"]),
        ("(rope+alibi)*1 + rope*1", 3, ["rope+alibi", "rope", "rope+alibi"]),
        ("rope(extend='yarn(factor=2)+log_n')*1+none*1", 2, ["rope(extend='yarn(factor=2)+log_n')", "none"]),
    ],
)
def test_a_pattern_names_the_encoding_of_every_layer(pe, layers, wanted):
    pattern = parse_pattern(pe)
    assert list(pattern.layers(layers)) == [parse(spec) for spec in wanted]
    assert parse_pattern(str(pattern)) == pattern


@pytest.mark.parametrize(
    ("pe", "words"),
    [
        ("rope*0 + none", "a pattern counts layers by positive integers, got '0'"),
        ("rope*x + none", "a pattern counts layers by positive integers, got 'x'"),
        ("rope*3 + none*2", "pe='rope*3+none*2' is a pattern of 5 layers, the model has 4"),
        ("rope*1000000000+none*1", "a pattern must have at most 10,000 layers, got 1,000,000,001"),
        ("rope*1" + "+none*1" * 300, "an encoding must be a sum of at most 256 terms, got 301"),
        ("rope" + "+none" * 5000, "an encoding must be written in at most 20,000 characters, got 25,004"),
        ("rope*1 + rop*1", "unknown encoding 'rop'; did you mean 'rope'?"),
        ("rope*1 + learned*1", "only the encoding of the first layer may change the input tokens, got learned in a"),
    ],
)
def test_bad_patterns_are_refused(pe, words):
    def build():
        nnx.eval_shape(lambda: Decoder(decoder(**{**TINY, "layers": 4, "pe": pe}), rngs=nnx.Rngs(0)))

    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        build()


TINY = {"vocab": 11, "length": 16, "width": 16, "layers": 5, "heads": 4, "kv_heads": 2, "hidden": 16}
IDS = jnp.asarray(np.random.default_rng(1).integers(11, size=(2, 9)), jnp.int32)


def drawn(make, seed=0):
    """Return a model with every parameter drawn."""
    static, shapes = nnx.split(nnx.eval_shape(make))
    draw = np.random.default_rng(seed)
    fill = lambda leaf: jnp.asarray(draw.normal(size=leaf.shape, scale=0.3), leaf.dtype)
    return nnx.merge(static, jax.tree.map(fill, shapes))


def mixed(pe="rope_mixed*2 + none*1", **options) -> Decoder:
    """Return a decoder whose layers alternate in encoding, window and norms: bodies (a b c)(a b) or the like."""
    config = decoder(**{**TINY, "pe": pe, **options})
    layers = list(config.layers)
    layers[0] = dataclasses.replace(layers[0], bare=True)
    layers[1] = dataclasses.replace(layers[1], attention=dataclasses.replace(layers[1].attention, window=3))
    config = dataclasses.replace(config, layers=tuple(layers))
    return drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)))


def one_by_one(model: Decoder, ids) -> jax.Array:
    """Return the logits, layer after layer without a scan: every layer is a model of its own."""
    x = model.embedding.table[...][ids]
    for layer, config in enumerate(model.config.layers):
        body, index = model.stack.layers.place(layer)
        own = dataclasses.replace(model.config, layers=(config,), norm=None)
        alone = nnx.eval_shape(lambda own=own: Decoder(own, rngs=nnx.Rngs(0)))
        static, shapes = nnx.split(alone.stack)
        part = nnx.to_pure_dict(nnx.state(model.stack.layers.stacked(body)))
        state = nnx.to_pure_dict(shapes)
        state["layers"]["blocks"] = jax.tree.map(lambda leaf, i=index: leaf[i : i + 1], part)
        shared = nnx.to_pure_dict(nnx.state(model.stack))
        owner = shared if body.encoding == 0 else shared.get(f"encoding_{body.encoding}", {})
        if "position" in owner:
            state["position"] = owner["position"]
        nnx.replace_by_pure_dict(shapes, state)
        x = nnx.merge(static, shapes)(x, sequence_tokens(ids, None), ids.shape[1])[0]
    return model.logits(model.stack.norm(x))


def forward(model, *args, **options):
    static, params = nnx.split(model)
    return jax.jit(lambda params: nnx.merge(static, params)(*args, **options), compiler_options=FAST)(params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pe", mostly_slow(["rope_mixed*2 + none*1", "rope*1 + t5*1", "alibi*3 + rope(base=100.0)*1"], ["rope*1 + t5*1"])
)
def test_layers_of_several_kinds_are_applied_in_order(pe):
    model = mixed(pe)
    assert len(model.stack.layers.bodies) > 2
    assert [layer for body in model.stack.layers.bodies for layer in body.layers] != []
    assert sorted(layer for body in model.stack.layers.bodies for layer in body.layers) == list(range(5))
    close(forward(model, IDS), one_by_one(model, IDS), 5e-5)


def test_bodies_and_encodings_have_names_of_their_own():
    model = mixed("t5*1 + kerple*1")
    state = nnx.to_pure_dict(nnx.state(model.stack))
    bodies = model.stack.layers.bodies
    assert set(state["layers"]) == {"blocks", *(f"body_{body.number}" for body in bodies if body.number)}
    assert set(state["position"]["heads"]) == {"table"}
    assert set(state["encoding_1"]["position"]["heads"]) == {"a", "p"} or state["encoding_1"]["position"]["heads"]
    assert [str(encoding.spec) for encoding in model.stack.encodings] == ["t5", "kerple"]
    one = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Decoder(decoder(**TINY, pe="t5"), rngs=nnx.Rngs(0)))))
    assert set(one["stack"]) == {"layers", "norm", "position"}
    assert set(one["stack"]["layers"]) == {"blocks"}


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"remat": "full"}, {"remat": "products"}, {"unroll": 5}])
def test_execution_changes_no_gradient(how):
    static, params = nnx.split(mixed())
    total = lambda params, execution: jnp.sum(jnp.sin(nnx.merge(static, params)(IDS, execution=execution)))
    slopes = jax.jit(
        lambda params: [jax.grad(total)(params, execution) for execution in (Execution(), Execution(**how))],
        compiler_options=FAST,
    )
    close(*slopes(params), 1e-4)


@pytest.mark.parametrize(
    ("how", "unrolled"),
    [({}, False), ({"unroll": 3}, False), ({"unroll": 4}, True), ({"unroll": 4, "remat": "full"}, False)],
)
def test_layers_are_a_loop_unless_there_are_few_and_none_is_recomputed(how, unrolled):
    for pe, repeats in (("none", 4), ("rope*1 + none*1", 2)):
        config = decoder(**{**TINY, "layers": 4, "pe": pe})
        static, params = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))  # noqa: B023
        run = lambda params: nnx.merge(static, params)(IDS, execution=Execution(**how))  # noqa: B023
        assert (f"unroll={repeats}" in str(jax.make_jaxpr(run)(params))) == unrolled


def test_a_negative_number_of_layers_is_refused():
    with pytest.raises(ValueError, match="unroll must be at least 0, got -1"):
        Execution(unroll=-1)


@pytest.mark.slow
def test_layers_over_devices_without_communication_are_those_of_one():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    model = mixed()
    local = forward(model, IDS, execution=Execution(mesh=mesh, batch=("data",), local=True))
    close(local, forward(model, IDS), 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pe", mostly_slow(["rope*2 + none*1", "rope(extend='dynamic_ntk')*1 + t5*1"], ["rope*2 + none*1"])
)
def test_generation_with_a_cache_is_a_full_pass_over_the_text(pe):
    model = mixed(pe, length=6)
    policy = "recompute" if "ntk" in pe else "stepwise"
    new, result = generate(model, IDS[:, :5], 4, return_logits=True, policy=policy)
    for n in range(4):
        ids = jnp.concatenate([IDS[:, :5], new[:, :n]], axis=1)
        close(result[:, n], forward(model, ids)[:, -1], 2e-4)


@pytest.mark.slow
def test_stochastic_depth_and_constants_by_depth_follow_the_layers():
    config = vit(
        image_size=12, width=32, heads=4, layers=5, pe="lookhere*2 + rope_axial*1", stochastic_depth=0.5, pool="mean"
    )
    model = drawn(lambda: ViT(config, rngs=nnx.Rngs(0)))
    assert model.layers.rates == (0.0, 0.125, 0.25, 0.375, 0.5)
    images = normal(3, 12, 12, 1)
    dropped = forward(model, images, train=True, key=jax.random.key(3))
    assert np.isfinite(dropped).all()
    assert float(jnp.abs(dropped - forward(model, images)).max()) > 1e-3
    bodies = model.layers.bodies
    depth = dict.fromkeys(range(5))
    for body in bodies:
        constants, _ = model.layers.constants(body)
        for index, layer in enumerate(body.layers):
            depth[layer] = float(jnp.max(constants["heads"]["slope"][index])) if constants else None
    assert depth[2] is None
    falling = [depth[layer] for layer in (0, 1, 3, 4)]
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) == 4


@pytest.mark.slow
def test_an_encoder_decoder_has_periods_on_both_sides():
    config = encoder_decoder(
        vocab=11, width=16, encoder_layers=3, decoder_layers=4, pe="alibi*2 + none*1", decoder_pe="rope*1 + none*1",
        cross="unified",
    )  # fmt: skip
    model = drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)))
    assert [str(encoding.spec) for encoding in model.encoder.encodings] == ["alibi", "none"]
    assert model.cross.spec.name == "rope"
    answers = generate_answers(model, IDS, None, 4)
    ids = jnp.concatenate([jnp.zeros((2, 1), jnp.int32), answers[:, :-1]], axis=1)
    logits = forward(model, IDS, ids)
    np.testing.assert_array_equal(jnp.argmax(logits, -1), answers)
