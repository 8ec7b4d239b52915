"""Models of images and text, of which one tower is loaded: SigLIP, CLIP and AIMv2."""

import math

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp, uniform_model
from pejax.interop.vision_readers import BOTH, INERT, TEXT_TOWER, patch_side, vision_tower, vision_transformer
from pejax.models import LayerConfig, NormConfig, TransformerConfig, ViTConfig

# The vision towers of SigLIP and SigLIP 2: no CLS, learned positions; text tower and pooling head are carried.

SIGLIP_LAYERS = prefixed(
    "vision_model.encoder.layers.{n}.", norm_attention="layer_norm1", norm_mlp="layer_norm2", q="self_attn.q_proj",
    k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.out_proj", up="mlp.fc1", down="mlp.fc2",
)  # fmt: skip
SIGLIP_NAMES = {
    **SIGLIP_LAYERS,
    **prefixed(
        "vision_model.", position="embeddings.position_embedding.weight", patch="embeddings.patch_embedding",
        norm="post_layernorm",
    ),
}  # fmt: skip
SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
SIGLIP_CARRIED = r"^(vision_model\.)?(head\.|embeddings\.position_ids$)"


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


SIGLIP_KEYS = (*INERT, "vision_use_head")
CARRIED_OF_BOTH = f"{TEXT_TOWER}|{SIGLIP_CARRIED}"
SIGLIP = {
    "siglip": Architecture(vision_tower(siglip, SIGLIP_KEYS), SIGLIP_NAMES, "vision_model.", BOTH, CARRIED_OF_BOTH),
    "siglip2": Architecture(
        vision_tower(siglip2, SIGLIP_KEYS), SIGLIP_NAMES, "vision_model.", BOTH, CARRIED_OF_BOTH, flat_patches=True
    ),
    "siglip_vision_model": Architecture(siglip, SIGLIP_NAMES, "vision_model.", SIGLIP_KEYS, SIGLIP_CARRIED),
    "siglip2_vision_model": Architecture(
        siglip2, SIGLIP_NAMES, "vision_model.", SIGLIP_KEYS, SIGLIP_CARRIED, flat_patches=True
    ),
}


# The towers of CLIP: quick GELU. In the file of both, the vision tower is the model, and the rest is carried.

VISION = {**SIGLIP_NAMES, **prefixed("vision_model.", cls="embeddings.class_embedding", embed_norm="pre_layrnorm")}
CLIP_CARRIED = rf"{TEXT_TOWER}|^(vision_model\.)?embeddings\.position_ids$"


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
    **{part: name.replace("vision_model.", "text_model.", 1) for part, name in SIGLIP_LAYERS.items()},
}  # fmt: skip


def siglip_text(c: Config) -> TransformerConfig:
    """Read SiglipTextConfig, of SigLIP and SigLIP 2: a text is padded to the trained length, and padding is seen."""
    c.defaults(vocab_size=32000)
    own, length = layer(c), c.count("max_position_embeddings", 64)
    return uniform_model(
        c, own, width=c.count("hidden_size"), layers="num_hidden_layers", norm=own.norm, head=None, length=length,
        causal=False,
    )  # fmt: skip


SIGLIP_TEXT_CARRIED = r"^(text_model\.)?(head\.(weight|bias)|embeddings\.position_ids)$"
TEXT_CARRIED = r"^text_projection\.weight$|(^|\.)embeddings\.position_ids$"
CLIP_KEYS = (*INERT, "projection_dim")
CLIP = {
    "clip": Architecture(vision_tower(clip, CLIP_KEYS), VISION, "vision_model.", BOTH, CLIP_CARRIED, skipped_rows=1),
    **dict.fromkeys(
        ("clip_text_model", "metaclip_2_text_model"),
        Architecture(clip_text, TEXT, "text_model.", CLIP_KEYS, TEXT_CARRIED),
    ),
    **dict.fromkeys(
        ("siglip_text_model", "siglip2_text_model"),
        Architecture(siglip_text, TEXT, "text_model.", (*INERT, "projection_size"), SIGLIP_TEXT_CARRIED),
    ),
    "clip_vision_model": Architecture(clip, VISION, "vision_model.", CLIP_KEYS, CLIP_CARRIED, skipped_rows=1),
}


# The vision tower of AIMv2: RMSNorm, also of the vectors of patches before positions are added; gated MLPs.

AIMV2_NAMES = {
    **prefixed(
        "vision_model.", patch="embeddings.patch_embed", patch_norm="embeddings.rms_norm",
        position="embeddings.position_embedding.weight", norm="rms_norm",
    ),
    **prefixed(
        "vision_model.encoder.layers.{n}.", norm_attention="rms_norm1", norm_mlp="rms_norm2", q="attention.q_proj",
        k="attention.k_proj", v="attention.v_proj", o="attention.out_proj", gate="ffn.gate_proj", up="ffn.up_proj",
        down="ffn.down_proj",
    ),
}  # fmt: skip
SINUSOIDS = EncodingSpec("sinusoidal", {"layout": "concat", "indexing": "xy"})


def aimv2(c: Config) -> ViTConfig:
    """Read Aimv2VisionConfig; models of native resolution have sinusoids in place of a table."""
    c.defaults(hidden_size=1024, num_hidden_layers=24, num_attention_heads=8, intermediate_size=2816)
    norm, bias = NormConfig("rms", c.number("rms_norm_eps", 1e-5)), "qkvo" if c.flag("qkv_bias", False) else ""
    pe = SINUSOIDS if c.flag("is_native", False) else EncodingSpec("learned")
    layer = LayerConfig(attention(c, pe=pe, bias=bias), mlp(c, bias=c.flag("mlp_bias", False)), norm)
    return vision_transformer(c, layer, image=224, patch=14, cls=False, pool="mean", patch_norm=norm)


AIMV2_KEYS = (*INERT, "use_head")
AIMV2_CARRIED = r"^(vision_model\.)?head\."
AIMV2 = {
    "aimv2": Architecture(
        vision_tower(aimv2, AIMV2_KEYS),
        AIMV2_NAMES,
        "vision_model.",
        (*BOTH, "max_logit_scale"),
        f"{TEXT_TOWER}|{AIMV2_CARRIED}",
    ),
    "aimv2_vision_model": Architecture(aimv2, AIMV2_NAMES, "vision_model.", AIMV2_KEYS, AIMV2_CARRIED),
}
