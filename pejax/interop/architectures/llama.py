"""Llama and SmolLM2; Mistral, whose layers have windows, and Ministral, of which some have."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "model.embed_tokens", "norm": "model.norm", "head": "lm_head",
    **prefixed(
        "model.layers.{n}.", norm_attention="input_layernorm", norm_mlp="post_attention_layernorm",
        q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.o_proj",
        gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj",
    ),
}  # fmt: skip


def llama(c: Config) -> TransformerConfig:
    """Read LlamaConfig."""
    c.defaults(max_position_embeddings=2048)
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6))
    layer = LayerConfig(attention(c, bias=bias), mlp(c, bias=c.flag("mlp_bias", False)), norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


def mistral(c: Config) -> TransformerConfig:
    """Read MistralConfig."""
    c.defaults(num_key_value_heads=8, sliding_window=4096, max_position_embeddings=131072)
    window = c.count("sliding_window", None)
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    layer = LayerConfig(attention(c), mlp(c), NormConfig("rms", c.number("rms_norm_eps", 1e-6)))
    return rotary_decoder(c, layer, head(c), types=types, window=window)


def ministral(c: Config) -> TransformerConfig:
    """Read MinistralConfig."""
    c.defaults(num_key_value_heads=8, sliding_window=4096, max_position_embeddings=131072)
    window = c.count("sliding_window", None)
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    layer = LayerConfig(attention(c), mlp(c), NormConfig("rms", c.number("rms_norm_eps", 1e-6)))
    return rotary_decoder(c, layer, head(c), types=layer_types(c, types), window=window)


INERT = ("is_llama_config", "internal_version")
NEUTRAL = {"rope_interleaved": False}
ARCHITECTURES = {
    "llama": Architecture(llama, NAMES, "model.", INERT, r"rotary_emb\.inv_freq$", neutral=NEUTRAL),
    "ministral": Architecture(ministral, NAMES, "model."),
    "mistral": Architecture(mistral, NAMES, "model.", ignored=r"rotary_emb\.inv_freq$"),
}
