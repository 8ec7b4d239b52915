"""The text towers of models of images and text: the text model is loaded, the other tensors are carried."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from pejax.interop.architecture import Architecture
from pejax.interop.config import Config
from pejax.interop.stacks import ModelConfig


class Tower(NamedTuple):
    """Defaults of the text tower of a model of images and text.

    Attributes:
        text: default of the text model's `model_type`.
        tied: default of `tie_word_embeddings`.
    """

    text: str
    tied: bool = False


TOWERS = {
    "gemma3": Tower("gemma3_text", tied=True),
    "granite_docling": Tower("granite_docling_text", tied=True),
    "internvl": Tower("qwen2", tied=True),
    "llava_onevision": Tower("qwen2"),
    "mistral3": Tower("mistral", tied=True),
    **dict.fromkeys(("idefics3", "llava", "llava_next", "llava_next_video", "smolvlm", "vipllava"), Tower("llama")),
    **{name: Tower(f"{name}_text") for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")},
}
"""Defaults of text towers, by the `model_type` of the whole model."""

LLAMA_SIZES = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
"""Sizes of LlamaConfig, which other classes share."""

QWEN_SIZES = {
    "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768, "max_window_layers": 80,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
"""Sizes of Qwen2VLTextConfig and Qwen2_5_VLTextConfig."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA_SIZES, "intermediate_size": 11008, "max_position_embeddings": 2048},
    "mistral": {**LLAMA_SIZES, "intermediate_size": 14336, "max_position_embeddings": 131072},
    "qwen2": {**LLAMA_SIZES, "vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768},
    "gemma3_text": {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                    "num_attention_heads": 8, "max_position_embeddings": 131072},
    "granite_docling_text": {"vocab_size": 133800, "hidden_size": 1024, "intermediate_size": 2048,
                             "num_hidden_layers": 28, "num_attention_heads": 16},
    "qwen3_vl_text": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
                      "num_attention_heads": 32},
    "qwen2_vl_text": QWEN_SIZES,
    "qwen2_5_vl_text": QWEN_SIZES,
}  # fmt: skip
"""Sizes that a text model's config may leave out, because they are the defaults of its class."""

INERT = (
    *("vision_config", "projector_hidden_act", "vision_feature_layer", "vision_feature_select_strategy"),
    *("multimodal_projector_bias", "image_seq_length", "spatial_merge_size", "mm_tokens_per_image", "ignore_index"),
    *("image_token_index", "image_token_id", "boi_token_index", "boi_token_id", "eoi_token_index", "eoi_token_id"),
    *("video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id", "vocab_size"),
    *("scale_factor", "downsample_ratio", "projector_layernorm_eps"),
    *("image_grid_pinpoints", "vision_aspect_ratio", "video_token_index", "video_seq_length", "spatial_pool_mode"),
    *("spatial_pool_stride", "density_router_hidden_size", "density_router_threshold", "density_router_loss_weight"),
    *("_pad_token_id", "use_image_newline_parameter"),
)
"""Keys that only the other towers and the projectors between towers read."""

CARRIED = r"^(model\.)?((vision_tower|multi_modal_projector|visual|connector|vision_model)\.|image_newline$)"
"""Regular expression of the names of the tensors of the other towers."""
INSIDE: tuple[dict[str, str], ...] = (
    {"model.": "model.language_model."},  # transformers today
    {"model.": "model.text_model."},  # Idefics 3 and SmolVLM
    {"model.": "text_model."},  # the same, without the head
    {"": "language_model."},  # older versions, with the head
    {"model.": "language_model."},  # the same, without the head
    {},  # older versions of Qwen2.5-VL, with the head
    {"model.": ""},  # the same, without the head
)
"""Naming schemes of the text tower's tensors, as in `Architecture.inside`."""


def text_tower(config: Mapping[str, Any], find: Callable[[object], Architecture]) -> Architecture:
    """Return the architecture of the text tower of a config.json.

    Args:
        config: content of config.json.
        find: function from a `model_type` to its architecture.

    Raises:
        ValueError: an unknown text model.
    """
    tower, text = TOWERS[config["model_type"]], config.get("text_config")
    kind = text.get("model_type", tower.text) if isinstance(text, Mapping) else tower.text
    architecture = find(kind)
    ignored = f"{CARRIED}|{architecture.ignored}" if architecture.ignored else CARRIED
    read = partial(_read, tower=tower, architecture=architecture, defaults=DEFAULTS.get(kind, {}))
    inert = (*INERT, *(() if text is not None else architecture.inert))
    return architecture._replace(read=read, ignored=ignored, inside=INSIDE, inert=inert)


def _read(c: Config, tower: Tower, architecture: Architecture, defaults: Mapping[str, Any]) -> ModelConfig:
    """Read the text model's config: in `text_config`, or in older files among the keys of the other tower."""
    text = (
        c.part("text_config", inert=architecture.inert, neutral=architecture.neutral) if "text_config" in c.keys else c
    )
    text.defaults(**defaults)
    tied = c.flag("tie_word_embeddings", tower.tied) or (not tower.tied and text.flag("tie_word_embeddings", False))
    text.keys_read.add("tie_word_embeddings")
    text.keys["tie_word_embeddings"] = tied
    return architecture.read(text)
