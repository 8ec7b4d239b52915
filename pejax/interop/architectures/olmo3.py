"""OLMo 3: an OLMo 2 of which three of four layers have a window, whose positions are never scaled."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.gemma import GEMMA
from pejax.interop.architectures.qwen import QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig


def olmo3(c: Config) -> TransformerConfig:
    """Read Olmo3Config."""
    c.must("rope_local_base_freq", None)
    c.defaults(sliding_window=4096, max_position_embeddings=2048)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    layer = LayerConfig(attention(c, bias=bias, qk_norm=norm, qk_norm_over="all"), mlp(c), norm, order="after")
    types = ["sliding_attention" if (n + 1) % 4 else "full_attention" for n in range(c.count("num_hidden_layers"))]
    return rotary_decoder(
        c, layer, head(c), types=layer_types(c, types), window=c.count("sliding_window", None),
        bases={"full_attention": 5e5, "sliding_attention": 5e5},
    )  # fmt: skip


ARCHITECTURES = {"olmo3": Architecture(olmo3, {**GEMMA, **QK_NORMS}, "model.")}
