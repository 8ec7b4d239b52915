"""Parts of a sequence: texts, pictures, sound, and tokens without a position. Sizes are known numbers, never traced."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Int

from pejax._calls.arguments import checked

KINDS = ("text", "image", "video", "sound")
"""Kinds of parts that a rule may place."""


@dataclass(frozen=True)
class Part:
    """A run of tokens that a rule places together. `text`, `image`, `video`, `sound` and `unplaced` make it.

    Attributes:
        kind: "text", "image", "video", "sound" or "unplaced".
        sizes: in tokens: `(n,)`, of an image `(height, width)`, of a video `(frames, height, width)`.
        seconds: time from one frame of tokens to the next, in sound from one token to the next. None = unknown.
        numbers: numbers of the frames of a video, if they are not 0, 1, 2, ...

    Examples:
        >>> image(4, 6).tokens, image(4, 6).grid
        (24, (1, 4, 6))
    """

    kind: str
    sizes: tuple[int, ...]
    seconds: Fraction | None = None
    numbers: tuple[int, ...] | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return math.prod(self.sizes)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Frames, height and width of a picture, in tokens; an image is one frame."""
        frames, height, width = (1, 1, 1, *self.sizes)[-3:]
        return frames, height, width

    @property
    def frames(self) -> Int[np.ndarray, " frames"]:
        """Numbers of the frames of a picture, or of the tokens of a sound: 0, 1, 2, ..., or those that were given."""
        count = self.tokens if self.kind == "sound" else self.grid[0]
        return np.asarray(range(count) if self.numbers is None else self.numbers, np.int64)

    @property
    def is_picture(self) -> bool:
        """Whether this is an image or a video."""
        return self.kind in ("image", "video")

    def __repr__(self) -> str:
        fields = {"seconds": self.seconds, "numbers": self.numbers}
        named = [f"{name}={value}" for name, value in fields.items() if value is not None]
        return f"{self.kind}({', '.join([*map(str, self.sizes), *named])})"


@checked
def text(tokens: int) -> Part:
    """Describe a text.

    Args:
        tokens: number of tokens, those around pictures (`<|vision_start|>`) and timestamps of frames included.

    Raises:
        ValueError: fewer than one token.

    Examples:
        >>> text(12)
        text(12)
    """
    return Part("text", _sizes("text", tokens=(tokens, 1)))


@checked
def image(height: int, width: int, *, patch: int = 1) -> Part:
    """Describe an image of `height/patch` · `width/patch` tokens, in raster order.

    Args:
        height: number of rows.
        width: number of columns.
        patch: side of a token in the unit of height and width: 1 if they count tokens, 2 if they count patches of which
            a token holds 2 x 2 (`image_grid_thw` of Qwen2-VL), 16 if they are pixels and a token has 16 x 16.

    Raises:
        ValueError: a size below 1, or one that the patch does not divide.

    Examples:
        >>> image(224, 336, patch=28)
        image(8, 12)
    """
    return Part("image", _sizes("image", height=(height, patch), width=(width, patch)))


@checked
def video(
    frames: int | tuple[int, ...],
    height: int,
    width: int,
    *,
    patch: tuple[int, int, int] = (1, 1, 1),
    fps: float | None = None,
) -> Part:
    """Describe a video: frame by frame, each in raster order.

    Args:
        frames: number of frames; or the number of every frame of tokens, `(0, 7)`, where they are not 0, 1, 2, ...: a
            clip that goes on after others, or one whose frames are chosen.
        height: number of rows.
        width: number of columns.
        patch: frames, rows and columns of one token, in the units of the sizes.
        fps: frames per second of the described frames: with a patch of two frames and 4 frames per second, tokens are
            half a second apart. None = unknown, for rules that count frames.

    Raises:
        ValueError: a size below 1, one that the patch does not divide, an fps not above 0, or numbers of frames beyond
            int32 or with a patch of several frames.

    Examples:
        >>> video(8, 56, 84, patch=(2, 28, 28), fps=4)
        video(4, 2, 3, seconds=1/2)
        >>> video((0, 7), 4, 6)
        video(2, 4, 6, numbers=(0, 7))
    """
    numbers = None if isinstance(frames, int) else frames
    if numbers is not None and patch[0] != 1:
        raise ValueError(f"video: numbers of frames are those of tokens, whose patch has one frame, got {patch}")
    if numbers and max(map(abs, numbers)) > np.iinfo(np.int32).max:
        raise ValueError(f"video: numbers of frames must fit int32, got {max(numbers, key=abs)}")
    count = frames if isinstance(frames, int) else len(frames)
    sizes = _sizes("video", frames=(count, patch[0]), height=(height, patch[1]), width=(width, patch[2]))
    return Part("video", sizes, _seconds("video", fps, patch[0]), numbers)


@checked
def sound(tokens: int, *, fps: float | None = None) -> Part:
    """Describe one channel of a sound.

    Args:
        tokens: number of tokens.
        fps: tokens per second. None = unknown, for rules that count tokens.

    Raises:
        ValueError: fewer than one token, or an fps not above 0.

    Examples:
        >>> sound(50, fps=25)
        sound(50, seconds=1/25)
    """
    return Part("sound", _sizes("sound", tokens=(tokens, 1)), _seconds("sound", fps, 1))


@checked
def unplaced(tokens: int) -> Part:
    """Describe tokens without a position, which no rule places: CLS, registers, what a model fills a picture up with.

    Args:
        tokens: number of tokens.

    Raises:
        ValueError: fewer than one token.

    Examples:
        >>> unplaced(5).tokens
        5
    """
    return Part("unplaced", _sizes("unplaced", tokens=(tokens, 1)))


def _sizes(part: str, **sides: tuple[int, int]) -> tuple[int, ...]:
    """Return sizes in tokens, of `name=(size, patch)`."""
    for name, (size, patch) in sides.items():
        for what, count in ((name, size), ("patch", patch)):
            if count < 1:
                raise ValueError(f"{part}: {what} must be at least 1, got {count}")
        if size % patch:
            raise ValueError(f"{part}: {name} must be a multiple of its patch, {patch}, got {size}")
    return tuple(size // patch for size, patch in sides.values())


def _seconds(part: str, fps: float | None, count: int) -> Fraction | None:
    """Return the time of `count` frames."""
    if fps is not None and fps <= 0:
        raise ValueError(f"{part}: fps must be above 0, got {fps}")
    # the decimal number that was written: 29.97 is 2997/100, and floors of times are exact
    return None if fps is None else count / Fraction(repr(fps))
