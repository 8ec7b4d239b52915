"""Models described by data: norms, orders, biases, activations, heads, against the formulas written out in NumPy."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pejax import Encoding, attend, extensions
from pejax.models import (
    AttentionConfig,
    Decoder,
    EncoderDecoderConfig,
    HeadConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
    TransformerConfig,
    ViT,
    ViTConfig,
    decoder,
    vit,
)
from pejax.models.parts.attention import CrossAttention
from pejax.models.parts.layers import ACTIVATIONS, make_norm
from pejax.specs import parse
from tests.support.cases import close, normal, slow

WIDTH, T = 12, 5
LAYER = NormConfig("layer", 1e-3, bias=True)
ATTENTION = AttentionConfig(heads=3, kv_heads=1, head_dim=6, scale=0.7, bias="qkvo")
PLAIN = LayerConfig(ATTENTION, MlpConfig(10, "relu", bias=True), LAYER)
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def text(*layers: LayerConfig, **options) -> TransformerConfig:
    return TransformerConfig(**{"vocab": 7, "width": WIDTH, "length": 8, "layers": layers, "norm": None, **options})


def make(config: TransformerConfig, seed: int = 0) -> Decoder:
    """Make a decoder in which every parameter is drawn."""
    static, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    draw = np.random.default_rng(seed)
    return nnx.merge(static, jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype), shapes))


IDS = jnp.asarray([[1, 2, 3, 4, 5], [6, 5, 4, 3, 2]])


def run(model: Decoder, ids=IDS, **options) -> np.ndarray:
    static, params = nnx.split(model)
    call = lambda params: nnx.merge(static, params).states(ids, **options)
    return np.asarray(jax.jit(call, compiler_options=FAST)(params))


# What the records say, written out in NumPy


def f64(variable) -> np.ndarray:
    return np.asarray(variable[...], np.float64)


def normed(config: NormConfig, layer, x: np.ndarray) -> np.ndarray:
    if layer is None:
        return x
    centered = x - x.mean(-1, keepdims=True) if config.kind == "layer" else x
    y = (config.offset + f64(layer.scale)) * centered / np.sqrt((centered**2).mean(-1, keepdims=True) + config.epsilon)
    return y + f64(layer.bias) if config.bias else y


def by(layer, x: np.ndarray, keep: np.ndarray | float = 1.0) -> np.ndarray:
    return x @ f64(layer.kernel) + (0.0 if layer.bias is None else keep * f64(layer.bias))


def attended(config: AttentionConfig, layer, x: np.ndarray) -> np.ndarray:
    """One key head: its columns are those of the queries, the key and the value."""
    h, d = config.heads, config.head_dim
    keep = np.repeat([name in config.bias for name in "q" * h + "kv"], d)
    columns = by(layer.qkv, x, keep).reshape(*x.shape[:2], h + 2, d)
    q, k, v = columns[:, :, :h], columns[:, :, h], columns[:, :, h + 1]
    logits = config.scale * np.einsum("bthd,bsd->bhts", q, k)
    distances = np.arange(x.shape[1])[:, None] - np.arange(x.shape[1])
    seen = (distances >= 0) & (distances < (config.window or 99))
    weights = np.exp(logits - logits.max(-1, keepdims=True)) * seen
    total = weights.sum(-1, keepdims=True)
    if config.sinks:
        total = total + np.exp(f64(layer.sinks)[:, None, None] - logits.max(-1, keepdims=True))
    out = np.einsum("bhts,bsd->bthd", weights / total, v)
    return by(layer.out, out.reshape(*x.shape[:2], -1))


PLAINLY = {
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def mlp_of(config: MlpConfig, layer, x: np.ndarray) -> np.ndarray:
    act, up = PLAINLY[config.activation], by(layer.up, x)
    return by(layer.down, act(by(layer.gate, x)) * up if config.gated else act(up))


def expected(config: LayerConfig, layer, x: np.ndarray) -> np.ndarray:
    """Return what a block makes of x, order by order."""
    n = lambda name, y: normed(config.norm, getattr(layer, f"norm_{name}"), y)
    factor = lambda name: 1.0 if config.layer_scale is None else f64(getattr(layer, f"scale_{name}"))
    scaled = lambda name, y: y * factor(name) * config.branch_scale
    attention = lambda y: attended(config.attention, layer.attention, y)
    mlp = lambda y: mlp_of(config.mlp, layer.mlp, y)
    if config.parallel:
        first = n("attention", x)
        second = first if config.parallel == "one" else n("mlp", x)
        return x + scaled("attention", attention(first)) + scaled("mlp", mlp(second))
    for name, branch in (("attention", attention), ("mlp", mlp)):
        if config.order == "pre":
            x = x + scaled(name, branch(x if config.bare and name == "attention" else n(name, x)))
        elif config.order == "post":
            x = n(f"{name}_sum", x + scaled(name, branch(x)))
        elif config.order == "sandwich":
            x = x + scaled(name, n(f"{name}_after", branch(n(name, x))))
        else:
            x = x + scaled(name, n(f"{name}_after", branch(x)))
    return x


def variant(attention=(), mlp=(), **block) -> LayerConfig:
    """Return `PLAIN` with other fields."""
    own = dataclasses.replace(ATTENTION, **dict(attention))
    return dataclasses.replace(PLAIN, attention=own, mlp=dataclasses.replace(PLAIN.mlp, **dict(mlp)), **block)


VARIANTS = {
    "pre": PLAIN,
    "post": variant(order="post"),
    "sandwich": variant(
        order="sandwich", norm=NormConfig("rms", 1e-4, offset=1.0), mlp={"activation": "gelu_tanh", "gated": True}
    ),
    "after": variant(order="after", norm=NormConfig("rms"), mlp={"activation": "silu", "gated": True, "bias": False}),
    "two norms": variant(parallel="two"),
    "one norm": variant(parallel="one", mlp={"activation": "quick_gelu"}),
    "bare": variant(bare=True),
    "layer scale": variant(layer_scale=0.5, norm=NormConfig("layer")),
    "fixed factor": variant(branch_scale=0.3, layer_scale=0.5, mlp={"activation": "relu2"}),
    "fixed factor in parallel": variant(branch_scale=0.3, parallel="two"),
    "some biases": variant({"bias": "qv"}, mlp={"bias": False}),
    "key bias": variant({"bias": "ko"}),
    "no biases": variant({"bias": ""}),
    "window": variant({"window": 2}),
    "sinks": variant({"sinks": True, "window": 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_a_layer_is_what_its_record_says(name):
    block = VARIANTS[name]
    model = make(text(block))
    x = f64(model.embedding.table)[np.asarray(IDS)]
    static, params = nnx.split(model.stack.layers.blocks)
    layer = nnx.merge(static, jax.tree.map(lambda leaf: leaf[0], params))
    np.testing.assert_allclose(run(model), expected(block, layer, x), rtol=2e-4, atol=2e-4)


@pytest.mark.slow
def test_biases_that_are_not_there_have_no_gradient():
    static, params = nnx.split(make(text(VARIANTS["some biases"])))
    slopes = jax.grad(lambda params: jnp.sum(jnp.sin(nnx.merge(static, params).states(IDS))))(params)
    result = np.abs(slopes["stack"]["layers"]["blocks"]["attention"]["qkv"]["bias"][...][0]).reshape(5, 6).max(-1)
    np.testing.assert_array_equal(result > 0, [True, True, True, False, True])


@pytest.mark.slow
@pytest.mark.parametrize("over", ["head", slow("heads"), slow("all")])
def test_queries_and_keys_are_normed_over_what_the_record_says(over):
    norm = NormConfig("rms", 1e-3)
    attention = AttentionConfig(heads=4, kv_heads=2, head_dim=6, pe=parse("rope"), qk_norm=norm, qk_norm_over=over)
    model = make(text(variant().__class__(attention, PLAIN.mlp, LAYER)))
    static, params = nnx.split(model.stack.layers.blocks)
    layer = nnx.merge(static, jax.tree.map(lambda leaf: leaf[0], params)).attention
    shapes = {"head": ((6,), (6,)), "heads": ((4, 6), (2, 6)), "all": ((24,), (12,))}[over]
    assert (layer.norm_q.scale.shape, layer.norm_k.scale.shape) == shapes
    x = model.embedding.table[...][IDS]
    block = nnx.merge(static, jax.tree.map(lambda leaf: leaf[0], params))
    read = block.norm_attention(x)
    q, k, v = layer._heads(read)

    def own(layer, x):
        flat = np.asarray(x, np.float64).reshape(2, T, -1) if over == "all" else np.asarray(x, np.float64)
        return jnp.asarray(normed(norm, layer, flat).reshape(x.shape), jnp.float32)

    out = attend(model.stack.encoding, own(layer.norm_q, q), own(layer.norm_k, k), v)
    want = x + layer.out(out.reshape(2, T, -1))
    want = want + block.mlp(block.norm_mlp(want))
    close(run(model), want, 2e-4)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients_are_their_formulas(name):
    x = np.linspace(-4, 4, 33)
    np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(x, jnp.float32)), PLAINLY[name](x), atol=2e-6)
    slope = jax.grad(lambda x: jnp.sum(ACTIVATIONS[name](x)))(jnp.asarray(x + 0.01, jnp.float32))
    h = 1e-6
    np.testing.assert_allclose(slope, (PLAINLY[name](x + 0.01 + h) - PLAINLY[name](x + 0.01 - h)) / (2 * h), atol=1e-4)


@pytest.mark.slow
def test_a_norm_starts_as_no_scale_and_no_shift():
    x = normal(3, 8)
    for config in (NormConfig("rms", offset=1.0), NormConfig("layer", 1e-5, bias=True), NormConfig("layer")):
        layer = make_norm(config, 8)
        np.testing.assert_allclose(layer(x), normed(config, layer, np.asarray(x, np.float64)), atol=1e-5)
        assert np.allclose(config.offset + f64(layer.scale), 1.0)


@pytest.mark.slow
def test_what_is_before_and_after_the_layers():
    embed_norm, after = NormConfig("layer", 1e-2, bias=True), NormConfig("rms", 0.1)
    head = HeadConfig(bias=True, transform=("gelu", LAYER), scale=0.3, cap=2.0)
    config = text(PLAIN, norm=after, embed_norm=embed_norm, embed_scale=3.0, types=2, head=head)
    model = make(config)
    types = jnp.asarray([[0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])
    x = 3.0 * f64(model.embedding.table)[np.asarray(IDS)] + f64(model.embedding.types)[np.asarray(types)]
    x = normed(embed_norm, model.stack.embed_norm, x)
    static, params = nnx.split(model.stack.layers.blocks)
    x = expected(PLAIN, nnx.merge(static, jax.tree.map(lambda leaf: leaf[0], params)), x)
    states = normed(after, model.stack.norm, x)
    np.testing.assert_allclose(run(model, type_ids=types), states, rtol=2e-4, atol=2e-4)
    y = normed(LAYER, model.head.norm, PLAINLY["gelu"](by(model.head.dense, states)))
    logits = 2.0 * np.tanh((0.3 * y @ f64(model.head.kernel) + f64(model.head.bias)) / 2.0)
    np.testing.assert_allclose(model.logits(jnp.asarray(states, jnp.float32)), logits, rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(run(model), run(model, type_ids=jnp.zeros_like(types)))


def test_recipes_return_configs_that_print_what_they_are():
    assert decoder(layers=3).layers == decoder(layers=3).layers[:1] * 3
    assert hash(vit()) == hash(vit())
    layer = "LayerConfig(attention=AttentionConfig(heads=2, kv_heads=2, head_dim=4{}), {})"
    own, rest = ", pe=rope", "mlp=MlpConfig(hidden=32, activation='silu', gated=True), norm=NormConfig(kind='rms')"
    two = f"(3 x {layer.format(own, rest)}, {layer.format('', rest)})"
    shown = repr(decoder(11, 16, 8, 8, 2, pe="rope*3 + none*1"))
    assert shown == f"TransformerConfig(vocab=11, width=8, length=16, layers=2 x {two})"
    assert repr(decoder(11, 16, 8, 1, 2)).endswith(f"layers={layer.format(own, rest)})")


@pytest.mark.slow
def test_a_model_without_a_head_has_states_alone():
    model = make(text(PLAIN, head=None))
    assert run(model).shape == (2, T, WIDTH)
    raises("a model without a head has states, no logits, got head=None", lambda: model(IDS))
    raises("must be a product of states and a matrix", model.columns)
    capped = make(text(PLAIN, head=HeadConfig(cap=1.0)))
    raises("the logits must be a product of states and a matrix, got head=HeadConfig(", capped.columns)
    assert make(text(PLAIN, head=HeadConfig(tied=True))).columns().shape == (WIDTH, 7)


def raises(message: str, call) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)


BAD = {
    "kind must be one of rms, layer, got 'batch'": lambda: NormConfig("batch"),
    "epsilon must be positive, got 0": lambda: NormConfig(epsilon=0),
    "bias must be False with kind='rms', got True": lambda: NormConfig("rms", bias=True),
    "heads must be a multiple of kv_heads, got heads=3, kv_heads=2": lambda: AttentionConfig(3, 2, 4),
    "head_dim must be at least 1, got 0": lambda: AttentionConfig(2, 2, 0),
    "window must be at least 1 token, got 0": lambda: AttentionConfig(2, 2, 4, window=0),
    "bias must be letters out of 'qkvo', got 'qx'": lambda: AttentionConfig(2, 2, 4, bias="qx"),
    "qk_norm_over must be one of head, heads, all, got 'each'": lambda: AttentionConfig(2, 2, 4, qk_norm_over="each"),
    "hidden must be at least 1, got 0": lambda: MlpConfig(0, "gelu"),
    "activation must be one of gelu, gelu_tanh": lambda: make(text(variant(mlp={"activation": "swish"}))),
    "order must be one of pre, post, sandwich, after, got 'mid'": lambda: variant(order="mid"),
    "parallel must be '' unless order='pre', bare=False and cross=None, got 'two'": lambda: variant(
        parallel="two", order="post"
    ),
    "layers must hold at least one config, got none": lambda: text(),
    "types must be at least 0, got -1": lambda: text(PLAIN, types=-1),
    "dtype must be one of float32, bfloat16, got 'float16'": lambda: text(PLAIN, dtype="float16"),
    "type_ids must be None in a model without token types": lambda: run(make(text(PLAIN)), type_ids=IDS),
    "cross-attention must have no window, qk_norm or sinks": lambda: CrossAttention(
        VARIANTS["sinks"].attention, ATTENTION.dims(width=WIDTH), Encoding(), dtype="float32", rngs=nnx.Rngs(0)
    ),
    "cross must be None in the layers of a model without an encoder": lambda: make(text(variant(cross=ATTENTION))),
    "all layers of the decoder must have the same cross-attention, got 1 kinds": lambda: EncoderDecoderConfig(
        text(PLAIN, causal=False, head=None), text(PLAIN)
    ),
    "the encoder must have causal=False and head=None": lambda: EncoderDecoderConfig(text(PLAIN), text(PLAIN)),
    "width must be the same in encoder and decoder, got 12 and 8": lambda: EncoderDecoderConfig(
        text(PLAIN, causal=False, head=None), text(PLAIN, width=8)
    ),
    "cls must be True where the head reads it": lambda: ViTConfig((8, 8), 4, 1, 12, (PLAIN,), cls=False, classes=3),
    "got registers=0 and classes=3": lambda: ViTConfig((8, 8), 4, 1, 12, (PLAIN,), classes=3, distilled=True),
    "encodings must not be extended with coordinates='centered', which span every grid from edge to edge, got rope": (
        lambda: picture(coordinates="centered", extend=extensions.pi())
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_configs_are_refused(message):
    raises(message, BAD[message])


def picture(extend=None, **options) -> ViT:
    attention = AttentionConfig(2, 2, 8, parse("rope_axial(base=100.0, pairing='half')").extended(extend), bias="qvo")
    layer = LayerConfig(attention, MlpConfig(20, "gelu", bias=True), LAYER)
    given = {"image_size": (12, 12), "patch": 4, "channels": 1, "width": 16, "layers": (layer,) * 2, "norm": LAYER}
    return ViT(ViTConfig(**given, **options), rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_states_are_those_that_the_head_reads():
    images = normal(2, 12, 8, 1)
    model = picture(registers=2, classes=3)
    model.head.kernel[...] = normal(16, 3)
    states = model.states(images)
    assert states.shape == (2, 1 + 2 + 6, 16)
    close(model.head(states[:, 0]), model(images))
    mean = picture(registers=2, classes=3, pool="mean", cls=False)
    mean.head.kernel[...] = normal(16, 3)
    close(mean.head(mean.states(images)[:, 2:].mean(1)), mean(images))
    bare = picture(patch_bias=False)
    assert bare.patch.bias is None
    assert bare.head is None
    raises("a model without a head has states, no logits, got classes=0", lambda: bare(images))


@pytest.mark.slow
def test_heads_read_two_vectors_or_two_tokens():
    images = normal(2, 12, 8, 1)
    config = picture(registers=2, classes=3, pool="cls_mean")
    config.head.kernel[...] = normal(32, 3)
    states = config.states(images)
    close(config.head(jnp.concatenate([states[:, 0], states[:, 3:].mean(1)], axis=-1)), config(images))
    distilled = picture(registers=2, classes=3, distilled=True)
    distilled.head.kernel[...], distilled.distilled_head.kernel[...] = normal(16, 3), normal(16, 3, seed=1)
    states = distilled.states(images)
    close((distilled.head(states[:, 0]) + distilled.distilled_head(states[:, 1])) / 2, distilled(images))


@pytest.mark.slow
def test_centered_coordinates_are_those_of_the_image_at_hand():
    """A prefix token has no position, and a picture of the same aspect sampled finer turns its corners alike."""
    images = normal(1, 12, 12, 1)
    model, index = picture(coordinates="centered"), picture()
    assert float(jnp.abs(model.states(images) - index.states(images)).max()) > 1e-3
    at = 2 * np.pi * (2 * (np.stack(np.divmod(np.arange(9), 3), -1) + 0.5) / 3 - 1)
    states = index.states(images, positions=jnp.asarray(at, jnp.float32))
    close(model.states(images), states)
