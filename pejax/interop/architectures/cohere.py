"""Cohere's Command R and R7B: attention and MLP read one norm without bias; the logits are scaled."""

from dataclasses import replace

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.llama import NAMES, QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig


def cohere(c: Config) -> TransformerConfig:
    """Read CohereConfig."""
    c.defaults(max_position_embeddings=8192)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5))
    scaled = replace(head(c, tied=True), scale=c.number("logit_scale", 0.0625))
    qk_norm = norm if c.flag("use_qk_norm", False) else None
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    layer = LayerConfig(attention(c, bias=bias, qk_norm=qk_norm, qk_norm_over="heads"), mlp(c), norm, parallel="one")
    return rotary_decoder(c, layer, scaled, types=layer_types(c), bases={"full_attention": 5e5}, pairing="interleaved")


def cohere2(c: Config) -> TransformerConfig:
    """Read Cohere2Config: three of four layers have a window, and the others no positions."""
    c.defaults(sliding_window=4096, max_position_embeddings=8192)
    period, layers = (
        c.count("sliding_window_pattern", c.count("_sliding_window_pattern", 4)),
        c.count("num_hidden_layers"),
    )
    types = layer_types(c, ["sliding_attention" if (n + 1) % period else "full_attention" for n in range(layers)])
    scaled = replace(head(c, tied=True), scale=c.number("logit_scale", 0.0625))
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5))
    layer = LayerConfig(attention(c, bias=bias), mlp(c), norm, parallel="one")
    return rotary_decoder(
        c, layer, scaled, types=types, window=c.count("sliding_window", None), pairing="interleaved",
        rotated=[kind == "sliding_attention" for kind in types],
    )  # fmt: skip


ARCHITECTURES = {
    "cohere": Architecture(cohere, {**NAMES, **QK_NORMS}, "model."),
    "cohere2": Architecture(cohere2, NAMES, "model.", inert=("cache_implementation",)),
}
