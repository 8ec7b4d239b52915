"""Keys that a config.json leaves out have the values that the class of transformers gives them."""

import copy

import pytest

from pejax.interop.model_config import read_config
from tests.support.hub_folders import CONFIGS
from tests.support.hub_pictures import PICTURES
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

LEFT_OUT = ("t5, gated", "umt5, not scaled", "exaone4, no windows", "t5gemma", "t5gemma, untied")
"""Untied T5s, which transformers unties by the file alone, and configs that it completes with what does not fit."""
ALL = {name: config for name, config in {**CONFIGS, **PICTURES}.items() if name not in LEFT_OUT}


def whole(config: dict) -> dict:
    """Return the config with the values of all keys of its class, but for names of classes, which the file decides."""
    mapping = peer("transformers").CONFIG_MAPPING
    result = mapping[config["model_type"]].from_dict(copy.deepcopy(config)).to_dict()
    labels = {key: config.get(key) for key in ("id2label", "label2id")}
    return {**result, **labels, "model_type": config["model_type"]}


@pytest.mark.parametrize("name", ALL)
def test_a_key_that_is_left_out_has_the_default_of_its_class(name):
    config = ALL[name]
    assert read_config(config) == read_config(whole(config), ignore=("*",))
    reasons: list[str] = []
    for left_out in config.keys() - {"model_type", "architectures"}:
        keys = {key: value for key, value in config.items() if key != left_out}
        try:
            result = read_config(keys)
        except ValueError as refusal:
            reasons.append(str(refusal))
            continue
        assert result == read_config(whole(keys), ignore=("*",)), left_out
    assert all("must" in reason for reason in reasons)


@pytest.mark.parametrize("model_type", ["qwen2_vl_text", "qwen2_5_vl_text"])
def test_a_text_tower_alone_has_the_defaults_of_its_class(model_type):
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    sizes = {key: CONFIGS["qwen2"][key] for key in kept}
    for windows in (False, True):
        config = {**sizes, "model_type": model_type, "num_attention_heads": 8, "use_sliding_window": windows}
        assert read_config(config) == read_config(whole(config), ignore=("*",))
