"""Phi-1 to Phi-4."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

# Phi-1 and Phi-2: attention and MLP read one norm; biases everywhere, the head included.

PHI_NAMES = {
    **{part: name for part, name in NAMES.items() if part not in ("gate", "norm_mlp")},
    "norm": "model.final_layernorm",
    **prefixed("model.layers.{n}.", o="self_attn.dense", up="mlp.fc1", down="mlp.fc2"),
}


def phi(c: Config) -> TransformerConfig:
    """Read PhiConfig."""
    c.must("qk_layernorm", False)
    c.defaults(max_position_embeddings=2048)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5), bias=True)
    plain = mlp(c, "gelu_new", gated=False, bias=True)
    layer = LayerConfig(attention(c, bias="qkvo"), plain, norm, parallel="one")
    return rotary_decoder(c, layer, head(c, bias=True), types=layer_types(c), rotated_fraction=0.5)


PHI = {"phi": Architecture(phi, PHI_NAMES, "model.")}


# Phi-3 and Phi-4: a Llama with one tensor of queries, keys and values, one of gate and up, and LongRoPE.

FUSED = prefixed("model.layers.{n}.", qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")


def phi3(c: Config) -> TransformerConfig:
    """Read Phi3Config."""
    c.defaults(max_position_embeddings=4096, original_max_position_embeddings=4096)
    window, layers = c.count("sliding_window", None), c.count("num_hidden_layers")
    _ = c.count("original_max_position_embeddings")
    c.must("attention_bias", False)
    types = ["sliding_attention" if window else "full_attention"] * layers
    layer = LayerConfig(attention(c), mlp(c), NormConfig("rms", c.number("rms_norm_eps", 1e-5)))
    return rotary_decoder(c, layer, head(c), types=types, window=window, rotated_fraction=1.0)


PHI3_NEUTRAL = {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False}
PHI3 = {"phi3": Architecture(phi3, {**NAMES, **FUSED}, "model.", neutral=PHI3_NEUTRAL)}
