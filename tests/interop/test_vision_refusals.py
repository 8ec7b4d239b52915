"""What `load` refuses of vision transformers, each in one line that names the thing, the rule and the value."""

import functools
import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from pejax.interop.source_files import read_folder
from pejax.models import vit
from tests.support.hub_folders import write
from tests.support.hub_pictures import PICTURES


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return functools.cache(lambda name: write(tmp_path_factory.mktemp("models") / name, name))


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("vit", {"image_size": 28}, "position_embeddings must have shape (1, 50, 32) per config.json, got (1, 37, 32)"),
        ("vit", {"patch_size": 8}, "must have shape (32, 3, 8, 8) per config.json, got (32, 3, 4, 4)"),
        ("vit", {"num_channels": 1}, "must have shape (32, 1, 4, 4) per config.json, got (32, 3, 4, 4)"),
        ("vit", {"patch_size": [4, 2]}, "config.json: patch_size must be one number for both sides, got [4, 2]"),
        ("vit", {"image_size": 2}, "config.json: image_size must be at least patch_size=4, got 2"),
        ("vit", {"image_size": [24, 0]}, "image_size must be one or two integers of at least 1, got [24, 0]"),
        ("vit", {"num_hidden_layers": 3}, "must hold the tensor vit.encoder.layer.2."),
        ("vit", {"num_hidden_layers": 1}, "has a tensor without a part in the model: vit.encoder.layer.1."),
        ("vit", {"hidden_act": "xielu"}, "config.json: hidden_act must be one of gelu,"),
        ("vit", {"window_size": 7}, "must be read or be known to change nothing, got window_size = 7"),
        ("vit, classes", {"id2label": {"0": "a"}}, "classifier.bias must have shape (1,) per config.json, got (5,)"),
        ("vit, classes", {"id2label": {}}, "has an unknown tensor: classifier.bias (and 1 more)"),
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


TIMM = {"architecture": "vit_small_patch16_rope_mixed_224", "num_features": 384, "global_pool": "token"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"architecture": "resnet50"}, "or the sizes be given by config=vit(...), got 'resnet50'"),
        ({"num_features": 192}, "config.json: num_features must be 384, got 192"),
        ({"global_pool": "avg"}, "config.json: global_pool must be 'token', got 'avg'"),
        ({"model_args": {"depth": 3}}, "or the sizes be given by load(path, config=vit(...)), got {'depth': 3}"),
        ({"pretrained_cfg": {"input_size": [3, 224]}}, "input_size must be channels, height and width, got [3, 224]"),
        ({"num_classes": "ten"}, "config.json: num_classes must be an integer of at least 0, got 'ten'"),
        ({"window_size": 7}, "must be read or be known to change nothing, got window_size = 7"),
        ({}, "must hold the tensor cls_token, got none"),
    ],
)
def test_a_config_of_timm_that_does_not_fit(keys, message, tmp_path):
    save_file({"none.weight": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**TIMM, **keys}))
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        read_folder(tmp_path)
    assert "\n" not in str(refusal.value)


def test_sizes_where_config_json_has_them(folders):
    with pytest.raises(ValueError, match=r"config must be None where config.json has the sizes, got ViTConfig"):
        read_folder(folders("vit"), sizes=vit())
