"""ViT and DeiT: learned positions, a row of the table for CLS and for DeiT's distillation token."""

from typing import Any

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp
from pejax.interop.vision_readers import INERT, classes, vision_transformer
from pejax.models import LayerConfig, NormConfig, ViTConfig

BODY = {
    "cls": "embeddings.cls_token", "position": "embeddings.position_embeddings",
    "patch": "embeddings.patch_embeddings.projection", "norm": "layernorm",
    **prefixed(
        "encoder.layer.{n}.", norm_attention="layernorm_before", norm_mlp="layernorm_after",
        q="attention.attention.query", k="attention.attention.key", v="attention.attention.value",
        o="attention.output.dense", up="intermediate.dense", down="output.dense",
    ),
}  # fmt: skip
VIT = {**prefixed("vit.", **BODY), "head": "classifier"}
DEIT = {
    **prefixed("deit.", **BODY, registers="embeddings.distillation_token"), "head": "classifier",
    "cls_head": "cls_classifier", "distilled_head": "distillation_classifier",
}  # fmt: skip
CARRIED = r"(^|\.)(pooler\.dense\.(weight|bias)|embeddings\.mask_token)$|^decoder\.0\.(weight|bias)$"


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


POOLER = ("encoder_stride", "pooler_act", "pooler_output_size")
ARCHITECTURES = {
    "vit": Architecture(vit, VIT, "vit.", (*INERT, *POOLER), CARRIED, skipped_rows=1, batched=True),
    "deit": Architecture(deit, DEIT, "deit.", (*INERT, *POOLER), CARRIED, skipped_rows=2, batched=True),
}
