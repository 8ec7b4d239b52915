"""Decoders with experts in place of MLPs: Mixtral, gpt-oss, Qwen3-MoE and OLMoE."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES, QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, experts, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, MlpConfig, NormConfig, TransformerConfig

# Mixtral: a Mistral whose MLPs are experts.

MIXTRAL_EXPERTS = prefixed(
    "model.layers.{n}.block_sparse_moe.", router="gate", gate="experts.{e}.w1", up="experts.{e}.w3",
    down="experts.{e}.w2",
)  # fmt: skip
MIXTRAL_INERT = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")


def mixtral(c: Config) -> TransformerConfig:
    """Read MixtralConfig."""
    c.defaults(num_key_value_heads=8, max_position_embeddings=131072)
    window = c.count("sliding_window", None)
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    layer = LayerConfig(attention(c), experts(c, mlp(c), 8, 2), norm)
    return rotary_decoder(c, layer, head(c), types=types, window=window, bases={"full_attention": 1e6})


MIXTRAL = {"mixtral": Architecture(mixtral, {**NAMES, **MIXTRAL_EXPERTS}, "model.", MIXTRAL_INERT)}


# gpt-oss: attention sinks, layers with and without windows in turn, YaRN, experts with biases and a clamped SwiGLU.

GPT_OSS_NAMES = prefixed(
    "model.layers.{n}.", sinks="self_attn.sinks", router="mlp.router", gate_up="mlp.experts.gate_up_proj",
    down="mlp.experts.down_proj",
)  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096}  # fmt: skip
GPT_OSS_INERT = ("initial_context_length", "output_router_logits", "router_aux_loss_coef", "experts_per_token")


def gpt_oss(c: Config) -> TransformerConfig:
    """Read GptOssConfig."""
    for key, value in {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0}.items():
        c.must(key, value)
    if not c.object("rope_scaling") and not c.object("rope_parameters"):
        c.keys["rope_scaling"] = YARN
    c.defaults(num_key_value_heads=8, head_dim=64, sliding_window=128, max_position_embeddings=131072)
    types = ["full_attention" if n % 2 else "sliding_attention" for n in range(c.count("num_hidden_layers"))]
    bias = "qkvo" if c.flag("attention_bias", True) else ""
    mlp = MlpConfig(c.count("intermediate_size"), "clamped_swiglu", gated=True, bias=True)
    router = experts(c, mlp, 128, 4, router_bias=True)
    layer = LayerConfig(attention(c, bias=bias, sinks=True), router, NormConfig("rms", c.number("rms_norm_eps", 1e-5)))
    return rotary_decoder(
        c, layer, head(c), types=layer_types(c, types), window=c.count("sliding_window", None),
        bases={"full_attention": 150000.0},
    )  # fmt: skip


GPT_OSS = {"gpt_oss": Architecture(gpt_oss, {**NAMES, **GPT_OSS_NAMES}, "model.", GPT_OSS_INERT, experts="stacked")}


# Qwen3 with experts in place of the MLPs of all layers.

QWEN3_EXPERTS = prefixed(
    "model.layers.{n}.mlp.", router="gate", gate="experts.{e}.gate_proj", up="experts.{e}.up_proj",
    down="experts.{e}.down_proj",
)  # fmt: skip
QWEN3_INERT = (
    "intermediate_size",
    "max_window_layers",
    "output_router_logits",
    "router_aux_loss_coef",
    "sliding_window",
)

QWEN3_NEUTRAL = {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}


def qwen3_moe(c: Config) -> TransformerConfig:
    """Read Qwen3MoeConfig; a window, if it is used, is of all layers."""
    c.must("decoder_sparse_step", 1)
    c.must("mlp_only_layers", [])
    c.defaults(num_key_value_heads=4, sliding_window=4096, max_position_embeddings=32768)
    window = c.count("sliding_window", None) if c.flag("use_sliding_window", False) else None
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6))
    attention_config = attention(c, bias="qkvo" if c.flag("attention_bias", False) else "", qk_norm=norm)
    mlp = MlpConfig(c.count("moe_intermediate_size", 768), c.activation("hidden_act", "silu"), gated=True)
    layer = LayerConfig(attention_config, experts(c, mlp, 128, 8, over_chosen=c.flag("norm_topk_prob", False)), norm)
    return rotary_decoder(c, layer, head(c), types=types, window=window)


QWEN3_MOE = {
    "qwen3_moe": Architecture(
        qwen3_moe, {**NAMES, **QK_NORMS, **QWEN3_EXPERTS}, "model.", QWEN3_INERT, neutral=QWEN3_NEUTRAL
    )
}


# OLMoE: norms of all channels of queries and keys together, experts weighted by the softmax over all of them.


def olmoe(c: Config) -> TransformerConfig:
    """Read OlmoeConfig."""
    c.must("clip_qkv", None)
    c.defaults(intermediate_size=2048, max_position_embeddings=4096)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    chosen = experts(c, mlp(c), 64, 8, over_chosen=c.flag("norm_topk_prob", False))
    layer = LayerConfig(attention(c, bias=bias, qk_norm=norm, qk_norm_over="all"), chosen, norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


OLMOE_INERT = ("output_router_logits", "router_aux_loss_coef")
OLMOE = {"olmoe": Architecture(olmoe, {**NAMES, **QK_NORMS, **QWEN3_EXPERTS}, "model.", OLMOE_INERT)}
