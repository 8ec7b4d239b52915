"""Axial RoPE of published models: options of `rope_axial`, the positions that go with them, and their sources.

Widths and bases are the defaults of the named classes; checkpoints may differ in them.
"""

import re
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from pejax._calls.names import did_you_mean
from pejax._record.dims import Dims


class Preset(NamedTuple):
    """Axial RoPE of a published model.

    Attributes:
        axes: number of position axes.
        head_dim: channels per head that the options are made for. None = any.
        options: options of `rope_axial`.
        positions: positions of the tokens.
        source: models and classes.
    """

    axes: int
    head_dim: int | None
    options: Mapping[str, Any]
    positions: str
    source: str


def _preset(axes: int, head_dim: int | None, positions: str, source: str, **options: Any) -> Preset:
    return Preset(axes, head_dim, types.MappingProxyType(options), positions, source)


PICTURE = "picture (0, row, column)"
VIDEO = "(frame, row, column)"
TEXT_IN_PICTURES = "text equal on all axes; pictures (fixed, row, column), counted from the end of the text before"
FLUX = {"widths": (16, 56, 56), "base": 1e4}
HUNYUAN = {"widths": (16, 56, 56), "base": 256.0}
SIXTH = {"widths": (44, 42, 42), "base": 1e4}
ACROSS = {
    "across_heads": True,
    "layout": "alternate",
    "spectrum": "inclusive",
    "rest": "first",
    "base": 1e-4,  # frequencies that rise from 1 to 10,000
}
CYCLIC = {"layout": "alternate", "spectrum": "shared", "pairing": "half"}

