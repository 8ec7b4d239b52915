"""Granite: a Llama with a factor each for token vectors, attention, branches and logits; Granite SWA has windows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config, is_number
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import HeadConfig, LayerConfig, NormConfig, TransformerConfig


def scaled_decoder(
    c: Config, types: Sequence[str], *, epsilon: float, tied: bool = False, sinks: bool = False, **options: Any
) -> TransformerConfig:
    """Read what both configs share; `epsilon` and `tied` are defaults, `options` are those of `rotary_decoder`."""
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    norm = NormConfig("rms", c.number("rms_norm_eps", epsilon))
    attention_config = attention(c, bias=bias, scale=c.number("attention_multiplier", 1.0), sinks=sinks)
    gated, factor = mlp(c, bias=c.flag("mlp_bias", False)), c.number("residual_multiplier", 1.0)
    scaled = HeadConfig(head(c, tied=tied).tied, scale=1.0 / c.positive("logits_scaling", 1.0))
    layer = LayerConfig(attention_config, gated, norm, branch_scale=factor)
    return rotary_decoder(
        c, layer, scaled, types=types, embed_scale=c.number("embedding_multiplier", 1.0), **options
    )  # fmt: skip


def granite(c: Config) -> TransformerConfig:
    """Read GraniteConfig."""
    c.defaults(max_position_embeddings=2048)
    return scaled_decoder(c, layer_types(c), epsilon=1e-6)


def docling(c: Config) -> TransformerConfig:
    """Read GraniteDoclingTextConfig."""
    c.defaults(num_key_value_heads=4, max_position_embeddings=32768, embedding_multiplier=12.0, logits_scaling=4.0)
    c.defaults(residual_multiplier=0.263, attention_multiplier=0.015625)
    return scaled_decoder(c, layer_types(c), epsilon=1e-5, tied=True)


def granite_swa(c: Config) -> TransformerConfig:
    """Read GraniteSWAConfig, which may have a base per layer; at the base 0 a layer has no positions."""
    c.defaults(num_key_value_heads=4, sliding_window=128, max_position_embeddings=8192)
    layers = c.count("num_hidden_layers")
    types = layer_types(c, ["sliding_attention" if n % 4 else "full_attention" for n in range(layers)])
    bases = c("layer_rope_theta", None)
    if bases is not None and not (isinstance(bases, list) and len(bases) == layers and all(map(is_base, bases))):
        rule = f"layer_rope_theta must be num_hidden_layers={layers} numbers of at least 0"
        raise ValueError(f"{c.where}: {rule}, got {str(bases)[:80]}")
    rotated = [bool(base) for base in bases or [1] * layers]
    window = c.count("sliding_window", None)
    model = scaled_decoder(c, types, epsilon=1e-5, tied=True, sinks=True, window=window, rotated=rotated)
    if bases is None:
        return model
    return replace(model, layers=tuple(map(with_base, model.layers, bases)))


def is_base(value: object) -> bool:
    """Whether a value is the base of a rotation, or 0 for none."""
    return is_number(value) and value >= 0  # pyright: ignore[reportOperatorIssue]


def with_base(layer: LayerConfig, base: float) -> LayerConfig:
    """Return a layer whose rotation, if it has any, has this base."""
    pe = layer.attention.pe
    if not base or not isinstance(pe, EncodingSpec):
        return layer
    pe = EncodingSpec(pe.name, {**dict(pe.options), "base": float(base)}, pe.extend)
    return replace(layer, attention=replace(layer.attention, pe=pe))


SINKS = prefixed("model.layers.{n}.", sinks="self_attn.sinks")
ARCHITECTURES = {
    "granite": Architecture(granite, NAMES, "model."),
    "granite_docling_text": Architecture(docling, NAMES, "model."),
    "granite_swa": Architecture(granite_swa, {**NAMES, **SINKS}, "model."),
}
