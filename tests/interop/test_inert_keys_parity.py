"""Every key that is said to change nothing is changed, and the outputs of transformers stay as they are."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_interop_parity import ELSEWHERE
from test_interop_parity import maker as text_maker
from test_trunks_parity import TOWERS
from test_vision_parity import maker as picture_maker
from test_vision_parity import theirs

from pejax.interop import towers
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.config import INERT, NEUTRAL, Config
from pejax.interop.model_config import architecture_of
from tests.support.hub_folders import CONFIGS
from tests.support.hub_pictures import PICTURES, TEXT
from tests.support.peers import peer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

MULTIMODAL = {name: {"model_type": name.split(",")[0], **keys} for name, keys in TOWERS.items()}
ALL = {**MULTIMODAL, **PICTURES, **CONFIGS}
NAMES = {config["model_type"]: name for name, config in reversed(ALL.items())}
"""The first config of every architecture."""
SAID_OTHERWISE = {
    "model_type": "it names the class",
    "_attn_implementation": "a name of the same function",
    "attn_implementation": "a name of the same function",
    "dtype": "the type of the tensors, which the file says",
    "torch_dtype": "the type of the tensors, which the file says",
    "return_dict": "the container of the outputs",
    "mask_ratio": "the share of patches that transformers hides at random, always; here all are seen",
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
    "vision_feature_select_strategy": "full", "projector_hidden_act": "relu", "decoder_hidden_size": 20,
    "spatial_pool_mode": "max", "density_router_hidden_size": 8, "mask_token_id": 6, "vocab_list": ["a"],
}  # fmt: skip
"""Values to change keys to, where their type alone does not say one."""
FOREIGN = {
    "unsloth_version": "2026.1",
    "vocab_size_padded": 128,
    "sentence_transformers": {"version": "5"},
    "num_choices": 2,
}
"""Keys of tools, of which `pejax.interop.fields` says that they change nothing."""


def changed(path: str, before: object) -> Any:
    """Return another value of a key than the one of transformers."""
    key = path.rpartition(".")[2]
    if key in OTHER:
        return OTHER[key]
    if isinstance(before, bool):
        return not before
    if isinstance(before, int | float):
        return before + 1 if isinstance(before, int) else before + 0.25
    if isinstance(before, list | tuple):
        return list(before)[::-1]
    return "other" if isinstance(before, str) else True


def put(keys: dict[str, Any], path: str, value: Any) -> None:
    """Set a key; a path leads into an object."""
    outer, dot, key = path.partition(".")
    inner = keys.get(outer, {} if outer.endswith("_config") else None)
    if dot and isinstance(inner, dict):
        keys[outer] = {**inner}
        put(keys[outer], key, value)
    else:
        keys[path] = value


class Peer:
    """A random model of transformers, whose config can be changed while its tensors stay."""

    def __init__(self, name: str) -> None:
        self.name, self.keys = name, ALL[name]
        transformers = peer("transformers")
        self.kind = transformers.AutoModelForImageTextToText
        if name not in MULTIMODAL:
            self.kind = (text_maker if name in CONFIGS else picture_maker)(name)
        self.config = transformers.CONFIG_MAPPING[self.keys["model_type"]]
        self.model = self.of({})
        torch = peer("torch")
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_(mean=0.3, std=0.2)

    def of(self, keys: dict[str, Any]):
        """Return a model with other values of keys."""
        config_keys = {key: value for key, value in self.keys.items() if key != "model_type"}
        for path, value in keys.items():
            put(config_keys, path, value)
        config = self.config.from_dict(config_keys)
        config._attn_implementation = "eager"
        kind = self.kind
        create = kind.from_config if kind.__name__.startswith("Auto") else kind._from_config
        return create(config, attn_implementation="eager").float().eval()

    def output(self, model) -> np.ndarray:
        """Return the logits or states of a model with our tensors."""
        torch = peer("torch")
        if model is not self.model:
            reference, shared = model.state_dict(), self.model.state_dict()
            fitting = {
                key: value for key, value in shared.items() if key in reference and reference[key].shape == value.shape
            }
            model.load_state_dict({**reference, **fitting})
        if self.name in PICTURES:
            draw = np.random.default_rng(1).normal(size=(2, 24, 24, 3)).astype(np.float32)
            return theirs(model, draw)
        ids = torch.as_tensor(np.random.default_rng(1).integers(0, 97, (2, 12)))
        pair = {"decoder_input_ids": ids.flip(1)} if model.config.is_encoder_decoder and "t5" in self.name else {}
        with torch.no_grad():
            result = model(ids, **pair)
            return (result.logits if "logits" in result else result.last_hidden_state).numpy()

    def default(self, path: str) -> object:
        """Return the value that transformers has for a key."""
        outer, dot, key = path.partition(".")
        result = self.model.config
        if dot and hasattr(result, outer):
            return getattr(getattr(result, outer), key, None)
        return getattr(result, path, None)


def objects(c: Config) -> Iterator[Config]:
    """Yield a config and the objects in it."""
    yield c
    for part in c.parts:
        yield from objects(part)


def listed(keys: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the inert keys of a config, and the neutral values of others, by their paths."""
    entry, c = architecture_of(keys), Config(keys)
    entry.read(c)
    c.inert, c.neutral = entry.inert, entry.neutral
    result, neutral = set[str](), dict[str, Any]()
    for item in objects(c):
        is_config = not item.path or item.path.endswith("_config.")
        inert = {*item.inert, *(INERT if is_config else ())} - item.keys_read - {*SAID_OTHERWISE}
        unread = {**(NEUTRAL if is_config else {}), **item.neutral}
        result |= {item.path + key for key in inert}
        neutral |= {item.path + key: value for key, value in unread.items() if key not in item.keys_read}
    return sorted(result), neutral


