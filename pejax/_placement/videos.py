"""Rules of diffusion transformers for videos and sound."""

from fractions import Fraction

import numpy as np
from jaxtyping import Float, Num

from pejax._calls.arguments import checked
from pejax._placement.grids import counted, equal, grid, scaled
from pejax._placement.layouts import AXES, Context, check_above_zero, no_text, rows_columns, side_by_side
from pejax._placement.parts import Part
from pejax._placement.rule import Rule


def wan() -> Rule:
    """Make the rule of Wan, HunyuanVideo, SkyReels and others: `(frame, row, column)`.

    Texts have no position: HunyuanVideo does not rotate them, and Wan reads them by cross-attention. Helios, FramePack
    and ChronoEdit number the frames themselves: `video((0, 7), 4, 6)`.

    Examples:
        >>> wan().pictures
        1
    """
    picture = lambda number, part, context: grid(part.frames, *rows_columns(part))
    return Rule("wan", AXES, side_by_side(no_text, picture), pictures=1)


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
    check_above_zero("scale", scale)
    steps = [1 / Fraction(repr(divisor)) for divisor in scale]

    def picture(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        indices = part.frames, *rows_columns(part)
        return grid(*(scaled(*of_axis) for of_axis in zip(indices, steps, strict=True)))

    return Rule("kandinsky6", AXES, side_by_side(no_text, picture), pictures=1)


@checked
def cosmos(*, fps: float = 24.0) -> Rule:
    """Make the rule of Cosmos 1 and 2: `(frame · fps / video fps, row, column)`, or without video fps the frame.

    Texts have no position: they are read by cross-attention. Frames are those of the latents, video fps is that of the
    video, which has several times as many.

    Args:
        fps: frames per second at which times count frames.

    Raises:
        ValueError: an fps not above 0.

    Examples:
        >>> cosmos().fps
        'optional'
    """
    check_above_zero("fps", fps)
    rate = Fraction(repr(fps))
    picture = lambda number, part, context: grid(_at_rate(rate, part), *rows_columns(part))
    return Rule("cosmos", AXES, side_by_side(no_text, picture), pictures=1, fps="optional")


def _at_rate(rate: Fraction, part: Part) -> Num[np.ndarray, " L"]:
    """Return the times of frames, in units of which a second has `rate`; their numbers where the time is unknown."""
    return part.frames if part.seconds is None else scaled(part.frames, rate * part.seconds)


@checked
def cosmos3(*, margin: int = 15000, fps: float = 24.0) -> Rule:
    """Make the rule of Cosmos 3: texts at `(i, i, i)`, i < n, the video at `(n + margin + time, row, column)`.

    time is `frame · fps / video fps`, of frames of latents; sound is at `(n + margin + token · fps / sound fps, 0, 0)`.
    Without a video fps or a sound fps, time counts frames or tokens.

    Args:
        margin: units between texts and the video.
        fps: frames per second at which times count frames, and tokens of sound.

    Raises:
        ValueError: an fps not above 0.

    Examples:
        >>> cosmos3().kinds
        ('text', 'image', 'video', 'sound')
    """
    check_above_zero("fps", fps)
    rate = Fraction(repr(fps))
    text = lambda numbers, context: equal(numbers, 3)

    def picture(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        return grid(context.texts + margin + _at_rate(rate, part), *rows_columns(part))

    def sound(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        return grid(context.texts + margin + _at_rate(rate, part), [0], [0])

    kinds = ("text", "image", "video", "sound")
    return Rule("cosmos3", AXES, side_by_side(text, picture, sound), kinds=kinds, pictures=1, fps="optional")


@checked
def cogvideox(*, trained: tuple[int, int] = (30, 45)) -> Rule:
    """Make the rule of CogVideoX: `(frame, row, column)`, rows and columns stretched over a crop of the trained grid.

    The crop is the largest middle part of the trained grid in the shape of the video, in whole tokens. Where it goes
    from a to b, n rows begin at a, and the last one is at `b (n - 1) / n`. Texts have no position. CogVideoX 1.5 has
    the rule of Wan.

    Args:
        trained: height and width of the trained grid, in tokens.

    Raises:
        ValueError: a side below 1.

    Examples:
        >>> cogvideox().pictures
        1
    """
    check_above_zero("trained", trained)

    def picture(number: int, part: Part, context: Context) -> Float[np.ndarray, "n 3"]:
        crop = _crop(part.grid[1:], trained)
        along = (_across(*ends, count) for ends, count in zip(crop, part.grid[1:], strict=True))
        return grid(part.frames, *along)

    return Rule("cogvideox", AXES, side_by_side(no_text, picture), pictures=1)


def _crop(sides: tuple[int, ...], trained: tuple[int, int]) -> list[tuple[int, int]]:
    """Return where the largest middle part of a grid in the shape of `sides` begins and ends on each axis."""
    factor = min(Fraction(whole, side) for whole, side in zip(trained, sides, strict=True))
    lengths = [round(side * factor) for side in sides]
    starts = [round(Fraction(whole - length, 2)) for whole, length in zip(trained, lengths, strict=True)]
    return [(start, start + length) for start, length in zip(starts, lengths, strict=True)]


def _across(first: int, last: int, count: int) -> Float[np.ndarray, " L"]:
    """Return `count` coordinates at equal steps, the last one at `last (count - 1) / count`, wherever the first is."""
    end = Fraction(last * (count - 1), count)
    return scaled(counted(count), (end - first) / max(count - 1, 1), Fraction(first))


SPANS = (0, 1, 5, 9, 13)
"""Frames of the video before the n-th of every five frames of latents of MiniMax-H3, which have 17."""


def minimax_h3() -> Rule:
    """Make the rule of MiniMax-H3: texts at `(i, 0, 0)`, i < n, the video at `(n + time, row, column)`.

    time is `5/3 · (0, 1, 5, 9, 13, 17, 18, ...)`, rows and columns are centered on 16 in a square of 32 x 32 that has
    the area of the picture: `32 · (1/2 + (i / h - 1/2) · √(h / w))`, columns the other way round. Sound is at
    `(n + token, 0, column)`, at the first column of the video in one channel and at the last one in the other, which is
    the second sound. Keyframes and references have no place.

    Examples:
        >>> minimax_h3().pictures
        1
    """
    text = lambda numbers, context: grid(numbers, [0], [0])

    def picture(number: int, part: Part, context: Context) -> Float[np.ndarray, "n 3"]:
        cycles, rest = np.divmod(part.frames, len(SPANS))
        times = scaled(17 * cycles + np.asarray(SPANS)[rest], Fraction(5, 3), Fraction(context.texts))
        return grid(times, *_in_square(part))

    def sound(number: int, part: Part, context: Context) -> Float[np.ndarray, "n 3"]:
        if len(context.sounds) > 2 or not context.pictures:
            parts = ", ".join(map(str, context.pictures + context.sounds))
            raise ValueError(f"rule minimax_h3 places at most 2 sounds, beside a video, got {parts}")
        column = _in_square(context.pictures[0])[1][-number]  # the first column, or the last one
        return grid(context.texts + part.frames, [0], [column])

    kinds = ("text", "image", "video", "sound")
    return Rule("minimax_h3", AXES, side_by_side(text, picture, sound), kinds=kinds, pictures=1)


def _in_square(part: Part) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " columns"]]:
    """Return coordinates of rows and columns in a square of 32 x 32, around its middle, that has a picture's area."""
    _, height, width = part.grid
    ratio = np.sqrt(height / width)
    rows, columns = (counted(count) / count - 0.5 for count in (height, width))
    return 32 * (0.5 + ratio * rows), 32 * (0.5 + columns / ratio)


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
    check_above_zero("stride", stride)

    def picture(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        units = (stride[0] * (part.seconds or Fraction(0)), *stride[1:])
        steps = [Fraction(2 * unit, base) for unit, base in zip(units, LTX_BASE, strict=True)]
        axes = part.frames, *rows_columns(part)
        return np.pi / 2 * grid(*(scaled(axis, step, Fraction(-1)) for axis, step in zip(axes, steps, strict=True)))

    return Rule("ltx", AXES, side_by_side(no_text, picture), pictures=1, fps="needed")


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
    check_above_zero("stride", stride)

    def picture(number: int, part: Part, context: Context) -> Num[np.ndarray, "n 3"]:
        times = _causal_times(part, stride[0], stride[0] * (part.seconds or Fraction(0)))
        tokens = [Fraction(side, base) for side, base in zip(stride[1:], LTX_BASE[1:], strict=True)]
        sides = zip(rows_columns(part), tokens, strict=True)
        return np.pi / 2 * grid(times, *(scaled(side, 2 * size, size - 1) for side, size in sides))

    return Rule("ltx2", AXES, side_by_side(no_text, picture), kinds=("text", "video"), pictures=1, fps="needed")


@checked
def ltx2_audio(*, stride: int = 4) -> Rule:
    """Make the rule of the audio of LTX-2: the middle of every token in seconds, scaled as in `ltx`.

    The first token covers the first frame of the spectrogram, [0, 1), all others `stride` frames each: [1, 5), [5, 9).
    The fps is that of the tokens: 25 in the published model.

    Args:
        stride: frames of the spectrogram of a token.

    Raises:
        ValueError: a stride below 1.

    Examples:
        >>> ltx2_audio().axes
        ('time',)
    """
    check_above_zero("stride", stride)
    place = lambda parts: [np.pi / 2 * grid(_causal_times(part, stride, part.seconds or Fraction(0))) for part in parts]
    return Rule("ltx2_audio", AXES[:1], place, kinds=("sound",), fps="needed")


def _causal_times(part: Part, stride: int, seconds: Fraction) -> Float[np.ndarray, " L"]:
    """Return `2 · t / 20 - 1` for the middle t of every token, of which the first has one frame and others `stride`.

    Args:
        part: a video or a sound.
        stride: frames of a token.
        seconds: time of these frames.
    """
    ends = [np.maximum(stride * (part.frames + after) + 1 - stride, 0) for after in (0, 1)]
    return scaled(ends[0] + ends[1], seconds / (stride * LTX_BASE[0]), Fraction(-1))
