"""Layers of several kinds as runs of a repeated pattern, each of which is compiled as one scan."""

import functools
from typing import Any, NamedTuple, TypeVar

LONGEST_PATTERN = 12
"""Most layers of a pattern that `runs` looks for."""

Kind = TypeVar("Kind")


class Run(NamedTuple):
    """Consecutive layers that repeat a pattern.

    Attributes:
        pattern: one entry per layer of the pattern.
        repeats: how often it follows itself.
    """

    pattern: tuple[Any, ...]
    repeats: int


def runs(layers: tuple[Kind, ...]) -> tuple[Run, ...]:
    """Split a list of layers into runs of repeated patterns with the fewest layer bodies to compile.

    A run is compiled as one scan with one body per layer of its pattern. Layers are compared by equality.

    Args:
        layers: one hashable value per layer, in order.

    Returns:
        The runs in order; `pattern * repeats` of all of them are the layers.

    Examples:
        >>> runs(tuple("0lgglgglgg"))
        (Run(pattern=('0',), repeats=1), Run(pattern=('l', 'g', 'g'), repeats=3))
        >>> runs(tuple("aaaa"))
        (Run(pattern=('a',), repeats=4),)
    """
    count = len(layers)

    @functools.cache
    def best(start: int) -> tuple[int, tuple[Run, ...]]:
        """Return the fewest bodies for the layers from `start` on, and their runs."""
        if start == count:
            return 0, ()
        options = []
        for size in range(1, min(LONGEST_PATTERN, count - start) + 1):
            pattern, repeats = layers[start : start + size], 1
            while layers[start + size * repeats : start + size * (repeats + 1)] == pattern:
                repeats += 1
            bodies, rest = best(start + size * repeats)
            options.append((size + bodies, 1 + len(rest), (Run(pattern, repeats), *rest)))
        bodies, _, found = min(options, key=lambda option: option[:2])
        return bodies, found

    return best(0)[1]
