"""Falcon with rotary positions: attention and MLP in parallel, or one after the other in early models."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, head, layer_types, rotary_decoder
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "transformer.word_embeddings", "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="input_layernorm", norm_mlp="post_attention_layernorm",
        qkv="self_attention.query_key_value", o="self_attention.dense", up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    ),
}  # fmt: skip
TWO_NORMS = prefixed("transformer.h.{n}.", norm_attention="ln_attn", norm_mlp="ln_mlp")


def _parallel(c: Config, is_new: bool) -> str:
    """Return the kind of parallel branches, as in `LayerConfig`."""
    if not is_new:
        c.must("num_ln_in_parallel_attn", None, 1)
        return "one" if c.flag("parallel_attn", True) else ""
    c.must("parallel_attn", True)
    c.must("num_ln_in_parallel_attn", 2, 1)
    return "two" if c("num_ln_in_parallel_attn", 2) == 2 else "one"


def falcon(c: Config) -> TransformerConfig:
    """Read FalconConfig; ALiBi, which transformers rounds to bfloat16 there, is refused."""
    c.must("alibi", False)
    c.must("apply_residual_connection_post_layernorm", False)
    heads, width = c.count("num_attention_heads"), c.count("hidden_size")
    c.must("n_head", heads)
    c.must("n_layer", c.count("num_hidden_layers"))
    is_new, one_key = c.flag("new_decoder_architecture", False), c.flag("multi_query", True)
    kv_heads = c.count("num_kv_heads", heads) if is_new else 1 if one_key else heads
    c.defaults(max_position_embeddings=2048)
    channels, bias = channels_per_head(c, width, heads), c.flag("bias", False)
    c.must("head_dim", channels)
    plain = MlpConfig(c.count("ffn_hidden_size", 4 * width), c.activation("activation", "gelu"), bias=bias)
    norm = NormConfig("layer", c.number("layer_norm_epsilon", 1e-5), bias=True)
    attention_config = AttentionConfig(heads, kv_heads, channels, bias="qkvo" if bias else "")
    layer = LayerConfig(attention_config, plain, norm, parallel=_parallel(c, is_new))
    return rotary_decoder(c, layer, head(c, tied=True), types=layer_types(c))


def two_norms(layer: LayerConfig) -> dict[str, str]:
    """Return the names of the norms of parallel branches with a norm each."""
    return TWO_NORMS if layer.parallel == "two" else {}


INERT = ("num_kv_heads",)
"""Of models before `new_decoder_architecture`, which have one key head or as many as heads."""
ARCHITECTURES = {
    "falcon": Architecture(falcon, NAMES, "transformer.", INERT, qkv_by_head=True, by_layer=two_norms),
}