PRESETS: dict[str, Preset] = {
    # pictures
    "flux": _preset(
        3, 128, f"text (0, 0, 0); {PICTURE}", "FLUX.1, Chroma, Bria, FIBO 1: diffusers FluxPosEmbed", **FLUX
    ),
    "longcat_image": _preset(
        3, 128, "text (0, i, i); picture (1, 512 + row, 512 + column)",
        "LongCat-Image: diffusers LongCatImagePosEmbed", **FLUX,
    ),
    "ovis_image": _preset(3, 128, f"text (0, i, i); {PICTURE}", "Ovis-Image: diffusers OvisImagePosEmbed", **FLUX),
    "fibo2": _preset(
        3, 128, "gist (1 ..., 0, 0); picture (513, row, column), 512 being the most tokens of a gist",
        "FIBO 2: diffusers transformer_bria_fibo2.RopeEmbedder", widths=(32, 48, 48), base=256.0,
    ),
    "flux2": _preset(
        4, 128, "text (0, 0, 0, i); picture (0, row, column, 0); reference i, from 0, (10 + 10 i, row, column, 0)",
        "FLUX.2: diffusers Flux2PosEmbed", widths=(32, 32, 32, 32), base=2000.0,
    ),
    "flux3": _preset(
        4, 128, "as flux2, but rows and columns times 0.5, and references at -1, -2, ... on the last axis",
        "FLUX.3: diffusers Flux3PosEmbed", widths=(32, 32, 32, 32), base=1e4,
    ),
    "qwen_image": _preset(
        3, 128, "picture i (i, row, column), rows and columns from -ceil(size / 2) on; text equal on all axes, from "
        "max(rows // 2, columns // 2) on", "Qwen-Image, NucleusMoE-Image: diffusers QwenEmbedRope", **FLUX,
    ),
    "hunyuan_image": _preset(
        2, 128, "(row, column)", "HunyuanImage 2.1: diffusers HunyuanImageRotaryPosEmbed", widths=(64, 64), base=256.0
    ),
    "z_image": _preset(
        3, 128, "caption (1, 2, ..., 0, 0), padded to a multiple of 32; picture (padded length + 1, row, column)",
        "Z-Image: diffusers transformer_z_image.RopeEmbedder", widths=(32, 48, 48), base=256.0,
    ),
    "krea2": _preset(
        3, 128, f"text (0, 0, 0); {PICTURE}", "Krea 2: diffusers Krea2RotaryPosEmbed", widths=(32, 48, 48), base=1000.0
    ),
    "lumina2": _preset(
        3, 96, "caption (i, 0, 0); picture (caption length, row, column)",
        "Lumina-Image 2: diffusers Lumina2RotaryPosEmbed", widths=(32, 32, 32), base=1e4,
    ),
    "prx": _preset(2, None, "(row, column)", "PRX: diffusers PRXEmbedND", base=1e4),
    "hidream": _preset(
        3, 128, PICTURE, "HiDream-I1: diffusers HiDreamImageEmbedND", widths=(64, 32, 32), base=1e4
    ),
    "cogview4": _preset(
        2, None, "(row · 256 // rows, column · 256 // columns)", "CogView 4: diffusers CogView4RotaryPosEmbed",
        base=1e4, pairing="half",
    ),
    "glm_image": _preset(
        2, None, "(row, column)", "GLM-Image: diffusers GlmImageRotaryPosEmbed", base=1e4, pairing="half"
    ),
    "ideogram4": _preset(
        3, 256, "text equal on all axes; picture from 65536 on", "Ideogram 4: diffusers Ideogram4MRoPE",
        widths=(176, 40, 40), base=5e6, **CYCLIC,
    ),
    # videos
    "wan": _preset(
        3, 128, f"{VIDEO}; two frames of ChronoEdit at 0 and 7",
        "Wan 2, AnyFlow, SkyReels V2, Helios, ChronoEdit: diffusers WanRotaryPosEmbed", **SIXTH,
    ),
    "cosmos": _preset(
        3, 128, "(frame · 24 / frames per second, row, column)",
        "Cosmos 1 and 2 at rope_scale (2, 1, 1): diffusers CosmosRotaryPosEmbed",
        widths=(44, 42, 42), base=(1e4 * 2 ** (44 / 42), 1e4, 1e4), pairing="half",
    ),
    "cosmos3": _preset(
        3, 128, "text equal on all axes; video (text length + 15000 + frame · 24 / frames per second, row, column)",
        "Cosmos 3: diffusers Cosmos3VLTextRotaryEmbedding", widths=(48, 40, 40), base=5e6, **CYCLIC,
    ),
    "hunyuan_video": _preset(
        3, 128, VIDEO, "HunyuanVideo 1 and 1.5, FramePack without history, Motif-Video, JoyImage, refiner of "
        "HunyuanImage: diffusers HunyuanVideoRotaryPosEmbed", **HUNYUAN,
    ),
    "kandinsky5": _preset(
        3, 64, "(frame, row / s, column / s), s = 2 for pictures of 480 to 854 pixels, else 3.16",
        "Kandinsky 5: diffusers Kandinsky5RoPE3D", widths=(16, 24, 24), base=1e4,
    ),
    "kandinsky6": _preset(
        3, 128, "(frame, row / 2, column / 2)", "Kandinsky 6: diffusers Kandinsky6RoPE3D", widths=(32, 48, 48), base=1e4
    ),
    "ltx": _preset(
        3, None, "π/2 · (2 c - 1), c = (8 · frame / frames per second / 20, row · 32 / 2048, column · 32 / 2048)",
        "LTX-Video: diffusers LTXVideoRotaryPosEmbed", **ACROSS,
    ),
    "ltx2": _preset(
        3, None, "π/2 · (2 c - 1), c = (seconds / 20, y / 2048, x / 2048) at the middle of the patch; "
        "pairing='half' in models of rope_type split", "LTX-2: diffusers LTX2AudioVideoRotaryPosEmbed", **ACROSS,
    ),
    "ltx2_audio": _preset(
        1, None, "π/2 · (2 · seconds / 20 - 1); pairing='half' in models of rope_type split",
        "LTX-2, audio: diffusers LTX2AudioVideoRotaryPosEmbed", **ACROSS,
    ),
    "cogvideox": _preset(
        3, 64, "(frame, row, column), rows and columns stretched to the crop of the trained grid",
        "CogVideoX, and 1.5 with plain positions: diffusers get_3d_rotary_pos_embed", widths=(16, 24, 24), base=1e4,
    ),
    "minimax_h3": _preset(
        3, 128, "(text length + 5/3 · frame, row, column), rows and columns around 16 on an area of 32 x 32",
        "MiniMax-H3: diffusers MiniMaxH3RotaryPosEmbed", widths=(32, 32, 32), base=1e4, pairing="half",
    ),
    "allegro": _preset(
        3, 96, "(frame, row, column), each over its factor: extend='pi(factor=(...))'",
        "Allegro: diffusers get_3d_rotary_pos_embed_allegro", widths=(32, 32, 32), base=1e4, pairing="half_by_axis",
    ),
    # language models with pictures
    "qwen2_vl": _preset(
        3, 128, TEXT_IN_PICTURES, "Qwen2-VL, Qwen2.5-VL: transformers Qwen2VLRotaryEmbedding",
        widths=(32, 48, 48), base=1e6, spectrum="shared", pairing="half",
    ),
    "qwen3_vl": _preset(
        3, 128, f"{TEXT_IN_PICTURES}, each frame a picture", "Qwen3-VL: transformers Qwen3VLTextRotaryEmbedding",
        widths=(48, 40, 40), base=5e5, **CYCLIC,
    ),
    "glm4v": _preset(
        3, 128, TEXT_IN_PICTURES, "GLM-4.1V: transformers Glm4vTextRotaryEmbedding",
        widths=(16, 24, 24), base=1e4, spectrum="shared",
    ),
    "ernie4_5_vl": _preset(
        3, 128, TEXT_IN_PICTURES, "ERNIE 4.5 VL: transformers Ernie4_5_VLMoeTextRotaryEmbedding",
        widths=(40, 44, 44), base=5e5, layout=((1, 2), (0,)), spectrum="shared",
    ),
    "mhrope": _preset(
        3, None, f"{TEXT_IN_PICTURES}; rows and columns from 0 in each picture",
        "MHRoPE with 8 key heads: Huang et al. 2025, arXiv 2510.23095", heads=(2, 3, 3), base=1e6, pairing="half",
    ),
    # vision encoders
    "pixtral": _preset(
        2, None, "(row, column)", "Pixtral, Mistral 3: transformers PixtralVisionRotaryEmbedding",
        base=1e4, spectrum="dealt", pairing="half",
    ),
    "gemma4_vision": _preset(
        2, None, "(row, column)", "Gemma 4, vision: transformers Gemma4VisionRotaryEmbedding",
        base=100.0, indexing="xy", pairing="half_by_axis",
    ),
    "llama4_vision": _preset(
        2, None, "(row + 1, column + 1); CLS without a position", "Llama 4, vision: transformers "
        "Llama4VisionRotaryEmbedding", base=1e4, indexing="xy",
    ),
    "dinov3": _preset(
        2, None, "2π · normalized_positions", "DINOv3: transformers DINOv3ViTRopePositionEmbedding",
        base=100.0, pairing="half",
    ),
    "kimi_vision": _preset(
        2, None, "(row, column)", "Kimi K2.5, vision: transformers Kimi_K25VisionRotaryEmbedding",
        base=1e4, layout="alternate", indexing="xy", pairing="half",
    ),
    "minimax_m3_vision": _preset(
        3, 80, VIDEO, "MiniMax-M3, vision: transformers MiniMaxM3VLVisionRotaryEmbedding",
        widths=(26, 26, 26), base=1e4, pairing="half",
    ),
    "sam2": _preset(
        2, None, "(row, column); object pointers without a position",
        "SAM 2, memory: transformers Sam2VideoVisionRotaryEmbedding", base=1e4, indexing="xy",
    ),
    "sam3": _preset(
        2, None, "(row, column) in a window of 24 x 24; · 24 / columns in layers that see all patches",
        "SAM 3, vision: transformers Sam3ViTRotaryEmbedding", base=1e4, indexing="xy",
    ),
}  # fmt: skip
"""The presets by name."""

