"""Small Hugging Face folders: configs of every architecture, and folders of random weights written by pejax."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from pejax.interop import Source, save, source_from_config
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.slots import empty_model
from pejax.interop.stacks import head_stack
from pejax.models import Decoder, EncoderDecoder, ViT, ViTConfig
from tests.support.hub_families import FAMILIES
from tests.support.hub_pictures import PICTURES

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 500.0, "pad_token_id": 0}  # fmt: skip
LEARNED = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48}
ENCODER = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
           "num_attention_heads": 4, "max_position_embeddings": 48}  # fmt: skip
MANY = {"num_local_experts": 4, "num_experts_per_tok": 2}
OSS = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False}
QWEN_MANY = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "head_dim": 12}
PAIR = {
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 10,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
MODERN = {
    **{"local_attention": 9, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1, "cls_token_id": 1},
    **{"sep_token_id": 2, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 700.0},
                                              "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}},
}  # fmt: skip
FALCON = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0,
          "max_position_embeddings": 64, "ffn_hidden_size": 48}  # fmt: skip
PER_TYPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
LONGROPE = {
    "rope_type": "longrope", "long_factor": [1.5, 2.0, 4.0, 8.0], "short_factor": [1.0, 1.1, 1.2, 1.5],
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


def _llama(**options: Any) -> dict[str, Any]:
    return {"model_type": "llama", **SIZES, "max_position_embeddings": 16, **options}


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES},
    "llama, biases": {"model_type": "llama", **SIZES, "attention_bias": True, "mlp_bias": True, "head_dim": 10},
    "llama, tied": {"model_type": "llama", **SIZES, "tie_word_embeddings": True},
    "llama, linear": _llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama, dynamic": _llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "llama, dynamic and a length": _llama(
        rope_scaling={"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16},
        max_position_embeddings=24,
    ),
    "llama, yarn": _llama(rope_scaling=YARN, max_position_embeddings=64),
    "llama, llama3": _llama(rope_scaling=LLAMA3, max_position_embeddings=64),
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 9},
    "qwen2": {"model_type": "qwen2", **SIZES},
    "qwen2, both sides": {"model_type": "qwen2", **SIZES, "is_causal": False},
    "qwen2, windows": {"model_type": "qwen2", **SIZES, "use_sliding_window": True, "sliding_window": 7,
                       "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 12},
    "smollm3": {"model_type": "smollm3", **SIZES, "no_rope_layers": [1, 0], "tie_word_embeddings": True},
    "gpt2": {"model_type": "gpt2", **LEARNED},
    "gpt_neox": {"model_type": "gpt_neox", **{k: v for k, v in SIZES.items() if k not in ("num_key_value_heads",
                                                                                         "rope_theta")},
                 "rotary_pct": 0.5, "rotary_emb_base": 500.0},
    "gemma2": {"model_type": "gemma2", **SIZES, "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 7},
    "gemma3_text": {"model_type": "gemma3_text", **{k: v for k, v in SIZES.items() if k != "rope_theta"},
                    "head_dim": 12, "num_hidden_layers": 3, "sliding_window": 7, "query_pre_attn_scalar": 20,
                    "rope_parameters": PER_TYPE, "layer_types": ["sliding_attention", "sliding_attention",
                                                                 "full_attention"]},
    "olmo2": {"model_type": "olmo2", **SIZES},
    "phi3": {"model_type": "phi3", **SIZES, "sliding_window": 9},
    "phi3, longrope": {"model_type": "phi3", **SIZES, "rope_scaling": LONGROPE,
                       "original_max_position_embeddings": 16},
    "starcoder2": {"model_type": "starcoder2", **SIZES, "sliding_window": 9},
    "bloom": {"model_type": "bloom", "vocab_size": 97, "hidden_size": 36, "n_layer": 2, "n_head": 6},
    "mpt": {"model_type": "mpt", "vocab_size": 97, "d_model": 36, "n_layers": 2, "n_heads": 6, "max_seq_len": 64},
    "opt": {"model_type": "opt", "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 48,
            "num_attention_heads": 4, "max_position_embeddings": 48, "word_embed_proj_dim": 32},
    "gptj": {"model_type": "gptj", **LEARNED, "rotary_dim": 4},
    "phi": {"model_type": "phi", **SIZES},
    "cohere": {"model_type": "cohere", **SIZES, "logit_scale": 0.5},
    "bert": {"model_type": "bert", **ENCODER},
    "roberta": {"model_type": "roberta", **ENCODER, "max_position_embeddings": 50, "pad_token_id": 1},
    "roberta, padding": {"model_type": "roberta", **ENCODER, "max_position_embeddings": 50, "pad_token_id": 0},
    "roberta, relu": {"model_type": "roberta", **ENCODER, "max_position_embeddings": 50, "hidden_act": "relu"},
    "modernbert": {"model_type": "modernbert", **ENCODER, **MODERN, "num_hidden_layers": 4},
    "modernbert, biases": {"model_type": "modernbert", **ENCODER, **MODERN, "attention_bias": True, "mlp_bias": True,
                           "norm_bias": True, "classifier_bias": True, "tie_word_embeddings": False},
    "roformer": {"model_type": "roformer", **ENCODER},
    "mixtral": {"model_type": "mixtral", **SIZES, **MANY},
    "mixtral, windows": {"model_type": "mixtral", **SIZES, **MANY, "sliding_window": 9},
    "qwen3_moe": {"model_type": "qwen3_moe", **SIZES, **QWEN_MANY},
    "qwen3_moe, normalized": {"model_type": "qwen3_moe", **SIZES, **QWEN_MANY, "norm_topk_prob": True},
    "olmoe": {"model_type": "olmoe", **SIZES, "num_experts": 5, "num_experts_per_tok": 3},
    "gpt_oss": {"model_type": "gpt_oss", **SIZES, **MANY, "head_dim": 12, "sliding_window": 7, "rope_scaling": OSS},
    "xlnet": {"model_type": "xlnet", "vocab_size": 97, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "t5": {"model_type": "t5", **PAIR},
    "t5, gated": {"model_type": "t5", **PAIR, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 3,
                  "tie_word_embeddings": False},
    "mt5": {"model_type": "mt5", **PAIR},
    "xlm-roberta": {"model_type": "xlm-roberta", **ENCODER, "max_position_embeddings": 50, "pad_token_id": 1},
    "camembert": {"model_type": "camembert", **ENCODER, "max_position_embeddings": 50, "pad_token_id": 1},
    "distilbert": {"model_type": "distilbert", "vocab_size": 97, "dim": 32, "hidden_dim": 48, "n_layers": 2,
                   "n_heads": 4, "max_position_embeddings": 48},
    "gemma": {"model_type": "gemma", **SIZES, "head_dim": 12, "hidden_act": "gelu"},
    "stablelm": {"model_type": "stablelm", **SIZES, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    "stablelm, norms": {"model_type": "stablelm", **SIZES, "qk_layernorm": True, "use_parallel_residual": True},
    "olmo3": {"model_type": "olmo3", **{k: v for k, v in SIZES.items() if k != "rope_theta"}, "num_hidden_layers": 4,
              "sliding_window": 7, "rope_scaling": YARN},
    "exaone4": {"model_type": "exaone4", **SIZES, "num_hidden_layers": 4, "sliding_window": 7},
    "exaone4, no windows": {"model_type": "exaone4", **SIZES, "sliding_window": None,
                            "layer_types": ["full_attention", "full_attention"]},
    "seed_oss": {"model_type": "seed_oss", **SIZES, "head_dim": 12},
    "cohere2": {"model_type": "cohere2", **SIZES, "num_hidden_layers": 4, "sliding_window": 7, "logit_scale": 0.5},
    "glm": {"model_type": "glm", **SIZES, "head_dim": 12},
    "glm4": {"model_type": "glm4", **SIZES, "head_dim": 12},
    "ministral": {"model_type": "ministral", **SIZES, "sliding_window": 7, "head_dim": 12,
                  "layer_types": ["sliding_attention", "full_attention"]},
    "ernie4_5": {"model_type": "ernie4_5", **SIZES, "head_dim": 12},
    "ernie4_5, biases": {"model_type": "ernie4_5", **SIZES, "head_dim": 12, "use_bias": True},
    "gpt_neo": {"model_type": "gpt_neo", "vocab_size": 97, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
                "max_position_embeddings": 48, "window_size": 7, "attention_types": [[["global", "local"], 1]]},
    "falcon": {"model_type": "falcon", **FALCON},
    "falcon, new": {"model_type": "falcon", **FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon, one norm": {"model_type": "falcon", **FALCON, "new_decoder_architecture": True, "num_kv_heads": 2,
                         "num_ln_in_parallel_attn": 1, "bias": True},
    "falcon, sequential": {"model_type": "falcon", **FALCON, "multi_query": False, "parallel_attn": False},
    "clip_text_model": {"model_type": "clip_text_model", **ENCODER, "eos_token_id": 2},
    "arcee": {"model_type": "arcee", **SIZES},
    "arcee, biases": {"model_type": "arcee", **SIZES, "attention_bias": True, "mlp_bias": True},
    "nemotron": {"model_type": "nemotron", **SIZES},
    "granite": {"model_type": "granite", **SIZES, "embedding_multiplier": 3.0, "logits_scaling": 0.5,
                "residual_multiplier": 0.7, "attention_multiplier": 0.4},
    "cohere, norms": {"model_type": "cohere", **SIZES, "logit_scale": 0.5, "use_qk_norm": True},
    **FAMILIES,
}  # fmt: skip


def drawn(source: Source, seed: int = 0) -> Decoder | EncoderDecoder | ViT:
    """Return a model in which every parameter is drawn; the factors of norms and of branches are 1 ± 0.1."""
    config = source.config
    first = config.layers[0] if isinstance(config, ViTConfig) else head_stack(config).layers[0]
    draw = np.random.default_rng(seed)
    graph, state = nnx.split(empty_model(source.config))

    def values(path, variable):
        noise = draw.normal(size=variable.shape)
        factors = path[-1] in ("scale", "scale_attention", "scale_mlp")
        offset = 1.0 - first.norm.offset if factors else 0.0
        return variable.replace(jnp.asarray(np.float32(offset + (0.1 if factors else 0.2) * noise)))

    flat = [(path, values(path, variable)) for path, variable in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(flat))


@contextmanager
def registering() -> Iterator[None]:
    """Remove in the end the architectures that were registered."""
    before = {*ARCHITECTURES}
    yield
    for name in {*ARCHITECTURES} - before:
        del ARCHITECTURES[name]


def write(folder: Path, name: str = "llama", dtype: str = "float32", **options: Any) -> Path:
    """Write the folder of a config of `CONFIGS`, with other values of some keys, and return it."""
    source = source_from_config({**CONFIGS.get(name, PICTURES.get(name, {})), **options}, dtype=dtype)
    save(drawn(source), folder, source)
    return folder


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a folder with one file."""
    return load_file(folder / "model.safetensors")


def rewrite(folder: Path, values: dict[str, np.ndarray], **config: Any) -> Path:
    """Write other tensors, and other values of keys of config.json, into a folder."""
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return folder


def run(model: Decoder | EncoderDecoder, ids: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Return the logits, or the states of a model without a head, from a compiled program.

    An encoder-decoder has the target `target_of(ids)`.
    """
    graph, params = nnx.split(model)
    segments = None if mask is None else jnp.asarray(mask)

    def logits(params: Any) -> jax.Array:
        model = nnx.merge(graph, params)
        if isinstance(model, Decoder):
            compute = model if model.head is not None else model.states
            return compute(jnp.asarray(ids), segment_ids=segments)
        segments_given = {"source_segments": segments, "target_segments": segments}
        return model(jnp.asarray(ids), jnp.asarray(target_of(ids)), **segments_given)

    return np.asarray(jax.jit(logits)(params))


def target_of(ids: np.ndarray) -> np.ndarray:
    """Return the ids of a target for a source: those after them in the vocabulary."""
    return (ids + 1) % 97
