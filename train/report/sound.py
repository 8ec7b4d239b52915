"""Checks of run folders, which may come from somebody else: an impossible value is named, not shown."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from train.engine.results import Evaluation

Kind = TypeVar("Kind", bound=Evaluation)

LONGEST = 10_000
"""Most characters of a text in a config or an evaluation."""

NUMBERS = 2000
"""Most numbers of an evaluation."""

SIZES = range(1, 2**31)
"""Sizes and lengths."""

LARGEST = 1e30
"""Largest number of an evaluation, and the inverse of the smallest above 0: beyond, sums and axes overflow."""


def require_texts(values: Mapping[str, Any]) -> None:
    """Check that no text is too long.

    Raises:
        ValueError: naming the first one that is.
    """
    for name, value in values.items():
        if isinstance(value, str) and len(value) > LONGEST:
            raise ValueError(f"{name} must have at most {LONGEST:,} characters, got {len(value):,}")


def require_sound(evaluation: Evaluation) -> None:
    """Check an evaluation of a run: its texts, sizes and counts.

    Raises:
        ValueError: naming the wrong value.
    """
    require_texts({**vars(evaluation), **evaluation.made_by})
    if not evaluation.name.strip():
        raise ValueError("name must be that of an encoding, got an empty text")
    if evaluation.trained not in SIZES:
        raise ValueError(f"trained must be a size or length, got {evaluation.trained}")
    if len(evaluation.numbers) > NUMBERS:
        raise ValueError(f"numbers must be at most {NUMBERS:,}, got {len(evaluation.numbers):,}")
    seen, first = set(), evaluation.numbers[0].measure
    for number in evaluation.numbers:
        require_texts({"measure": number.measure, "of": number.of, "refused": number.refused})
        if any(size not in SIZES for size in number.shape):
            raise ValueError(f"a size or length must be from 1 to {SIZES[-1]:,}, got {number.at}")
        place = number.measure, number.of, number.at
        if place in seen:
            raise ValueError(f"each size or length must be there once, got {number.at} again")
        seen.add(place)
        if number.measure == first and number.count < 1 and not number.refused:
            raise ValueError(f"count must be at least 1, got {number.count}")


def require_finite(evaluation: Kind) -> Kind:
    """Return an evaluation after checking that all its numbers can be shown.

    Raises:
        ValueError: naming the first one that cannot.
    """
    for what, by_size in evaluation.scores.items():
        most = 100.0 if what.endswith("%") else LARGEST
        for size, number in by_size.items():
            if not math.isfinite(number) or number < 0:
                raise ValueError(f"every number must be finite and at least 0, got {what} of {number} at {size}")
            if number > most or not drawable(number):
                raise ValueError(f"every number must be at most {most:g}, got {what} of {number:g} at {size}")
    if not any(evaluation.scores.values()):
        raise ValueError(f"at least one size must be measured, got none: {next(iter(evaluation.refused.values()), '')}")
    return evaluation


def drawable(number: Any) -> bool:
    """Return whether a value is a number that a plot can have, with others of its kind."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return False
    return number == 0 or 1 / LARGEST <= abs(number) <= LARGEST
