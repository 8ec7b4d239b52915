"""Rules of diffusion transformers for images."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int

from pejax._calls.arguments import checked
from pejax._placement.grids import centered, counted, equal, fitted, grid, scaled
from pejax._placement.layouts import AXES, Context, check_above_zero, in_turn, no_text, rows_columns, side_by_side
from pejax._placement.parts import Part
from pejax._placement.rule import Rule


def flux() -> Rule:
    """Make the rule of Flux.1, Chroma, Krea 2 and HiDream: texts at `(0, 0, 0)`, the image at `(0, row, column)`.

    A second image, the one to edit in Flux.1 Kontext, is at `(1, row, column)`.

    Examples:
        >>> flux().pictures
        2
    """
    picture = lambda number, part, context: grid([number], *rows_columns(part))
    return Rule(
        "flux",
        AXES,
        side_by_side(lambda numbers, context: equal(0 * numbers, 3), picture),
        kinds=("text", "image"),
        pictures=2,
    )


@checked
def flux2(*, reference_step: int = 10) -> Rule:
    """Make the rule of Flux.2: texts at `(0, 0, 0, i)`, the image at `(0, row, column, 0)`, references at other times.

    Args:
        reference_step: the n-th reference, which are the images after the first, is at `(n · step, row, column, 0)`.

    Examples:
        >>> flux2().axes
        ('time', 'row', 'column', 'token')
    """
    text = lambda numbers, context: grid([0], [0], [0], numbers)
    picture = lambda number, part, context: grid([number * reference_step], *rows_columns(part), [0])
    return Rule("flux2", (*AXES, "token"), side_by_side(text, picture), kinds=("text", "image"))


@checked
def flux3(*, scale: float = 0.5) -> Rule:
    """Make the rule of Flux.3: texts at `(0, 0, 0, i)`, the image at `(0, scale · row, scale · column, 0)`.

    The n-th reference, which are the images after the first, is at `(0, scale · row, scale · column, -n)`.

    Args:
        scale: distance of rows and columns.

    Raises:
        ValueError: a scale not above 0.

    Examples:
        >>> flux3().axes
        ('time', 'row', 'column', 'token')
    """
    check_above_zero("scale", scale)
    text = lambda numbers, context: grid([0], [0], [0], numbers)

    def picture(number: int, part: Part, context: Context) -> Float[np.ndarray, "n 4"]:
        rows, columns = (scaled(along, Fraction(repr(scale))) for along in rows_columns(part))
        return grid([0], rows, columns, [-number])

    return Rule("flux3", (*AXES, "token"), side_by_side(text, picture), kinds=("text", "image"))


@checked
def fibo2(*, gist: int = 512) -> Rule:
    """Make the rule of FIBO 2: tokens of the gist at `(1 + i, 0, 0)`, the image at `(gist + 1, row, column)`.

    The gist, which the model makes of the prompt, is described as a text. The n-th image of the context, which are
    those after the first, is at `(gist + 1 + n, row, column)`.

    Args:
        gist: the most tokens of a gist, `max_num_gist_tokens`: the image is at one time, however many there are.

    Raises:
        ValueError: a gist below 1; where it is used, texts of more tokens.

    Examples:
        >>> fibo2().pictures  # any number
    """
    check_above_zero("gist", gist)

    def text(numbers: Int[np.ndarray, " n"], context: Context) -> Int[np.ndarray, "n 3"]:
        if context.texts > gist:
            raise ValueError(f"rule fibo2: texts must have at most {gist} tokens, those of a gist, got {context.texts}")
        return grid(1 + numbers, [0], [0])

    picture = lambda number, part, context: grid([gist + 1 + number], *rows_columns(part))
    return Rule("fibo2", AXES, side_by_side(text, picture), kinds=("text", "image"))


@checked
def ideogram4(*, start: int = 65536) -> Rule:
    """Make the rule of Ideogram 4: texts at `(i, i, i)`, the image at `start + (0, row, column)`.

    Args:
        start: where the image begins, beyond every text.

    Examples:
        >>> ideogram4().pictures
        1
    """
    text = lambda numbers, context: equal(numbers, 3)
    picture = lambda number, part, context: start + grid([0], *rows_columns(part))
    return Rule("ideogram4", AXES, side_by_side(text, picture), kinds=("text", "image"), pictures=1)


def hunyuan_image() -> Rule:
    """Make the rule of HunyuanImage, GLM-Image and PRX: `(row, column)`; texts have no position.

    Examples:
        >>> hunyuan_image().axes
        ('row', 'column')
    """
    picture = lambda number, part, context: grid(*rows_columns(part))
    return Rule("hunyuan_image", AXES[1:], side_by_side(no_text, picture), kinds=("text", "image"), pictures=1)


@checked
def longcat_image(*, start: int | None = 512) -> Rule:
    """Make the rule of LongCat-Image: texts at `(0, i, i)`, the image at `(1, start + row, start + column)`.

    A second image, the one to edit, is at `(2, start + row, start + column)`.

    Args:
        start: 512, the most text tokens, without an image to edit. None = the number of text tokens, as in editing.

    Examples:
        >>> longcat_image(start=None).pictures
        2
    """
    text = lambda numbers, context: np.stack([0 * numbers, numbers, numbers], axis=-1)

    def picture(number: int, part: Part, context: Context) -> Int[np.ndarray, "n 3"]:
        rows, columns = rows_columns(part)
        corner = context.texts if start is None else start
        return grid([1 + number], corner + rows, corner + columns)

    return Rule("longcat_image", AXES, side_by_side(text, picture), kinds=("text", "image"), pictures=2)


def ovis_image() -> Rule:
    """Make the rule of Ovis-Image: texts at `(0, i, i)`, the image at `(0, row, column)`.

    Examples:
        >>> ovis_image().kinds
        ('text', 'image')
    """
    text = lambda numbers, context: np.stack([0 * numbers, numbers, numbers], axis=-1)
    picture = lambda number, part, context: grid([0], *rows_columns(part))
    return Rule("ovis_image", AXES, side_by_side(text, picture), kinds=("text", "image"), pictures=1)


def lumina2() -> Rule:
    """Make the rule of Lumina 2: caption tokens at `(i, 0, 0)`, i < n, the image at `(n, row, column)`.

    Examples:
        >>> lumina2().pictures
        1
    """
    text = lambda numbers, context: grid(numbers, [0], [0])
    picture = lambda number, part, context: grid([context.texts], *rows_columns(part))
    return Rule("lumina2", AXES, side_by_side(text, picture), kinds=("text", "image"), pictures=1)


MULTIPLE = 32
"""Z-Image fills every caption and every picture up to a multiple of so many tokens."""


def z_image() -> Rule:
    """Make the rule of Z-Image: caption tokens at `(1 + i, 0, 0)`, i < n, pictures at `(1 + n + frame, row, column)`.

    n counts the caption with the tokens that fill it up to a multiple of 32. Those that fill a picture up have
    (0, 0, 0), which rotates nothing: describe them by `unplaced`.

    Examples:
        >>> z_image().pictures
        1
    """

    def text(numbers: Int[np.ndarray, " n"], context: Context) -> Int[np.ndarray, "n 3"]:
        if len(numbers) % MULTIPLE:
            raise ValueError(f"rule z_image: texts must be filled up to a multiple of {MULTIPLE}, got {len(numbers)}")
        return grid(1 + numbers, [0], [0])

    picture = lambda number, part, context: grid(1 + context.texts + part.frames, *rows_columns(part))
    return Rule("z_image", AXES, side_by_side(text, picture), pictures=1)


@checked
def z_image_omni(*, captions: tuple[int, ...] | None = None, siglip: int = 0) -> Rule:
    """Make the rule of Z-Image with several pictures: the k-th is on a plane of its own after the k-th caption.

    Caption k, from 0, is at `(s + i, 0, 0)`, where s is 1 + 2k + the tokens of the captions before it; its picture is
    at `(s + n, row, column)`, where n is the number of its own. Describe every caption with the tokens that fill it up
    to a multiple of 32: they have the next positions, but are not counted.

    For a caption after one that is filled up, diffusers 0.42 rotates the tokens by positions of others: its lists of
    positions are longer than those of tokens. This rule gives the positions that it computes.

    Args:
        captions: tokens of each caption, without those that fill it up. None = none is filled up.
        siglip: the last so many pictures are the features of SigLIP of the first ones, at `s + n + 1`. Their rows and
            columns are stretched to the latents of that picture, two to a token, and rounded down.

    Raises:
        ValueError: a negative siglip; where it is used, a caption of another length, or a picture without a caption.

    Examples:
        >>> z_image_omni(captions=(20, 7), siglip=1).kinds
        ('text', 'image')
    """
    if siglip < 0:
        raise ValueError(f"siglip must be at least 0, got {siglip}")

    def place(parts: Sequence[Part]) -> list[Int[np.ndarray, "n 3"]]:
        filled = [part.tokens for part in parts if not part.is_picture]
        counts = filled if captions is None else list(captions)
        if [count + -count % MULTIPLE for count in counts] != filled:
            rule = f"rule z_image_omni: texts must be captions={counts}, filled up to multiples of {MULTIPLE}"
            raise ValueError(f"{rule}, got {filled}")
        pictures = [part for part in parts if part.is_picture]
        latents = len(pictures) - siglip
        if not siglip <= latents <= len(filled):
            rule = f"rule z_image_omni: every picture must have a caption, and one of siglip={siglip} its picture"
            raise ValueError(f"{rule}, got {', '.join(map(str, parts))}")
        starts = [1 + 2 * k + sum(counts[:k]) for k in range(len(counts))]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        texts = [grid(counted(count, start), [0], [0]) for count, start in zip(filled, starts, strict=True)]
        planes = [grid([end], *rows_columns(part)) for end, part in zip(ends, pictures[:latents], strict=False)]
        for end, part, target in zip(ends, pictures[latents:], pictures, strict=False):
            sides = zip(part.grid[1:], target.grid[1:], strict=True)
            planes.append(grid([end + 1], *(_stretched(count, 2 * side) for count, side in sides)))
        return [(planes if part.is_picture else texts).pop(0) for part in parts]

    return Rule("z_image_omni", AXES, place, kinds=("text", "image"))


def _stretched(count: int, side: int) -> Int[np.ndarray, " L"]:
    """Return `⌊i · (side - 1) / (count - 1)⌋`: the first and last token at the ends of a side."""
    return counted(count) * (side - 1) // max(count - 1, 1)


@checked
def cogview4(*, reference: tuple[int, int] = (256, 256)) -> Rule:
    """Make the rule of CogView 4: `(⌊row · 256 / height⌋, ⌊column · 256 / width⌋)`; texts have no position.

    Args:
        reference: height and width of the grid that every image is fitted to.

    Raises:
        ValueError: a side below 1.

    Examples:
        >>> cogview4().axes
        ('row', 'column')
    """
    check_above_zero("reference", reference)
    picture = lambda number, part, context: grid(*map(fitted, part.grid[1:], reference))
    return Rule("cogview4", AXES[1:], side_by_side(no_text, picture), kinds=("text", "image"), pictures=1)


def qwen_image() -> Rule:
    """Make the rule of Qwen-Image: pictures centered on (0, 0), texts on the diagonal from the largest half side on.

    The n-th image is at time n (those to edit come after the first), texts count from
    `max over pictures (⌊height/2⌋, ⌊width/2⌋)` on all axes.

    Reference:
        Wu et al. 2025, "Qwen-Image" (arXiv 2508.02324), section 2.4: MSRoPE.

    Examples:
        >>> qwen_image().pictures  # any number
    """
    text = lambda numbers, context: equal(_half(context.pictures) + numbers, 3)
    picture = lambda number, part, context: _centered(part, number)
    return Rule("qwen_image", AXES, side_by_side(text, picture))


def qwen_image_layered() -> Rule:
    """Make the rule of Qwen-Image-Layered: as `qwen_image`, but the last picture, the condition, is at time -1.

    Texts count from no less than the number of pictures before it.

    Examples:
        >>> qwen_image_layered().kinds
        ('text', 'image')
    """
    layers = lambda context: len(context.pictures) - 1
    text = lambda numbers, context: equal(max(_half(context.pictures), layers(context)) + numbers, 3)
    picture = lambda number, part, context: _centered(part, -1 if number == layers(context) else number)
    return Rule("qwen_image_layered", AXES, side_by_side(text, picture), kinds=("text", "image"))


def qwen_image_2_1() -> Rule:
    """Make the rule of Qwen-Image 2.1: in turn, an image at s is at time s, with rows and columns centered on 0.

    Texts have their number on all axes; the part after an image begins at `s + max(height, width)`.

    Examples:
        >>> qwen_image_2_1().kinds
        ('text', 'image')
    """
    picture = lambda part, start: (_centered(part, start), start + max(part.grid[1:]))
    return Rule("qwen_image_2_1", AXES, in_turn(picture), kinds=("text", "image"))


def _centered(part: Part, time: int) -> Int[np.ndarray, "n 3"]:
    _, height, width = part.grid
    return grid(time + part.frames, centered(height), centered(width))


def _half(pictures: Sequence[Part]) -> int:
    """Return half the longest side of all pictures."""
    return max((max(part.grid[1:]) // 2 for part in pictures), default=0)
