"""Models in GGUF files, read as the Hugging Face folders that they were made from.

The metadata of a GGUF file holds the same information as config.json under other keys, and the same tensors have other
names. In Llama's files, the rows of queries and keys are permuted so that channels that are rotated together are
neighbors; the reader restores the order of Hugging Face.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pejax.interop.architectures import find_architecture
from pejax.interop.config import Config
from pejax.interop.files import WEIGHTS, Reader, Tensor
from pejax.interop.gguf_file import PLAIN, GgufFile, read_header, read_values

NAMES = {
    "table": "token_embd", "norm": "output_norm", "head": "output",
    **{part: "blk.{n}." + name for part, name in {
        "norm_attention": "attn_norm", "norm_mlp": "ffn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v",
        "o": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "gate": "ffn_gate", "up": "ffn_up",
        "down": "ffn_down",
    }.items()},
}  # fmt: skip
"""The parts of `Architecture.names`, and the names of GGUF files."""

ROPE_FACTORS = "rope_freqs.weight"
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Scaling of all models of Llama 3.1 to 3.3, but for the factor."""


class GgufArchitecture(NamedTuple):
    """The differences between families of GGUF files.

    Attributes:
        model_type: `model_type` in config.json.
        model_class: class of transformers, for config.json.
        neighbors: whether the channels of queries and keys that are rotated together are neighbors.
    """

    model_type: str
    model_class: str
    neighbors: bool = False


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", "LlamaForCausalLM", neighbors=True),
    "qwen2": GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": GgufArchitecture("qwen3", "Qwen3ForCausalLM"),
}
"""By the `general.architecture` of a file."""


