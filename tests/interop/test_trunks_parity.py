"""Trunks, encoders of pairs and text towers as transformers saves them, against transformers."""

import re
from pathlib import Path

import numpy as np
import pytest

from pejax.interop import load, save
from tests.support.hub_folders import CONFIGS, SIZES, registering, rewrite, run, tensors
from tests.support.hub_pictures import SIZES as VISION
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
IDS = np.random.default_rng(1).integers(2, 80, (2, 30))
SMALL = {key: value for key, value in SIZES.items() if key != "rope_theta"}
SECTIONS = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 1, 2]}
CLIP, SIGLIP = ({"model_type": f"{name}_vision_model", **VISION} for name in ("clip", "siglip"))
LLAMA, QWEN = {"model_type": "llama", **SIZES}, {"model_type": "qwen2", **SIZES}
OF_QWEN = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48,
           "out_hidden_size": 32, "patch_size": 4}  # fmt: skip
TOWERS = {
    "llava": {"text_config": LLAMA, "vision_config": CLIP},
    "llava, qwen2": {"text_config": {**QWEN, "tie_word_embeddings": True}, "vision_config": CLIP},
    "gemma3": {"text_config": {**CONFIGS["gemma3_text"]}, "mm_tokens_per_image": 4,
               "vision_config": {"model_type": "siglip_vision_model", **VISION}},
    "mistral3": {"text_config": {"model_type": "mistral", **SIZES, "sliding_window": None},
                 "vision_config": {"model_type": "pixtral", **VISION}, "tie_word_embeddings": False},
    "qwen2_5_vl": {"text_config": {"model_type": "qwen2_5_vl_text", **SMALL, "rope_parameters": SECTIONS},
                   "vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48,
                                     "out_hidden_size": 32, "patch_size": 4}},
    "qwen2_vl": {"text_config": {"model_type": "qwen2_vl_text", **SMALL, "rope_parameters": SECTIONS},
                 "vision_config": OF_QWEN},
    "qwen3_vl": {"text_config": {"model_type": "qwen3_vl_text", **SMALL, "head_dim": 8, "rope_parameters": SECTIONS},
                 "vision_config": {**OF_QWEN, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}},
    "idefics3": {"text_config": LLAMA, "vision_config": VISION},
    "smolvlm": {"text_config": {**LLAMA, "tie_word_embeddings": True}, "vision_config": VISION,
                "tie_word_embeddings": True},
    "internvl": {"text_config": QWEN, "vision_config": {**VISION, "image_size": [24, 24], "patch_size": [4, 4]}},
    "internvl, untied": {"text_config": QWEN, "tie_word_embeddings": False,
                         "vision_config": {**VISION, "image_size": [24, 24], "patch_size": [4, 4]}},
    "llava_next": {"text_config": LLAMA, "vision_config": CLIP},
    "llava_next_video": {"text_config": LLAMA, "vision_config": CLIP},
    "llava_onevision": {"text_config": QWEN, "vision_config": SIGLIP},
    "vipllava": {"text_config": LLAMA, "vision_config": CLIP},
    "granite_docling": {"text_config": {**SIZES, "embedding_multiplier": 3.0, "logits_scaling": 0.5,
                                        "residual_multiplier": 0.7, "attention_multiplier": 0.4},
                        "vision_config": {**VISION, "out_hidden_size": 32}},
}  # fmt: skip
"""Keys of models of images and text, by name; before a comma is the type of the whole model."""


def drawn(model):
    """Return a model of transformers with random parameters."""
    torch = peer("torch")
    torch.manual_seed(0)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            is_factor = path.endswith("weight") and (parameter.ndim == 1 or "_norm" in path)
            parameter.normal_(std=0.1 if is_factor else 0.2)
            if is_factor and "gemma" not in model.config.model_type:
                parameter += 1.0
    return model.eval()


