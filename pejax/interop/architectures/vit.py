"""Vision transformers of images alone: ViT, DeiT, ViT-MSN, ViT-MAE, I-JEPA, DINOv2 and DINOv3."""

from dataclasses import replace
from typing import Any

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, if_gated, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp
from pejax.interop.vision_readers import BACKBONE, INERT, classes, vision_transformer
from pejax.models import LayerConfig, MlpConfig, NormConfig, ViTConfig

# ViT, DeiT, MSN and MAE: learned positions, a row of the table for CLS and for DeiT's distillation token. I-JEPA has no
# CLS, and a classifier of the mean. The decoder of MAE is carried: all patches are seen, whatever `mask_ratio` says.

VIT_BODY = {
    "cls": "embeddings.cls_token", "position": "embeddings.position_embeddings",
    "patch": "embeddings.patch_embeddings.projection", "norm": "layernorm",
    **prefixed(
        "encoder.layer.{n}.", norm_attention="layernorm_before", norm_mlp="layernorm_after",
        q="attention.attention.query", k="attention.attention.key", v="attention.attention.value",
        o="attention.output.dense", up="intermediate.dense", down="output.dense",
    ),
}  # fmt: skip
VIT_NAMES = {**prefixed("vit.", **VIT_BODY), "head": "classifier"}
DEIT_NAMES = {
    **prefixed("deit.", **VIT_BODY, registers="embeddings.distillation_token"), "head": "classifier",
    "cls_head": "cls_classifier", "distilled_head": "distillation_classifier",
}  # fmt: skip
VIT_CARRIED = r"(^|\.)(pooler\.dense\.(weight|bias)|embeddings\.mask_token)$|^decoder\.0\.(weight|bias)$"


def vit(c: Config, **options: Any) -> ViTConfig:
    """Read ViTConfig."""
    c.defaults(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-12), bias=True)
    attention_config = attention(c, pe=EncodingSpec("learned"), bias="qkvo" if c.flag("qkv_bias", True) else "o")
    layer = LayerConfig(attention_config, mlp(c, "gelu", gated=False, bias=True), norm)
    return vision_transformer(c, layer, image=224, patch=16, classes=classes(c), **options)


def deit(c: Config) -> ViTConfig:
    """Read DeiTConfig, which does not say whether the distillation token has a head: the file does."""
    names = c("architectures", [])
    distilled = isinstance(names, list) and "DeiTForImageClassificationWithTeacher" in names
    return vit(c, registers=1, distilled=distilled)


def msn(c: Config) -> ViTConfig:
    """Read ViTMSNConfig."""
    c.defaults(layer_norm_eps=1e-6)
    return vit(c)


def ijepa(c: Config) -> ViTConfig:
    """Read IJepaConfig."""
    return vit(c, cls=False, pool="mean")


IJEPA_BODY = {part: name for part, name in VIT_BODY.items() if part != "cls"}
IJEPA_NAMES = {**prefixed("ijepa.", **IJEPA_BODY), "head": "classifier"}
MAE_INERT = (
    *("decoder_num_attention_heads", "decoder_hidden_size", "decoder_num_hidden_layers", "decoder_intermediate_size"),
    *("mask_ratio", "norm_pix_loss"),
)
POOLER = ("encoder_stride", "pooler_act", "pooler_output_size")
VIT = {
    "vit": Architecture(vit, VIT_NAMES, "vit.", (*INERT, *POOLER), VIT_CARRIED, skipped_rows=1, batched=True),
    "vit_msn": Architecture(msn, VIT_NAMES, "vit.", INERT, VIT_CARRIED, skipped_rows=1, batched=True),
    "vit_mae": Architecture(
        vit, VIT_NAMES, "vit.", (*INERT, *MAE_INERT), rf"{VIT_CARRIED}|^decoder\.", skipped_rows=1, batched=True
    ),
    "ijepa": Architecture(ijepa, IJEPA_NAMES, "ijepa.", (*INERT, *POOLER), VIT_CARRIED, batched=True),
    "deit": Architecture(deit, DEIT_NAMES, "deit.", (*INERT, *POOLER), VIT_CARRIED, skipped_rows=2, batched=True),
}


# DINOv2 with and without registers, and DINOv3, whose patches are rotated by their place in the picture.

DINO_LAYER = {"norm_attention": "norm1", "norm_mlp": "norm2", "scale_attention": "layer_scale1.lambda1",
              "scale_mlp": "layer_scale2.lambda1"}  # fmt: skip
