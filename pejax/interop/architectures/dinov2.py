"""DINOv2 with and without registers, and DINOv3, whose patches are rotated by their place in the picture."""

from dataclasses import replace

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, if_gated, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp
from pejax.interop.vision_readers import BACKBONE, INERT, classes, vision_transformer
from pejax.models import LayerConfig, MlpConfig, NormConfig, ViTConfig

LAYER = {"norm_attention": "norm1", "norm_mlp": "norm2", "scale_attention": "layer_scale1.lambda1",
         "scale_mlp": "layer_scale2.lambda1"}  # fmt: skip
V2 = {
    **prefixed(
        "dinov2.", cls="embeddings.cls_token", registers="embeddings.register_tokens",
        position="embeddings.position_embeddings", patch="embeddings.patch_embeddings.projection", norm="layernorm",
    ),
    **prefixed(
        "dinov2.encoder.layer.{n}.", **LAYER, q="attention.attention.query", k="attention.attention.key",
        v="attention.attention.value", o="attention.output.dense", up="mlp.fc1", down="mlp.fc2",
    ),
    "head": "classifier",
}  # fmt: skip
V2_GATED = prefixed("dinov2.encoder.layer.{n}.", gate_up="mlp.weights_in", down="mlp.weights_out")
V3 = {
    **prefixed("embeddings.", cls="cls_token", registers="register_tokens", patch="patch_embeddings"), "norm": "norm",
    **prefixed(
        "layer.{n}.", **LAYER, q="attention.q_proj", k="attention.k_proj", v="attention.v_proj", o="attention.o_proj",
        gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj",
    ),
}  # fmt: skip
SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}


def dinov2(c: Config, pe: EncodingSpec = EncodingSpec("learned"), registers: int = 0) -> ViTConfig:
    """Read Dinov2Config."""
    c.defaults(**SIZES)
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
CARRIED = r"(^|\.)embeddings\.(mask_token|register_tokens)$"
"""A file may have a tensor of no registers."""
V2R, V2R_GATED = (
    {part: name.replace("dinov2.", "dinov2_with_registers.", 1) for part, name in names.items()}
    for names in (V2, V2_GATED)
)
ARCHITECTURES = {
    "dinov2": Architecture(
        dinov2, V2, "dinov2.", COMMON, CARRIED, skipped_rows=1, batched=True, by_layer=if_gated(V2_GATED)
    ),
    "dinov2_with_registers": Architecture(
        with_registers,
        V2R,
        "dinov2_with_registers.",
        COMMON,
        CARRIED,
        skipped_rows=1,
        batched=True,
        by_layer=if_gated(V2R_GATED),
    ),
    "dinov3_vit": Architecture(dinov3, V3, "", (*COMMON, *AUGMENTED), CARRIED, batched=True),
}
