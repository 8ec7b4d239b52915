"""Layers of several kinds as repeated patterns, each of which is compiled as one scan."""

import functools
from typing import Any, NamedTuple, TypeVar

LONGEST_PATTERN = 12
"""Maximum number of layers in a pattern."""

Kind = TypeVar("Kind")


class Pattern(NamedTuple):
    """Consecutive layers that repeat a pattern.

    Attributes:
        layers: one entry per layer of the pattern.
        repeats: number of times that the pattern occurs in a row.
    """

    layers: tuple[Any, ...]
    repeats: int


def patterns(layers: tuple[Kind, ...]) -> tuple[Pattern, ...]:
    """Split a list of layers into repeated patterns with the fewest layers to compile.

    Each pattern is compiled as one scan whose body has one step per layer of the pattern. Of several splits with as few
    layers, the one with the fewest patterns is returned. Layers are compared by equality.

    Args:
        layers: one hashable value per layer, in order.

    Returns:
        The patterns in order; `pattern.layers * pattern.repeats`, joined over all of them, is `layers`.

    Examples:
        >>> patterns(tuple("0lgglgglgg"))
        (Pattern(layers=('0',), repeats=1), Pattern(layers=('l', 'g', 'g'), repeats=3))
        >>> patterns(tuple("aaaa"))
        (Pattern(layers=('a',), repeats=4),)
    """
    count = len(layers)

    @functools.cache
    def best(start: int) -> tuple[int, tuple[Pattern, ...]]:
        """Return the fewest layers to compile from layer `start` on, and their patterns."""
        if start == count:
            return 0, ()
        options = []
        for size in range(1, min(LONGEST_PATTERN, count - start) + 1):
            pattern, repeats = layers[start : start + size], 1
            while layers[start + size * repeats : start + size * (repeats + 1)] == pattern:
                repeats += 1
            compiled, tail = best(start + size * repeats)
            options.append((size + compiled, 1 + len(tail), (Pattern(pattern, repeats), *tail)))
        compiled, _, plan = min(options, key=lambda option: option[:2])
        return compiled, plan

    return best(0)[1]
