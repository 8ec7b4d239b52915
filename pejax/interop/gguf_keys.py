"""The metadata of a model in a GGUF file: sizes, windows and positions, in the words of config.json."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pejax.interop.config import LARGEST, REQUIRED, Config
from pejax.interop.gguf_file import GgufFile, read_values

ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS = (
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
)  # fmt: skip
"""Tensors of factors of the frequencies, which are settings of the encoding."""
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Scaling of all models of Llama 3.1 to 3.3, but for the factor."""
YARN = {"yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
"""Optional keys of YaRN, and those of config.json."""


class Keys:
    """The keys of a model, by their names without that of the architecture in front.

    Attributes:
        file: the file.
        family: its `general.architecture`, with which the keys begin.
        config: the keys by their full names; it records which were read.
        factors: the tensors of factors that were read.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file, self.family = file, file.keys["general.architecture"]
        of_model = (f"{self.family}.", "split.")  # other namespaces are those of the tokenizer and of tools
        keys = {key: value for key, value in file.keys.items() if key.startswith(of_model)}
        self.config, self.factors = Config(keys, str(file.path)), set[str]()
        for key in ("split.count", "split.no", "split.tensors.count"):
            self.config(key, None)

    def __call__(self, key: str, default: Any = REQUIRED) -> Any:
        """Return the value of a key; methods as those of `Config`."""
        return self.config(f"{self.family}.{key}", default)

    def count(self, key: str, default: Any = REQUIRED, least: int = 1) -> Any:
        """Return an integer, or the default."""
        return self.config.count(f"{self.family}.{key}", default, least)

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a number, or the default."""
        return self.config.number(f"{self.family}.{key}", default)

    def flag(self, key: str, default: bool) -> bool:
        """Return a value that is true or false."""
        return self.config.flag(f"{self.family}.{key}", default)

    def must(self, key: str, *allowed: Any) -> None:
        """Raise ValueError unless the value of a key is allowed."""
        self.config.must(f"{self.family}.{key}", *allowed)

    def has(self, name: str) -> bool:
        """Whether the first layer has a tensor, such as "attn_q.bias", or one of queries, keys and values together."""
        return any(f"blk.0.{tensor}" in self.file.tensors for tensor in (name, name.replace("attn_q.", "attn_qkv.")))

    def rows(self, name: str) -> int:
        """Return the number of rows of a tensor."""
        if name not in self.file.tensors:
            raise ValueError(f"{self.file.path} must hold the tensor {name}, got none")
        return self.file.tensors[name].shape[0]

    @property
    def layers(self) -> int:
        """The number of layers."""
        layers = self.count("block_count")
        if layers > LARGEST:
            raise self.error("block_count", f"at most {LARGEST}", layers)
        return layers

    def per_layer(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a number that all layers share; the file may have it once, or once for every layer."""
        values = self(key, None)
        if not isinstance(values, list):
            return self.count(key, default)
        if len(values) != self.layers or len({*map(repr, values)}) != 1:
            rule = f"one number, or one for each of {self.layers} layers, all the same"
            raise self.error(key, rule, values)
        full = f"{self.family}.{key}"
        return Config({full: values[0]}, str(self.file.path)).count(full)

    def slides(self, period: int, *, global_first: bool = False) -> list[bool]:
        """Return whether each layer has a window.

        Args:
            period: default of the number of layers from one without a window to the next.
            global_first: whether the first of them has none, or the last.
        """
        key = "attention.sliding_window_pattern"
        value = self(key, period)
        if isinstance(value, list):
            if len(value) != self.layers or not all(flag in (0, 1) for flag in value):
                raise self.error(key, f"a number, or true or false for each of {self.layers} layers", value)
            return [bool(flag) for flag in value]
        period = self.count(key, period, least=0)
        last = 0 if global_first else period - 1
        return [period == 0 or layer % period != last for layer in range(self.layers)]

    def layer_types(self, period: int, *, global_first: bool = False) -> list[str]:
        """Return the `layer_types` of config.json; arguments as in `slides`."""
        slides = self.slides(period, global_first=global_first)
        return ["sliding_attention" if slide else "full_attention" for slide in slides]

    def window(self, default: int | None) -> int | None:
        """Return the window; 0 in the file is none."""
        return self.count("attention.sliding_window", default, least=0) or None

    def scaling(self, base: float, rotated: int) -> dict[str, Any]:
        """Return the `rope_scaling` of config.json, or nothing.

        Args:
            base: base of the frequencies.
            rotated: number of channels of a head that are rotated.
        """
        kind = self("rope.scaling.type", "none")
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise self.error("rope.scaling.type", "none, linear, yarn or longrope", kind)
        if ROPE_FACTORS in self.file.tensors:
            if kind != "none":
                rule = f"must hold no {ROPE_FACTORS} in addition to scaling of type {kind}"
                raise ValueError(f"{self.file.path} {rule}, got both")
            return self._llama3(base, rotated)
        if LONG_FACTORS in self.file.tensors and kind in ("none", "longrope"):
            return self._longrope()
        if kind == "none":
            self.must("rope.scaling.factor", 1.0)
            factor = self.number("rope.scale_linear", 1.0)  # of files before 2023-09
            return {} if factor == 1 else {"rope_type": "linear", "factor": factor}
        if kind == "longrope":
            raise ValueError(f"{self.file.path} must hold the tensor {LONG_FACTORS} of its longrope scaling, got none")
        scaling = {"rope_type": kind, "factor": self.number("rope.scaling.factor")}
        if kind == "linear":
            return scaling
        self.must("rope.scaling.yarn_ext_factor", 1.0)
        length = self.count("rope.scaling.original_context_length")
        more = {theirs: self.number(f"rope.scaling.{key}", None) for key, theirs in YARN.items()}
        return scaling | {"original_max_position_embeddings": length} | {k: v for k, v in more.items() if v is not None}

    def _longrope(self) -> dict[str, Any]:
        """Return the scaling of LongRoPE; the file has its factors, and the factor of attention."""
        length, trained = self.count("context_length"), self.count("rope.scaling.original_context_length")
        scale = length / trained
        expected = math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0
        factor = self.number("rope.scaling.attn_factor", expected)
        long, short = (self._factors(name).tolist() for name in (LONG_FACTORS, SHORT_FACTORS))
        scaling = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        return scaling if math.isclose(factor, expected, rel_tol=1e-5) else {**scaling, "attention_factor": factor}

    def _llama3(self, base: float, rotated: int) -> dict[str, Any]:
        """Return the scaling of Llama 3; the file has the divisors of the frequencies.

        Raises:
            ValueError: other numbers.
        """
        factors = self._factors(ROPE_FACTORS)
        factor = float(np.max(factors))
        low, high, length = LLAMA3.values()
        turns = length * base ** (-np.arange(0, rotated, 2) / rotated) / math.tau  # in the trained length
        smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
        expected = 1.0 / ((1.0 - smooth) / factor + smooth)
        if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
            rule = (
                "must be the factors of Llama 3 with low_freq_factor=1, high_freq_factor=4 and a trained length of 8192"
            )
            numbers = f"{factors.size} factors from {factors.min()} to {factor}"
            raise ValueError(f"{self.file.path}: {ROPE_FACTORS} {rule}, got {numbers}")
        return {"rope_type": "llama3", "factor": factor, **LLAMA3}

    def _factors(self, name: str) -> np.ndarray:
        """Return the numbers of a tensor of factors; the shortest decimals that are these."""
        self.rows(name)
        self.factors.add(name)
        values = read_values(self.file, name).ravel()
        return np.array([float(str(value)) for value in values])

    def error(self, key: str, rule: str, value: object) -> ValueError:
        """Return the error for a key that must be of another kind."""
        shown = str(value)[:80] if isinstance(value, Sequence) and not isinstance(value, str) else repr(value)[:80]
        return ValueError(f"{self.file.path}: {self.family}.{key} must be {rule}, got {shown}")
