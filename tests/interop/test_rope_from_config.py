"""Rotary encodings as config.json says them: old keys and new ones, as text that makes the encoding."""

import re

import numpy as np
import pytest

from pejax import Dims, make_encoding
from pejax.interop import rope_from_config, source_from_config
from pejax.specs import parse, parse_extension
from tests.support.hub_folders import CONFIGS

HEADS = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 64}
PLAIN = "rope(base=10000.0, pairing='half')"
FACTORS = {"long_factor": [2.0] * 8, "short_factor": [1] * 8}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LONG = f"long_factors={(2.0,) * 8}, short_factors={(1.0,) * 8}"

CASES = {
    "nothing": ({}, PLAIN, "none"),
    "flat base": ({"rope_theta": 5e5}, "rope(base=500000.0, pairing='half')", "none"),
    "an integer": ({"rope_theta": 300}, "rope(base=300.0, pairing='half')", "none"),
    "NeoX": ({"rotary_emb_base": 200, "rotary_pct": 0.25}, "rope(base=200.0, pairing='half', rotary_dim=4)", "none"),
    "a part": ({"partial_rotary_factor": 0.75}, "rope(base=10000.0, pairing='half', rotary_dim=12)", "none"),
    "head_dim": ({"head_dim": 20, "partial_rotary_factor": 0.5},
                 "rope(base=10000.0, pairing='half', rotary_dim=10)", "none"),
    "new": ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.5}},
            "rope(base=7.0, pairing='half', rotary_dim=8)", "none"),
    "type": ({"rope_scaling": {"type": "linear", "factor": 2}}, PLAIN, "linear(factor=2.0)"),
    "rope_type": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, PLAIN, "linear(factor=2.0)"),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, PLAIN,
                "dynamic_ntk(trained_length=64, factor=2.0)"),
    "yarn": ({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 16, "truncate": False,
                               "beta_fast": 16, "attention_factor": 1.5}}, PLAIN,
             "yarn(trained_length=16, factor=4.0, attention_factor=1.5, beta_fast=16.0, truncate=False)"),
    "llama3": ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, PLAIN,
               "llama3(trained_length=16, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)"),
    "longrope": ({"rope_scaling": {"type": "longrope", **FACTORS}, "original_max_position_embeddings": 32}, PLAIN,
                 f"longrope(trained_length=32, factor=2.0, {LONG})"),
    "su": ({"rope_scaling": {"type": "su", **FACTORS, "attention_factor": 1.25},
            "original_max_position_embeddings": 32}, PLAIN,
           f"longrope(trained_length=32, factor=2.0, attention_factor=1.25, {LONG})"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_keys_give_the_encoding_and_its_extension(name):
    keys, pe, extend = CASES[name]
    spec = rope_from_config({**HEADS, **keys})
    assert spec == parse(pe).extended(parse_extension(extend))
    dims = Dims(heads=4, head_dim=keys.get("head_dim", 16), extent=64, causal=True)
    assert make_encoding(spec, dims) is make_encoding(str(spec), dims)


@pytest.mark.parametrize("old", [True, False])
def test_each_layer_type_has_its_own(old):
    flat = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    nested = {"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }}  # fmt: skip
    config = {**HEADS, **(flat if old else nested)}
    assert str(rope_from_config(config, "sliding_attention")) == PLAIN
    linear = "rope(base=1000000.0, pairing='half', extend='linear(factor=8.0)')"
    assert str(rope_from_config(config, "full_attention")) == linear


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_scaling": {"type": "mrope"}}, "config.json: rope_scaling: rope_type must be one of default, linear,"),
        ({"rope_scaling": {"type": "linear"}}, "config.json: rope_scaling must have the key factor, got none"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling: factor must be a number, got '2'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 3}}, "change nothing, got beta = 3"),
        ({"rope_scaling": [1]}, "config.json: rope_scaling must be an object, got [1]"),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 3.0}}, "rope_scaling must be absent"),
        ({"rope_parameters": {"sliding_attention": {}}}, "rope_parameters must have an entry for None"),
        ({"hidden_size": 63}, "hidden_size must be a multiple of num_attention_heads=4, got 63"),
    ],
)
def test_what_is_not_understood_is_refused(keys, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rope_from_config({**HEADS, **keys})


def test_models_read_old_keys_and_new_ones_alike():
    old = CONFIGS["llama, llama3"]
    new = {key: value for key, value in old.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {"rope_theta": old["rope_theta"], **old["rope_scaling"]}
    assert source_from_config(new).config == source_from_config(old).config
    local = source_from_config(CONFIGS["gemma3_text"]).config.layers
    bases = [dict(layer.attention.pe.options)["base"] for layer in local]
    np.testing.assert_array_equal(bases, [100.0, 100.0, 3000.0])


def test_a_model_type_says_which_layers_are_scaled_and_what_is_read():
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    sizes = {"vocab_size": 97, "intermediate_size": 48, "num_hidden_layers": 4}
    olmo3 = {"model_type": "olmo3", **HEADS, **sizes, "rope_theta": 5e5, "rope_scaling": scaling, "sliding_window": 8}
    assert str(rope_from_config(olmo3, "sliding_attention")) == "rope(base=500000.0, pairing='half')"
    assert "yarn(factor=8.0, trained_length=8192)" in str(rope_from_config(olmo3, "full_attention"))
    neox = {"model_type": "gpt_neox", **HEADS, **sizes}
    assert str(rope_from_config(neox)) == "rope(base=10000.0, pairing='half', rotary_dim=4)"
    assert "base=200.0" in str(rope_from_config({**neox, "rotary_emb_base": 200}))
    cohere = {"model_type": "cohere", **HEADS, **sizes}
    assert str(rope_from_config(cohere)) == "rope(base=500000.0, pairing='interleaved')"


@pytest.mark.parametrize(
    ("model_type", "layer_type", "found"),
    [
        ("llama", "sliding_attention", "0 encodings"),
        ("gemma3_text", None, "2 encodings"),
        ("gpt2", None, "0 encodings"),
    ],
)
def test_a_layer_type_must_name_one_rotary_encoding(model_type, layer_type, found):
    rule = "layer_type must name layers that have the same rotary encoding"
    rule = f"{rule}, got {layer_type!r} for {model_type} with {found}"
    with pytest.raises(ValueError, match=re.escape(rule)):
        rope_from_config(CONFIGS[model_type], layer_type)
    with pytest.raises(
        ValueError, match="layer_type must be None or one of full_attention, sliding_attention, got 'x'"
    ):
        rope_from_config(CONFIGS[model_type], "x")
