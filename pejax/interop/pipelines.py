"""The transformer/config.json of diffusers, as a preset of axial RoPE."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pejax._calls.names import did_you_mean
from pejax._record.presets import PRESETS
from pejax._record.specs import EncodingSpec
from pejax.interop.config import Config


class Pipeline(NamedTuple):
    """The keys of a model's config.json that its rotation reads.

    Attributes:
        preset: name of the preset.
        widths: key of the channels that turn with each axis. "" = the file does not say.
        base: key of the base.
        fixed: keys that must have these values, which are also their defaults.
        needed: a key that must be there and true.
        halves: key whose value "split" means pairs by halves, and "interleaved", its default, by neighbors.
    """

    preset: str
    widths: str = ""
    base: str = ""
    fixed: Mapping[str, Any] = {}
    needed: str = ""
    halves: str = ""


WIDE = {"attention_head_dim": 128}
HUNYUAN = ("rope_axes_dim", "rope_theta", WIDE)

PIPELINES: dict[str, Pipeline] = {
    "AnyFlowTransformer3DModel": Pipeline("wan", fixed=WIDE),
    "BriaFibo2Transformer2DModel": Pipeline("fibo2", "axes_dims", "rope_theta"),
    "BriaFiboTransformer2DModel": Pipeline("flux", "axes_dims_rope", "rope_theta", WIDE),
    "BriaTransformer2DModel": Pipeline("flux", "axes_dims_rope", "rope_theta", WIDE),
    "ChromaTransformer2DModel": Pipeline("flux", "axes_dims_rope", fixed=WIDE),
    "ChronoEditTransformer3DModel": Pipeline("wan", fixed=WIDE),
    "CogVideoXTransformer3DModel": Pipeline(
        "cogvideox", fixed={"attention_head_dim": 64}, needed="use_rotary_positional_embeddings"
    ),
    "CogView4Transformer2DModel": Pipeline("cogview4", fixed={"rope_axes_dim": [256, 256]}),
    "CosmosTransformer3DModel": Pipeline("cosmos", fixed={**WIDE, "rope_scale": [2.0, 1.0, 1.0]}),
    "Flux2Transformer2DModel": Pipeline("flux2", "axes_dims_rope", "rope_theta", WIDE),
    "Flux3Transformer2DModel": Pipeline("flux3", "axes_dims_rope", "rope_theta", WIDE),
    "FluxTransformer2DModel": Pipeline("flux", "axes_dims_rope", fixed=WIDE),
    "GlmImageTransformer2DModel": Pipeline("glm_image"),
    "HeliosTransformer3DModel": Pipeline("wan", "rope_dim", "rope_theta", WIDE),
    "HiDreamImageTransformer2DModel": Pipeline("hidream", "axes_dims_rope", fixed=WIDE),
    "HunyuanImageTransformer2DModel": Pipeline("hunyuan_image", *HUNYUAN),
    "HunyuanVideo15Transformer3DModel": Pipeline("hunyuan_video", *HUNYUAN),
    "HunyuanVideoFramepackTransformer3DModel": Pipeline("hunyuan_video", *HUNYUAN),
    "HunyuanVideoTransformer3DModel": Pipeline("hunyuan_video", *HUNYUAN),
    "Ideogram4Transformer2DModel": Pipeline(
        "ideogram4", base="rope_theta", fixed={"attention_head_dim": 256, "mrope_section": [24, 20, 20]}
    ),
    "JoyImageEditTransformer3DModel": Pipeline("hunyuan_video", "rope_dim_list", "theta"),
    "Kandinsky5Transformer3DModel": Pipeline("kandinsky5", "axes_dims"),
    "Kandinsky6Transformer3DModel": Pipeline("kandinsky6", "axes_dims"),
    "Krea2Transformer2DModel": Pipeline("krea2", "axes_dims_rope", "rope_theta", WIDE),
    "LTX2VideoTransformer3DModel": Pipeline("ltx2", fixed={"rope_theta": 10000.0}, halves="rope_type"),
    "LTXVideoTransformer3DModel": Pipeline("ltx"),
    "LongCatImageTransformer2DModel": Pipeline("longcat_image", "axes_dims_rope", fixed=WIDE),
    "Lumina2Transformer2DModel": Pipeline("lumina2", "axes_dim_rope"),
    "MotifVideoTransformer3DModel": Pipeline("hunyuan_video", *HUNYUAN),
    "NucleusMoEImageTransformer2DModel": Pipeline("qwen_image", "axes_dims_rope", fixed=WIDE),
    "OvisImageTransformer2DModel": Pipeline("ovis_image", "axes_dims_rope", fixed=WIDE),
    "QwenImageTransformer2DModel": Pipeline(
        "qwen_image", "axes_dims_rope", fixed={**WIDE, "use_layer3d_rope": False}
    ),
    "SkyReelsV2Transformer3DModel": Pipeline("wan", fixed=WIDE),
    "WanTransformer3DModel": Pipeline("wan", fixed=WIDE),
    "WanVACETransformer3DModel": Pipeline("wan", fixed=WIDE),
    "ZImageTransformer2DModel": Pipeline("z_image", "axes_dims", "rope_theta"),
}  # fmt: skip
"""Models of diffusers by `_class_name`."""


def read_preset(c: Config) -> EncodingSpec:
    """Return `rope_axial` with the preset of a model, and the widths and base of the file where they are others.

    Raises:
        ValueError: a class without a preset, or a value with which its rotation is another one.
    """
    name = c("_class_name")
    if name not in PIPELINES:
        hint = did_you_mean(str(name), PIPELINES) or "."
        raise ValueError(f"unknown _class_name {name!r}{hint} Known: {', '.join(PIPELINES)}")
    pipeline = PIPELINES[name]
    for key, value in pipeline.fixed.items():
        c.must(key, value)
    if pipeline.needed and not c.flag(pipeline.needed):
        raise ValueError(f"{c.where}: {pipeline.needed} must be true, got false")
    if pipeline.halves:
        c.must(pipeline.halves, "interleaved", "split")
    own, read = PRESETS[pipeline.preset].options, dict[str, Any]()
    if pipeline.widths and c(pipeline.widths, None) is not None:
        widths = c.numbers(pipeline.widths)
        if len(widths) != len(own["widths"]) or any(width != int(width) for width in widths):
            rule = f"{pipeline.widths} must be {len(own['widths'])} whole numbers"
            raise ValueError(f"{c.where}: {rule}, got {c(pipeline.widths)}")
        read["widths"] = tuple(map(int, widths))
    if pipeline.base:
        read["base"] = c.positive(pipeline.base, own["base"])
    options = {key: value for key, value in read.items() if value != own[key]}
    if pipeline.halves and c(pipeline.halves, "") == "split":
        options["pairing"] = "half"
    return EncodingSpec("rope_axial", {"preset": pipeline.preset, **options})
