"""Positions of sequences that are described by their parts."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from pejax._calls.arguments import checked
from pejax._calls.names import unknown_name
from pejax._placement import diffusion, language
from pejax._placement.parts import Part
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
    "flux": diffusion.flux,
    "krea2": diffusion.flux,
    "hidream": diffusion.flux,
    "flux2": diffusion.flux2,
    "longcat_image": diffusion.longcat_image,
    "ovis_image": diffusion.ovis_image,
    "lumina2": diffusion.lumina2,
    "z_image": diffusion.z_image,
    "qwen_image": diffusion.qwen_image,
    "qwen_image_layered": diffusion.qwen_image_layered,
    "qwen_image_2_1": diffusion.qwen_image_2_1,
    "cogview4": diffusion.cogview4,
    "wan": diffusion.wan,
    "hunyuan_video": diffusion.wan,
    "allegro": diffusion.wan,
    "kandinsky5": diffusion.kandinsky6,
    "kandinsky6": diffusion.kandinsky6,
    "cosmos": diffusion.cosmos,
    "ltx": diffusion.ltx,
    "ltx2": diffusion.ltx2,
    "patches": diffusion.patches,
    "dinov3": diffusion.dinov3,
}
"""Rules by name, those of models with the same rule by theirs, too: functions of their options, all with defaults."""


@checked
def positions_of(*sequences: Sequence[Part], rule: str | Rule, length: int | None = None) -> TokenPositions:
    """Return the positions of tokens that are described by parts: texts, images, videos, tokens without a position.

    Several sequences are packed into one row: each has its own positions and segment, and none attends to another.
    Sizes are known numbers, so that positions are constants under `jax.jit`. For a batch of rows, stack the results of
    equal length: `jax.tree.map(lambda *rows: jnp.stack(rows), *rows)`.

    Args:
        *sequences: lists of parts, made by `text`, `image`, `video` and `unplaced` of `pejax.placement`.
        rule: a name in `pejax.placement.RULES`, or a rule: one of theirs with options, or your own.
        length: T, number of tokens of the row; those after the sequences are padding, in segment 0. None = as many as
            described.

    Returns:
        Positions `(T, A)`, or `(T,)` for a rule with one axis: int32, or float32 where the rule has fractions (float64
        with `jax_enable_x64`). `order` counts the tokens. `has_position` is there if some tokens have no position,
        `segment_ids` for several sequences or with a length.

    Raises:
        ValueError: no parts, an unknown rule, parts that the rule does not take, a length below the number of tokens,
            or positions that int32 or float32 cannot hold.

    Examples:
        >>> from pejax.placement import image, text
        >>> tokens = positions_of([text(2), image(2, 2), text(1)], rule="qwen2_vl")
        >>> tokens.positions.tolist()
        [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
    """
    rule = _rule(rule)
    if not sequences or not all(sequences):
        raise ValueError("sequences must have parts such as text(12), got an empty one")
    for parts in sequences:
        check_parts(rule, parts)
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
    segments = np.repeat([*range(1, len(sequences) + 1), 0], [*counts, padding])
    return TokenPositions(
        jnp.asarray(positions if len(rule.axes) > 1 else positions[:, 0]),
        jnp.arange(described + padding, dtype=jnp.int32),
        None if coordinates.all() else jnp.asarray(coordinates),
        None if length is None and len(sequences) == 1 else jnp.asarray(segments, jnp.int32),
    )


def _rule(rule: str | Rule) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if rule not in RULES:
        raise ValueError(unknown_name("rule", rule, RULES))
    return RULES[rule]()
