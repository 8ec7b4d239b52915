"""A config.json of which every key must be read, or be known to change nothing."""

import fnmatch
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from pejax._calls.kinds import shown
from pejax.interop.fields import DANGEROUS, is_foreign

INERT = frozenset({
    *("architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "auto_map"),
    *("use_cache", "is_decoder", "is_encoder_decoder", "return_dict", "output_attentions"),
    *("output_hidden_states", "chunk_size_feed_forward", "problem_type", "id2label", "label2id"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "decoder_start_token_id"),
    *("initializer_range", "attention_dropout", "hidden_dropout", "classifier_dropout", "resid_pdrop", "embd_pdrop"),
    *("attn_pdrop", "dropout", "task_specific_params", "transformers.js_config", "_attn_implementation"),
    *("gradient_checkpointing", "tokenizer_class", "pretraining_tp", "num_labels", "export_model_type", "output_past"),
    *("_attn_implementation_autoset", "_commit_hash", "torchscript", "use_bfloat16", "tf_legacy_loss", "prefix"),
    *("tie_encoder_decoder", "cross_attention_hidden_size", "finetuning_task"),
    *("attn_implementation", "use_flash_attention_2", "_flash_attn_2_enabled"),
    # settings of generation, in files of `transformers` before 4.26
    *("bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping", "length_penalty"),
    *("encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id", "max_length"),
    *("forced_eos_token_id", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "output_scores"),
    *("num_return_sequences", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "temperature"),
    *("suppress_tokens", "top_k", "top_p", "typical_p"),
})  # fmt: skip
"""Keys without effect on a trained model, at any value."""

NEUTRAL: dict[str, Any] = {
    "pruned_heads": {}, "is_causal": True, "use_bidirectional_attention": False, "add_cross_attention": False,
}  # fmt: skip
"""Keys without effect at this value alone, where the architecture does not read them."""

LARGEST = 10_000
"""Largest number of layers or experts that is read."""

COUNTED = ("num_hidden_layers", "num_decoder_layers", "num_layers", "n_layer", "n_layers", "num_experts",
           "num_local_experts")  # fmt: skip
"""Keys with numbers of layers and experts, whose tensors are listed one by one: more than `LARGEST` are an error."""

REFUSED = {
    "quantization_config": "quantized weights are not read",
    "num_experts": "this architecture has no experts",
    "num_local_experts": "this architecture has no experts",
    "n_routed_experts": "this architecture has no experts",
    "kv_lora_rank": "attention with latent keys and values (MLA) is not computed",
}
"""Keys of unsupported features, and the reason."""

ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "silu": "silu", "swish": "silu", "relu": "relu", "relu2": "relu2", "quick_gelu": "quick_gelu",
}  # fmt: skip
"""Activations: the names of config.json, and ours."""

REQUIRED: Any = object()
"""Marker in place of a default: the key must be there."""


