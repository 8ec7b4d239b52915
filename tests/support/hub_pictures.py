"""Configs of small vision transformers of every architecture, and what compares images with transformers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pejax.models import ViT

FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Of a compilation that is run once or twice."""

BODY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 24, "patch_size": 4,
        "num_channels": 3}  # fmt: skip
SIZES = {**BODY, "intermediate_size": 48}
FIVE = {"id2label": {str(n): f"class {n}" for n in range(5)}, "label2id": {f"class {n}": n for n in range(5)}}
TEXT = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 16, "projection_size": 32}  # fmt: skip
FLEXIBLE = {key: value for key, value in SIZES.items() if key != "image_size"}

PICTURES: dict[str, dict[str, Any]] = {
    "vit": {"model_type": "vit", **SIZES},
    "vit, classes": {"model_type": "vit", **SIZES, **FIVE, "qkv_bias": False},
    "deit": {"model_type": "deit", **SIZES},
    "deit, classes": {"model_type": "deit", **SIZES, **FIVE},
    "deit, teacher": {"model_type": "deit", **SIZES, **FIVE,
                      "architectures": ["DeiTForImageClassificationWithTeacher"]},
    "vit_msn": {"model_type": "vit_msn", **SIZES},
    "vit_mae": {"model_type": "vit_mae", **SIZES, "mask_ratio": 0.0, "decoder_hidden_size": 16,
                "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 16},
    "ijepa": {"model_type": "ijepa", **SIZES},
    "ijepa, classes": {"model_type": "ijepa", **SIZES, **FIVE, "qkv_bias": False},
    "aimv2_vision_model": {"model_type": "aimv2_vision_model", **SIZES},
    "aimv2_vision_model, native": {"model_type": "aimv2_vision_model", **SIZES, "is_native": True, "qkv_bias": True,
                                   "mlp_bias": True, "use_head": False},
    "aimv2": {"model_type": "aimv2", "vision_config": SIZES, "text_config": {
        key: value for key, value in TEXT.items() if key != "projection_size"}},
    "dinov2": {"model_type": "dinov2", **BODY, "mlp_ratio": 2},
    "dinov2, gated": {"model_type": "dinov2", **BODY, "use_swiglu_ffn": True},
    "dinov2, classes": {"model_type": "dinov2", **BODY, **FIVE},
    "dinov2_with_registers": {"model_type": "dinov2_with_registers", **BODY, "num_register_tokens": 3,
                              "use_swiglu_ffn": True},
    "dinov3_vit": {"model_type": "dinov3_vit", **SIZES, "num_register_tokens": 3},
    "dinov3_vit, gated": {"model_type": "dinov3_vit", **SIZES, "use_gated_mlp": True, "key_bias": True},
    "siglip_vision_model": {"model_type": "siglip_vision_model", **SIZES},
    "siglip2_vision_model": {"model_type": "siglip2_vision_model", **FLEXIBLE, "num_patches": 36},
    "clip_vision_model": {"model_type": "clip_vision_model", **SIZES},
    "clip_vision_model, projection": {"model_type": "clip_vision_model", **SIZES, "projection_dim": 6},
    "clip": {"model_type": "clip", "projection_dim": 6, "vision_config": SIZES, "text_config": TEXT},
    "siglip": {"model_type": "siglip", "vision_config": SIZES, "text_config": TEXT},
    "siglip2": {"model_type": "siglip2", "vision_config": {**FLEXIBLE, "num_patches": 36}, "text_config": TEXT},
}  # fmt: skip


def images_of(height: int, width: int, channels: int = 3, batch: int = 2) -> np.ndarray:
    """Return random images, channels last."""
    draw = np.random.default_rng(height * 1000 + width)
    return draw.normal(size=(batch, height, width, channels)).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("graph", "states"), compiler_options=FAST)
def _seen(graph: Any, params: Any, images: jax.Array, states: bool) -> jax.Array:
    model = nnx.merge(graph, params)
    return model.states(images) if states else model(images)


def see(model: ViT, images: np.ndarray, *, states: bool = False) -> np.ndarray:
    """Return the logits, or the states, as those of a model without a head; models of one config share a program."""
    return np.asarray(_seen(*nnx.split(model), jnp.asarray(images), states or model.head is None))
