"""OLMo 2: norms after the branches alone, and of all channels of queries and keys together."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.gemma import GEMMA
from pejax.interop.architectures.qwen import QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig


def olmo2(c: Config) -> TransformerConfig:
    """Read Olmo2Config."""
    c.defaults(max_position_embeddings=2048)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    layer = LayerConfig(attention(c, bias=bias, qk_norm=norm, qk_norm_over="all"), mlp(c), norm, order="after")
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


ARCHITECTURES = {"olmo2": Architecture(olmo2, {**GEMMA, **QK_NORMS}, "model.")}
