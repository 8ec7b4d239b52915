"""What the metadata of each family of GGUF files say, in the words of its config.json.

Keys are those of llama.cpp's converter. What a file does not say and all published models of a family share is written
here, such as the window of StarCoder 2.
"""

from typing import Any

from pejax.interop.gguf_keys import Keys
from pejax.models import LayerConfig

Settings = dict[str, Any]
"""Content of config.json, or a part of it."""


def biases(k: Keys, _: Settings) -> Settings:
    """Return which linear layers of a Llama have biases."""
    return {"attention_bias": k.has("attn_q.bias"), "mlp_bias": k.has("ffn_up.bias"), "hidden_act": "silu"}


def two_bases(k: Keys, shared: Settings, default: float = 1e4) -> Settings:
    """Return the positions of each type of layer; those of layers with windows are not scaled.

    Args:
        k: the metadata.
        shared: settings that most families share.
        default: base of layers with windows, where the file has none.
    """
    rope, local = {"rope_theta": shared["rope_theta"]}, k.number("rope.freq_base_swa", default)
    return {
        "full_attention": {"rope_type": "default", **shared.get("rope_scaling", {}), **rope},
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def llama(k: Keys, shared: Settings) -> Settings:
    """Read a Llama; a Mistral, which has windows; or a Mixtral, whose MLPs are experts."""
    count, window = k.count("expert_count", 0, least=0), k.window(None)
    if not count and window:
        return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    if not count:
        return biases(k, shared)
    experts = {"num_local_experts": count, "num_experts_per_tok": k.count("expert_used_count")}
    return {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **experts, "sliding_window": window}


def gemma2(k: Keys, shared: Settings) -> Settings:
    """Read a Gemma 2; the queries of the largest model, of 46 layers, have a scale of their own."""
    base = k.number("rope.freq_base", 1e4)
    k.must("rope.freq_base_swa", base)
    return {
        "query_pre_attn_scalar": _query_scalar(shared, largest=46),
        "attn_logit_softcapping": k.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": k.number("final_logit_softcapping", 30.0),
        "sliding_window": k.window(4096), "layer_types": k.layer_types(2),
    }  # fmt: skip


def gemma3(k: Keys, shared: Settings) -> Settings:
    """Read a Gemma 3; the queries of the largest model, of 62 layers, have a scale of their own."""
    window = k.window(None)
    return {
        "query_pre_attn_scalar": _query_scalar(shared, largest=62),
        "final_logit_softcapping": k.number("final_logit_softcapping", None),
        "sliding_window": window or 4096, "layer_types": k.layer_types(6 if window else 1),
        "rope_parameters": two_bases(k, shared),
    }  # fmt: skip


def _query_scalar(shared: Settings, largest: int) -> int:
    """Return the number of which the scale of q·k is the inverse root."""
    is_largest = shared["num_hidden_layers"] == largest
    return shared["hidden_size"] // shared["num_attention_heads"] if is_largest else shared["head_dim"]


def embedding_gemma(k: Keys, shared: Settings) -> Settings:
    """Read an EmbeddingGemma: a Gemma 3 that sees both sides."""
    k.must("attention.causal", False, True)
    return {**gemma3(k, shared), "use_bidirectional_attention": True}


def phi3(k: Keys, _: Settings) -> Settings:
    """Read a Phi-3 or Phi-4."""
    length = k.count("rope.scaling.original_context_length", k.count("context_length"))
    return {"original_max_position_embeddings": length, "sliding_window": k.window(None), "hidden_act": "silu"}


def qwen3_moe(k: Keys, _: Settings) -> Settings:
    """Read a Qwen3-MoE; all published models divide by the sum of the chosen experts."""
    return {
        "num_experts": k.count("expert_count"), "num_experts_per_tok": k.count("expert_used_count"),
        "moe_intermediate_size": k.per_layer("expert_feed_forward_length"),
        "norm_topk_prob": k.flag("expert_weights_norm", True), "hidden_act": "silu",
    }  # fmt: skip


def olmoe(k: Keys, _: Settings) -> Settings:
    """Read an OLMoE."""
    experts = {"num_experts": k.count("expert_count"), "num_experts_per_tok": k.count("expert_used_count")}
    return {**experts, "norm_topk_prob": k.flag("expert_weights_norm", False), "hidden_act": "silu"}


def gpt_oss(k: Keys, shared: Settings) -> Settings:
    """Read a gpt-oss, whose YaRN does not round the channels between which it interpolates."""
    scaling = shared.get("rope_scaling", {"rope_type": "default"})
    k.must("rope.freq_base_swa", shared["rope_theta"])
    return {
        "num_local_experts": k.count("expert_count"), "num_experts_per_tok": k.count("expert_used_count"),
        "intermediate_size": k.per_layer("expert_feed_forward_length", shared["intermediate_size"]),
        "rope_scaling": {**scaling, "truncate": False} if scaling["rope_type"] == "yarn" else scaling,
        "sliding_window": k.window(128), "layer_types": k.layer_types(2), "attention_bias": k.has("attn_q.bias"),
    }  # fmt: skip


def granite(k: Keys, shared: Settings) -> Settings:
    """Read a Granite; without `finetuned`, llama.cpp computes one without positions."""
    k.must("rope.scaling.finetuned", True)
    return {
        **biases(k, shared), "attention_multiplier": k.number("attention.scale", shared["head_dim"] ** -0.5),
        "embedding_multiplier": k.number("embedding_scale", 1.0), "logits_scaling": k.number("logit_scale", 1.0),
        "residual_multiplier": k.number("residual_scale", 1.0),
    }  # fmt: skip


def glm4(k: Keys, _: Settings) -> Settings:
    """Read a GLM-4."""
    return {"attention_bias": k.has("attn_q.bias"), "hidden_act": "silu"}


def exaone4(k: Keys, shared: Settings) -> Settings:
    """Read an EXAONE 4; a model without windows has positions in all layers."""
    window = k.window(None)
    k.must("rope.freq_base_swa", shared["rope_theta"])
    return {"sliding_window": window, "layer_types": k.layer_types(4 if window else 1), "hidden_act": "silu"}


def smollm3(k: Keys, shared: Settings) -> Settings:
    """Read a SmolLM3, of which every fourth layer has no positions."""
    return {**biases(k, shared), "no_rope_layer_interval": 4, "use_sliding_window": False}


def olmo(k: Keys, shared: Settings) -> Settings:
    """Read a first OLMo, whose norms have no weights."""
    if shared[""] != 1e-5:
        raise k.error("attention.layer_norm_epsilon", "1e-05", shared[""])
    return {
        "attention_bias": k.has("attn_q.bias"),
        "clip_qkv": k.number("attention.clamp_kqv", None),
        "hidden_act": "silu",
    }


def olmo2(k: Keys, shared: Settings) -> Settings:
    """Read an OLMo 2, or an OLMo 3, which has windows."""
    window, settings = k.window(None), {"attention_bias": k.has("attn_q.bias"), "hidden_act": "silu"}
    if window is None:
        return settings
    olmo3 = {
        "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "rope_theta": None, "rope_scaling": None,
        "rope_parameters": two_bases(k, shared, shared["rope_theta"]),
    }  # fmt: skip
    return {**settings, **olmo3, "sliding_window": window, "layer_types": k.layer_types(4)}


def cohere(k: Keys, _: Settings) -> Settings:
    """Read a Command R."""
    return {
        "attention_bias": k.has("attn_q.bias"), "use_qk_norm": k.has("attn_q_norm.weight"),
        "logit_scale": k.number("logit_scale"), "hidden_act": "silu",
    }  # fmt: skip


def cohere2(k: Keys, shared: Settings) -> Settings:
    """Read a Command R7B or Command A."""
    k.must("rope.freq_base_swa", shared["rope_theta"])
    return {
        "attention_bias": k.has("attn_q.bias"), "logit_scale": k.number("logit_scale"), "hidden_act": "silu",
        "sliding_window": k.window(None), "layer_types": k.layer_types(4),
    }  # fmt: skip


def starcoder2(k: Keys, _: Settings) -> Settings:
    """Read a StarCoder 2; the window of the published models is not in their files."""
    return {"use_bias": k.has("attn_q.bias"), "sliding_window": k.window(4096), "hidden_act": "gelu_pytorch_tanh"}


def stablelm(k: Keys, _: Settings) -> Settings:
    """Read a StableLM; what its key says of parallel branches is wrong where config.json did not say it."""
    k.flag("use_parallel_residual", True)
    return {
        "use_qkv_bias": k.has("attn_q.bias"), "qk_layernorm": k.has("attn_q_norm.weight"), "hidden_act": "silu",
        "use_parallel_residual": not k.has("ffn_norm.weight"),
    }  # fmt: skip


def gptneox(k: Keys, shared: Settings) -> Settings:
    """Read a GPT-NeoX or Pythia."""
    return {
        "rotary_emb_base": shared["rope_theta"], "attention_bias": k.has("attn_qkv.bias"), "hidden_act": "gelu",
        "use_parallel_residual": k.flag("use_parallel_residual", True),
    }  # fmt: skip


def falcon(k: Keys, shared: Settings) -> Settings:
    """Read a Falcon: one key head in the first models, several in later ones, with one norm or two."""
    k.must("tensor_data_layout", "jploski")
    norms, kv_heads = 1 + k.has("attn_norm_2.weight"), shared["num_key_value_heads"]
    is_new = norms == 2 or kv_heads > 1
    new = {"num_ln_in_parallel_attn": norms} if is_new else {}
    return {
        "new_decoder_architecture": is_new, "multi_query": True, "parallel_attn": True, "alibi": False, **new,
        "bias": k.has("attn_qkv.bias"), "activation": "gelu",
    }  # fmt: skip


def two_norms(layer: LayerConfig) -> dict[str, str]:
    """Return the names of a Falcon's norms, where a layer has two."""
    names = {"norm_attention": "blk.{n}.attn_norm_2", "norm_mlp": "blk.{n}.attn_norm"}
    return names if layer.parallel == "two" else {}


def bloom(k: Keys, shared: Settings) -> Settings:
    """Read a BLOOM."""
    k.must("feed_forward_length", 4 * shared["hidden_size"])
    return {}


def mistral3(k: Keys, _: Settings) -> Settings:
    """Read a Mistral Small 3."""
    return {"sliding_window": k.window(None)}


def mpt(k: Keys, shared: Settings) -> Settings:
    """Read an MPT with ALiBi."""
    steepest, hidden = k.number("attention.max_alibi_bias", 8.0), shared["intermediate_size"]
    if not steepest > 0:
        raise k.error("attention.max_alibi_bias", "above 0, because without ALiBi an MPT is not read", steepest)
    if hidden % shared["hidden_size"]:
        raise k.error("feed_forward_length", f"a multiple of the width {shared['hidden_size']}", hidden)
    steepest = int(steepest) if steepest.is_integer() else steepest
    return {"expansion_ratio": hidden // shared["hidden_size"], "no_bias": True,
            "attn_config": {"alibi": True, "alibi_bias_max": steepest}}  # fmt: skip


def bert(k: Keys, _: Settings) -> Settings:
    """Read a BERT, or a RoBERTa, whose table of positions is cut to its first position in the file."""
    return {"type_vocab_size": k.rows("token_types.weight"), "hidden_act": "gelu"}


def nomic_bert(k: Keys, _: Settings) -> Settings:
    """Read a Nomic-BERT."""
    return {"type_vocab_size": k.rows("token_types.weight"), "hidden_act": "silu"}


def modern_bert(k: Keys, shared: Settings) -> Settings:
    """Read a ModernBERT."""
    window = k.window(None)
    _ = k("classifier.pooling_type", None), k("classifier.output_labels", None)  # for what comes after the model
    return {
        "local_attention": window or 128, "hidden_activation": k("hidden_activation", "gelu"),
        "layer_types": k.layer_types(3 if window else 1, global_first=True),
        "rope_parameters": two_bases(k, shared),
    }  # fmt: skip


def eurobert(k: Keys, shared: Settings) -> Settings:
    """Read a EuroBERT: a Llama that sees both sides."""
    return {**biases(k, shared)}


def seed_oss(k: Keys, shared: Settings) -> Settings:
    """Read a Seed-OSS."""
    return {**biases(k, shared), "attention_out_bias": k.has("attn_output.bias")}


def ernie(k: Keys, _: Settings) -> Settings:
    """Read an ERNIE 4.5."""
    return {"use_bias": k.has("attn_q.bias"), "hidden_act": "silu"}


def squared(k: Keys, shared: Settings) -> Settings:
    """Read an AFM of Arcee, or a Nemotron, whose activation is the square of ReLU."""
    return {**biases(k, shared), "hidden_act": "relu2"}
