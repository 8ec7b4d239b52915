"""Results as pejax 0.3.0 and earlier stored them: a row for each size or length, with other fields for each program."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from train.engine.intervals import unpacked_losses
from train.engine.numbers import Measure, Number, aspect, mean_of, share_of

INTEGERS = ("size", "width", "frames", "length", "correct", "count")
"""Fields of rows that are integers."""


def earlier_numbers(rows: Sequence[Mapping[str, Any]], trained: int, measures: Sequence[Measure]) -> Iterator[Number]:
    """Yield the numbers in stored rows.

    Args:
        rows: the rows.
        trained: the trained size or length.
        measures: the quantities of the program.

    Raises:
        ValueError: a value that no row has.
        KeyError: a missing value.
    """
    names = [measure.name for measure in measures]
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError(f"a row must be an object, got {row!r}")
        for field in INTEGERS:
            if type(row.get(field, 0)) is not int:
                raise ValueError(f"{field} must be int, got {row[field]!r}")
        if "width" in row:
            yield from _of_pictures(row, rows[0], *names)
        elif "size" in row or "task" in row:
            yield from _of_answers(row, *names)
        else:
            yield from _of_text(row, trained, *names)


def _of_answers(row: Mapping[str, Any], right: str, other: str) -> Iterator[Number]:
    """Yield right classes and the patches of an image, or exact answers and right tokens."""
    of = row.get("task", "")
    at, unit = (row["length"], 100) if of else (row["size"], 1)
    if row.get("refused"):
        yield Number(measure=right, at=at, of=of, refused=row["refused"])
    else:
        yield share_of(right, at, row["correct"], row["count"], row.get("each", ""), of)
        yield Number(measure=other, at=at, of=of, value=unit * row["tokens"])


def _of_text(row: Mapping[str, Any], trained: int, *names: str) -> Iterator[Number]:
    """Yield the perplexities of a length and the gain."""
    at, refused = row["length"], row.get("refused", "")
    if refused:
        for name in (names[0], names[-1]) if at > trained else names[:1]:
            yield Number(measure=name, at=at, refused=refused)
        return
    for name, field in zip(names, ("everything", "beyond", "sliding", "gain"), strict=True):
        if row.get(field) is not None:
            mean, half, count = (row[field][part] for part in ("mean", "half", "count"))
            outcomes = unpacked_losses(row.get("each", "")) if field == "everything" else None
            yield mean_of(name, at, mean, half, count, outcomes, log=field != "gain")


def _of_pictures(row: Mapping[str, Any], first: Mapping[str, Any], right: str, *names: str) -> Iterator[Number]:
    """Yield the numbers of pictures or videos, beside those of true ones."""
    at, trained = ((*filter(None, [entry.get("frames")]), entry["size"], entry["width"]) for entry in (row, first))
    of, true, refused = aspect(at, trained), 100 * row.get("true_top1", math.nan), row.get("refused", "")
    if refused:
        yield Number(measure=right, at=at, of=of, refused=refused, beside=true)
    else:
        yield share_of(right, at, row["correct"], row["count"], row.get("each", ""), of, true)
    for name, field, unit in zip(names, ("distance", "repeats", "loops"), (1, 1, 100), strict=True):
        value, truth = (unit * row.get(key, math.nan) for key in (field, f"true_{field}"))
        if value == value or truth == truth:
            yield Number(measure=name, at=at, of=of, value=value, beside=truth, refused=refused)
