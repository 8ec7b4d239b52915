"""Readers that several vision transformers share."""

from collections.abc import Callable
from typing import Any

from pejax.interop.config import Config
from pejax.models import LayerConfig, ViTConfig

INERT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate", "initializer_factor")
"""Keys that change nothing once a model is trained."""
BACKBONE = ("out_features", "out_indices", "stage_names", "apply_layernorm", "reshape_hidden_states")
"""Keys of what transformers hands on to detectors."""
BOTH = ("text_config", "text_config_dict", "logit_scale_init_value", "projection_dim", *INERT)
"""Keys of models of images and text that the vision tower does not read."""
TEXT_TOWER = r"^(text_model|text_projection|visual_projection)\.|^logit_(scale|bias)$"


def vision_transformer(
    c: Config, layer: LayerConfig, *, image: int | None = None, patch: int, **options: Any
) -> ViTConfig:
    """Return the config of a vision transformer whose layers are alike.

    Pixels beyond the last whole patch are not seen, so the sides of the config are multiples of the patch.

    Args:
        c: the config.
        layer: config of all layers. Its norm is also the last one.
        image: default of the side of the training images, pixels. None = `options` say it.
        patch: default of the side of a patch, pixels.
        options: other fields of `ViTConfig`.
    """
    side = patch_side(c, patch)
    if image is not None:
        sides = _sides(c, "image_size", image)
        options["image_size"] = tuple(length // side * side for length in sides)
        if min(sides) < side:
            raise ValueError(f"{c.where}: image_size must be at least patch_size={side}, got {c('image_size', image)}")
    layers, channels = c.count("num_hidden_layers"), c.count("num_channels", 3)
    fields = {"norm": layer.norm, **options}
    return ViTConfig(patch=side, channels=channels, width=c.count("hidden_size"), layers=(layer,) * layers, **fields)


def vision_tower(read: Callable[[Config], ViTConfig], inert: tuple[str, ...]) -> Callable[[Config], ViTConfig]:
    """Return the reader of the config of a model of images and text, which reads the vision tower.

    Args:
        read: reads the config of the tower.
        inert: keys of that config which change nothing.
    """

    def read_tower(c: Config) -> ViTConfig:
        keys = {**c.object("vision_config"), **c.object("vision_config_dict")}
        return read(c.part("vision_config", keys, inert=(*inert, "tie_word_embeddings")))

    return read_tower


def patch_side(c: Config, default: int) -> int:
    """Return the side of a patch, pixels.

    Raises:
        ValueError: patches that are not square.
    """
    height, width = _sides(c, "patch_size", default)
    if height != width:
        raise ValueError(f"{c.where}: patch_size must be one number for both sides, got {c('patch_size')!r}")
    return height


def classes(c: Config) -> int:
    """Return the number of labels, 0 in a model without a classifier; the file may have none, either."""
    labels, names = c.object("id2label"), c("architectures", [])
    classifies = isinstance(names, list) and any("ImageClassification" in str(name) for name in names)
    if labels or "num_labels" not in c.keys:
        return len(labels) or 2 * classifies
    return c.count("num_labels", least=0)


def _sides(c: Config, key: str, default: int) -> tuple[int, int]:
    """Return height and width, from one number or two."""
    value = c(key, default)
    if not isinstance(value, list | tuple):
        side = c.count(key, default)
        return side, side
    if len(value) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in value):
        raise ValueError(f"{c.where}: {key} must be one or two integers of at least 1, got {value!r}")
    return value[0], value[1]
