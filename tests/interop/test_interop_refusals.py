"""What `load` refuses: configs, tensors and files, each in one line that names the thing, the rule and the value."""

import json
import re
import struct

import numpy as np
import pytest

from pejax.interop import load, save, source_from_config
from pejax.models import Decoder
from tests.support.hub_folders import rewrite, tensors, write


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "model")


def refused(folder, **options) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load(folder, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def configured(folder, **keys):
    return rewrite(folder, tensors(folder), **keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "lama"}, "unknown model_type 'lama'; did you mean 'llama'? Known: aimv2, aimv2_vision_model,"),
        ({"model_type": 3}, "config.json: model_type must be a string, got 3"),
        ({"model_type": "qwen2_moe"}, "model_type 'qwen2_moe' is not supported: it has a shared expert"),
        (
            {"model_type": "deepseek_v3"},
            "it has experts and attention with latent keys",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be absent, because quantized weights are not"),
        (
            {"num_experts": 8},
            "config.json: num_experts must be absent, because this architecture has no experts, got 8",
        ),
        ({"kv_lora_rank": 8}, "because attention with latent keys and values (MLA) is not computed, got 8"),
        (
            {"residual_multiplier": 0.2},
            "config.json: every key must be read or be known to change nothing, got residual_multiplier = 0.2",
        ),
        ({"hidden_act": "xielu"}, "config.json: hidden_act must be one of gelu, gelu_python,"),
        ({"vocab_size": "97"}, "config.json: vocab_size must be an integer of at least 1, got '97'"),
        ({"vocab_size": None}, "config.json must have the key vocab_size, got none"),
        ({"rms_norm_eps": True}, "config.json: rms_norm_eps must be a number, got True"),
        ({"mlp_bias": 1}, "config.json: mlp_bias must be true or false, got 1"),
        ({"layer_types": ["full_attention"]}, "layer_types must be num_hidden_layers=2 names out of full_attention"),
        ({"num_key_value_heads": 3}, "heads must be a multiple of kv_heads, got heads=4, kv_heads=3"),
        ({"hidden_size": 64}, "model.embed_tokens.weight must have shape (97, 64) per config.json, got (97, 32)"),
        ({"num_hidden_layers": 3}, "must hold the tensor model.layers.2."),
        ({"num_hidden_layers": 1}, "has a tensor without a part in the model: model.layers.1."),
        ({"attention_bias": True}, "must hold the tensor model.layers.0.self_attn."),
    ],
)
def test_a_config_that_does_not_fit(keys, message, folder):
    result = refused(configured(folder, **keys))
    assert message in result


def test_a_key_may_be_ignored(folder):
    assert "residual_multiplier" in refused(configured(folder, residual_multiplier=1.0))
    _, source = load(folder, ignore=("residual_multiplier",))
    assert source.config_json["residual_multiplier"] == 1.0


def test_a_head_that_the_config_says_is_there(folder):
    values = tensors(folder)
    del values["lm_head.weight"]
    message = refused(rewrite(folder, values, tie_word_embeddings=False))
    assert message == f"{folder} must hold the tensor lm_head.weight, got none"


def test_tensors_that_do_not_fit(folder):
    values = tensors(folder)
    name, file = "model.norm.weight", folder / "model.safetensors"
    rewrite(folder, {**values, "model.extra.weight": values[name]})
    way_out = "ignore=('model.extra.*',) carries such tensors unused"
    assert refused(folder) == f"{file} has an unknown tensor: model.extra.weight; {way_out}"
    more = {"model.extra.weight": values[name], "model.extra.beta": values[name], "head2": values[name]}
    rewrite(folder, {**values, **more})
    assert refused(folder).endswith("(and 2 more); ignore=('head2', 'model.extra.*') carries such tensors unused")
    for inner in ("model.layers.0.self_attn.q_proj.bias", "model.rotary_emb.scale"):
        rewrite(folder, {**values, inner: values[name]})
        assert refused(folder) == f"{file} has a tensor without a part in the model: {inner}"
    rewrite(folder, {**values, name: values[name].astype(np.float64)})
    assert refused(folder) == f"{file}: {name} must have the type F32 or F16 or BF16, got F64"
    rewrite(folder, {**values, name: values[name].astype(np.int32)})
    assert refused(folder).endswith("got I32")
    rewrite(folder, {**values, name: values[name][None]})
    assert refused(folder) == f"{file}: {name} must have shape (32,) per config.json, got (1, 32)"


