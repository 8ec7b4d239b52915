"""The vision tower of CLIP: a norm before the layers, quick GELU; the text tower and the projections are carried."""

from pejax.interop.architecture import Architecture, in_layer
from pejax.interop.architectures.siglip import NAMES, SIZES
from pejax.interop.config import Config
from pejax.interop.picture_readers import BOTH, INERT, TEXT_TOWER, picture, vision_tower
from pejax.interop.readers import attention, mlp
from pejax.models import Block, Norm, Picture

VISION = {**NAMES, **in_layer("vision_model.", cls="embeddings.class_embedding", embed_norm="pre_layrnorm")}
CARRIED = rf"{TEXT_TOWER}|^(vision_model\.)?embeddings\.position_ids$"


def clip(c: Config) -> Picture:
    """Read CLIPVisionConfig."""
    c.defaults(**SIZES)
    norm = Norm("layer", c.number("layer_norm_eps", 1e-5), bias=True)
    block = Block(attention(c, pe="learned", bias="qkvo"), mlp(c, "quick_gelu", gated=False, bias=True), norm)
    return picture(c, block, image=224, patch=32, embed_norm=norm, patch_bias=False)


KEYS = (*INERT, "projection_dim")
ARCHITECTURES = {
    "clip": Architecture(vision_tower(clip, KEYS), VISION, "vision_model.", BOTH, CARRIED, skipped_rows=1),
    "clip_vision_model": Architecture(clip, VISION, "vision_model.", KEYS, CARRIED, skipped_rows=1),
}
