"""Folders with experts: which tensor is which expert's, what differs between gpt-oss and a Llama, what is refused."""

import re

import numpy as np
import pytest

from pejax import extensions
from pejax.interop import load, source_from_config
from pejax.specs import parse
from tests.support.hub_folders import CONFIGS, SIZES, rewrite, run, tensors, write

IDS = np.random.default_rng(0).integers(0, 97, (1, 12))


def kernel(model, name: str) -> np.ndarray:
    """Return the kernel of the first layer."""
    return np.asarray(getattr(model.stack.layers.blocks.mlp, name).kernel[...])[0]


def test_an_expert_of_mixtral_has_three_tensors(tmp_path):
    folder = write(tmp_path / "a", "mixtral", num_hidden_layers=1)
    values, (model, _) = tensors(folder), load(folder)
    prefix = "model.layers.0.block_sparse_moe."
    np.testing.assert_array_equal(kernel(model, "router"), values[f"{prefix}gate.weight"].T)
    for e in range(4):
        columns = slice(48 * e, 48 * (e + 1))
        tensor = lambda name, e=e: values[f"{prefix}experts.{e}.{name}.weight"].T
        np.testing.assert_array_equal(kernel(model, "gate")[:, columns], tensor("w1"))
        np.testing.assert_array_equal(kernel(model, "up")[:, columns], tensor("w3"))
        np.testing.assert_array_equal(kernel(model, "down")[columns], tensor("w2"))


def test_gate_and_up_of_gpt_oss_alternate(tmp_path):
    folder = write(tmp_path / "a", "gpt_oss", num_hidden_layers=1)
    values, (model, _) = tensors(folder), load(folder)
    prefix = "model.layers.0.mlp.experts."
    up_and_gate, biases = values[f"{prefix}gate_up_proj"], values[f"{prefix}gate_up_proj_bias"]
    assert up_and_gate.shape == (4, 32, 96)
    for e in range(4):
        columns = slice(48 * e, 48 * (e + 1))
        np.testing.assert_array_equal(kernel(model, "gate")[:, columns], up_and_gate[e, :, ::2])
        np.testing.assert_array_equal(kernel(model, "up")[:, columns], up_and_gate[e, :, 1::2])
        np.testing.assert_array_equal(kernel(model, "down")[columns], values[f"{prefix}down_proj"][e])
    mlp = model.stack.layers.blocks.mlp
    np.testing.assert_array_equal(mlp.up.bias[...][0], biases[:, 1::2].reshape(-1))
    np.testing.assert_array_equal(mlp.down_bias[...][0], values[f"{prefix}down_proj_bias"])


@pytest.mark.slow
def test_the_sinks_of_gpt_oss_are_used(tmp_path):
    folder = write(tmp_path / "a", "gpt_oss", num_hidden_layers=1)
    values, before = tensors(folder), run(load(folder)[0], IDS)
    name = "model.layers.0.self_attn.sinks"
    rewrite(folder, {**values, name: np.full_like(values[name], -1e9)})
    assert np.max(np.abs(run(load(folder)[0], IDS) - before)) > 0.05
    del values[name]
    rewrite(folder, values)
    with pytest.raises(ValueError, match=re.escape(f"must hold the tensor {name}, got none")):
        load(folder)


def test_the_defaults_of_gpt_oss():
    config = {key: value for key, value in CONFIGS["gpt_oss"].items() if key not in ("rope_scaling", "rope_theta")}
    layers = source_from_config({**config, "num_hidden_layers": 3, "sliding_window": 7}).config.layers
    assert [layer.attention.window for layer in layers] == [7, None, 7]
    yarn = extensions.yarn(trained_length=4096, factor=32.0, truncate=False)
    assert {layer.attention.pe for layer in layers} == {parse("rope(base=150000.0, pairing='half')").extended(yarn)}
    assert layers[0].attention.sinks
    assert layers[0].mlp.router_bias


@pytest.mark.parametrize(("said", "expected"), [(None, False), (False, False), (True, True)])
@pytest.mark.parametrize("name", ["qwen3_moe", "olmoe"])
def test_whether_weights_are_normalized_over_the_chosen(name, said, expected):
    block = source_from_config({**CONFIGS[name], "norm_topk_prob": said}).config.layers[0]
    assert block.mlp.over_chosen == expected
    assert (block.mlp.count, block.mlp.chosen) == (5, 3)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("gpt_oss", {"swiglu_limit": 6.0}, "swiglu_limit must be 7.0, got 6.0"),
        ("gpt_oss", {"swiglu_alpha": 1.0}, "swiglu_alpha must be 1.702, got 1.0"),
        ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, "because quantized weights are not read"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers must be [], got [1]"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step must be 1, got 2"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv must be None, got 8.0"),
        ("mixtral", {"num_experts_per_tok": 5}, "chosen must be at most count=4, got 5"),
        ("llama", {"num_local_experts": 4}, "must be absent, because this architecture has no experts, got 4"),
        ("llama", {"model_type": "phimoe"}, "'phimoe' is not supported: it has experts chosen by SparseMixer"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused(name, keys, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        source_from_config({**CONFIGS[name], **keys})


@pytest.mark.slow
def test_a_model_of_one_expert_is_a_mistral(tmp_path):
    sizes = {**SIZES, "num_local_experts": 1, "num_experts_per_tok": 1, "num_hidden_layers": 1}
    folder = write(tmp_path / "a", "mixtral", **sizes)
    values = tensors(folder)
    names = {"w1": "mlp.gate_proj", "w3": "mlp.up_proj", "w2": "mlp.down_proj"}
    plainly = lambda name: re.sub(r"block_sparse_moe\.experts\.0\.(w\d)", lambda item: names[item[1]], name)
    renamed = {plainly(name): value for name, value in values.items() if not name.endswith("moe.gate.weight")}
    plain = write(tmp_path / "b", "mistral", num_hidden_layers=1, sliding_window=None, rms_norm_eps=1e-5)
    rewrite(plain, renamed)
    np.testing.assert_allclose(run(load(folder)[0], IDS), run(load(plain)[0], IDS), atol=1e-5)
