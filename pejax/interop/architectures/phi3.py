"""Phi-3 and Phi-4: a Llama with one tensor of queries, keys and values, one of gate and up, and LongRoPE."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

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


NEUTRAL = {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False}
ARCHITECTURES = {"phi3": Architecture(phi3, {**NAMES, **FUSED}, "model.", neutral=NEUTRAL)}
