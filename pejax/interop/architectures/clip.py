"""The towers of CLIP: quick GELU. In the file of both, the vision tower is the model, and the rest is carried."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.siglip import LAYERS, NAMES, SIZES
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp, uniform_model
from pejax.interop.vision_readers import BOTH, INERT, TEXT_TOWER, vision_tower, vision_transformer
from pejax.models import LayerConfig, NormConfig, TransformerConfig, ViTConfig

VISION = {**NAMES, **prefixed("vision_model.", cls="embeddings.class_embedding", embed_norm="pre_layrnorm")}
CARRIED = rf"{TEXT_TOWER}|^(vision_model\.)?embeddings\.position_ids$"


def clip(c: Config) -> ViTConfig:
    """Read CLIPVisionConfig."""
    c.defaults(**SIZES)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5), bias=True)
    attention_config = attention(c, pe=EncodingSpec("learned"), bias="qkvo")
    layer = LayerConfig(attention_config, mlp(c, "quick_gelu", gated=False, bias=True), norm)
    return vision_transformer(c, layer, image=224, patch=32, embed_norm=norm, patch_bias=False)


def clip_text(c: Config) -> TransformerConfig:
    """Read CLIPTextConfig."""
    c.defaults(hidden_size=512, num_hidden_layers=12, num_attention_heads=8, intermediate_size=2048, vocab_size=49408)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5), bias=True)
    attention_config = attention(c, pe=EncodingSpec("learned"), bias="qkvo")
    layer, length = LayerConfig(attention_config, mlp(c, "quick_gelu", gated=False, bias=True), norm), 77
    return uniform_model(
        c, layer, width=c.count("hidden_size"), layers="num_hidden_layers", norm=norm, head=None,
        length=c.count("max_position_embeddings", length),
    )  # fmt: skip


TEXT = {
    **prefixed(
        "text_model.", table="embeddings.token_embedding", position="embeddings.position_embedding",
        norm="final_layer_norm",
    ),
    **{part: name.replace("vision_model.", "text_model.", 1) for part, name in LAYERS.items()},
}  # fmt: skip
TEXT_CARRIED = r"^text_projection\.weight$|(^|\.)embeddings\.position_ids$"
KEYS = (*INERT, "projection_dim")
ARCHITECTURES = {
    "clip": Architecture(vision_tower(clip, KEYS), VISION, "vision_model.", BOTH, CARRIED, skipped_rows=1),
    "clip_text_model": Architecture(clip_text, TEXT, "text_model.", KEYS, TEXT_CARRIED),
    "clip_vision_model": Architecture(clip, VISION, "vision_model.", KEYS, CARRIED, skipped_rows=1),
}
