"""What `load` refuses of vision transformers, each in one line that names the thing, the rule and the value."""

import functools
import json
import re
import shutil

import pytest
from hub_folders import write
from hub_pictures import PICTURES

from pejax.interop.source import read_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return functools.cache(lambda name: write(tmp_path_factory.mktemp("models") / name, name))


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("vit", {"image_size": 28}, "position_embeddings must have shape (1, 50, 32) by config.json, got (1, 37, 32)"),
        ("vit", {"patch_size": 8}, "must have shape (32, 3, 8, 8) by config.json, got (32, 3, 4, 4)"),
        ("vit", {"num_channels": 1}, "must have shape (32, 1, 4, 4) by config.json, got (32, 3, 4, 4)"),
        ("vit", {"patch_size": [4, 2]}, "config.json: patch_size must be one number for both sides, got [4, 2]"),
        ("vit", {"image_size": 2}, "config.json: image_size must be at least patch_size=4, got 2"),
        ("vit", {"image_size": [24, 0]}, "image_size must be one or two integers of at least 1, got [24, 0]"),
        ("vit", {"num_hidden_layers": 3}, "must hold the tensor vit.encoder.layer.2."),
        ("vit", {"num_hidden_layers": 1}, "must hold no tensor that nothing reads, got vit.encoder.layer.1."),
        ("vit", {"hidden_act": "xielu"}, "config.json: hidden_act must be one of gelu,"),
        ("vit", {"window_size": 7}, "must be read or be known to change nothing, got window_size = 7"),
        ("vit, classes", {"id2label": {"0": "a"}}, "classifier.bias must have shape (1,) by config.json, got (5,)"),
        ("vit, classes", {"id2label": {}}, "must hold no tensor that nothing reads, got classifier.bias (and 1 more)"),
        ("siglip2_vision_model", {"num_patches": 35}, "num_patches must be the square of a number, got 35"),
        ("clip_vision_model", {"model_type": "clip"}, "must be read or be known to change nothing, got hidden_size"),
    ],
)
def test_a_config_that_does_not_fit(name, keys, message, folders, tmp_path):
    shutil.copy(folders(name) / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**PICTURES[name], **keys}))
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        read_folder(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_config_of_timm(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_rope_224", "num_classes": 9}))
    message = "which that of timm has not, got architecture='vit_base_patch16_rope_224'"
    with pytest.raises(ValueError, match=re.escape(message)):
        read_folder(tmp_path)
