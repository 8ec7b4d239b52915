"""Checks of run folders, which may come from somebody else: an impossible value is named, not shown."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from train.engine.results import Evaluation
from train.report.records import Scored

LONGEST = 10_000
"""Most characters of a text in a config or an evaluation."""

ROWS = 500
"""Most rows of an evaluation."""

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


def require_sound(found: Evaluation) -> None:
    """Check an evaluation of a run: its texts, sizes and counts.

    Raises:
        ValueError: naming the wrong value.
    """
    require_texts({**vars(found), **found.made_by})
    if not found.name.strip():
        raise ValueError("name must be that of an encoding, got an empty text")
    if found.trained not in SIZES:
        raise ValueError(f"trained must be a size or length, got {found.trained}")
    if len(found.rows) > ROWS:
        raise ValueError(f"rows must be at most {ROWS}, got {len(found.rows):,}")
    seen = set()
    for row in found.rows:
        values = row._asdict()
        require_texts(values)
        size = values["size"] if "size" in values else values["length"]
        frames = values.get("frames", 0)
        if size not in SIZES or (frames and frames not in SIZES):
            got = f"{frames} frames" if size in SIZES else size
            raise ValueError(f"a size or length must be from 1 to {SIZES[-1]:,}, got {got}")
        place = values.get("task"), frames, size, values.get("width")
        if place in seen:
            raise ValueError(f"each size or length must be there once, got {size} again")
        seen.add(place)
        _require_counts(values)
    if any(isinstance(value, bool) for record in (found, *found.rows) for value in _values(record)):
        raise ValueError("numbers must be numbers, got true or false")


def _values(record: Any) -> Iterator[Any]:
    """Yield the values in a record and in the records in it."""
    for value in vars(record).values() if isinstance(record, Evaluation) else record:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            yield from _values(value)
        yield value


def _require_counts(values: Mapping[str, Any]) -> None:
    """Check the counts of a row."""
    if values.get("refused"):
        return
    if "correct" in values and not 0 <= values["correct"] <= values["count"]:
        raise ValueError(f"correct must be from 0 to count, got {values['correct']} of {values['count']}")
    counts = [values["count"]] if "count" in values else [one.count for one in values.values() if hasattr(one, "mean")]
    if any(count < 1 for count in counts):
        raise ValueError(f"count must be at least 1, got {min(counts)}")


def require_finite(scored: Scored) -> Scored:
    """Return an evaluation after checking that all its numbers can be shown.

    Raises:
        ValueError: naming the first one that cannot.
    """
    for what, by_size in scored.scores.items():
        most = 100.0 if what.endswith("%") else LARGEST
        for size, number in by_size.items():
            if not math.isfinite(number) or number < 0:
                raise ValueError(f"every number must be finite and at least 0, got {what} of {number} at {size}")
            if number > most or not drawable(number):
                raise ValueError(f"every number must be at most {most:g}, got {what} of {number:g} at {size}")
    if not any(scored.scores.values()):
        raise ValueError(f"at least one size must be measured, got none: {next(iter(scored.refused.values()), '')}")
    return scored


def drawable(number: Any) -> bool:
    """Return whether a value is a number that a plot can have, with others of its kind."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return False
    return number == 0 or 1 / LARGEST <= abs(number) <= LARGEST