def test_damaged_files(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-10])
    assert refused(folder).startswith(f"{file} must be a whole safetensors file, got ")
    file.write_bytes(content + b"more")
    assert refused(folder).startswith(f"{file} must be a whole safetensors file, got ")
    file.write_bytes(struct.pack("<Q", 1 << 40) + content[8:])
    assert "eader" in refused(folder)
    file.write_bytes(b"")
    assert refused(folder).startswith(f"{file} must be a whole safetensors file, got ")


def test_files_that_are_not_there(folder, tmp_path):
    file = folder / "model.safetensors"
    assert refused(tmp_path / "nothing").startswith(f"{tmp_path}/nothing must be a folder with config.json and ")
    file.unlink()
    rule = "must hold model.safetensors or model.safetensors.index.json, got neither"
    assert refused(folder) == f"{folder} {rule}"
    (folder / "pytorch_model.bin").touch()
    rule = (
        "got pytorch_model.bin, a pickle, which can run code; where you trust it, convert it by transformers' AutoModel"
    )
    assert rule in refused(folder)
    file.symlink_to(file)
    assert refused(folder).startswith(f"{file} must be a whole safetensors file, got ")
    config = folder / "config.json"
    config.unlink()
    config.symlink_to(config)
    assert refused(folder) == f"{config} must be a file that can be read, got Too many levels of symbolic links"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON, got "), ("[1]", "must hold a JSON object, got a list"),
        ("[" * 100_000, "config.json must be "), ("\xff", "config.json must be "),
    ],
)  # fmt: skip
def test_a_config_that_is_no_object(text, message, folder):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert message in refused(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda placed: None, "weight_map must be an object with entries, got None"),
        (lambda placed: dict.fromkeys(placed, "../model.safetensors"), "must be the name of a file in this folder"),
        (lambda placed: dict.fromkeys(placed, "/etc/model.safetensors"), "got '/etc/model.safetensors'"),
        (lambda placed: dict.fromkeys(placed, 3), "must be the name of a file in this folder, got 3"),
        (lambda placed: dict.fromkeys(placed, "gone.safetensors"), "gone.safetensors must be a whole safetensors file"),
        (lambda placed: {**placed, "x": "model.safetensors"}, "weight_map must say where x is, in no file, got model"),
        (lambda placed: dict([*placed.items()][1:]), "in model.safetensors, got None"),
    ],
)
def test_an_index_that_does_not_fit(change, message, folder):
    placed = change(dict.fromkeys(tensors(folder), "model.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert message in refused(folder)


def test_arguments_that_are_not_understood(folder):
    assert refused(folder, dtype="int8") == "dtype must be one of float32, bfloat16, got 'int8'"
    assert "unknown extension 'yarm'" in refused(folder, extend="yarm")


@pytest.mark.slow
def test_a_model_of_another_config_is_not_saved(folder, tmp_path):
    _, source = load(folder)
    other = source_from_config({**source.config_json, "vocab_size": 96, "rope_theta": 3.0})
    from flax import nnx

    model = Decoder(other.config, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=re.escape("but for extensions, got another vocab and layers")):
        save(model, tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


def test_a_write_that_fails_leaves_nothing(folder, tmp_path):
    model, source = load(folder)
    with pytest.raises(ValueError, match="must be a folder that can be made, got File exists"):
        save(model, folder / "config.json" / "out", source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
