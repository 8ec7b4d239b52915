"""SmolLM3: a Llama in which every fourth layer has no positions."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig


def smollm3(c: Config) -> TransformerConfig:
    """Read SmolLM3Config."""
    c.defaults(num_key_value_heads=4, max_position_embeddings=32768)
    layers, interval = c.count("num_hidden_layers"), c.count("no_rope_layer_interval", 4)
    rotated = c("no_rope_layers", [int((n + 1) % interval != 0) for n in range(layers)])
    if not isinstance(rotated, list) or len(rotated) != layers or not all(flag in (0, 1) for flag in rotated):
        rule = f"no_rope_layers must be num_hidden_layers={layers} numbers, 0 for a layer without positions, else 1"
        raise ValueError(f"{c.where}: {rule}, got {str(rotated)[:80]}")
    window = c.count("sliding_window", None) if c.flag("use_sliding_window", False) else None
    types = ["sliding_attention" if window and not turned else "full_attention" for turned in rotated]
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6))
    layer = LayerConfig(attention(c, bias=bias), mlp(c, bias=c.flag("mlp_bias", False)), norm)
    return rotary_decoder(
        c, layer, head(c, tied=True), types=layer_types(c, types), window=window, bases={"full_attention": 2e6},
        rotated=[bool(turned) for turned in rotated],
    )  # fmt: skip


ARCHITECTURES = {"smollm3": Architecture(smollm3, NAMES, "model.", inert=("sliding_window", "max_window_layers"))}
