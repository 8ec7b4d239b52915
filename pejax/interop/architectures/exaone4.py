"""EXAONE 4: norms after the branches and of heads; where some layers have windows, the others have no positions."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.gemma import GEMMA
from pejax.interop.architectures.qwen import QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig


def exaone4(c: Config) -> TransformerConfig:
    """Read Exaone4Config; `sliding_window_pattern` matters only without `layer_types`."""
    c.defaults(num_key_value_heads=32, sliding_window=4096, sliding_window_pattern=4, max_position_embeddings=2048)
    window, layers = c.count("sliding_window", None), c.count("num_hidden_layers")
    period = c.count("sliding_window_pattern") if window else 1
    types = layer_types(c, ["sliding_attention" if (n + 1) % period else "full_attention" for n in range(layers)])
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    layer = LayerConfig(attention(c, qk_norm=norm), mlp(c), norm, order="after")
    rotated = [window is None or kind == "sliding_attention" for kind in types]
    return rotary_decoder(c, layer, head(c), types=types, window=window, rotated=rotated)


INERT = ("sliding_window_pattern", "cache_implementation")
ARCHITECTURES = {"exaone4": Architecture(exaone4, {**GEMMA, **QK_NORMS}, "model.", INERT)}
