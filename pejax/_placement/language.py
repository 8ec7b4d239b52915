"""Rules of vision-language models: time, row and column; texts are on the diagonal, where all three are equal."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from jaxtyping import Int

from pejax._calls.arguments import checked
from pejax._ops.checks import check_choice
from pejax._placement.grids import counted, grid
from pejax._placement.layouts import AXES, in_turn
from pejax._placement.parts import Part
from pejax._placement.rule import Rule

RESUME = ("side", "end")


def _from_start(
    times: Callable[[Part], Int[np.ndarray, " L"]], resume: str
) -> Callable[[Part, int], tuple[Int[np.ndarray, "n 3"], int]]:
    """Return the placement of a picture with its corner on the diagonal, and of the text after it."""
    check_choice("resume", resume, RESUME)

    def picture(part: Part, start: int) -> tuple[Int[np.ndarray, "n 3"], int]:
        _, height, width = part.grid
        positions = start + grid(times(part), counted(height), counted(width))
        return positions, start + max(height, width) if resume == "side" else int(positions.max()) + 1

    return picture


@checked
def qwen2_vl(*, resume: str = "side") -> Rule:
    """Make the rule of Qwen2-VL (M-RoPE): a picture from s on has `(s + frame, s + row, s + column)`.

    Also that of ERNIE 4.5 VL. Texts have their number on all axes.

    Args:
        resume: where the part after a picture begins: "side" = `s + max(height, width)`, as in transformers 5, which a
            long video passes by; "end" = the largest position + 1, as in the paper and older code.

    Raises:
        ValueError: an unknown resume.

    Reference:
        Wang et al. 2024, "Qwen2-VL" (arXiv 2409.12191), section 2.1.

    Examples:
        >>> qwen2_vl().axes
        ('time', 'row', 'column')
    """
    return Rule("qwen2_vl", AXES, in_turn(_from_start(lambda part: part.frames, resume)), generates=True)


@checked
def qwen2_5_vl(*, tokens_per_second: float = 2.0, resume: str = "side") -> Rule:
    """Make the rule of Qwen2.5-VL: as Qwen2-VL, with times `s + ⌊frame · tokens_per_second · seconds⌋`.

    The floor is that of the exact number, for the fps as it is written in decimals.

    Args:
        tokens_per_second: units of time per second: 2 in the published checkpoints, 4 by default in transformers.
        resume: as in `qwen2_vl`.

    Raises:
        ValueError: an unknown resume, or no positive tokens_per_second.

    Reference:
        Bai et al. 2025, "Qwen2.5-VL" (arXiv 2502.13923), section 2.1.2.

    Examples:
        >>> qwen2_5_vl().fps
        'needed'
    """
    if tokens_per_second <= 0:
        raise ValueError(f"tokens_per_second must be above 0, got {tokens_per_second}")
    rate = Fraction(repr(tokens_per_second))

    def times(part: Part) -> Int[np.ndarray, " L"]:
        step, last = rate * (part.seconds or 0), int(part.frames.max())
        if last * step > np.iinfo(np.int32).max:
            raise ValueError(f"rule qwen2_5_vl: times must fit int32, got {float(step):g} times {last} for {part}")
        return np.asarray([math.floor(int(frame) * step) for frame in part.frames], np.int64)

    return Rule("qwen2_5_vl", AXES, in_turn(_from_start(times, resume)), fps="needed", generates=True)


def qwen3_vl() -> Rule:
    """Make the rule of Qwen3-VL, Qwen3.5 and GLM-4V: images as in Qwen2-VL, and every frame of a video is an image.

    Describe each frame by `image`, with the text of its timestamp before it.

    Examples:
        >>> qwen3_vl().kinds
        ('text', 'image')
    """
    picture = _from_start(lambda part: part.frames, "side")
    return Rule("qwen3_vl", AXES, in_turn(picture), kinds=("text", "image"), generates=True)


def spatial_reset() -> Rule:
    """Make the rule of MRoPE-I and MHRoPE: a picture from s on has `(s + frame, row, column)`.

    Rows and columns begin at 0 in every picture; the part after it begins at `s + max(last frame + 1, height, width)`.

    Reference:
        Huang et al. 2025, "Revisiting Multimodal Positional Encoding in Vision-Language Models" (arXiv 2510.23095),
        spatial reset.

    Examples:
        >>> spatial_reset().pictures  # any number
    """

    def picture(part: Part, start: int) -> tuple[Int[np.ndarray, "n 3"], int]:
        _, height, width = part.grid
        positions = grid(start + part.frames, counted(height), counted(width))
        return positions, start + max(int(part.frames.max()) + 1, height, width)

    return Rule("spatial_reset", AXES, in_turn(picture), generates=True)
