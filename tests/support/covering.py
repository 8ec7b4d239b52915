"""A few rows of a full product in which everything meets that meets in the product."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = tuple[Any, ...]


def pairs(row: Row) -> set[tuple]:
    """Return every pair of values of a row, each with the number of its column."""
    return set(itertools.combinations(enumerate(row), 2))


def meetings(rows: Iterable[Row], met: Callable[[Row], set] = pairs) -> set:
    """Return what meets in any of the rows."""
    return set().union(*map(met, rows))


def covering(rows: Sequence[Row], met: Callable[[Row], set] = pairs) -> list[Row]:
    """Choose rows in which everything meets that meets in all of them: at each step the one that adds most."""
    gaps, chosen = meetings(rows, met), []
    while gaps:
        chosen.append(max(rows, key=lambda row: len(met(row) & gaps)))  # of equals the first
        gaps -= met(chosen[-1])
    return chosen