OTHERS = {
    "ernie_image": "its angles are laid out for neighbors and its channels mixed as halves, which is no rotation",
    "mochi": "its frequencies are learned: use rope_mixed",
    "vjepa2": "its angles are laid out for halves and its channels mixed as neighbors, which is no rotation",
    "siglip2_naflex": "its positions are a learned table: use learned",
}
"""Models that axial RoPE does not describe, and why."""


def preset_options(name: str | None) -> Mapping[str, Any]:
    """Return the options that a preset stands for; None stands for none.

    Raises:
        ValueError: an unknown name, or a model that axial RoPE does not describe.
    """
    if name is None:
        return {}
    if name in OTHERS:
        raise ValueError(f"preset {name!r} is not supported: {OTHERS[name]}")
    if name not in PRESETS:
        names = [key for key, preset in PRESETS.items() if _is_of(name, preset.source)]
        hint = f"; did you mean {names[0]!r}?" if names else did_you_mean(name, PRESETS) or "."
        raise ValueError(f"unknown preset {name!r}{hint} Known: {', '.join(PRESETS)}")
    return PRESETS[name].options


def _is_of(name: str, source: str) -> bool:
    """Return whether a name is that of a model or class in a source, or three letters or more of its begin."""
    models, _, place = source.partition(": ")
    known = [_letters(word) for word in (*re.split(",| and ", models), place.rpartition(" ")[2])]
    return len(_letters(name)) > 2 and any(word.startswith(_letters(name)) for word in known)


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def check_preset(name: str, dims: Dims, widths: tuple[int, ...] | None) -> None:
    """Raise ValueError for dims that a preset is not made for; other widths than its own are for any head dim."""
    preset = PRESETS[name]
    if dims.axes != preset.axes:
        raise ValueError(f"preset={name!r} has axes={preset.axes}, got Dims with axes={dims.axes}")
    if preset.head_dim not in (None, dims.head_dim) and widths == preset.options.get("widths"):
        raise ValueError(f"preset={name!r} has head_dim={preset.head_dim}, got Dims with head_dim={dims.head_dim}")
