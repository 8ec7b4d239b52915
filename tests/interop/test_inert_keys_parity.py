"""Every key that is said to change nothing is changed, and the outputs of transformers stay as they are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hub_folders import CONFIGS
from hub_pictures import PICTURES, TEXT
from peers import peer
from test_interop_parity import maker as text_maker
from test_vision_parity import maker as picture_maker
from test_vision_parity import theirs

from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.config import INERT, NEUTRAL, Config

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

NAMES = {config["model_type"]: name for name, config in reversed({**PICTURES, **CONFIGS}.items())}
"""The first config of every architecture."""
SAID_OTHERWISE = {
    "model_type": "it names the class",
    "_attn_implementation": "a name of the same function",
    "dtype": "the type of the tensors, which the file says",
    "torch_dtype": "the type of the tensors, which the file says",
    "return_dict": "the container of the outputs",
}
"""Inert keys that are not changed here, and why."""
OTHER: dict[str, Any] = {
    "problem_type": "regression", "id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2},
    "num_labels": 3, "chunk_size_feed_forward": 2, "auto_map": {"AutoModel": "other.Other"}, "sliding_window": 5,
    "classifier_dropout": 0.25, "tokenizer_class": "Other", "pad_token_id": 7, "bos_token_id": 5, "eos_token_id": 6,
    "sep_token_id": 8, "cls_token_id": 9, "decoder_start_token_id": 4, "pretraining_tp": 2,
    "text_config": {**TEXT, "hidden_act": "relu"}, "text_config_dict": {**TEXT, "hidden_act": "relu"},
    "out_features": None, "out_indices": None, "stage_names": None, "_out_features": ["stage1"], "_out_indices": [1],
    "attn_impl": "torch", "intermediate_size": 40, "summary_activation": "tanh", "cache_implementation": "static",
    "pooler_act": "relu", "pos_embed_shift": 0.5, "pos_embed_jitter": 1.5, "pos_embed_rescale": 1.5,
    "summary_type": "mean", "is_causal": False, "mem_len": 3, "reuse_len": 2, "classifier_pooling": "mean",
}  # fmt: skip
"""Values to change keys to, where their type alone does not say one."""


def changed(key: str, before: object) -> Any:
    """Return another value of a key than the one of transformers."""
    if key in OTHER:
        return OTHER[key]
    if isinstance(before, bool):
        return not before
    if isinstance(before, int | float):
        return before + 1 if isinstance(before, int) else before + 0.25
    return "other" if isinstance(before, str) else True


class Peer:
    """A random model of transformers, whose config can be changed while its tensors stay."""

    def __init__(self, name: str) -> None:
        self.name, self.keys = name, {**CONFIGS, **PICTURES}[name]
        self.kind = (text_maker if name in CONFIGS else picture_maker)(name)
        transformers = peer("transformers")
        self.config = transformers.CONFIG_MAPPING[self.keys["model_type"]]
        self.model = self.of({})
        torch = peer("torch")
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_(mean=0.3, std=0.2)

    def of(self, keys: dict[str, Any]):
        """Return a model with other values of keys; a path leads into an object."""
        whole = {key: value for key, value in self.keys.items() if key != "model_type"}
        for path, value in keys.items():
            outer, dot, key = path.partition(".")
            if dot and isinstance(whole.get(outer, {} if outer.endswith("_config") else None), dict):
                whole[outer] = {**whole.get(outer, {}), key: value}
            else:
                whole[path] = value
        config = self.config.from_dict(whole)
        config._attn_implementation = "eager"
        kind = self.kind
        create = kind.from_config if kind.__name__.startswith("Auto") else kind._from_config
        return create(config, attn_implementation="eager").float().eval()

    def output(self, model) -> np.ndarray:
        """Return the logits or states of a model with our tensors."""
        torch = peer("torch")
        if model is not self.model:
            own, shared = model.state_dict(), self.model.state_dict()
            fitting = {key: value for key, value in shared.items() if key in own and own[key].shape == value.shape}
            model.load_state_dict({**own, **fitting})
        if self.name in PICTURES:
            draw = np.random.default_rng(1).normal(size=(2, 24, 24, 3)).astype(np.float32)
            return theirs(model, draw)
        ids = torch.as_tensor(np.random.default_rng(1).integers(0, 97, (2, 12)))
        pair = {"decoder_input_ids": ids.flip(1)} if model.config.is_encoder_decoder and "t5" in self.name else {}
        with torch.no_grad():
            found = model(ids, **pair)
            return (found.logits if "logits" in found else found.last_hidden_state).numpy()

    def default(self, path: str) -> object:
        """Return the value that transformers has for a key."""
        outer, dot, key = path.partition(".")
        found = self.model.config
        if dot and hasattr(found, outer):
            return getattr(getattr(found, outer), key, None)
        return getattr(found, path, None)


def listed(model_type: str, keys: dict[str, Any], inert: tuple[str, ...] = ()) -> tuple[list[str], dict[str, Any]]:
    """Return the inert keys of an architecture, and the neutral values of others; `inert` are further keys."""
    entry, c = ARCHITECTURES[model_type], Config(keys)
    entry.read(c)
    found = {*INERT, *entry.inert, *inert} - c.read - {*SAID_OTHERWISE}
    of_part = lambda part: {*part.inert, *(INERT if part.path == "vision_config." else ())} - {*SAID_OTHERWISE}
    nested = {part.path + key for part in c.parts for key in of_part(part) - part.read}
    neutral = {key: value for key, value in {**NEUTRAL, **entry.neutral}.items() if key not in c.read}
    return sorted(found | nested), neutral


def not_inert(differs: Callable[[list[str]], bool], keys: list[str]) -> list[str]:
    """Return the keys that change something, by halving; keys that do so only together are returned together."""
    if not keys or not differs(keys):
        return []
    if len(keys) == 1:
        return keys
    half = len(keys) // 2
    return [*not_inert(differs, keys[:half]), *not_inert(differs, keys[half:])] or keys


def guilty(model_type: str, inert: tuple[str, ...] = ()) -> list[str]:
    """Return the keys of an architecture that are said to change nothing, and do."""
    own = Peer(NAMES[model_type])
    expected = own.output(own.model)
    assert np.std(expected) > 0.01
    inert_keys, neutral = listed(model_type, own.keys, inert)
    values = neutral | {key: changed(key.removeprefix("vision_config."), own.default(key)) for key in inert_keys}

    def differs(keys: list[str]) -> bool:
        try:
            found = own.output(own.of({key: values[key] for key in keys}))
        except Exception as error:  # a config that transformers refuses is no inert one
            print(f"{model_type}: {keys}: {str(error)[:200]}")
            return True
        if found.shape != expected.shape:
            return True
        difference = np.max(np.abs(found - expected))
        print(f"{model_type}: {keys}: a difference of {difference}")
        return difference > 1e-5 * np.std(expected)

    return not_inert(differs, list(values))


def test_every_architecture_is_checked():
    assert {*NAMES} == {*ARCHITECTURES} - {"qwen2_5_vl_text"}  # a Qwen2, which no class of transformers reads alone


@pytest.mark.parametrize("model_type", NAMES)
def test_inert_keys_change_nothing(model_type):
    assert guilty(model_type) == []


@pytest.mark.parametrize(
    ("model_type", "key"), [("llama", "rms_norm_eps"), ("roberta", "pad_token_id"), ("gpt2", "is_causal")]
)
def test_a_key_that_is_not_inert_is_found(model_type, key, monkeypatch):
    entry = ARCHITECTURES[model_type]
    read = lambda c: (entry.read(c), c.read.discard(key))[0]
    monkeypatch.setitem(ARCHITECTURES, model_type, entry._replace(read=read, inert=(*entry.inert, key)))
    assert guilty(model_type) == [key]
