"""Parts of a sequence, and the rules by which models place them, for `pejax.positions_of`.

    from pejax.placement import image, text, video

    tokens = pejax.positions_of([text(12), image(4, 6), text(5)], rule="qwen2_vl")

A rule with options is a value, `qwen2_5_vl(tokens_per_second=4)`; your own is a `Rule`, made of `grid` and its like.
"""

from pejax._placement.diffusion import (
    cogview4,
    cosmos,
    dinov3,
    flux,
    flux2,
    kandinsky6,
    longcat_image,
    ltx,
    ltx2,
    lumina2,
    ovis_image,
    patches,
    qwen_image,
    qwen_image_2_1,
    qwen_image_layered,
    wan,
    z_image,
)
from pejax._placement.grids import centered, counted, equal, fitted, grid, middles
from pejax._placement.language import qwen2_5_vl, qwen2_vl, qwen3_vl, spatial_reset
from pejax._placement.parts import Part, image, text, unplaced, video
from pejax._placement.rule import Rule
from pejax._placement.sequence import RULES

__all__ = [
    "RULES",
    "Part",
    "Rule",
    "centered",
    "cogview4",
    "cosmos",
    "counted",
    "dinov3",
    "equal",
    "fitted",
    "flux",
    "flux2",
    "grid",
    "image",
    "kandinsky6",
    "longcat_image",
    "ltx",
    "ltx2",
    "lumina2",
    "middles",
    "ovis_image",
    "patches",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "qwen_image",
    "qwen_image_2_1",
    "qwen_image_layered",
    "spatial_reset",
    "text",
    "unplaced",
    "video",
    "wan",
    "z_image",
]
