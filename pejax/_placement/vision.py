"""Rules of vision transformers, which see one picture: CLS and registers are `unplaced`."""

from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int

from pejax._calls.arguments import checked
from pejax._placement.grids import counted, grid, middles, scaled
from pejax._placement.layouts import AXES, check_above_zero, no_text, rows_columns, side_by_side
from pejax._placement.parts import Part
from pejax._placement.rule import Rule


def patches() -> Rule:
    """Make the rule of vision transformers, Pixtral and Gemma 4 among them: `(row, column)`.

    Examples:
        >>> patches().axes
        ('row', 'column')
    """
    place = side_by_side(no_text, lambda number, part, context: grid(*rows_columns(part)))
    return Rule("patches", AXES[1:], place, kinds=("image",), pictures=1)


@checked
def vision_tower(*, block: int = 1) -> Rule:
    """Make the rule of towers that see videos frame by frame: `(row, column)`, the same in every frame.

    That of Kimi K2.5 and of the memory of SAM 2; with `block=2` that of Qwen2-VL, Qwen3-VL, GLM-4V and others.

    Args:
        block: side of the squares of patches that follow each other in the sequence, square by square, because the
            model makes a token of each: `merge_size`. 1 = all patches are in raster order.

    Raises:
        ValueError: a block below 1; where it is used, one that does not divide height and width.

    Examples:
        >>> vision_tower(block=2).kinds
        ('image', 'video')
    """
    check_above_zero("block", block)

    def picture(number: int, part: Part, context: object) -> Int[np.ndarray, "n 2"]:
        return np.tile(_in_blocks("vision_tower", part, block), (len(part.frames), 1))

    return Rule("vision_tower", AXES[1:], side_by_side(no_text, picture), kinds=("image", "video"), pictures=1)


def qwen2_vl_vision() -> Rule:
    """Make the rule of the towers of Qwen2-VL, Qwen3-VL, GLM-4V and others: `vision_tower(block=2)`.

    Examples:
        >>> qwen2_vl_vision().axes
        ('row', 'column')
    """
    return vision_tower(block=2)


@checked
def minimax_m3_vision(*, block: int = 2) -> Rule:
    """Make the rule of MiniMax-M3's tower: `(frame, row, column)`, the patches of a frame in squares.

    Args:
        block: as in `vision_tower`.

    Raises:
        ValueError: a block below 1; where it is used, one that does not divide height and width.

    Examples:
        >>> minimax_m3_vision().axes
        ('time', 'row', 'column')
    """
    check_above_zero("block", block)

    def picture(number: int, part: Part, context: object) -> Int[np.ndarray, "n 3"]:
        frame = _in_blocks("minimax_m3_vision", part, block)
        times = np.repeat(part.frames, len(frame))
        return np.concatenate([times[:, None], np.tile(frame, (len(part.frames), 1))], axis=1)

    return Rule("minimax_m3_vision", AXES, side_by_side(no_text, picture), kinds=("image", "video"), pictures=1)


def _in_blocks(rule: str, part: Part, block: int) -> Int[np.ndarray, "n 2"]:
    """Return (row, column) of the patches of a frame, square by square, each in raster order."""
    _, height, width = part.grid
    if height % block or width % block:
        raise ValueError(f"rule {rule}: height and width must be multiples of block={block}, got {part}")
    cells = grid(counted(height), counted(width)).reshape(height // block, block, width // block, block, 2)
    return cells.swapaxes(1, 2).reshape(-1, 2)


def llama4_vision() -> Rule:
    """Make the rule of Llama 4's vision transformer: `(row + 1, column + 1)`; CLS is `unplaced`.

    Examples:
        >>> llama4_vision().axes
        ('row', 'column')
    """
    place = side_by_side(no_text, lambda number, part, context: 1 + grid(*rows_columns(part)))
    return Rule("llama4_vision", AXES[1:], place, kinds=("image",), pictures=1)


@checked
def sam3(*, window: int = 24) -> Rule:
    """Make the rule of SAM 3's vision transformer: `(row, column) · window / width`.

    A layer that attends inside windows of `window` x `window` patches sees an `image(window, window)`, whose positions
    are whole; one that attends to all patches has their number in fractions of the window's.

    Args:
        window: side of the windows, in patches.

    Raises:
        ValueError: a window below 1.

    Examples:
        >>> sam3().axes
        ('row', 'column')
    """
    check_above_zero("window", window)

    def picture(number: int, part: Part, context: object) -> Float[np.ndarray, "n 2"]:
        step = Fraction(window, part.grid[2])
        return grid(*(scaled(axis, step) for axis in rows_columns(part)))

    return Rule("sam3", AXES[1:], side_by_side(no_text, picture), kinds=("image",), pictures=1)


def dinov3() -> Rule:
    """Make the rule of DINOv3: `2π (row, column)`, middles between -1 and 1; CLS and registers are `unplaced`.

    `normalized_positions` are these without the factor.

    Reference:
        Siméoni et al. 2025, "DINOv3" (arXiv 2508.10104), section 3.2.

    Examples:
        >>> dinov3().axes
        ('row', 'column')
    """
    place = side_by_side(no_text, lambda number, part, context: 2 * np.pi * grid(*map(middles, part.grid[1:])))
    return Rule("dinov3", AXES[1:], place, kinds=("image",), pictures=1)
