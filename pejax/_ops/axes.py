"""Frequencies on several axes: which axis turns each pair of channels, and how fast.

    F[a, t] = f_t where pair t turns by the position on axis a, else 0

Everything here is NumPy: constants under any trace.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from pejax._ops.checks import check_choice
from pejax._ops.phases import geometric_frequencies

Order: TypeAlias = str | tuple[tuple[int, ...], ...]
"""The order of axes along the pairs: a name, or groups of axes."""
COMMON = ("shared", "dealt")
"""Spectra of all pairs together."""
SPECTRA = ("own", "inclusive", *COMMON)


def axis_groups(name: str, order: Order, axes: int, words: tuple[str, str]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of axes that an order stands for: each axis alone, all together, or as given.

    Args:
        name: name of the argument, for messages.
        order: one of `words`, or the groups themselves.
        axes: A.
        words: names of the orders "each axis after the other" and "all axes in turn".

    Raises:
        ValueError: an unknown name, or groups that do not hold every axis once.
    """
    if isinstance(order, str):
        check_choice(name, order, words)
        return tuple((axis,) for axis in range(axes)) if order == words[0] else (tuple(range(axes)),)
    if sorted(axis for group in order for axis in group) != list(range(axes)):
        raise ValueError(f"{name} must hold each axis from 0 to {axes - 1} once, in groups, got {order}")
    return order


def pair_axes(counts: Sequence[int], groups: Sequence[Sequence[int]]) -> Int[np.ndarray, " P"]:
    """Return the axis of each pair: group after group; in a group the axes take turns until their pairs are spent.

    Examples:
        >>> pair_axes((3, 1, 2), [(0, 1, 2)]).tolist()
        [0, 1, 2, 0, 2, 0]
    """
    turns = (
        (place, turn, seat, axis)
        for place, group in enumerate(groups)
        for seat, axis in enumerate(group)
        for turn in range(counts[axis])
    )
    return np.asarray([axis for *_, axis in sorted(turns)], np.int64)


def on_axes(frequencies: Float[np.ndarray, " P"], axis: Int[np.ndarray, " P"], axes: int) -> Float[np.ndarray, "A P"]:
    """Return the frequencies as a row per axis, 0 where a pair turns with another one."""
    return np.where(axis == np.arange(axes)[:, None], frequencies, np.float32(0.0))


def axial_frequencies(
    counts: Sequence[int], bases: Sequence[float], groups: Sequence[Sequence[int]], spectrum: str
) -> Float[np.ndarray, "A P"]:
    """Return the frequency of each pair on each axis.

    Args:
        counts: n, pairs of each axis.
        bases: base of each axis; all equal for a spectrum that the axes share.
        groups: order of the axes along the pairs, as in `pair_axes`.
        spectrum: "own" and "inclusive": `base^(-j/n)` and `base^(-j/(n-1))` for pair j of an axis, from 0;
            "shared": `base^(-t/P)` for pair t of all P; "dealt": these frequencies, dealt out to the axes in turn, and
            each axis' own in its order.
    """
    axes, axis = len(counts), pair_axes(counts, groups)
    if spectrum == "shared":
        return on_axes(geometric_frequencies(len(axis), bases[0]), axis, axes)
    if spectrum == "dealt":
        all_pairs, dealt = geometric_frequencies(len(axis), bases[0]), pair_axes(counts, [range(axes)])
        spectra = [all_pairs[dealt == number] for number in range(axes)]
    else:
        spectra = list(map(geometric_frequencies, counts, own_bases(counts, bases, spectrum)))
    frequencies = np.zeros(len(axis), np.float32)
    for number in range(axes):
        frequencies[axis == number] = spectra[number]
    return on_axes(frequencies, axis, axes)


def own_bases(counts: Sequence[int], bases: Sequence[float], spectrum: str) -> tuple[float, ...]:
    """Return the bases with which `base^(-j/n)` is the spectrum of each axis: higher ones if it is inclusive."""
    if spectrum != "inclusive":
        return tuple(bases)
    return tuple(base ** (count / max(count - 1, 1)) for count, base in zip(counts, bases, strict=True))
