"""Readers that several architectures share: configs of decoders with rotary or learned positions."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pejax._record.specs import NONE
from pejax.interop.config import Config
from pejax.interop.rope import LAYER_TYPES, head_channels, read_rope
from pejax.models import AttentionConfig, HeadConfig, LayerConfig, MlpConfig, MoEConfig, NormConfig, TransformerConfig


def mlp(
    c: Config, activation: str = "silu", *, key: str = "hidden_act", gated: bool = True, bias: bool | str = False
) -> MlpConfig:
    """Return the MLP; `activation` is the default of the config's key."""
    return MlpConfig(c.count("intermediate_size"), c.activation(key, activation), gated, bias)


def experts(c: Config, mlp: MlpConfig, count: int, chosen: int, **options: Any) -> MoEConfig:
    """Return the experts, each with this MLP; `count` and `chosen` are defaults, `options` are other fields."""
    other = c.count("num_experts", None)
    count = c.count("num_local_experts", count if other is None else other)
    if other not in (None, count):
        raise ValueError(f"{c.where}: num_experts must be absent or num_local_experts={count}, got {other}")
    return MoEConfig(count, c.count("num_experts_per_tok", chosen), mlp, **options)


def head(c: Config, *, tied: bool = False, bias: bool = False, cap: float | None = None) -> HeadConfig:
    """Return the head; `tied` is the default of the config's key."""
    return HeadConfig(c.flag("tie_word_embeddings", tied), bias, cap=cap)


def layer_types(c: Config, default: Sequence[str] | None = None) -> list[str]:
    """Return the type of attention of every layer, from `layer_types`, or the default, or "full_attention"."""
    layers = c.count("num_hidden_layers")
    types = c("layer_types", ["full_attention"] * layers if default is None else list(default))
    if not isinstance(types, list) or len(types) != layers or not all(kind in LAYER_TYPES for kind in types):
        rule = f"layer_types must be num_hidden_layers={layers} names out of {', '.join(LAYER_TYPES)}"
        raise ValueError(f"{c.where}: {rule}, got {str(types)[:80]}")
    return types


def attention(c: Config, **options: Any) -> AttentionConfig:
    """Return the attention of all layers, without positions and windows; `options` are other fields."""
    heads = c.count("num_attention_heads")
    return AttentionConfig(heads, c.count("num_key_value_heads", heads), head_channels(c), **options)


def rotary_decoder(
    c: Config,
    layer: LayerConfig,
    head: HeadConfig,
    *,
    types: Sequence[str],
    window: int | None = None,
    rotated: Sequence[bool] = (),
    bases: Mapping[str, float] = {"full_attention": 1e4},
    rotated_fraction: float | None = None,
    pairing: str = "half",
    embed_scale: float = 1.0,
) -> TransformerConfig:
    """Return the config of a decoder with rotary positions.

    Args:
        c: the config.
        layer: config of all layers, but for positions and windows. Its norm is also the last one.
        head: config of the head.
        types: type of every layer: "full_attention" or "sliding_attention".
        window: window of the layers with "sliding_attention".
        rotated: whether each layer has positions, one entry per layer. () = all layers have positions.
        bases: default base by type of layer. If "sliding_attention" has an entry, `rope_scaling` does not apply to it.
        rotated_fraction: default fraction of a head's channels that is rotated. None = the architecture rotates all.
        pairing: which channels are rotated together.
        embed_scale: factor of the token vectors.
    """
    if "sliding_attention" in types and window is None:
        raise ValueError(f"{c.where} must have the key sliding_window where layers have sliding_attention, got none")

    @functools.cache
    def own_layer(kind: str, turned: bool) -> LayerConfig:
        base, slides = bases.get(kind, bases["full_attention"]), kind == "sliding_attention"
        local = slides if "sliding_attention" in bases else None
        rope = partial(read_rope, c, kind, pairing=pairing, base=base, local=local)
        pe = rope(rotated_fraction=rotated_fraction) if turned else NONE
        attention_config = replace(layer.attention, pe=pe, window=window if slides else None)
        return replace(layer, attention=attention_config)

    layers = tuple(itertools.starmap(own_layer, zip(types, rotated or [True] * len(types), strict=True)))
    causal = c.flag("is_causal", True)
    if not causal and "sliding_attention" in types:
        raise ValueError(f"{c.where}: is_causal must be true in a model with windows, got false")
    return TransformerConfig(
        c.count("vocab_size"), c.count("hidden_size"), c.count("max_position_embeddings"), layers, causal,
        norm=layer.norm, embed_scale=embed_scale, head=head, padding="counted",
    )  # fmt: skip


def uniform_model(
    c: Config,
    layer: LayerConfig,
    *,
    width: int,
    layers: str,
    length: int,
    norm: NormConfig | None,
    head: HeadConfig | None,
    embed_norm: NormConfig | None = None,
    causal: bool = True,
    padding: str = "counted",
) -> TransformerConfig:
    """Return the config of a model whose layers are all the same; `layers` is the key of their number."""
    stack = (layer,) * c.count(layers)
    return TransformerConfig(
        c.count("vocab_size"),
        width,
        length,
        stack,
        causal,
        norm=norm,
        embed_norm=embed_norm,
        head=head,
        padding=padding,
    )


def channels_per_head(c: Config, width: int, heads: int) -> int:
    """Return width / heads.

    Raises:
        ValueError: the heads do not divide the width.
    """
    if width % heads:
        raise ValueError(f"{c.where}: the width must be a multiple of the heads, got {width} and {heads}")
    return width // heads
