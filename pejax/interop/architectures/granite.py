"""Granite: a Llama with a factor each for token vectors, attention, branches and logits."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import HeadConfig, LayerConfig, NormConfig, TransformerConfig


def granite(c: Config) -> TransformerConfig:
    """Read GraniteConfig."""
    c.defaults(max_position_embeddings=2048)
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6))
    attention_config = attention(c, bias=bias, scale=c.number("attention_multiplier", 1.0))
    gated, factor = mlp(c, bias=c.flag("mlp_bias", False)), c.number("residual_multiplier", 1.0)
    scaled = HeadConfig(head(c).tied, scale=1.0 / c.positive("logits_scaling", 1.0))
    return rotary_decoder(
        c, LayerConfig(attention_config, gated, norm, branch_scale=factor), scaled, types=layer_types(c),
        embed_scale=c.number("embedding_multiplier", 1.0),
    )  # fmt: skip


ARCHITECTURES = {"granite": Architecture(granite, NAMES, "model.")}
