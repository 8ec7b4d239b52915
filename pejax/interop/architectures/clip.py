"""The vision tower of CLIP: a norm before the layers, quick GELU; the text tower and the projections are carried."""

from pejax._specs import EncodingSpec
from pejax.interop.architecture import Architecture, in_layer
from pejax.interop.architectures.siglip import NAMES, SIZES
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp
from pejax.interop.vision_readers import BOTH, INERT, TEXT_TOWER, vision_tower, vision_transformer
from pejax.models import LayerConfig, NormConfig, ViTConfig

VISION = {**NAMES, **in_layer("vision_model.", cls="embeddings.class_embedding", embed_norm="pre_layrnorm")}
CARRIED = rf"{TEXT_TOWER}|^(vision_model\.)?embeddings\.position_ids$"


def clip(c: Config) -> ViTConfig:
    """Read CLIPVisionConfig."""
    c.defaults(**SIZES)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5), bias=True)
    own = attention(c, pe=EncodingSpec("learned"), bias="qkvo")
    layer = LayerConfig(own, mlp(c, "quick_gelu", gated=False, bias=True), norm)
    return vision_transformer(c, layer, image=224, patch=32, embed_norm=norm, patch_bias=False)


KEYS = (*INERT, "projection_dim")
ARCHITECTURES = {
    "clip": Architecture(vision_tower(clip, KEYS), VISION, "vision_model.", BOTH, CARRIED, skipped_rows=1),
    "clip_vision_model": Architecture(clip, VISION, "vision_model.", KEYS, CARRIED, skipped_rows=1),
}