def not_inert(differs: Callable[[list[str]], bool], keys: list[str]) -> list[str]:
    """Return the keys that change something, by halving; keys that do so only together are returned together."""
    if not keys or not differs(keys):
        return []
    if len(keys) == 1:
        return keys
    half = len(keys) // 2
    return [*not_inert(differs, keys[:half]), *not_inert(differs, keys[half:])] or keys


def guilty(model_type: str) -> list[str]:
    """Return the keys of an architecture that are said to change nothing, and do."""
    reference = Peer(NAMES[model_type])
    expected = reference.output(reference.model)
    assert np.std(expected) > 0.01
    inert, neutral = listed(reference.keys)
    values = neutral | {path: changed(path, reference.default(path)) for path in inert} | FOREIGN
    if "vision_config" in inert:
        values["vision_config"] = {**reference.keys["vision_config"], "intermediate_size": 40}

    def differs(keys: list[str]) -> bool:
        try:
            result = reference.output(reference.of({key: values[key] for key in keys}))
        except Exception as error:  # a config that transformers refuses is no inert one
            print(f"{model_type}: {keys}: {str(error)[:200]}")
            return True
        if result.shape != expected.shape:
            return True
        difference = np.max(np.abs(result - expected))
        print(f"{model_type}: {keys}: a difference of {difference}")
        return difference > 1e-4 * np.std(expected)  # sums in another order are 1.2e-5 off on some processors

    return not_inert(differs, list(values))


def test_every_architecture_is_checked():
    alone = {*ARCHITECTURES} - {*ELSEWHERE}  # which no class of transformers reads alone
    assert {*NAMES} == alone | {*towers.TOWERS}


@pytest.mark.parametrize("model_type", NAMES)
def test_inert_keys_change_nothing(model_type):
    assert guilty(model_type) == []


@pytest.mark.parametrize(
    ("model_type", "text", "key"),
    [
        ("llama", "llama", "rms_norm_eps"),
        ("roberta", "roberta", "pad_token_id"),
        ("gpt2", "gpt2", "is_causal"),
        ("llava", "llama", "rms_norm_eps"),
    ],
)
def test_a_key_that_is_not_inert_is_found(model_type, text, key, monkeypatch):
    entry = ARCHITECTURES[text]
    read = lambda c: (entry.read(c), c.keys_read.discard(key))[0]
    monkeypatch.setitem(ARCHITECTURES, text, entry._replace(read=read, inert=(*entry.inert, key)))
    assert guilty(model_type) == [key if model_type == text else f"text_config.{key}"]
