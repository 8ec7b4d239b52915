"""Positions of sequences that are described by their parts."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from pejax._calls.arguments import checked
from pejax._calls.names import unknown_name
from pejax._ops.checks import check_choice
from pejax._placement import language, pictures, videos, vision
from pejax._placement.order import Run, order_of
from pejax._placement.parts import KINDS, Part
from pejax._placement.rule import Rule, check_parts, held, placed
from pejax._tokens.positions import TokenPositions

RULES: dict[str, Callable[..., Rule]] = {
    "qwen2_vl": language.qwen2_vl,
    "ernie4_5_vl": language.qwen2_vl,
    "qwen2_5_vl": language.qwen2_5_vl,
    "qwen3_vl": language.qwen3_vl,
    "glm4v": language.qwen3_vl,
    "spatial_reset": language.spatial_reset,
    "mhrope": language.spatial_reset,
    "flux": pictures.flux,
    "krea2": pictures.flux,
    "hidream": pictures.flux,
    "flux2": pictures.flux2,
    "flux3": pictures.flux3,
    "fibo2": pictures.fibo2,
    "longcat_image": pictures.longcat_image,
    "ovis_image": pictures.ovis_image,
    "lumina2": pictures.lumina2,
    "z_image": pictures.z_image,
    "z_image_omni": pictures.z_image_omni,
    "ideogram4": pictures.ideogram4,
    "qwen_image": pictures.qwen_image,
    "qwen_image_layered": pictures.qwen_image_layered,
    "qwen_image_2_1": pictures.qwen_image_2_1,
    "cogview4": pictures.cogview4,
    "hunyuan_image": pictures.hunyuan_image,
    "glm_image": pictures.hunyuan_image,
    "prx": pictures.hunyuan_image,
    "wan": videos.wan,
    "hunyuan_video": videos.wan,
    "allegro": videos.wan,
    "cogvideox": videos.cogvideox,
    "cogvideox1_5": videos.wan,
    "kandinsky5": videos.kandinsky6,
    "kandinsky6": videos.kandinsky6,
    "cosmos": videos.cosmos,
    "cosmos3": videos.cosmos3,
    "minimax_h3": videos.minimax_h3,
    "ltx": videos.ltx,
    "ltx2": videos.ltx2,
    "ltx2_audio": videos.ltx2_audio,
    "patches": vision.patches,
    "pixtral": vision.patches,
    "gemma4_vision": vision.patches,
    "vision_tower": vision.vision_tower,
    "kimi_vision": vision.vision_tower,
    "sam2": vision.vision_tower,
    "sam3": vision.sam3,
    "qwen2_vl_vision": vision.qwen2_vl_vision,
    "minimax_m3_vision": vision.minimax_m3_vision,
    "llama4_vision": vision.llama4_vision,
    "dinov3": vision.dinov3,
}
"""Rules by name, those of models with the same rule by theirs, too: functions of their options, all with defaults."""


@checked
def positions_of(
    *sequences: Sequence[Part], rule: str | Rule, length: int | None = None, mutual: tuple[str, ...] = ()
) -> TokenPositions:
    """Return the positions of tokens that are described by parts: texts, images, videos, sounds, tokens without one.

    Several sequences are packed into one row: each has its own positions and segment, and none attends to another.
    Sizes are known numbers, so that positions are constants under `jax.jit`. For a batch of rows, stack the results of
    equal length: `jax.tree.map(lambda *rows: jnp.stack(rows), *rows)`.

    Args:
        *sequences: lists of parts, made by `text`, `image`, `video`, `sound` and `unplaced` of `pejax.placement`.
        rule: a name in `pejax.placement.RULES`, or a rule: one of theirs with options, or your own.
        length: T, number of tokens of the row; those after the sequences are padding, in segment 0. None = as many as
            described.
        mutual: kinds of parts whose tokens all see each other where attention is causal: ("image",) in Gemma 3.

    Returns:
        Positions `(T, A)`, or `(T,)` for a rule with one axis: int32, or float32 where the rule has fractions (float64
        with `jax_enable_x64`). `order` counts the tokens; those of a mutual part have the number of its first one
        (`pejax.placement.order_of`). `has_position` is there if some tokens have no position,
        `segment_ids` for several sequences or with a length.

    Raises:
        ValueError: no parts, an unknown rule, parts that the rule does not take, a length below the number of tokens,
            an unknown kind of mutual parts, or positions that int32 or float32 cannot hold.

    Examples:
        >>> from pejax.placement import image, text
        >>> tokens = positions_of([text(2), image(2, 2), text(1)], rule="qwen2_vl")
        >>> tokens.positions.tolist()
        [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
    """
    rule = _rule(rule)
    for parts in sequences or [()]:
        _check_sequence(rule, parts)
    for kind in mutual:
        check_choice("mutual", kind, KINDS)
    counts = [sum(part.tokens for part in parts) for parts in sequences]
    described = sum(counts)
    if length is not None and length < described:
        raise ValueError(f"length must be at least the {described} tokens that are described, got {length}")
    padding = 0 if length is None else length - described

    pairs = [(part, array) for parts in sequences for part, array in zip(parts, placed(rule, parts), strict=True)]
    empty = lambda count: np.zeros((count, len(rule.axes)), np.int64)
    arrays = [empty(part.tokens) if array is None else array for part, array in pairs] + [empty(padding)]
    coordinates = np.concatenate(
        [np.full(part.tokens, array is not None) for part, array in pairs] + [np.zeros(padding, bool)]
    )
    positions = held(rule, np.concatenate(arrays))
    runs = [Run(part.tokens, part.tokens if part.kind in mutual else 1) for parts in sequences for part in parts]
    runs += [Run(padding, 1)] if padding else []
    segments = np.repeat([*range(1, len(sequences) + 1), 0], [*counts, padding])
    return TokenPositions(
        jnp.asarray(positions if len(rule.axes) > 1 else positions[:, 0]),
        order_of(runs),
        None if coordinates.all() else jnp.asarray(coordinates),
        None if length is None and len(sequences) == 1 else jnp.asarray(segments, jnp.int32),
    )


@checked
def next_position(parts: Sequence[Part], *, rule: str | Rule) -> int:
    """Return the position, on all axes, of the first token that a language model generates after described parts.

    It is the largest position of the parts on any axis + 1; those of later tokens count on from it. After a video with
    more frames than rows and columns, this is beyond where one more word of the prompt would be: in transformers, too,
    the text of a prompt goes on at `s + max(height, width)`, but generation after the last of all positions.

    Args:
        parts: the prompt, as for `positions_of`.
        rule: a name in `pejax.placement.RULES`, or a rule, of a model that generates text.

    Raises:
        ValueError: no parts, an unknown rule, one of a model that generates no text, or parts that it does not take.

    Examples:
        >>> from pejax.placement import text, video
        >>> prompt = [text(1), video(40, 4, 4), text(3)]
        >>> next_position(prompt, rule="qwen2_vl")
        41
        >>> positions_of([*prompt, text(1)], rule="qwen2_vl").positions[-1].tolist()
        [8, 8, 8]
    """
    rule = _rule(rule)
    if not rule.generates:
        names = [name for name, factory in RULES.items() if factory().generates]
        raise ValueError(f"rule must be of a model that generates text, such as {', '.join(names)}, got {rule.name}")
    _check_sequence(rule, parts)
    return 1 + max((int(array.max()) for array in placed(rule, parts) if array is not None), default=-1)


def _check_sequence(rule: Rule, parts: Sequence[Part]) -> None:
    if not parts:
        raise ValueError("sequences must have parts such as text(12), got an empty one")
    check_parts(rule, parts)


def _rule(rule: str | Rule) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if rule not in RULES:
        raise ValueError(unknown_name("rule", rule, RULES))
    return RULES[rule]()
