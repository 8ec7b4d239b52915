"""The vision towers of SigLIP and SigLIP 2: no CLS, learned positions; text tower and pooling head are carried."""

import math

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp
from pejax.interop.vision_readers import BOTH, INERT, TEXT_TOWER, patch_side, vision_tower, vision_transformer
from pejax.models import LayerConfig, NormConfig, ViTConfig

LAYERS = prefixed(
    "vision_model.encoder.layers.{n}.", norm_attention="layer_norm1", norm_mlp="layer_norm2", q="self_attn.q_proj",
    k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.out_proj", up="mlp.fc1", down="mlp.fc2",
)  # fmt: skip
NAMES = {
    **LAYERS,
    **prefixed(
        "vision_model.", position="embeddings.position_embedding.weight", patch="embeddings.patch_embedding",
        norm="post_layernorm",
    ),
}  # fmt: skip
SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
CARRIED = r"^(vision_model\.)?(head\.|embeddings\.position_ids$)"


def layer(c: Config, pe: EncodingSpec = EncodingSpec("learned")) -> LayerConfig:
    """Read the layers of both configs."""
    c.defaults(**SIZES)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-6), bias=True)
    return LayerConfig(attention(c, pe=pe, bias="qkvo"), mlp(c, "gelu_pytorch_tanh", gated=False, bias=True), norm)


def siglip(c: Config) -> ViTConfig:
    """Read SiglipVisionConfig, of SigLIP and of SigLIP 2 at a fixed size."""
    return vision_transformer(c, layer(c), image=224, patch=16, cls=False, pool="mean")


def siglip2(c: Config) -> ViTConfig:
    """Read Siglip2VisionConfig (NaFlex): a square table, resized to the grid of each image with a low-pass filter."""
    patches = c.count("num_patches", 256)
    rows = math.isqrt(patches)
    if rows * rows != patches:
        raise ValueError(f"{c.where}: num_patches must be the square of a number, got {patches}")
    size, pe = (rows * patch_side(c, 16),) * 2, EncodingSpec("learned", {"method": "bilinear", "antialias": True})
    return vision_transformer(c, layer(c, pe), patch=16, image_size=size, cls=False, pool="mean")


KEYS = (*INERT, "vision_use_head")
CARRIED_OF_BOTH = f"{TEXT_TOWER}|{CARRIED}"
ARCHITECTURES = {
    "siglip": Architecture(vision_tower(siglip, KEYS), NAMES, "vision_model.", BOTH, CARRIED_OF_BOTH),
    "siglip2": Architecture(
        vision_tower(siglip2, KEYS), NAMES, "vision_model.", BOTH, CARRIED_OF_BOTH, flat_patches=True
    ),
    "siglip_vision_model": Architecture(siglip, NAMES, "vision_model.", KEYS, CARRIED),
    "siglip2_vision_model": Architecture(siglip2, NAMES, "vision_model.", KEYS, CARRIED, flat_patches=True),
}