class Config:
    """A config that records which keys were read. A key whose value is null counts as absent.

    Args:
        keys: the content of config.json, or of an object in it.
        where: name of the config in errors.
        path: path of the object in config.json, with a dot behind every key. "" = config.json itself.
        inert: keys that change nothing at any value.
        neutral: keys that change nothing at the value given here.
    """

    def __init__(
        self,
        keys: Mapping[str, Any],
        where: str = "config.json",
        path: str = "",
        inert: str | Sequence[str] = (),
        neutral: Mapping[str, Any] = {},
    ) -> None:
        self.keys, self.where, self.path = dict(keys), where, path
        self.inert, self.neutral = read_names("inert", inert), neutral
        self.keys_read, self.parts = set[str](), list[Config]()

    def __call__(self, key: str, default: Any = REQUIRED) -> Any:
        """Return the value of a key, or the default where it is absent.

        Raises:
            ValueError: the key is absent and has no default.
        """
        self.keys_read.add(key)
        value = self.keys.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ValueError(f"{self.where} must have the key {key}, got none")
        return default

    def defaults(self, **defaults: Any) -> None:
        """Add default values of keys that are missing; a key whose value is null keeps it, and counts as absent."""
        self.keys = {**defaults, **self.keys}

    def part(
        self, key: str, keys: Any = None, *, inert: str | Sequence[str] = (), neutral: Mapping[str, Any] = {}
    ) -> "Config":
        """Return an object in the config as a `Config` of its own; `close` checks its keys, too.

        Args:
            key: key of the object; where `keys` is given, it may be a path: `rope_parameters.full_attention`.
            keys: content of the object. None = the value of the key, empty where it is absent.
            inert: keys in it that change nothing at any value.
            neutral: keys in it that change nothing at the value given here.

        Raises:
            ValueError: content that is not an object.
        """
        content = self.object(key) if keys is None else keys
        if not isinstance(content, Mapping):
            raise ValueError(f"{self.where}: {key} must be an object, got {content!r}")
        self.parts.append(Config(content, f"{self.where}: {key}", f"{self.path}{key}.", inert, neutral))
        return self.parts[-1]

    @overload
    def count(self, key: str, default: int = REQUIRED, least: int = 1) -> int: ...

    @overload
    def count(self, key: str, default: None, least: int = 1) -> int | None: ...

    def count(self, key: str, default: Any = REQUIRED, least: int = 1) -> int | None:
        """Return an integer of at least `least`, or None where the key is absent and that is the default."""
        value = self(key, default)
        if value is None:
            return None
        number = value if not isinstance(value, float) or not value.is_integer() else int(value)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{self.where}: {key} must be an integer of at least {least}, got {value!r}")
        largest = LARGEST if key in COUNTED else 2**53
        if number > largest:
            raise ValueError(f"{self.where}: {key} must be at most {largest}, got {value!r}"[:400])
        return number

    @overload
    def number(self, key: str, default: float = REQUIRED) -> float: ...

    @overload
    def number(self, key: str, default: None) -> float | None: ...

    def number(self, key: str, default: Any = REQUIRED) -> float | None:
        """Return a number, or None where the key is absent and that is the default."""
        value = self(key, default)
        if value is None:
            return None
        if not is_number(value):
            raise ValueError(f"{self.where}: {key} must be a number, got {value!r}"[:400])
        return float(value)

    @overload
    def positive(self, key: str, default: float = REQUIRED) -> float: ...

    @overload
    def positive(self, key: str, default: None) -> float | None: ...

    def positive(self, key: str, default: Any = REQUIRED) -> float | None:
        """Return a number above 0, or None where the key is absent and that is the default."""
        value = self.number(key, default)
        if value is not None and value <= 0:
            raise ValueError(f"{self.where}: {key} must be a number above 0, got {self.keys.get(key)!r}")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return the value of a key that is a list of numbers."""
        values = self(key)
        if not isinstance(values, list | tuple) or not all(map(is_number, values)):
            raise ValueError(f"{self.where}: {key} must be a list of numbers, got {values!r}"[:400])
        return tuple(map(float, values))

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        """Return the value of a key that is true or false."""
        value = self(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {key} must be true or false, got {value!r}")
        return value

    def object(self, key: str) -> dict[str, Any]:
        """Return the value of a key that is an object, empty where the key is absent."""
        value = self(key, {})
        if not isinstance(value, dict):
            raise ValueError(f"{self.where}: {key} must be an object, got {value!r}")
        return value

    def activation(self, key: str, default: Any = REQUIRED) -> str:
        """Return our name (`ACTIVATIONS`) of the activation that a key names."""
        value = self(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ValueError(f"{self.where}: {key} must be one of {', '.join(ACTIVATIONS)}, got {value!r}")
        return ACTIVATIONS[value]

    def must(self, key: str, *allowed: Any) -> None:
        """Raise ValueError unless the value of a key is allowed; an absent key has the first allowed one."""
        value = self(key, allowed[0])
        if value not in allowed:
            raise ValueError(f"{self.where}: {key} must be {' or '.join(map(repr, allowed))}, got {value!r}")

    def close(
        self, inert: str | Sequence[str] = (), ignore: str | Sequence[str] = (), neutral: Mapping[str, Any] = {}
    ) -> None:
        """Raise ValueError for keys that nobody read, in this config and in its parts.

        Args:
            inert: keys that change nothing at any value, in addition to `INERT`.
            ignore: patterns of paths of keys that may be left unread at any value.
            neutral: keys that change nothing at the value given here, in addition to `NEUTRAL`.
        """
        self.inert, self.neutral = (*self.inert, *read_names("inert", inert)), {**self.neutral, **neutral}
        self._close(matches(read_names("ignore", ignore)))

    def _close(self, ignored: Callable[[str], bool]) -> None:
        """Check this config and its parts; `ignored` says whether the path of a key may be left unread."""
        for part in self.parts:
            part._close(ignored)
        neutral, foreign = {**NEUTRAL, **self.neutral}, self._foreign()
        unread = {key: value for key, value in self._unread().items() if key not in foreign}
        unread = {key: value for key, value in unread.items() if not ignored(self.path + key)}
        for key, value in unread.items():
            if key in REFUSED:
                reason = REFUSED[key]
                raise ValueError(f"{self.where}: {key} must be absent, because {reason}, got {str(value)[:80]}")
            if key in neutral and value != neutral[key]:
                rule = f"{key} must be {neutral[key]!r}, because it is not read"
                raise ValueError(f"{self.where}: {rule}, got {str(value)[:80]}{self._way_out([key])}")
        unread = {key: value for key, value in unread.items() if key not in neutral}
        if unread:
            entries = ", ".join(f"{key} = {str(value)[:40]}" for key, value in sorted(unread.items()))
            rule = "every key must be read or be known to change nothing"
            raise ValueError(f"{self.where}: {rule}, got {entries}{self._way_out(sorted(unread))}")

    def _unread(self) -> dict[str, Any]:
        """Return the keys that nobody read and that are not known to change nothing, with their values."""
        accepted = {*self.keys_read, *INERT, *self.inert}
        return {key: value for key, value in self.keys.items() if value is not None and key not in accepted}

    def _foreign(self) -> set[str]:
        """Return the keys, in this config alone, that transformers does not know and that have no rule here."""
        rules = {*REFUSED, *NEUTRAL, *self.neutral}
        return {key for key in self._unread() if key not in rules and is_foreign(self.keys, key)}

    def foreign_keys(self) -> list[str]:
        """Return the paths of keys, here and in the objects within, that other tools wrote and that change nothing."""
        own = [self.path + key for key in sorted(self._foreign())]
        return own + [path for part in self.parts for path in part.foreign_keys()]

    def _way_out(self, keys: Sequence[str]) -> str:
        """Return the end of an error: how to leave these keys unread, unless a name says that it matters."""
        paths = tuple(self.path + key for key in keys)
        if any(DANGEROUS.search(path.lower()) for path in paths):
            return ""
        return f"; ignore={paths} leaves {'them' if keys[1:] else 'it'} unread"


def read_names(argument: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names or patterns as a tuple: a string is one of them, not a sequence of letters.

    Args:
        argument: name of the argument, for the message.
        names: one, or several.

    Raises:
        TypeError: they are no strings.
    """
    strings = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(string, str) for string in strings):
        raise TypeError(f"{argument} must be a string or a tuple of strings, got {shown(names)}")
    return strings


def matches(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return the function that says whether a name matches one of the patterns, in which `*` stands for any text."""
    # Names may hold "[", which is no wildcard here.
    return lambda name: any(fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


def is_number(value: object) -> bool:
    """Whether a value is a finite number that a float can hold."""
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        ValueError: a file that cannot be read, is not JSON, or does not hold an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, RecursionError) as error:
        raise ValueError(f"{path} must be a file that can be read, got {_reason(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, got {_reason(error)}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(content).__name__}")
    return content


def _reason(error: Exception) -> str:
    """Return the text of an error in one line, without the path that the message already has."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())