class Translated(NamedTuple):
    """A GGUF file as a Hugging Face folder.

    Attributes:
        config: content of its config.json.
        tensors: tensors by the names of Hugging Face; quantized types become F32.
        read: function that reads the values of the tensors.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    read: Reader


def translate(path: Path, ignore: Sequence[str] = ()) -> Translated:
    """Return a GGUF file as a Hugging Face folder.

    Raises:
        ValueError: a damaged file, an architecture that is not known, or metadata that is missing or unread.
    """
    file = read_header(path)
    family = file.keys.get("general.architecture")
    if family not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise ValueError(
            f"{path}: general.architecture must be one of {names}; others are not read yet, got {family!r}"
        )
    of_model = (f"{family}.", "split.")  # other namespaces are those of the tokenizer and of tools
    c = Config({key: value for key, value in file.keys.items() if key.startswith(of_model)}, str(path))
    _ = c(f"{family}.pooling_type", None)  # for the states of a text, after the model
    config = _config(c, file, family)
    c.close(ignore=ignore)
    sources = _sources(file, config["model_type"])
    kinds = {name: file.tensors[source].kind for name, source in sources.items()}
    tensors = {
        name: Tensor(WEIGHTS, kinds[name] if kinds[name] in PLAIN else "F32", file.tensors[source].shape, kinds[name])
        for name, source in sources.items()
    }
    return Translated(config, tensors, _reader(file, sources, config, ARCHITECTURES[family].neighbors))


def _config(c: Config, file: GgufFile, family: str) -> dict[str, Any]:
    """Return the metadata in the words of config.json."""
    architecture, keys = ARCHITECTURES[family], file.keys
    if keys.get("general.type", "model") != "model":
        raise ValueError(f"{file.path}: general.type must be 'model', got {keys['general.type']!r}")
    if (files := c("split.count", 0)) not in (0, 1):
        raise ValueError(f"{file.path}: split.count must be 1: a model in several files is not read yet, got {files}")
    _ = c("split.no", 0), c("split.tensors.count", 0)
    c.must(f"{family}.expert_count", 0)
    c.must(f"{family}.expert_used_count", 0)
    if "token_embd.weight" not in file.tensors:
        raise ValueError(f"{file.path} must hold the tensor token_embd.weight, got none")
    heads, width = c.count(f"{family}.attention.head_count"), c.count(f"{family}.embedding_length")
    channels = c.count(f"{family}.attention.key_length", c.count(f"{family}.rope.dimension_count", width // heads))
    c.must(f"{family}.attention.value_length", channels)
    c.must(f"{family}.rope.dimension_count", channels)
    vocab = file.tensors["token_embd.weight"].shape[0]
    c.must(f"{family}.vocab_size", vocab)
    base = c.number(f"{family}.rope.freq_base", 1e4)
    tokens = {name: keys.get(f"tokenizer.ggml.{name}") for name in ("bos_token_id", "eos_token_id")}
    kinds = {tensor.kind for tensor in file.tensors.values()}
    scaling = _scaling(c, file, family, base, channels)
    return {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": c.count(f"{family}.feed_forward_length"),
        "num_hidden_layers": c.count(f"{family}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": c.count(f"{family}.attention.head_count_kv", heads),
        "head_dim": channels,
        "hidden_act": "silu",
        "max_position_embeddings": c.count(f"{family}.context_length"),
        "rms_norm_eps": c.number(f"{family}.attention.layer_norm_rms_epsilon"),
        "rope_theta": base,
        **({"rope_scaling": scaling} if scaling else {}),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": {"F16": "float16", "BF16": "bfloat16"}.get("".join(kinds), "float32"),
        **{name: value for name, value in tokens.items() if value is not None},
    }


def _scaling(c: Config, file: GgufFile, family: str, base: float, channels: int) -> dict[str, Any]:
    """Return the `rope_scaling` of config.json, or nothing."""
    kind = c(f"{family}.rope.scaling.type", "none")
    _ = c(f"{family}.rope.scaling.finetuned", False)
    if kind not in ("none", "linear", "yarn"):
        raise ValueError(f"{file.path}: {family}.rope.scaling.type must be none, linear or yarn, got {kind!r}")
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise ValueError(f"{file.path} must hold no {ROPE_FACTORS} in addition to scaling of type {kind}, got both")
        return _llama3(file, base, channels)
    if kind == "none":
        c.must(f"{family}.rope.scaling.factor", 1.0)
        return {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": c.number(f"{family}.rope.scaling.factor")}
    if kind == "yarn":
        length = c.count(f"{family}.rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = length
    return scaling


def _llama3(file: GgufFile, base: float, channels: int) -> dict[str, Any]:
    """Return the scaling of Llama 3; the file has the divisors of the frequencies.

    Raises:
        ValueError: other numbers.
    """
    factors = np.asarray(read_values(file, ROPE_FACTORS), np.float64)
    factor = float(np.max(factors))
    low, high, length = LLAMA3.values()
    turns = length * base ** (-np.arange(0, channels, 2) / channels) / math.tau  # in the trained length
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        rule = "must be the factors of Llama 3 with low_freq_factor=1, high_freq_factor=4 and a trained length of 8192"
        raise ValueError(
            f"{file.path}: {ROPE_FACTORS} {rule}, got {factors.size} factors from {factors.min()} to {factor}"
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def _sources(file: GgufFile, model_type: str) -> dict[str, str]:
    """Map the Hugging Face name of every tensor to its GGUF name; a tensor that `NAMES` lacks keeps its GGUF name."""
    theirs = find_architecture(model_type).names
    names = {gguf: theirs[part] for part, gguf in NAMES.items() if part in theirs}

    def translated(name: str) -> str:
        module, _, leaf = name.rpartition(".")
        number = re.match(r"blk\.(\d+)\.", module)
        module = module if number is None else module.replace(number[0], "blk.{n}.", 1)
        return name if module not in names else f"{names[module].format(n=number and number[1])}.{leaf}"

    return {translated(name): name for name in file.tensors if name != ROPE_FACTORS}


def _reader(file: GgufFile, sources: Mapping[str, str], config: Mapping[str, Any], neighbors: bool) -> Reader:
    """Return the function to the values of a tensor."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]} if neighbors else {}

    def read(name: str, index: tuple[slice, ...]) -> np.ndarray:
        source = sources[name]
        permuted = heads.get(source.split(".")[-2])
        if permuted is None:
            rows, *columns = index or (slice(None),)
            return read_values(file, source, rows)[(slice(None), *columns)]
        values = read_values(file, source)
        pairs = values.reshape(permuted, -1, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)[index]

    return read