def made(name):
    """Return a model of images and text of transformers."""
    transformers = peer("transformers")
    config = transformers.AutoConfig.for_model(name.split(",")[0], **TOWERS[name], image_token_id=90)
    return transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager")


def expected(model):
    """Return the logits or states of transformers."""
    torch = peer("torch")
    with torch.no_grad():
        output = model(torch.as_tensor(IDS))
    return (output.logits if "logits" in output else output.last_hidden_state).numpy()


def check(folder, theirs, tmp_path):
    """Compare a folder with a model of transformers, and what is saved of it with the folder."""
    model, source = load(folder)
    difference = np.max(np.abs(run(model, IDS) - expected(theirs)))
    print(f"largest difference: {source.name} {type(theirs).__name__}: {difference:.1e}")
    assert difference < 1e-4
    save(model, tmp_path / "saved", source)
    assert {name: value.tobytes() for name, value in tensors(folder).items()} == {
        name: value.tobytes() for name, value in tensors(tmp_path / "saved").items()
    }
    return model


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "mistral",
        "qwen3",
        "gemma",
        "gpt2",
        "opt",
        "phi",
        "cohere2",
        "bert",
        "roberta",
        "xlm-roberta",
        "distilbert",
    ],
)
def test_a_trunk_has_the_states_of_transformers(name, tmp_path):
    transformers = peer("transformers")
    config = dict(CONFIGS[name])
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    theirs = drawn(transformers.AutoModel.from_config(config, attn_implementation="eager"))
    theirs.save_pretrained(tmp_path / "a")
    assert check(tmp_path / "a", theirs, tmp_path).head is None


@pytest.mark.parametrize(("name", "kind"), [("t5", "T5"), ("t5, gated", "T5"), ("mt5", "MT5")])
def test_an_encoder_has_the_states_of_transformers(name, kind, tmp_path):
    transformers = peer("transformers")
    config = dict(CONFIGS[name])
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    theirs = drawn(getattr(transformers, f"{kind}EncoderModel")(config))
    theirs.save_pretrained(tmp_path / "a")
    check(tmp_path / "a", theirs, tmp_path)


def test_the_architecture_of_the_guide_has_the_logits_of_transformers(tmp_path):
    transformers = peer("transformers")
    guide = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
    block = next(block for block in guide.split("```python") if "def persimmon" in block)
    sizes = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    theirs = drawn(transformers.AutoModelForCausalLM.from_config(transformers.PersimmonConfig(**sizes)))
    theirs.save_pretrained(tmp_path / "a")
    with registering():
        exec(block.partition("\nconfig = {")[0], {})
        check(tmp_path / "a", theirs, tmp_path)


@pytest.mark.parametrize("name", TOWERS)
def test_a_text_tower_has_the_logits_of_transformers(name, tmp_path):
    theirs = drawn(made(name))
    theirs.save_pretrained(tmp_path / "a")
    check(tmp_path / "a", theirs, tmp_path)
    theirs.model.save_pretrained(tmp_path / "trunk")
    (tmp_path / "saved").rename(tmp_path / "whole")
    assert check(tmp_path / "trunk", theirs.model, tmp_path).head is None


@pytest.mark.parametrize(
    ("text", "head", "other"),
    [("model.language_model.", "lm_head.", "model."), ("language_model.model.", "language_model.lm_head.", "")],
)
def test_names_of_new_and_old_files_load(text, head, other, tmp_path):
    theirs = drawn(made("llava"))
    theirs.save_pretrained(tmp_path / "a")
    names = {
        r"^(model\.language_model|language_model\.model)\.": text,
        r"^(language_model\.)?lm_head\.": head,
        r"^(model\.)?(?=vision_tower|multi_modal_projector)": other,
    }
    values = tensors(tmp_path / "a")
    for pattern, beginning in names.items():
        values = {re.sub(pattern, beginning, name): value for name, value in values.items()}
    check(rewrite(tmp_path / "a", values), theirs, tmp_path)
