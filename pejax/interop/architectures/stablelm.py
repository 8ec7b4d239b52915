"""StableLM: a Llama with LayerNorms, a quarter of the channels rotated, and in some models a norm for every head."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, channels_per_head, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

PER_HEAD = prefixed("model.layers.{n}.self_attn.", q_norm="q_layernorm.norms.{h}", k_norm="k_layernorm.norms.{h}")


def stablelm(c: Config) -> TransformerConfig:
    """Read StableLmConfig."""
    c.defaults(max_position_embeddings=4096, num_key_value_heads=32)
    epsilon = c.number("layer_norm_eps", 1e-5)
    qk_norm = NormConfig("layer", epsilon) if c.flag("qk_layernorm", False) else None
    c.must("head_dim", channels_per_head(c, c.count("hidden_size"), c.count("num_attention_heads")))
    attention_config = attention(
        c, bias="qkv" if c.flag("use_qkv_bias", False) else "", qk_norm=qk_norm, qk_norm_over="heads"
    )
    parallel = "one" if c.flag("use_parallel_residual", False) else ""
    layer = LayerConfig(attention_config, mlp(c), NormConfig("layer", epsilon, bias=True), parallel=parallel)
    return rotary_decoder(c, layer, head(c), types=layer_types(c), rotated_fraction=0.25)


ARCHITECTURES = {"stablelm": Architecture(stablelm, {**NAMES, **PER_HEAD}, "model.")}
