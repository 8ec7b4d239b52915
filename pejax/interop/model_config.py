"""The architecture of a config.json, and the config of the model that it describes."""

from collections.abc import Mapping, Sequence
from typing import Any

from pejax.interop.architecture import Architecture, of_encoder
from pejax.interop.architectures import find_architecture, rope_vit
from pejax.interop.config import Config
from pejax.interop.fields import own_model
from pejax.interop.stacks import ModelConfig
from pejax.interop.towers import TOWERS, text_tower
from pejax.models import EncoderDecoderConfig, TransformerConfig, ViTConfig


def name_of(config: Mapping[str, Any]) -> str:
    """Return the name of the architecture in a config.json."""
    return config.get("model_type", config.get("architecture"))


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a config.json, by its `model_type`, or by timm's `architecture`.

    Raises:
        ValueError: an unknown or unsupported architecture.
    """
    for key in ("model_type", "architecture"):
        if not isinstance(config.get(key), str | None):
            raise ValueError(f"config.json: {key} must be a string, got {config[key]!r}"[:400])
    if config.get("model_type") in TOWERS:
        return text_tower(config, find_architecture)
    if "model_type" in config or "architecture" not in config:
        architecture = find_architecture(config.get("model_type"))
        return (
            architecture
            if architecture.padding is None
            else architecture._replace(skipped_rows=rows_of_padding(config, architecture.padding))
        )
    return rope_vit.ARCHITECTURES.get(config["architecture"], rope_vit.SIZES_GIVEN)


def rows_of_padding(config: Mapping[str, Any], default: int) -> int:
    """Return the number of rows up to that of `pad_token_id`."""
    return 1 + Config(config).count("pad_token_id", default, least=0)


def read_config(
    config: Mapping[str, Any], ignore: str | Sequence[str] = (), sizes: ViTConfig | None = None
) -> ModelConfig:
    """Return the model config that a config.json describes; arguments and errors as in `read_model`."""
    return read_model(config, ignore, sizes)[1]


def read_model(
    config: Mapping[str, Any], ignore: str | Sequence[str] = (), sizes: ViTConfig | None = None
) -> tuple[Architecture, ModelConfig]:
    """Return the architecture of a config.json, that of the encoder if it describes no more, and the model config.

    Args:
        config: content of config.json.
        ignore: patterns of paths of keys that may be left unread (`rope_scaling.finetuned`, `quant*`).
        sizes: config of a timm model whose config.json does not give its sizes. None = config.json gives them, or the
            name of the model in it does.

    Raises:
        ValueError: an unknown architecture, a key that is missing or unread, an unsupported value, or `sizes` for a
            config.json that has its own.
    """
    architecture = architecture_of(config)
    if sizes is not None:
        if "model_type" in config:
            raise ValueError(f"config must be None where config.json has the sizes, got {sizes}")
        return architecture, sizes
    c = Config(config)
    model_config = _read(c, architecture, ignore)
    is_encoder = isinstance(model_config, TransformerConfig) and "encoder.norm" in architecture.names
    return of_encoder(architecture) if is_encoder else architecture, model_config


def notes(config: Mapping[str, Any], ignore: str | Sequence[str] = ()) -> list[str]:
    """Return lines on what a config.json has that is not obeyed: keys of other tools, and code of its own.

    Args:
        config: content of config.json, which `read_model` accepts.
        ignore: as in `read_model`.
    """
    if "model_type" not in config:
        return []
    c = Config(config)
    _read(c, architecture_of(config), ignore)
    keys, code = c.foreign_keys(), own_model(config)
    lines = [f"unread: {', '.join(keys)}, which no code of transformers reads"] if keys else []
    return [*lines, code_note(config, code)] if code else lines


def code_note(config: Mapping[str, Any], code: str) -> str:
    """Return the line on a folder that names code of its own, which is not run."""
    return f"auto_map names code of the folder's own, {code}, which is not run: it is read as {name_of(config)}"


def _read(c: Config, architecture: Architecture, ignore: str | Sequence[str]) -> ModelConfig:
    """Return the model config, and check that every key was read."""
    model_config = architecture.read(c)
    if not isinstance(model_config, TransformerConfig | EncoderDecoderConfig | ViTConfig):
        rule = f"the reader of {c('model_type', None)!r} must return a TransformerConfig, an EncoderDecoderConfig"
        raise ValueError(f"{rule} or a ViTConfig, got a {type(model_config).__name__}")
    c.close(architecture.inert, ignore, architecture.neutral)
    return model_config
