"""Parts of a sequence, and the rules by which models place them, for `pejax.positions_of`.

    from pejax.placement import image, text, video

    tokens = pejax.positions_of([text(12), image(4, 6), text(5)], rule="qwen2_vl")

`order_of` makes the order of causal masks in which blocks of tokens see each other:

    tokens = pejax.TokenPositions(jnp.arange(52), order=order_of([mutual(12), causal(40)]))

A rule with options is a value, `qwen2_5_vl(tokens_per_second=4)`; your own is a `Rule`, made of `grid` and its like.
"""

from pejax._placement.grids import centered, counted, equal, fitted, grid, middles
from pejax._placement.language import qwen2_5_vl, qwen2_vl, qwen3_vl, spatial_reset
from pejax._placement.order import Run, blocks, causal, mutual, order_of
from pejax._placement.parts import Part, image, sound, text, unplaced, video
from pejax._placement.pictures import (
    cogview4,
    fibo2,
    flux,
    flux2,
    flux3,
    hunyuan_image,
    ideogram4,
    longcat_image,
    lumina2,
    ovis_image,
    qwen_image,
    qwen_image_2_1,
    qwen_image_layered,
    z_image,
    z_image_omni,
)
from pejax._placement.rule import Rule
from pejax._placement.sequence import RULES
from pejax._placement.videos import cogvideox, cosmos, cosmos3, kandinsky6, ltx, ltx2, ltx2_audio, minimax_h3, wan
from pejax._placement.vision import (
    dinov3,
    llama4_vision,
    minimax_m3_vision,
    patches,
    qwen2_vl_vision,
    sam3,
    vision_tower,
)

__all__ = [
    "RULES",
    "Part",
    "Rule",
    "Run",
    "blocks",
    "causal",
    "centered",
    "cogvideox",
    "cogview4",
    "cosmos",
    "cosmos3",
    "counted",
    "dinov3",
    "equal",
    "fibo2",
    "fitted",
    "flux",
    "flux2",
    "flux3",
    "grid",
    "hunyuan_image",
    "ideogram4",
    "image",
    "kandinsky6",
    "llama4_vision",
    "longcat_image",
    "ltx",
    "ltx2",
    "ltx2_audio",
    "lumina2",
    "middles",
    "minimax_h3",
    "minimax_m3_vision",
    "mutual",
    "order_of",
    "ovis_image",
    "patches",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen2_vl_vision",
    "qwen3_vl",
    "qwen_image",
    "qwen_image_2_1",
    "qwen_image_layered",
    "sam3",
    "sound",
    "spatial_reset",
    "text",
    "unplaced",
    "video",
    "vision_tower",
    "wan",
    "z_image",
    "z_image_omni",
]
