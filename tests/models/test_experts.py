"""Experts: a loop over tokens and the experts that they choose, in NumPy; gradients, cost, names of axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from pejax.models import (
    AttentionConfig,
    Decoder,
    LayerConfig,
    MlpConfig,
    MoEConfig,
    NormConfig,
    TransformerConfig,
    generate,
    partition_specs,
)
from pejax.models.parts.experts import Experts as Module
from pejax.models.parts.layers import Mlp as MlpModule
from pejax.specs import parse
from tests.support.cases import mostly_slow
from train.devices.flops import mlp_products, text_flops

WIDTH, HIDDEN, COUNT, CHOSEN = 6, 5, 4, 2
CLAMPED = MlpConfig(HIDDEN, "clamped_swiglu", gated=True, bias=True)
CONFIGS = {
    "mixtral": MoEConfig(COUNT, CHOSEN, MlpConfig(HIDDEN, "silu", gated=True)),
    "olmoe": MoEConfig(COUNT, CHOSEN, MlpConfig(HIDDEN, "silu", gated=True), over_chosen=False),
    "gpt-oss": MoEConfig(COUNT, CHOSEN, CLAMPED, router_bias=True),
    "plain": MoEConfig(COUNT, 1, MlpConfig(HIDDEN, "relu", bias=True)),
    "all": MoEConfig(COUNT, COUNT, MlpConfig(HIDDEN, "relu")),
}


def draw(module, seed: int = 0):
    noise = np.random.default_rng(seed)
    static, shapes = nnx.split(module)
    return nnx.merge(static, jax.tree.map(lambda leaf: jnp.asarray(noise.normal(size=leaf.shape), leaf.dtype), shapes))


def made(config: MoEConfig):
    return draw(Module(config, WIDTH, dtype=jnp.float32, rngs=nnx.Rngs(0)))


def x_of(tokens: int = 7) -> np.ndarray:
    return 3.0 * np.random.default_rng(1).normal(size=(2, tokens, WIDTH)).astype(np.float32)


def f64(variable) -> np.ndarray:
    return np.asarray(variable[...], np.float64)


def of_one(config: MoEConfig, module, e: int, x: np.ndarray) -> np.ndarray:
    """Return what expert e makes of one token."""
    columns = slice(e * HIDDEN, (e + 1) * HIDDEN)
    by = lambda layer: x @ f64(layer.kernel)[:, columns] + (0.0 if layer.bias is None else f64(layer.bias)[columns])
    up, gate = by(module.up), None if module.gate is None else by(module.gate)
    if config.mlp.activation == "clamped_swiglu":
        gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
        inner = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    elif gate is not None:
        inner = gate / (1 + np.exp(-gate)) * up
    else:
        inner = np.maximum(up, 0)
    out = inner @ f64(module.down.kernel)[columns]
    return out if module.down_bias is None else out + f64(module.down_bias)[e]


@pytest.mark.parametrize("name", mostly_slow(CONFIGS, ("plain",)))
def test_a_token_gets_the_weighted_sum_of_the_experts_that_it_chooses(name):
    config, x = CONFIGS[name], x_of()
    module = made(config)
    expected = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:2]):
        logits = x[place] @ f64(module.router.kernel)
        logits = logits + (0.0 if module.router.bias is None else f64(module.router.bias))
        chosen = np.argsort(-logits)[: config.chosen]
        weights = np.exp(logits - logits.max())
        weights /= weights[chosen].sum() if config.over_chosen else weights.sum()
        expected[place] = sum(weights[e] * of_one(config, module, e, x[place].astype(np.float64)) for e in chosen)
    np.testing.assert_allclose(module(jnp.asarray(x)), expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


def test_the_gate_of_gpt_oss_is_clamped():
    x = jnp.asarray(x_of())
    module = made(CONFIGS["gpt-oss"])
    hidden = np.asarray(module.gate(x)), np.asarray(module.up(x))
    assert np.max(hidden[0]) > 7.0  # or the test above would not see the limits
    assert np.min(hidden[1]) < -7.0


@pytest.mark.slow
def test_the_output_has_the_type_of_the_computation():
    config, x = CONFIGS["gpt-oss"], jnp.asarray(x_of())
    narrow = Module(config, WIDTH, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    nnx.update(narrow, nnx.state(made(config)))
    output, expected = narrow(x.astype(jnp.bfloat16)), made(config)(x)
    assert output.dtype == jnp.bfloat16
    assert np.median(np.abs(output.astype(jnp.float32) - expected)) < 0.02 * np.max(np.abs(expected))


def test_another_layer_may_take_the_place_of_down():
    module, x = made(CONFIGS["mixtral"]), jnp.asarray(x_of())
    expected, kernel = module(x), module.down.kernel[...]
    module.down = nnx.Linear(COUNT * HIDDEN, WIDTH, use_bias=False, rngs=nnx.Rngs(0))
    module.down.kernel[...] = kernel
    np.testing.assert_allclose(module(x), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_one_expert_is_an_mlp():
    config = MoEConfig(1, 1, MlpConfig(HIDDEN, "silu", gated=True))
    module, plain = made(config), MlpModule(config.mlp, WIDTH, dtype=jnp.float32, rngs=nnx.Rngs(0))
    for name in ("up", "gate", "down"):
        getattr(plain, name).kernel[...] = getattr(module, name).kernel[...]
    x = jnp.asarray(x_of())
    np.testing.assert_allclose(module(x), plain(x), rtol=1e-6, atol=1e-5)


@pytest.mark.slow
def test_experts_that_are_not_chosen_get_no_gradient():
    config, x = CONFIGS["mixtral"], jnp.asarray(x_of(1)[:1])
    static, params = nnx.split(made(config))
    grads = jax.grad(lambda params: jnp.sum(nnx.merge(static, params)(x) ** 2))(params)
    moved = np.abs(np.asarray(grads["down"]["kernel"][...])).reshape(COUNT, -1).max(axis=1) > 0
    chosen = np.asarray(made(config).weights(x))[0, 0] > 0
    np.testing.assert_array_equal(moved, chosen)
    assert moved.sum() == CHOSEN
    assert np.max(np.abs(np.asarray(grads["router"]["kernel"][...]))) > 0


@pytest.mark.slow
def test_the_initial_outputs_are_those_of_single_experts():
    module = Module(MoEConfig(8, 2, MlpConfig(100, "relu")), 50, dtype=jnp.float32, rngs=nnx.Rngs(0))
    largest = float(jnp.max(jnp.abs(module.down.kernel[...])))
    assert 0.099 < largest <= 0.1  # 100^-0.5, not 800^-0.5


@pytest.mark.slow
def test_a_decoder_of_experts_generates():
    attention = AttentionConfig(2, 1, 8, parse("rope"))
    block = LayerConfig(attention, CONFIGS["mixtral"], NormConfig())
    model = draw(Decoder(TransformerConfig(11, WIDTH, 16, (block,)), rngs=nnx.Rngs(0)))
    prompt = jnp.asarray([[1, 2, 3]])
    answer = generate(model, prompt, 4)
    text = jnp.concatenate([prompt, answer], axis=1)
    logits = jax.jit(lambda ids: model(ids))(text)
    np.testing.assert_array_equal(answer, jnp.argmax(logits[:, 2:-1], axis=-1))


def test_axes_are_named_and_the_cost_is_of_all_experts():
    module = made(CONFIGS["gpt-oss"])
    specs = partition_specs(nnx.state(module), {"mlp": "tensor", "embed": "fsdp"})
    assert specs["up"]["kernel"].get_value() == PartitionSpec("fsdp", "tensor")
    assert specs["down"]["kernel"].get_value() == PartitionSpec("tensor", "fsdp")
    assert specs["down_bias"].get_value() == PartitionSpec(None, "fsdp")
    config = CONFIGS["mixtral"]
    products = COUNT * mlp_products(config.mlp, WIDTH) + 2 * WIDTH * COUNT
    assert mlp_products(config, WIDTH) == products
    with_experts, plain = (
        text_flops(TransformerConfig(11, WIDTH, 16, (LayerConfig(AttentionConfig(2, 1, 8), mlp, NormConfig()),)), 2, 5)
        for mlp in (config, config.mlp)
    )
    assert with_experts - plain == 3 * 2 * 5 * (products - mlp_products(config.mlp, WIDTH))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MoEConfig(0, 1, MlpConfig(4, "relu")), "count must be at least 1, got 0"),
        (lambda: MoEConfig(2, 3, MlpConfig(4, "relu")), "chosen must be at most count=2, got 3"),
        (lambda: made(MoEConfig(2, 1, MlpConfig(4, "clamped_swiglu"))), "activation must be one of gelu, "),
    ],
)
def test_what_is_no_mixture_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
