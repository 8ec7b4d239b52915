"""OLMo, whose norms have no weights, and norms after the branches alone: OLMo 2 and 3, and EXAONE 4."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.gemma import GEMMA
from pejax.interop.architectures.llama import NAMES, QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

# OLMo: a Llama with LayerNorms without weights.

WITHOUT_NORMS = {part: name for part, name in NAMES.items() if not part.startswith("norm")}


def olmo(c: Config) -> TransformerConfig:
    """Read OlmoConfig."""
    c.must("clip_qkv", None)
    c.defaults(max_position_embeddings=2048)
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    layer = LayerConfig(attention(c, bias=bias), mlp(c), NormConfig("layer", 1e-5, weight=False))
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


OLMO = {"olmo": Architecture(olmo, WITHOUT_NORMS, "model.", ignored=r"rotary_emb\.inv_freq$")}


# OLMo 2: norms after the branches alone, and of all channels of queries and keys together.


def olmo2(c: Config) -> TransformerConfig:
    """Read Olmo2Config."""
    c.defaults(max_position_embeddings=2048)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    layer = LayerConfig(attention(c, bias=bias, qk_norm=norm, qk_norm_over="all"), mlp(c), norm, order="after")
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


OLMO2 = {"olmo2": Architecture(olmo2, {**GEMMA, **QK_NORMS}, "model.")}


# OLMo 3: an OLMo 2 of which three of four layers have a window, whose positions are never scaled.


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


OLMO3 = {"olmo3": Architecture(olmo3, {**GEMMA, **QK_NORMS}, "model.")}


# EXAONE 4: norms after the branches and of heads; where some layers have windows, the others have no positions.


def exaone4(c: Config) -> TransformerConfig:
    """Read Exaone4Config; `sliding_window_pattern` matters only without `layer_types`."""
    c.defaults(num_key_value_heads=32, sliding_window=4096, sliding_window_pattern=4, max_position_embeddings=2048)
    window, layers = c.count("sliding_window", None), c.count("num_hidden_layers")
    period = c.count("sliding_window_pattern") if window and c("layer_types", None) is None else 1
    types = layer_types(c, ["sliding_attention" if (n + 1) % period else "full_attention" for n in range(layers)])
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    layer = LayerConfig(attention(c, qk_norm=norm), mlp(c), norm, order="after")
    rotated = [window is None or kind == "sliding_attention" for kind in types]
    return rotary_decoder(c, layer, head(c), types=types, window=window, rotated=rotated)


EXAONE4_INERT = ("sliding_window_pattern", "cache_implementation")
EXAONE4 = {"exaone4": Architecture(exaone4, {**GEMMA, **QK_NORMS}, "model.", EXAONE4_INERT)}
