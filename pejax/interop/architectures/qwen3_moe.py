"""Qwen3 with experts in place of the MLPs of all layers."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.architectures.qwen import QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, experts, head, rotary_decoder
from pejax.models import LayerConfig, MlpConfig, NormConfig, TransformerConfig

EXPERTS = prefixed(
    "model.layers.{n}.mlp.", router="gate", gate="experts.{e}.gate_proj", up="experts.{e}.up_proj",
    down="experts.{e}.down_proj",
)  # fmt: skip
INERT = ("intermediate_size", "max_window_layers", "output_router_logits", "router_aux_loss_coef", "sliding_window")

NEUTRAL = {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}


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


ARCHITECTURES = {
    "qwen3_moe": Architecture(qwen3_moe, {**NAMES, **QK_NORMS, **EXPERTS}, "model.", INERT, neutral=NEUTRAL)
}
