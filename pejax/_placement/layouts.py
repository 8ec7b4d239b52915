"""How parts follow each other: in turn, each from where the one before it ended, or side by side, in any order."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int, Num

from pejax._placement.grids import counted, equal
from pejax._placement.parts import Part

AXES = ("time", "row", "column")


def in_turn(picture: Callable[[Part, int], tuple[Int[np.ndarray, "n 3"], int]]) -> Callable[[Sequence[Part]], list]:
    """Return a `place` that goes through the parts in order: a text is where the part before it ends, on the diagonal.

    Args:
        picture: `(part, start) -> (positions, next start)` for an image or video.
    """

    def place(parts: Sequence[Part]) -> list[Int[np.ndarray, "n 3"]]:
        start, arrays = 0, []
        for part in parts:
            if part.is_picture:
                positions, start = picture(part, start)
            else:
                positions, start = equal(counted(part.tokens, start), 3), start + part.tokens
            arrays.append(positions)
        return arrays

    return place


class Context(NamedTuple):
    """What a part may depend on in the whole sequence: the number of text tokens, pictures and sounds in order."""

    texts: int
    pictures: tuple[Part, ...]
    sounds: tuple[Part, ...]


Placement: TypeAlias = Callable[[int, Part, Context], Num[np.ndarray, "n A"]]
"""`(number of this part among those of its kind, part, context) -> positions`."""


def side_by_side(
    text: Callable[[Int[np.ndarray, " n"], Context], Num[np.ndarray, "n A"] | None],
    picture: Placement,
    sound: Placement | None = None,
) -> Callable[[Sequence[Part]], list[Num[np.ndarray, "n A"] | None]]:
    """Return a `place` for which it does not matter whether texts come before, between or after pictures.

    Args:
        text: `(numbers of these tokens among all text tokens, context) -> positions` of one text.
        picture: places an image or a video.
        sound: places a sound. None = the rule has no sounds.
    """

    def place(parts: Sequence[Part]) -> list[Num[np.ndarray, "n A"] | None]:
        texts, sounds = (tuple(part for part in parts if part.kind == kind) for kind in ("text", "sound"))
        pictures = tuple(part for part in parts if part.is_picture)
        context = Context(sum(part.tokens for part in texts), pictures, sounds)
        arrays, tokens, of_pictures, of_sounds = [], 0, itertools.count(), itertools.count()
        for part in parts:
            if part.is_picture:
                arrays.append(picture(next(of_pictures), part, context))
            elif part.kind == "sound" and sound is not None:
                arrays.append(sound(next(of_sounds), part, context))
            else:
                arrays.append(text(counted(part.tokens, tokens), context))
                tokens += part.tokens
        return arrays

    return place


def no_text(numbers: Int[np.ndarray, " n"], context: Context) -> None:
    """Return no positions: the texts are not rotated."""


def rows_columns(part: Part) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " columns"]]:
    """Return the coordinates of a picture along its rows and its columns, from 0."""
    _, height, width = part.grid
    return counted(height), counted(width)


def check_above_zero(name: str, value: float | tuple[float, ...]) -> None:
    """Raise ValueError for an option of a rule that is not above 0, on every axis if it is one number per axis."""
    if isinstance(value, tuple) and min(value) <= 0:
        raise ValueError(f"{name} must be above 0 on every axis, got {value}")
    if not isinstance(value, tuple) and value <= 0:
        raise ValueError(f"{name} must be above 0, got {value}")
