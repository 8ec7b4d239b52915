"""Rules of diffusion transformers for images and videos, and of vision transformers."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Num

from pejax._calls.arguments import checked
from pejax._placement.grids import centered, counted, equal, fitted, grid, middles, scaled
from pejax._placement.language import AXES, in_turn
from pejax._placement.parts import Part
from pejax._placement.rule import Rule


class Context(NamedTuple):
    """What a part may depend on in the whole sequence: the number of text tokens, and the pictures in order."""

    texts: int
    pictures: tuple[Part, ...]


def _side_by_side(
    text: Callable[[Int[np.ndarray, " n"], Context], Num[np.ndarray, "n A"] | None],
    picture: Callable[[int, Part, Context], Num[np.ndarray, "n A"]],
) -> Callable[[Sequence[Part]], list[Num[np.ndarray, "n A"] | None]]:
    """Return a `place` for which it does not matter whether texts come before, between or after pictures.

    Args:
        text: `(numbers of these tokens among all text tokens, context) -> positions` of one text.
        picture: `(number of this picture, part, context) -> positions`.
    """

    def place(parts: Sequence[Part]) -> list[Num[np.ndarray, "n A"] | None]:
        pictures = tuple(part for part in parts if part.is_picture)
        context = Context(sum(part.tokens for part in parts if not part.is_picture), pictures)
        arrays, reached, number = [], 0, 0
        for part in parts:
            if part.is_picture:
                arrays.append(picture(number, part, context))
                number += 1
            else:
                arrays.append(text(counted(part.tokens, reached), context))
                reached += part.tokens
        return arrays

    return place


def _no_text(numbers: Int[np.ndarray, " n"], context: Context) -> None:
    """Return no positions: the texts are not rotated."""


def _rows_columns(part: Part) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " columns"]]:
    _, height, width = part.grid
    return counted(height), counted(width)


def flux() -> Rule:
    """Make the rule of Flux.1, Chroma, Krea 2 and HiDream: texts at `(0, 0, 0)`, the image at `(0, row, column)`.

    A second image, the one to edit in Flux.1 Kontext, is at `(1, row, column)`.

    Examples:
        >>> flux().pictures
        2
    """
    picture = lambda number, part, context: grid([number], *_rows_columns(part))
    return Rule(
        "flux",
        AXES,
        _side_by_side(lambda numbers, context: equal(0 * numbers, 3), picture),
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
    picture = lambda number, part, context: grid([number * reference_step], *_rows_columns(part), [0])
    return Rule("flux2", (*AXES, "token"), _side_by_side(text, picture), kinds=("text", "image"))


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
        rows, columns = _rows_columns(part)
        corner = context.texts if start is None else start
        return grid([1 + number], corner + rows, corner + columns)

    return Rule("longcat_image", AXES, _side_by_side(text, picture), kinds=("text", "image"), pictures=2)


def ovis_image() -> Rule:
    """Make the rule of Ovis-Image: texts at `(0, i, i)`, the image at `(0, row, column)`.

    Examples:
        >>> ovis_image().kinds
        ('text', 'image')
    """
    text = lambda numbers, context: np.stack([0 * numbers, numbers, numbers], axis=-1)
    picture = lambda number, part, context: grid([0], *_rows_columns(part))
    return Rule("ovis_image", AXES, _side_by_side(text, picture), kinds=("text", "image"), pictures=1)


def lumina2() -> Rule:
    """Make the rule of Lumina 2: caption tokens at `(i, 0, 0)`, i < n, the image at `(n, row, column)`.

    Examples:
        >>> lumina2().pictures
        1
    """
    text = lambda numbers, context: grid(numbers, [0], [0])
    picture = lambda number, part, context: grid([context.texts], *_rows_columns(part))
    return Rule("lumina2", AXES, _side_by_side(text, picture), kinds=("text", "image"), pictures=1)


def z_image() -> Rule:
    """Make the rule of Z-Image: caption tokens at `(1 + i, 0, 0)`, i < n, pictures at `(1 + n + frame, row, column)`.

    n counts the caption with the tokens that fill it up to a multiple of 32. Those that fill a picture up have
    (0, 0, 0), which rotates nothing: describe them by `unplaced`.

    Examples:
        >>> z_image().pictures
        1
    """
    multiple = 32

    def text(numbers: Int[np.ndarray, " n"], context: Context) -> Int[np.ndarray, "n 3"]:
        if len(numbers) % multiple:
            raise ValueError(f"rule z_image: texts must be filled up to a multiple of {multiple}, got {len(numbers)}")
        return grid(1 + numbers, [0], [0])

    picture = lambda number, part, context: grid(counted(part.grid[0], context.texts + 1), *_rows_columns(part))
    return Rule("z_image", AXES, _side_by_side(text, picture), pictures=1)


def wan() -> Rule:
    """Make the rule of Wan, HunyuanVideo, SkyReels and others: `(frame, row, column)`.

    Texts have no position: HunyuanVideo does not rotate them, and Wan reads them by cross-attention.

    Examples:
        >>> wan().pictures
        1
    """
    picture = lambda number, part, context: grid(counted(part.grid[0]), *_rows_columns(part))
    return Rule("wan", AXES, _side_by_side(_no_text, picture), pictures=1)


@checked
def kandinsky6(*, scale: tuple[float, float, float] = (1.0, 2.0, 2.0)) -> Rule:
    """Make the rule of Kandinsky 5 and 6: `(frame, row, column) / scale`.

    Texts have none of these positions: they are rotated by their own numbers.

    Args:
        scale: divisors of frames, rows and columns: `scale_factor` of Kandinsky 6's config. Kandinsky 5 has (1, 2, 2)
            where height and width are 480 to 854 pixels, else (1, 3.16, 3.16).

    Raises:
        ValueError: a scale not above 0.

    Examples:
        >>> kandinsky6(scale=(1.0, 3.16, 3.16)).pictures
        1
    """
    if min(scale) <= 0:
        raise ValueError(f"scale must be above 0 on every axis, got {scale}")
    steps = [1 / Fraction(repr(divisor)) for divisor in scale]

    def picture(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        indices = counted(part.grid[0]), *_rows_columns(part)
        return grid(*(scaled(*of_axis) for of_axis in zip(indices, steps, strict=True)))

    return Rule("kandinsky6", AXES, _side_by_side(_no_text, picture), pictures=1)


@checked
def cosmos(*, fps: float = 24.0) -> Rule:
    """Make the rule of Cosmos 1 and 2: `(frame · fps / video fps, row, column)`, or without video fps the frame.

    Texts have no position: they are read by cross-attention.

    Args:
        fps: frames per second at which times count frames.

    Raises:
        ValueError: an fps not above 0.

    Examples:
        >>> cosmos().fps
        'optional'
    """
    if fps <= 0:
        raise ValueError(f"fps must be above 0, got {fps}")
    rate = Fraction(repr(fps))

    def picture(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        frames = counted(part.grid[0])
        times = frames if part.seconds is None else scaled(frames, rate * part.seconds)
        return grid(times, *_rows_columns(part))

    return Rule("cosmos", AXES, _side_by_side(_no_text, picture), pictures=1, fps="optional")


def _check_positive(name: str, *values: int) -> None:
    if min(values) < 1:
        raise ValueError(f"{name} must be at least 1 on every axis, got {values}")


LTX_BASE = (20, 2048, 2048)
"""Seconds, rows and columns of pixels that LTX scales its coordinates by."""


@checked
def ltx(*, stride: tuple[int, int, int] = (8, 32, 32)) -> Rule:
    """Make the rule of LTX-Video: `π/2 · (2c - 1)`, c = `(frame · stride / fps / 20, (row, column) · stride / 2048)`.

    fps is that of the video, which has stride times as many frames as tokens. The frequencies of LTX rise to 10,000,
    which makes 1e-3 radians of the rounding of a position in float32; with `jax_enable_x64` there is none.

    Args:
        stride: frames and pixels of a token along each axis.

    Raises:
        ValueError: a stride below 1.

    Examples:
        >>> ltx().fps
        'needed'
    """
    _check_positive("stride", *stride)

    def picture(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        units = (stride[0] * (part.seconds or Fraction(0)), *stride[1:])
        steps = [Fraction(2 * unit, base) for unit, base in zip(units, LTX_BASE, strict=True)]
        along = (scaled(counted(n), step, Fraction(-1)) for n, step in zip(part.grid, steps, strict=True))
        return np.pi / 2 * grid(*along)

    return Rule("ltx", AXES, _side_by_side(_no_text, picture), pictures=1, fps="needed")


@checked
def ltx2(*, stride: tuple[int, int, int] = (8, 32, 32)) -> Rule:
    """Make the rule of LTX-2: the middles of tokens in seconds and pixels, scaled as in `ltx`.

    The first frame of tokens covers the video's first frame, [0, 1), all others `stride` frames each: [1, 9), [9, 17).

    Args:
        stride: frames and pixels of a token along each axis.

    Raises:
        ValueError: a stride below 1.

    Examples:
        >>> ltx2().fps
        'needed'
    """
    _check_positive("stride", *stride)

    def picture(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        frames, *sides = part.grid
        ends = np.maximum(stride[0] * counted(frames + 1) + 1 - stride[0], 0)  # in frames of the video
        times = scaled(ends[:-1] + ends[1:], (part.seconds or Fraction(0)) / LTX_BASE[0], Fraction(-1))
        tokens = [Fraction(side, base) for side, base in zip(stride[1:], LTX_BASE[1:], strict=True)]
        along = (scaled(counted(n), 2 * size, size - 1) for n, size in zip(sides, tokens, strict=True))
        return np.pi / 2 * grid(times, *along)

    return Rule("ltx2", AXES, _side_by_side(_no_text, picture), kinds=("text", "video"), pictures=1, fps="needed")


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
    _check_positive("reference", *reference)
    picture = lambda number, part, context: grid(*map(fitted, part.grid[1:], reference))
    return Rule("cogview4", AXES[1:], _side_by_side(_no_text, picture), kinds=("text", "image"), pictures=1)


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
    return Rule("qwen_image", AXES, _side_by_side(text, picture))


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
    return Rule("qwen_image_layered", AXES, _side_by_side(text, picture), kinds=("text", "image"))


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
    frames, height, width = part.grid
    return grid(counted(frames, time), centered(height), centered(width))


def _half(pictures: Sequence[Part]) -> int:
    """Return half the longest side of all pictures."""
    return max((max(part.grid[1:]) // 2 for part in pictures), default=0)


def patches() -> Rule:
    """Make the rule of vision transformers: `(row, column)`; CLS and registers are `unplaced`.

    Examples:
        >>> patches().axes
        ('row', 'column')
    """
    place = _side_by_side(_no_text, lambda number, part, context: grid(*_rows_columns(part)))
    return Rule("patches", AXES[1:], place, kinds=("image",), pictures=1)


def dinov3() -> Rule:
    """Make the rule of DINOv3: `2π (row, column)`, middles between -1 and 1; CLS and registers are `unplaced`.

    `normalized_positions` are these without the factor.

    Reference:
        Siméoni et al. 2025, "DINOv3" (arXiv 2508.10104), section 3.2.

    Examples:
        >>> dinov3().axes
        ('row', 'column')
    """
    place = _side_by_side(_no_text, lambda number, part, context: 2 * np.pi * grid(*map(middles, part.grid[1:])))
    return Rule("dinov3", AXES[1:], place, kinds=("image",), pictures=1)