DINOV2_NAMES = {
    **prefixed(
        "dinov2.", cls="embeddings.cls_token", registers="embeddings.register_tokens",
        position="embeddings.position_embeddings", patch="embeddings.patch_embeddings.projection", norm="layernorm",
    ),
    **prefixed(
        "dinov2.encoder.layer.{n}.", **DINO_LAYER, q="attention.attention.query", k="attention.attention.key",
        v="attention.attention.value", o="attention.output.dense", up="mlp.fc1", down="mlp.fc2",
    ),
    "head": "classifier",
}  # fmt: skip
DINOV2_GATED = prefixed("dinov2.encoder.layer.{n}.", gate_up="mlp.weights_in", down="mlp.weights_out")
DINOV3_NAMES = {
    **prefixed("embeddings.", cls="cls_token", registers="register_tokens", patch="patch_embeddings"), "norm": "norm",
    **prefixed(
        "layer.{n}.", **DINO_LAYER, q="attention.q_proj", k="attention.k_proj", v="attention.v_proj",
        o="attention.o_proj", gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj",
    ),
}  # fmt: skip
DINO_SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}


def dinov2(c: Config, pe: EncodingSpec = EncodingSpec("learned"), registers: int = 0) -> ViTConfig:
    """Read Dinov2Config."""
    c.defaults(**DINO_SIZES)
    width = c.count("hidden_size")
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-6), bias=True)
    attention_config = attention(c, pe=pe, bias="qkvo" if c.flag("qkv_bias", True) else "o")
    hidden, activation = int(width * c.number("mlp_ratio", 4)), c.activation("hidden_act", "gelu")
    plain = MlpConfig(hidden, activation, bias=True)
    gated = MlpConfig((int(hidden * 2 / 3) + 7) // 8 * 8, "silu", gated=True, bias=True)  # a multiple of 8
    feed = gated if c.flag("use_swiglu_ffn", False) else plain
    layer = LayerConfig(attention_config, feed, norm, layer_scale=c.number("layerscale_value", 1.0))
    return vision_transformer(c, layer, image=224, patch=14, classes=classes(c), pool="cls_mean", registers=registers)


def with_registers(c: Config) -> ViTConfig:
    """Read Dinov2WithRegistersConfig, whose table is resized with a low-pass filter."""
    c.defaults(patch_size=16)
    return dinov2(c, EncodingSpec("learned", {"antialias": True}), c.count("num_register_tokens", 4))


def dinov3(c: Config) -> ViTConfig:
    """Read DINOv3ViTConfig; its keys of positions are of training, but for `rope_theta`."""
    c.defaults(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    keys = {"q": ("query_bias", True), "k": ("key_bias", False), "v": ("value_bias", True), "o": ("proj_bias", True)}
    bias = "".join(letter for letter, (key, default) in keys.items() if c.flag(key, default))
    pe = EncodingSpec("rope_axial", {"base": c.number("rope_theta", 100.0), "pairing": "half"})
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5), bias=True)
    feed = mlp(c, "gelu", gated=c.flag("use_gated_mlp", False), bias=c.flag("mlp_bias", True))
    layer = LayerConfig(attention(c, pe=pe, bias=bias), feed, norm, layer_scale=c.number("layerscale_value", 1.0))
    model = vision_transformer(c, layer, image=224, patch=16, coordinates="centered")
    return replace(model, registers=c.count("num_register_tokens", 0, least=0))


COMMON = (*INERT, *BACKBONE, "use_mask_token", "_out_features", "_out_indices")
AUGMENTED = ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")
DINO_CARRIED = r"(^|\.)embeddings\.(mask_token|register_tokens)$"
"""A file may have a tensor of no registers."""
REGISTERS_NAMES, REGISTERS_GATED = (
    {part: name.replace("dinov2.", "dinov2_with_registers.", 1) for part, name in names.items()}
    for names in (DINOV2_NAMES, DINOV2_GATED)
)
DINO = {
    "dinov2": Architecture(
        dinov2,
        DINOV2_NAMES,
        "dinov2.",
        COMMON,
        DINO_CARRIED,
        skipped_rows=1,
        batched=True,
        by_layer=if_gated(DINOV2_GATED),
    ),
    "dinov2_with_registers": Architecture(
        with_registers,
        REGISTERS_NAMES,
        "dinov2_with_registers.",
        COMMON,
        DINO_CARRIED,
        skipped_rows=1,
        batched=True,
        by_layer=if_gated(REGISTERS_GATED),
    ),
    "dinov3_vit": Architecture(dinov3, DINOV3_NAMES, "", (*COMMON, *AUGMENTED), DINO_CARRIED, batched=True),
}
