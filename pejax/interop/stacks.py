"""Configs with one stack of layers, `TransformerConfig` or `ViTConfig`, or with two, `EncoderDecoderConfig`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from pejax.models import EncoderDecoderConfig, HeadConfig, TransformerConfig, ViTConfig

TextConfig: TypeAlias = TransformerConfig | EncoderDecoderConfig
ModelConfig: TypeAlias = TextConfig | ViTConfig


def stacks(config: ModelConfig) -> dict[str, TransformerConfig | ViTConfig]:
    """Return the stacks by the prefix of the names of their parts: "" = the only one, else "encoder." or "decoder."."""
    if isinstance(config, EncoderDecoderConfig):
        return {"encoder.": config.encoder, "decoder.": config.decoder}
    return {"": config}


def head_stack(config: ModelConfig) -> TransformerConfig:
    """Return the config of the stack that the head follows; vocabulary and width of both stacks are the same.

    Raises:
        ValueError: a vision transformer.
    """
    if isinstance(config, ViTConfig):
        raise ValueError("the model must be a text model, got a vision transformer")
    return config if isinstance(config, TransformerConfig) else config.decoder


def map_stacks(config: ModelConfig, change: Callable[[Any], Any]) -> ModelConfig:
    """Return the config with every stack replaced by `change(stack)`."""
    if isinstance(config, EncoderDecoderConfig):
        return replace(config, encoder=change(config.encoder), decoder=change(config.decoder))
    return change(config)


def with_head(config: TextConfig, head: HeadConfig | None) -> TextConfig:
    """Return the config with another head."""
    if isinstance(config, TransformerConfig):
        return replace(config, head=head)
    return replace(config, decoder=replace(config.decoder, head=head))
