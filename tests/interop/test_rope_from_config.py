"""Rotary encodings as config.json says them: old keys and new ones, as text that makes the encoding."""

import re
from pathlib import Path

import numpy as np
import pytest

from pejax import Dims, make_encoding
from pejax.interop import rope_from_config, source_from_config
from pejax.interop.any_rope import OF_IMAGES
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.pipelines import PIPELINES
from pejax.interop.rope_models import MODELS, UNREADABLE
from pejax.specs import parse, parse_extension
from tests.support.biases import types_unchecked
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
    spec = rope_from_config({**HEADS, **keys}, pairing="half")
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
    assert str(rope_from_config(config, "sliding_attention", pairing="half")) == PLAIN
    linear = "rope(base=1000000.0, pairing='half', extend='linear(factor=8.0)')"
    assert str(rope_from_config(config, "full_attention", pairing="half")) == linear


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_scaling": {"type": "mrop"}}, "config.json: rope_scaling: rope_type must be one of default, linear,"),
        ({"rope_scaling": {"type": "default", "factor": 2.0}}, "change nothing, got factor = 2.0"),
        (
            {"rope_parameters": {"rope_type": "axial"}},
            "rope_type 'axial' must come with a known model_type, got None: ",
        ),
        ({"rope_parameters": {"mrope_section": [4, 4]}, "head_dim": 18}, "mrope_section must count 9 pairs together"),
        (
            {"position_embedding_type": "alibi"},
            "position_embedding_type must be 'rope', 'rotary' or 'nope', got 'alibi'",
        ),
        ({"rope_scaling": {"type": "linear"}}, "config.json: rope_scaling must have the key factor, got none"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling: factor must be a number, got '2'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 3}}, "change nothing, got beta = 3"),
        ({"rope_scaling": [1]}, "config.json: rope_scaling must be an object, got [1]"),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 3.0}}, "rope_scaling must be absent"),
        ({"rope_parameters": {"sliding_attention": {}}}, "rope_parameters must have an entry for layer_type=None and"),
        (
            {"hidden_size": 63, "partial_rotary_factor": 0.5},
            "hidden_size must be a multiple of num_attention_heads=4, got",
        ),
    ],
)
def test_what_is_not_understood_is_refused(keys, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rope_from_config({**HEADS, **keys}, pairing="half")


TYPES = {
    "neighbors": ({"model_type": "ernie4_5_moe"}, None, "rope(base=500000.0, pairing='interleaved')"),
    "by the file's flag": ({"model_type": "deepseek_v3", "rope_theta": 3.0, "rope_interleave": False}, None,
                           "rope(base=3.0, pairing='half')"),
    "a latent part": ({"model_type": "dots3_note_text", "head_dim": 32, "qk_rope_head_dim": 16, "rope_parameters": {
        "sliding_attention": {"rope_theta": 3.0, "partial_rotary_factor": 0.5}}}, "sliding_attention",
                      "rope(base=3.0, pairing='interleaved')"),
    "the type's own part": ({"model_type": "qwen3_next", **HEADS}, None,
                            "rope(base=10000.0, pairing='half', rotary_dim=64)"),
    "a number of channels": ({"model_type": "minimax_m2", **HEADS, "rotary_dim": 8, "head_dim": 16}, None,
                             "rope(base=5000000.0, pairing='half', rotary_dim=8)"),
    "sections": ({"model_type": "qwen2_vl", "rope_theta": 1e6, "rope_scaling": {
        "type": "mrope", "mrope_section": [2, 3, 3]}, **HEADS}, None,
                 "rope(base=1000000.0, pairing='half', sections=(2, 3, 3))"),
    "sections in turn": ({"model_type": "qwen3_vl_text", "rope_theta": 7, "head_dim": 128, "rope_parameters": {
        "rope_type": "default", "mrope_interleaved": True}}, None,
                         "rope(base=7.0, pairing='half', section_order='interleaved', sections=(24, 20, 20))"),
    "height, width, time": (
        {"model_type": "ernie4_5_vl_moe_text", "rope_theta": 7, "head_dim": 128}, None,
        "rope(base=7.0, pairing='interleaved', section_order=((1, 2), (0,)), sections=(20, 22, 22))"),
    "a picture": ({"model_type": "kimi_k25_vision", "rope_parameters": {"rope_type": "axial", "rope_theta": 9}}, None,
                  "rope_axial(base=9.0, indexing='xy', layout='alternate', pairing='half')"),
    "a part for pictures": ({"model_type": "qwen2_5_vl", "patch_size": 14, "hidden_size": 3584}, None,
                            "rope_axial(base=10000.0, pairing='half')"),
    "a video": ({"model_type": "minimax_m3_vl_vision", "hidden_size": 160, "num_attention_heads": 2}, None,
                "rope_axial(base=10000.0, pairing='half', widths=(26, 26, 26))"),
    "proportional": (
        {"model_type": "gemma4_text", "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"],
         "per_layer_config": {"1": {"head_dim": 32}}, "rope_parameters": {
             "full_attention": {"rope_type": "proportional", "rope_theta": 3, "partial_rotary_factor": 0.25,
                                "factor": 2.0},
             "sliding_attention": {"rope_theta": 5}}}, "full_attention",
        "rope(base=3.0, layout='proportional', pairing='half', rotary_dim=8, extend='linear(factor=2.0)')"),
    "a head by another key": ({"model_type": "jetmoe", "hidden_size": 2048, "num_attention_heads": 32,
                               "rope_parameters": {"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5}},
                              None, "rope(base=10000.0, pairing='half', rotary_dim=64, extend='linear(factor=2.0)')"),
    "a layer's number with zeros": (
        {"model_type": "gemma4_text", "head_dim": 16, "layer_types": ["full_attention"],
         "per_layer_config": {"00": {"head_dim": 32}}, "rope_parameters": {
             "full_attention": {"rope_type": "proportional", "rope_theta": 3, "partial_rotary_factor": 0.5}}},
        "full_attention", "rope(base=3.0, layout='proportional', pairing='half', rotary_dim=16)"),
    "any layer type": ({"model_type": "zaya", "rope_parameters": {"hybrid": {"rope_theta": 5}}}, "hybrid",
                       "rope(base=5.0, pairing='half')"),
    "no positions": ({"model_type": "beam", "rope_parameters": {"full_attention": None}}, "full_attention", "none"),
    "none by a key": ({"model_type": "granitemoehybrid", "rope_theta": 5}, None, "none"),
    "two bases": ({"model_type": "gemma3n_text", "rope_theta": 5, "rope_local_base_freq": 7}, "sliding_attention",
                  "rope(base=7.0, pairing='half')"),
    "a temperature": ({"model_type": "ministral3", "max_position_embeddings": 64, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 5, "factor": 4.0, "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.2}}, None, "rope(base=5.0, pairing='half', "
                      "extend='yarn(trained_length=16, factor=4.0)+llama4(floor_length=16, scale=0.2, offset=0)')"),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_a_model_type_says_what_the_file_does_not(name):
    keys, layer_type, expected = TYPES[name]
    assert rope_from_config(keys, layer_type) == parse(expected)


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        ({}, {}, "pairing must be given without a model_type: 'half' (channel i turns with D/2 + i) or 'interleaved'"),
        ({"model_type": "my_own"}, {}, "pairing must be given for model_type 'my_own', which is not known"),
        ({}, {"pairing": "half", "rotated_fraction": 0.0}, "rotated_fraction must be a number above 0, got 0.0"),
        ({"model_type": "ernie4_5_vl_moe_text", "rope_parameters": {"mrope_section": [3]}}, {}, "pairs of each axis"),
        ({"model_type": "my_own"}, {"pairing": "halves"}, "pairing must be one of interleaved, half, got 'halves'"),
        ({"model_type": "deepseek_v2"}, {"pairing": "half"}, "that of model_type 'deepseek_v2', 'interleaved', got"),
        ({"model_type": "deepseek_v2"}, {"base": 5.0}, "must be None for model_type 'deepseek_v2', which is known"),
        ({"model_type": "llama"}, {"pairing": "half"}, "pairing must be None for model_type 'llama', which has"),
        ({"model_type": "afmoe", "partial_rotary_factor": 0.5}, {}, "must be 1.0 for model_type 'afmoe', whose"),
        ({"model_type": "nanochat"}, {}, "model_type 'nanochat' is not supported: it turns the other way"),
        ({"model_type": "qwen2_vl", "text_config": {"rope_theta": 1.0}}, {}, "config['text_config'] has, pass that"),
        ({"model_type": "ministral3", "rope_theta": 5.0}, {}, "must have the key rope_parameters, got none"),
        ({"model_type": "afmoe", "rope_theta": 5.0}, {"layer_type": "full_attention"}, "must be None where all layers"),
        ({"model_type": "qwen3_vl_text", "rope_parameters": {"mrope_interleaved": False}}, {}, "must be True in this"),
        ({"model_type": "qwen2_vl_text", "rope_parameters": {"mrope_interleaved": True}}, {}, "must be False in this"),
    ],
)  # fmt: skip
def test_a_pairing_is_never_guessed(keys, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rope_from_config(keys, **options)


def scaled(kind, **keys):
    return {**HEADS, "rope_scaling": {"type": kind, **keys}}


def latent(model_type, layer_type, **keys):
    """A config with heads of 32 channels, of which 16 turn."""
    parameters = {"rope_theta": 3.0, "factor": 2.0, "partial_rotary_factor": 0.5, **keys}
    nested = parameters if layer_type is None else {layer_type: parameters}
    return {"model_type": model_type, "head_dim": 32, "qk_rope_head_dim": 16, "rope_parameters": nested}


def of_layer(value):
    """A config whose only layer has keys of its own."""
    own = {"layer_types": ["full_attention"], "per_layer_config": {"0": value}}
    return {**HEADS, **own, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ([1], {}, "config must be an object, got [1]"),
        ("x", {}, "config must be an object, got 'x'"),
        ({}, {"layer_type": []}, "layer_type must be a string or None, got []"),
        ({"model_type": ["llama"]}, {}, "model_type must be a string, got ['llama']"),
        ({"_class_name": ["x"]}, {}, "unknown _class_name ['x']"),
        ({**HEADS, "layer_types": 5}, {"layer_type": "x", "pairing": "half"}, "layer_types must be a list, got 5"),
        *[({"model_type": "qwen3_vl_text", "rope_parameters": {"mrope_interleaved": value}}, {},
           f"mrope_interleaved must be true or false, got {value!r}") for value in ("no", [])],
        (of_layer(5), {"layer_type": "full_attention", "pairing": "half"},
         "per_layer_config.0 must be an object, got 5"),
        (of_layer({"head_dim": "a"}), {"layer_type": "full_attention", "pairing": "half"},
         "per_layer_config.0: head_dim must be an integer of at least 1, got 'a'"),
        (HEADS, {"pairing": "half", "base": float("inf")}, "base must be a number above 0, got inf"),
        (HEADS, {"pairing": "half", "base": "a"}, "base must be a number above 0, got 'a'"),
        ({**HEADS, "rotary_dim": 0}, {"pairing": "half"}, "rotary_dim must be an integer of at least 1, got 0"),
        *[({**HEADS, "rotary_dim": value}, {"pairing": "half"},
           f"the number of rotated channels must be even, from 2 to the 16 of a head, got {value}")
          for value in (9, 999)],
        ({**HEADS, "partial_rotary_factor": 0.01}, {"pairing": "half"}, "from 2 to the 16 of a head, got 0"),
        *[(scaled(kind, factor=-2), {"pairing": "half"}, "factor must be a number above 0, got -2.0")
          for kind in ("linear", "dynamic", "yarn")],
        (scaled("linear", factor=0), {"pairing": "half"}, "factor must be a number above 0, got 0.0"),
        ({**CONFIGS["llama"], "rope_scaling": {"type": "linear", "factor": -2}}, {}, "above 0, got -2.0"),
        ({**CONFIGS["gpt_neox"], "rotary_pct": 0}, {}, "from 2 to the 8 of a head, got 0"),
        (scaled("longrope", long_factor=[2] * 3, short_factor=[1] * 8), {"pairing": "half"},
         "long_factor must have 8 numbers, one per pair, got 3"),
        (scaled("longrope", long_factor=[2] * 8, short_factor=[1] * 9), {"pairing": "half"},
         "short_factor must have 8 numbers, one per pair, got 9"),
        ({**HEADS, "rope_parameters": {"mrope_section": (True, 3, 4)}}, {"pairing": "half"}, "got (True, 3, 4)"),
        ({"model_type": "jetmoe", "head_dim": 64}, {}, "head_dim must be kv_channels=128, got 64"),
        *[(latent(name, layer_type, rope_type="linear", partial_rotary_factor=0.25), {"layer_type": layer_type},
           "partial_rotary_factor must be qk_rope_head_dim=16 over the head's 32, got 0.25")
          for name, layer_type in (("dots3_note_text", "sliding_attention"), ("mistral4", None))],
        (latent("dots3_note_text", "sliding_attention", rope_type="proportional"), {"layer_type": "sliding_attention"},
         "rope_type must be another one than 'proportional' where qk_rope_head_dim=16 is not the head's 32"),
    ],
)  # fmt: skip
def test_a_value_that_no_head_has_is_refused_in_one_line(config, options, message):
    with types_unchecked(), pytest.raises(ValueError, match=re.escape(message)) as refusal:
        rope_from_config(config, **options)
    assert "\n" not in str(refusal.value)


def test_an_unknown_type_is_read_with_its_pairing():
    config = {"model_type": "my_own", "rope_theta": 500.0, "head_dim": 16, "partial_rotary_factor": 0.5}
    expected = "rope(base=500.0, pairing='interleaved', rotary_dim=8)"
    assert str(rope_from_config(config, pairing="interleaved")) == expected


def test_layers_without_parameters_have_no_positions_in_a_loaded_model_either():
    nested = {"full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
    flat = {key: value for key, value in CONFIGS["gemma3_text"].items() if not key.startswith("rope")}
    layers = source_from_config({**flat, "rope_parameters": nested}).config.layers
    assert [layer.attention.pe.name for layer in layers] == ["rope", "rope", "none"]


def test_the_table_has_no_type_that_is_loaded():
    assert MODELS.keys() & ARCHITECTURES.keys() == {*OF_IMAGES} & ARCHITECTURES.keys()
    assert not MODELS.keys() & UNREADABLE.keys()


PIPELINE_FILES = {
    "rope_axial(preset='flux')": {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, 56, 56]},
    "rope_axial(preset='wan')": {"_class_name": "WanTransformer3DModel", "attention_head_dim": 128},
    "rope_axial(preset='ltx2', pairing='half')": {"_class_name": "LTX2VideoTransformer3DModel", "rope_type": "split"},
    "rope_axial(preset='hunyuan_video')": {"_class_name": "HunyuanVideoTransformer3DModel", "rope_theta": 256},
    "rope_axial(preset='flux2', base=1000.0, widths=(8, 8, 8, 8))": {
        "_class_name": "Flux2Transformer2DModel", "axes_dims_rope": [8, 8, 8, 8], "rope_theta": 1000},
}  # fmt: skip


@pytest.mark.parametrize("expected", PIPELINE_FILES)
def test_a_file_of_diffusers_is_a_preset(expected):
    assert rope_from_config(PIPELINE_FILES[expected]) == parse(expected)


def test_the_guide_counts_the_models_of_diffusers():
    guide = Path(__file__).parents[2] / "docs" / "interop.md"
    assert f"`_class_name` of {len(PIPELINES)} models" in guide.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"_class_name": "FluxTransformer3DModel"}, "unknown _class_name 'FluxTransformer3DModel'; did you mean"),
        ({"_class_name": "WanTransformer3DModel", "attention_head_dim": 64}, "attention_head_dim must be 128, got 64"),
        ({"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [64, 64]}, "axes_dims_rope must be 3 whole"),
        ({"_class_name": "CosmosTransformer3DModel", "rope_scale": [1.0, 3.0, 3.0]}, "rope_scale must be [2.0, 1.0"),
        ({"_class_name": "CogVideoXTransformer3DModel"}, "must have the key use_rotary_positional_embeddings"),
    ],
)  # fmt: skip
def test_a_file_of_diffusers_with_another_rotation_is_refused(keys, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rope_from_config(keys)


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


HOSTILE = (None, -1, 0, 2.5, "x", [], {}, True, float("nan"), [1], [1, 2, 3], {"a": 1}, 10**400, [None])
KEYS = ("layer_types", "per_layer_config", "rope_parameters", "rope_scaling", "qk_rope_head_dim", "rotary_dim",
        "partial_rotary_factor", "position_embedding_type", "rope_local_base_freq", "hidden_size")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_any_value_of_any_key_is_read_or_refused_in_one_line(name):
    keys, layer_type, _ = TYPES[name]
    rope = keys.get("rope_parameters", {})
    changed = [{**keys, key: value} for key in {*keys, *KEYS} for value in HOSTILE]
    changed += [{**keys, "rope_parameters": {**rope, key: value}} for key in rope for value in HOSTILE]
    answers = []
    for config in changed:
        try:
            spec = rope_from_config(config, layer_type)
            assert parse(str(spec)) == spec
        except ValueError as refusal:
            answers.append(str(refusal))
    assert answers
    assert not [answer for answer in answers if "\n" in answer]
