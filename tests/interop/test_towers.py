"""Text towers of models of images and text: what published configs leave out, names in files, what is carried."""

import json

import numpy as np
import pytest

from pejax.interop import load, save
from pejax.interop.command import main
from pejax.interop.model_config import read_config
from tests.support.hub_folders import CONFIGS, rewrite, run, tensors, write

IDS = np.random.default_rng(0).integers(0, 97, (2, 12))
VISION = {"hidden_size": 1024, "model_type": "clip_vision_model"}
LLAVA = {
    "model_type": "llava", "vision_config": VISION, "image_token_index": 32000, "ignore_index": -100,
    "projector_hidden_act": "gelu", "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
    "vocab_size": 32064, "tie_word_embeddings": False,
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064},
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3", "vision_config": VISION, "boi_token_index": 255999, "eoi_token_index": 256000,
    "image_token_index": 262144, "mm_tokens_per_image": 256,
    "text_config": {
        "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
}  # fmt: skip
QWEN = {
    "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}, "hidden_act": "silu", "hidden_size": 3584,
    "intermediate_size": 18944, "max_position_embeddings": 128000, "max_window_layers": 28, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "sliding_window": 32768,
    "use_sliding_window": False, "tie_word_embeddings": False, "vocab_size": 152064, "vision_token_id": 151654,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}  # fmt: skip


def test_what_a_published_config_leaves_out_is_the_default_of_its_class():
    llava = read_config(LLAVA)
    assert (llava.vocab, llava.width, llava.length, len(llava.layers)) == (32064, 4096, 4096, 32)
    assert (llava.layers[0].attention.kv_heads, llava.layers[0].mlp.hidden) == (32, 11008)
    assert not llava.head.tied
    gemma = read_config(GEMMA3)
    assert (gemma.vocab, gemma.length, gemma.head.tied) == (262208, 131072, True)
    first, full = gemma.layers[0].attention, gemma.layers[5].attention
    assert (first.window, full.window, first.scale) == (1024, None, 168**-0.5)
    assert str(first.pe) == "rope(base=10000.0, pairing='half')"
    assert str(full.pe) == "rope(base=1000000.0, pairing='half', extend='linear(factor=8.0)')"


def test_sections_of_positions_are_alike_in_a_text():
    qwen = read_config(QWEN)
    assert {str(layer.attention.pe) for layer in qwen.layers} == {"rope(base=1000000.0, pairing='half')"}
    said = {"rope_theta": 5e5, "rope_type": "default", "mrope_section": [16, 24, 24]}
    nested = {"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text", "rope_parameters": said}}
    result = read_config(nested)
    assert str(result.layers[0].attention.pe) == "rope(base=500000.0, pairing='half')"
    assert (result.width, len(result.layers), result.layers[0].attention.kv_heads) == (8192, 80, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "head"), [("model.language_model.", "lm_head."), ("language_model.model.", "language_model.lm_head.")]
)
def test_a_tower_is_the_text_model(text, head, tmp_path, capsys):
    folder = write(tmp_path / "a")
    alone, _ = load(folder)
    new = {"model": text.removesuffix("."), "lm_head": head.removesuffix(".")}
    values = {".".join((new[name.split(".")[0]], *name.split(".")[1:])): item for name, item in tensors(folder).items()}
    seen = {f"vision_tower.layers.{n}.weight": np.full((2, 3), np.nan, np.float32) for n in range(21)}
    (folder / "config.json").write_text(json.dumps({**LLAVA, "text_config": CONFIGS["llama"]}))
    rewrite(folder, {**values, **seen})
    model, source = load(folder)
    np.testing.assert_array_equal(run(model, IDS), run(alone, IDS))
    assert {*source.carried} == {*seen}
    save(model, tmp_path / "b", source)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    main([str(folder)])
    assert "carried: 21 tensors of vision_tower" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"config\.json of llava cannot hold an extension, got yarn"):
        save(load(folder, extend="yarn(factor=4)")[0], tmp_path / "c", source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"model_type": "ministral3"}, "model_type 'ministral3' is not supported: it has queries that are scaled by"),
        ({"model_type": "lama"}, "unknown model_type 'lama'; did you mean 'llama'"),
        ({"model_type": "llama", "window": 3}, "config.json: text_config: every key must be read or be known to"),
        ([], "config.json: text_config must be an object, got []"),
    ],
)
def test_text_models_that_are_refused(text, message):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        read_config({**LLAVA, "text_config": text})
    assert message in str(refusal.value)
