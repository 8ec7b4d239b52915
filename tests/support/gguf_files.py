"""Small GGUF files of the weights of Hugging Face folders, converted as llama.cpp does; names are those of `gguf`."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from pejax.interop import source_from_config
from pejax.interop.config import read_json
from pejax.interop.model_config import read_config
from pejax.interop.stacks import head_stack
from pejax.models import MoEConfig, TransformerConfig, ViTConfig
from tests.support.hub_folders import tensors

FAMILIES = {
    "mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "phi": "phi2",
    "cohere": "command-r", "gpt_neox": "gptneox", "modernbert": "modern-bert", "gpt_oss": "gpt-oss", "olmo3": "olmo2",
    "nomic_bert": "nomic-bert", "jina_embeddings_v3": "jina-bert-v3",
}  # fmt: skip
"""`general.architecture` by `model_type`, where they differ."""
PERMUTED = ("llama", "granite", "smollm3", "arcee", "mistral3", "olmo")
SHIFTED = ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron")
GROUPED = ("gptneox", "falcon", "bloom")
PREFIXES = {
    "bloom": "transformer.", "bert": "bert.", "modern-bert": "model.", "nomic-bert": "nomic_bert.",
    "eurobert": "model.", "jina-bert-v3": "roberta.",
}  # fmt: skip
"""Prefixes that the converter takes away."""
ALPHABET = [chr(item) for bounds in ((33, 127), (161, 173), (174, 324)) for item in range(*bounds)]
"""The bytes as byte-level tokenizers write them."""


def neighbors(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of queries or keys in the order of Llama's GGUF files: channel c of a head beside c + D/2."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def one_after_the_other(weight: np.ndarray, heads: int, kv_heads: int) -> np.ndarray:
    """Return rows grouped by key head as all queries, all keys, all values."""
    groups = weight.reshape(kv_heads, heads // kv_heads + 2, -1, *weight.shape[1:])
    parts = groups[:, :-2], groups[:, -2], groups[:, -1]
    return np.concatenate([part.reshape(-1, *weight.shape[1:]) for part in parts])


def drawn_tensors(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return random values for the tensors of a Hugging Face folder with this config.json."""
    draw = np.random.default_rng(0)
    shapes = {name: tensor.shape for name, tensor in source_from_config(config).tensors.items()}
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def renamed(family: str, values: Mapping[str, np.ndarray], config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the tensors of a Hugging Face folder as those of a GGUF file."""
    layers, attention = len(config.layers), config.layers[0].attention
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper().replace("-", "_")), layers)
    result: dict[str, np.ndarray] = {}
    for full_name, value in _whole(values):
        name = full_name.removeprefix(PREFIXES.get(family, ""))
        target = names.get_name(name, try_suffixes=(".weight", ".bias")) or names.get_name(name)
        assert target is not None, name
        module = target.split(".")[-2]
        for letter, heads in (("q", attention.heads), ("k", attention.kv_heads)):
            if family in PERMUTED and module == f"attn_{letter}":
                value = neighbors(value, heads)
        if family in SHIFTED and name.endswith("norm.weight"):
            value = value + np.float32(1)
        if family in GROUPED and module == "attn_qkv":
            value = one_after_the_other(value, attention.heads, attention.kv_heads)
        if family == "gpt2" and value.ndim == 2 and "blk." in target:
            value = value.T
        result[target] = value
    return result


def _whole(values: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors with those of experts and of norms of heads stacked, and those of gpt-oss taken apart."""
    stacks: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for name, value in values.items():
        row = re.search(r"\.(experts|norms)\.(\d+)\.", name)
        if row:
            whole = name.replace(row[0], ".experts." if row[1] == "experts" else ".")
            whole = re.sub(r"block_sparse_moe\.experts", "feed_forward.experts", whole)
            stacks[whole.replace("model.layers", "layers") if "feed_forward" in whole else whole][int(row[2])] = value
        elif "experts.gate_up_proj" in name:
            last, leaf = (value, "bias") if name.endswith("bias") else (value.swapaxes(1, 2), "weight")
            base = name.partition("gate_up_proj")[0]
            yield f"{base}gate_proj.{leaf}", last[:, ::2]
            yield f"{base}up_proj.{leaf}", last[:, 1::2]
        elif "experts.down_proj" in name:
            is_bias = name.endswith("_bias")
            yield (
                name.removesuffix("_bias") + (".bias" if is_bias else ".weight"),
                (value if is_bias else value.swapaxes(1, 2)),
            )
        else:
            yield name + (".weight" if name.endswith("sinks") else ""), value
    yield from ((name, np.stack([rows[n] for n in range(len(rows))])) for name, rows in stacks.items())


def metadata(family: str, config: TransformerConfig) -> dict[str, Any]:
    """Return the metadata of a GGUF file of a model, without the tokenizer's."""
    layer, layers = config.layers[0], config.layers
    attention = layer.attention
    mlp = layer.mlp.mlp if isinstance(layer.mlp, MoEConfig) else layer.mlp
    rms = "rms_" if layer.norm.kind == "rms" else ""
    keys: dict[str, Any] = {
        "block_count": len(layers), "context_length": config.length, "embedding_length": config.width,
        "feed_forward_length": mlp.hidden, "attention.head_count": attention.heads,
        "attention.head_count_kv": attention.kv_heads, "attention.key_length": attention.head_dim,
        "attention.value_length": attention.head_dim, f"attention.layer_norm_{rms}epsilon": layer.norm.epsilon,
        "attention.causal": config.causal,
    }  # fmt: skip
    if isinstance(layer.mlp, MoEConfig):
        keys |= {"expert_count": layer.mlp.count, "expert_used_count": layer.mlp.chosen}
        keys |= {"expert_feed_forward_length": mlp.hidden} if family in ("qwen3moe", "gpt-oss") else {}
    windows = [layer.attention.window for layer in layers]
    if any(windows) and family != "starcoder2":
        width = max(window or 0 for window in windows)
        keys["attention.sliding_window"] = width if config.causal else 2 * (width - 1)
        keys |= {"attention.sliding_window_pattern": [bool(window) for window in windows]} if not all(windows) else {}
    return {f"{family}.{key}": value for key, value in (keys | _rope(config) | _factors(family, config)).items()}


def _rope(config: TransformerConfig) -> dict[str, Any]:
    """Return the keys of rotary positions."""
    specs = {bool(layer.attention.window): layer.attention.pe for layer in config.layers
             if layer.attention.pe.name == "rope"}  # fmt: skip
    if not specs:
        return {}
    whole = specs.get(False, specs.get(True))
    options = dict(whole.options)
    keys = {"rope.freq_base": options["base"]}
    keys["rope.dimension_count"] = options.get("rotary_dim", config.layers[0].attention.head_dim)
    local = dict(specs[True].options)["base"] if len(specs) == 2 else options["base"]
    keys |= {"rope.freq_base_swa": local} if local != options["base"] else {}
    if whole.extend is None:
        return keys
    (term,) = whole.extend.terms
    values = dict(term.options)
    if term.name in ("linear", "yarn"):
        keys |= {"rope.scaling.type": term.name, "rope.scaling.factor": values["factor"]}
    if term.name in ("yarn", "longrope"):
        keys["rope.scaling.original_context_length"] = values["trained_length"]
    return keys


def _factors(family: str, config: TransformerConfig) -> dict[str, Any]:
    """Return the keys of factors and caps, and those of single families."""
    layer, head = config.layers[0], config.head
    attention = layer.attention
    keys: dict[str, Any] = {}
    if family == "granite":
        keys |= {"attention.scale": attention.scale, "embedding_scale": config.embed_scale}
        keys |= {"residual_scale": layer.branch_scale, "logit_scale": 1 / head.scale}
    if family in ("command-r", "cohere2"):
        keys["logit_scale"] = head.scale
    if family == "gemma2":
        keys |= {"attn_logit_softcapping": attention.soft_cap, "final_logit_softcapping": head.cap}
    if family in ("stablelm", "gptneox"):
        keys["use_parallel_residual"] = bool(layer.parallel)
    if family == "falcon":
        keys["tensor_data_layout"] = "jploski"
    if family == "mpt":
        keys["attention.max_alibi_bias"] = 8.0
    return keys


def write_gguf(
    path: Path,
    folder: Path | Mapping[str, Any],
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    more: Mapping[str, np.ndarray] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    family: str = "",
    bare: bool = False,
    leave: tuple[str, ...] = (),
    **keys: Any,
) -> Path:
    """Write the model in a folder as a GGUF file, with further or other keys, and return its path.

    Args:
        path: of the file.
        folder: a folder, or the content of its config.json.
        kind: of its matrices.
        more: further tensors.
        values: tensors of Hugging Face. None = those of the folder.
        family: `general.architecture`. "" = that of the model.
        bare: whether it is a later part of a model, without metadata but these.
        leave: beginnings of the names of tensors of Hugging Face that no GGUF file has.
        **keys: of the metadata, with `__` in place of a dot; None = the file lacks the key.
    """
    said = read_json(folder / "config.json") if isinstance(folder, Path) else dict(folder)
    sees_both = said.get("use_bidirectional_attention", False)
    family = family or ("gemma-embedding" if sees_both else FAMILIES.get(said["model_type"], said["model_type"]))
    model = read_config(said)
    assert not isinstance(model, ViTConfig)
    config = head_stack(model)
    values = tensors(folder) if values is None and isinstance(folder, Path) else values or {}
    values = {name: value for name, value in values.items() if not name.startswith(leave)}
    content = renamed(family, values, config) | dict(more or {})
    entries = ({} if bare else metadata(family, config)) | {
        key.replace("__", "."): value for key, value in keys.items()
    }
    writer = gguf.GGUFWriter(path, family)
    if bare:
        writer.kv_data[0].clear()
    for key, value in entries.items():
        _add(writer, key, value)
    for name, value in content.items():
        stored_kind = kind if value.ndim > 1 and name not in (more or {}) else gguf.GGMLQuantizationType.F32
        is_plain = stored_kind == gguf.GGMLQuantizationType.F32
        data = np.ascontiguousarray(value if is_plain else gguf.quantize(np.ascontiguousarray(value), stored_kind))
        writer.add_tensor(name, data, raw_dtype=None if is_plain else stored_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        kinds[type(value)](key, value)


def byte_tokens(**keys: Any) -> dict[str, Any]:
    """Return the keys of a tokenizer of bytes with three special tokens and a pair: "th" and "the", from merges."""
    tokens = ["<|end|>", "<|start|>", *ALPHABET, "th", "the"]
    return {
        "tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "smollm", "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__token_type": [3, 3] + [1] * (len(tokens) - 2), "tokenizer__ggml__merges": ["t h", "th e"],
        "tokenizer__ggml__bos_token_id": 1, "tokenizer__ggml__eos_token_id": 0, **keys,
    }  # fmt: skip
