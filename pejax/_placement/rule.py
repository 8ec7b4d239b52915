"""Rules: how a model places the parts of a sequence, and the positions that follow."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Num

from pejax._calls.arguments import checked_fields
from pejax._ops.checks import check_choice
from pejax._placement.grids import is_exact
from pejax._placement.parts import KINDS, Part

FPS = ("refused", "optional", "needed")
LARGEST_ROUNDING = 2.0**-10
"""Rounding of a position to float32 that is refused, in the unit of the position."""


@checked_fields
@dataclass(frozen=True)
class Rule:
    """How a model places the parts of a sequence: a record that you can also make yourself.

    Attributes:
        name: for messages.
        axes: names of the position axes, such as ("time", "row", "column").
        place: `(parts) -> positions`, one NumPy array `(n, A)` for each part of n tokens, or None for a part whose
            tokens have no position. It gets the parts in order, without those of `unplaced`; `part.frames` are the
            numbers of their frames.
        kinds: kinds of parts that it takes: "text", "image", "video" or "sound".
        pictures: the most images and videos that it takes. None = any number.
        fps: whether videos and sounds have an fps: "refused", "optional" or "needed".
        generates: whether the model writes text after the parts, which goes on at the largest position + 1
            (`pejax.next_position`).

    Raises:
        ValueError: no axes, no pictures, or an unknown kind or `fps`.

    Examples:
        >>> rule = Rule("rows", ("row",), lambda parts: [equal(counted(part.tokens), 1) for part in parts])
        >>> rule.kinds
        ('text', 'image', 'video')
    """

    name: str
    axes: tuple[str, ...]
    place: Callable[[Sequence[Part]], Sequence[Any]]
    kinds: tuple[str, ...] = ("text", "image", "video")
    pictures: int | None = None
    fps: str = "refused"
    generates: bool = False

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError(f"rule {self.name}: axes must name at least one axis, got none")
        if self.pictures is not None and self.pictures < 1:
            raise ValueError(f"rule {self.name}: pictures must be at least 1, or None, got {self.pictures}")
        check_choice("fps", self.fps, FPS)
        for kind in self.kinds:
            check_choice("kinds", kind, KINDS)


def check_parts(rule: Rule, parts: Sequence[Part]) -> None:
    """Raise ValueError for parts that a rule does not take."""
    for part in parts:
        if part.kind not in (*rule.kinds, "unplaced"):
            raise ValueError(f"rule {rule.name} places {' and '.join(rule.kinds)} only, got {part}")
        if rule.fps == "refused" and part.seconds is not None:
            raise ValueError(f"rule {rule.name} counts frames: a {part.kind} must have no fps, got {part}")
        if rule.fps == "needed" and part.seconds is None and part.kind in ("video", "sound"):
            raise ValueError(
                f"rule {rule.name} places frames by their time: a {part.kind} must have an fps, got {part}"
            )
    pictures = [part for part in parts if part.is_picture]
    if rule.pictures is not None and len(pictures) > rule.pictures:
        most = "one picture" if rule.pictures == 1 else f"{rule.pictures} pictures"
        raise ValueError(f"rule {rule.name} places at most {most}, got {', '.join(map(str, pictures))}")


def placed(rule: Rule, parts: Sequence[Part]) -> list[Num[np.ndarray, "n A"] | None]:
    """Return the positions of each part; None where its tokens have none.

    Raises:
        ValueError: a result of the rule that does not fit the parts.
    """
    placed_parts = [part for part in parts if part.kind != "unplaced"]
    results = list(rule.place(placed_parts)) if placed_parts else []
    if len(results) != len(placed_parts):
        raise ValueError(
            f"rule {rule.name}: place must return one array per part, {len(placed_parts)}, got {len(results)}"
        )
    arrays = [None if positions is None else np.asarray(positions) for positions in results]
    for part, positions in zip(placed_parts, arrays, strict=True):
        shape = (part.tokens, len(rule.axes))
        if positions is not None and (positions.shape != shape or not is_exact(positions)):
            what = f"rule {rule.name}: positions of {part} must be integers or floats of 32 bits, of shape {shape}"
            raise ValueError(f"{what}, got {positions.dtype} {positions.shape}")
    remaining = iter(arrays)
    return [None if part.kind == "unplaced" else next(remaining) for part in parts]


def held(rule: Rule, positions: Num[np.ndarray, "T A"]) -> Num[np.ndarray, "T A"]:
    """Return positions in int32, or in float32 where the rule has fractions (float64 if JAX has 64 bits).

    Raises:
        ValueError: positions that are not finite, whole ones beyond int32, or fractions that float32 rounds by more
            than 2^-10.
    """
    if positions.dtype.kind != "f":
        bounds = np.iinfo(np.int32)
        if positions.size and not bounds.min <= positions.min() <= positions.max() <= bounds.max:
            raise ValueError(f"rule {rule.name}: positions must fit int32, got {positions.min()} to {positions.max()}")
        return positions.astype(np.int32)
    largest = float(np.abs(positions).max(initial=0.0))
    if not math.isfinite(largest):
        raise ValueError(f"rule {rule.name}: positions must be finite, got {largest}")
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return positions
    with np.errstate(over="ignore"):
        rounded = positions.astype(np.float32)
    if float(np.abs(rounded - positions).max(initial=0.0)) > LARGEST_ROUNDING:
        way = "enable jax_enable_x64 for float64"
        raise ValueError(f"rule {rule.name}: float32 must hold positions to within 2^-10, got up to {largest:g}: {way}")
    return rounded
