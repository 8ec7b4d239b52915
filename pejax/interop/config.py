"""A config.json of which every key must be read, or be known to change nothing."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INERT = frozenset({
    *("architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "auto_map"),
    *("use_cache", "is_decoder", "is_encoder_decoder", "add_cross_attention", "return_dict", "output_attentions"),
    *("output_hidden_states", "chunk_size_feed_forward", "problem_type", "id2label", "label2id"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "decoder_start_token_id"),
    *("initializer_range", "attention_dropout", "hidden_dropout", "classifier_dropout", "resid_pdrop", "embd_pdrop"),
    *("attn_pdrop", "dropout", "task_specific_params", "transformers.js_config", "_attn_implementation"),
    *("gradient_checkpointing", "tokenizer_class", "pretraining_tp"),
})  # fmt: skip
"""Keys without effect on a trained model."""

REFUSED = {
    "quantization_config": "quantized weights are not read",
    "num_experts": "this architecture has no experts",
    "num_local_experts": "this architecture has no experts",
    "n_routed_experts": "this architecture has no experts",
    "kv_lora_rank": "attention with latent keys and values (MLA) is not computed",
}
"""Keys of unsupported features, and the reason."""

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "silu": "silu", "swish": "silu", "relu": "relu", "relu2": "relu2", "quick_gelu": "quick_gelu",
}  # fmt: skip
"""Activations: the names of config.json, and ours."""

REQUIRED: Any = object()


class Config:
    """A config that records which keys were read. A key whose value is null counts as absent.

    Args:
        keys: the content of config.json, or of an object in it.
        where: name of the config in errors.
    """

    def __init__(self, keys: Mapping[str, Any], where: str = "config.json") -> None:
        self.keys, self.where, self.read = dict(keys), where, set[str]()

    def __call__(self, key: str, default: Any = REQUIRED) -> Any:
        """Return the value of a key, or the default where it is absent.

        Raises:
            ValueError: the key is absent and has no default.
        """
        self.read.add(key)
        value = self.keys.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ValueError(f"{self.where} must have the key {key}, got none")
        return default

    def defaults(self, **defaults: Any) -> None:
        """Add the values of keys that are absent from the config altogether."""
        self.keys = {**defaults, **self.keys}

    def count(self, key: str, default: Any = REQUIRED) -> int:
        """Return an integer of at least 1."""
        value = self(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{self.where}: {key} must be an integer of at least 1, got {value!r}")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """Return a number."""
        value = self(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{self.where}: {key} must be a number, got {value!r}")
        return float(value)

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        """Return true or false."""
        value = self(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {key} must be true or false, got {value!r}")
        return value

    def object(self, key: str) -> dict[str, Any]:
        """Return an object, empty where the key is absent."""
        value = self(key, {})
        if not isinstance(value, dict):
            raise ValueError(f"{self.where}: {key} must be an object, got {value!r}")
        return value

    def activation(self, key: str, default: Any = REQUIRED) -> str:
        """Return our name of an activation."""
        value = self(key, default)
        if value not in ACTIVATIONS:
            raise ValueError(f"{self.where}: {key} must be one of {', '.join(ACTIVATIONS)}, got {value!r}")
        return ACTIVATIONS[value]

    def must(self, key: str, *allowed: Any) -> None:
        """Raise ValueError for an unsupported value; the first allowed value is the default."""
        value = self(key, allowed[0])
        if value not in allowed:
            raise ValueError(f"{self.where}: {key} must be {' or '.join(map(repr, allowed))}, got {value!r}")

    def close(self, inert: Sequence[str] = ()) -> None:
        """Raise ValueError for keys that were not read; `inert` are further keys that change nothing."""
        unread = {key for key, value in self.keys.items() if value is not None} - self.read - INERT - {*inert}
        for key in (key for key in REFUSED if key in unread):
            value = str(self.keys[key])[:80]
            raise ValueError(f"{self.where}: {key} must be absent, because {REFUSED[key]}, got {value}")
        if unread:
            named = ", ".join(f"{key} = {str(self.keys[key])[:40]}" for key in sorted(unread))
            raise ValueError(f"{self.where}: every key must be read or be known to change nothing, got {named}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        ValueError: a file that cannot be read, is not JSON, or does not hold an object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError) as error:
        raise ValueError(f"{path} must be a file that can be read, got {_reason(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, got {_reason(error)}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(found).__name__}")
    return found


def _reason(error: Exception) -> str:
    """Return the text of an error in one line, without the path that the message already has."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())
