"""Qwen2, with biases of queries, keys and values, the text of Qwen2.5-VL, and Qwen3, with norms of queries and keys."""

from typing import Any

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

QK_NORMS = prefixed("model.layers.{n}.self_attn.", q_norm="q_norm", k_norm="k_norm")


def qwen(c: Config, base: float = 1e4, **options: Any) -> TransformerConfig:
    """Read what the configs share: the layers from `max_window_layers` on may have windows."""
    c.defaults(
        num_key_value_heads=32, sliding_window=4096, max_window_layers=28, max_position_embeddings=32768
    )  # fmt: skip
    layers, first = c.count("num_hidden_layers"), c.count("max_window_layers", least=0)
    window = c.count("sliding_window", None) if c.flag("use_sliding_window", False) else None
    types = ["sliding_attention" if window and n >= first else "full_attention" for n in range(layers)]
    layer = LayerConfig(attention(c, **options), mlp(c), NormConfig("rms", c.number("rms_norm_eps", 1e-6)))
    bases = {"full_attention": base}
    return rotary_decoder(c, layer, head(c), types=layer_types(c, types), window=window, bases=bases)


def qwen2(c: Config) -> TransformerConfig:
    """Read Qwen2Config."""
    return qwen(c, bias="qkv")


def of_images(c: Config) -> TransformerConfig:
    """Read Qwen2_5_VLTextConfig: in a text without pictures, all sections of the channels have the same position."""
    for key in ("rope_scaling", "rope_parameters"):
        said = c.object(key)
        if "mrope_section" in said:
            plain = {name: "default" for name in ("type", "rope_type") if said.get(name) == "mrope"}
            c.keys[key] = {name: value for name, value in {**said, **plain}.items() if name != "mrope_section"}
    return qwen(c, base=1e6, bias="qkv")


def qwen3(c: Config) -> TransformerConfig:
    """Read Qwen3Config."""
    c.defaults(head_dim=128)
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    return qwen(c, bias=bias, qk_norm=NormConfig("rms", c.number("rms_norm_eps", 1e-6)))


WINDOW = ("sliding_window",)
"""A key that is read only where `use_sliding_window` is true."""
ARCHITECTURES = {
    "qwen2": Architecture(qwen2, NAMES, "model.", WINDOW, neutral={"use_mrope": False}),
    "qwen2_5_vl_text": Architecture(of_images, NAMES, "model.", WINDOW),
    "qwen3": Architecture(qwen3, {**NAMES, **QK_NORMS}, "model.", WINDOW),
}
