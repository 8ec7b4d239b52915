"""Small GGUF files of the weights of Hugging Face folders."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from pejax.interop.config import read_json
from tests.support.hub_folders import tensors

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
ALPHABET = [chr(item) for bounds in ((33, 127), (161, 173), (174, 324)) for item in range(*bounds)]
"""The bytes as byte-level tokenizers write them."""


def neighbors(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of queries or keys in the order of Llama's GGUF files: channel c of a head beside c + D/2."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    folder: Path,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    more: dict[str, np.ndarray] | None = None,
    **keys: Any,
) -> Path:
    """Write the model in a folder as a GGUF file, with further or other keys, and return its path.

    Args:
        path: of the file.
        folder: of a Llama, Qwen2 or Qwen3.
        kind: of its matrices.
        more: further tensors.
        **keys: of the metadata, with `__` in place of a dot; None = the file lacks the key.
    """
    config, family = read_json(folder / "config.json"), read_json(folder / "config.json")["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    channels = config.get("head_dim", config["hidden_size"] // heads)
    said = {
        "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads, "attention.head_count_kv": kv_heads,
        "attention.key_length": channels, "attention.value_length": channels, "rope.dimension_count": channels,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": config["rope_theta"],
    }  # fmt: skip
    said = {f"{family}.{key}": value for key, value in said.items()}
    said |= {key.replace("__", "."): value for key, value in keys.items()}
    writer = gguf.GGUFWriter(path, family)
    for key, value in said.items():
        _add(writer, key, value)
    for name, value in tensors(folder).items():
        module, _, leaf = name.rpartition(".")
        layer = re.match(r"model\.layers\.(\d+)\.", module)
        prefix, module = (f"blk.{layer[1]}.", module.removeprefix(layer[0])) if layer else ("", module)
        if family == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
            value = neighbors(value, heads if "q_proj" in module else kv_heads)
        stored_kind = kind if value.ndim > 1 else gguf.GGMLQuantizationType.F32
        data = (
            value
            if stored_kind == gguf.GGMLQuantizationType.F32
            else gguf.quantize(np.ascontiguousarray(value), stored_kind)
        )
        writer.add_tensor(f"{prefix}{NAMES[module]}.{leaf}", np.ascontiguousarray(data), raw_dtype=stored_kind)
    for name, value in (more or {}).items():
        writer.add_tensor(name, value)
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
