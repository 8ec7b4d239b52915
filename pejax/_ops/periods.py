"""Axes on which positions repeat, such as longitude: every pair makes whole turns per period.

    θ_i = 2π n_i p / P,   n_i whole, another one for each frequency

The frequency 2π n/P is no float32. It is the sum of three, each multiplied by the same position, so that positions that
are P apart have the same angle to float32 rounding, also a hundred million periods away (P = 24: up to about 1e16).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from pejax._ops.checks import check_positions
from pejax._ops.phases import full_turn

Periods: TypeAlias = tuple[float | None, ...]
"""Period of each axis, None where positions do not repeat; () where they do so on no axis."""

WORDS = 3
"""Numbers in float32 that a frequency is the sum of: 72 bits."""


LEAST, MOST = 1e-30, 1e12
"""Periods whose frequencies are exact in `WORDS` numbers, up to the positions above."""


class AxisRows(NamedTuple):
    """The frequencies of all axes, of which some may be periodic.

    Attributes:
        free: `(A, P)`, or `(P,)` on one axis: the frequencies, 0 on periodic axes.
        rows: `(R, P)`: `WORDS` rows per periodic axis, whose sum is its frequencies.
        row_axes: the axis that each of these rows turns with.
        free_axes: the axes that are not periodic.
        most_turns: the most turns of a pair per period, and the period, of each periodic axis.
    """

    free: Float[np.ndarray, "*A P"]
    rows: Float[np.ndarray, "R P"]
    row_axes: tuple[int, ...]
    free_axes: tuple[int, ...]
    most_turns: tuple[tuple[int, float], ...]

    def beside(self, frequencies: Float[Array | np.ndarray, "*A P"]) -> Float[Array | np.ndarray, "*S P"]:
        """Return frequencies in place of `free`, followed by the rows of the periodic axes."""
        if not self.row_axes:
            return frequencies
        xp: Any = np if isinstance(frequencies, np.ndarray) else jnp
        return xp.concatenate([frequencies[np.asarray(self.free_axes, int)], xp.asarray(self.rows)])

    def at(self, positions: Num[Array, "..."], tokens: tuple[int, ...]) -> Num[Array, "..."]:
        """Return the positions of tokens `(*B, T)` as the frequencies multiply them: `(*B, T, S)` if some repeat.

        Raises:
            ValueError: positions of another shape; integer positions, if they do not tell two pairs of an axis apart.
        """
        if not self.row_axes:
            return positions
        axes = len(self.free_axes) + len(self.most_turns)
        check_positions(positions.shape, tokens, axes)
        if jnp.issubdtype(positions.dtype, jnp.integer):
            self._check_turns()
        positions = positions if axes > 1 else positions[..., None]
        return positions[..., np.asarray(self.free_axes + self.row_axes)]

    def _check_turns(self) -> None:
        """Raise ValueError if integer positions do not tell two pairs of an axis apart."""
        for turns, period in self.most_turns:
            if 2 * turns > period:
                rule = f"integer positions tell at most {math.floor(period / 2)} turns per period {period} apart"
                raise ValueError(f"{rule}, got pairs of up to {turns}: make fewer pairs turn, or give floats")


def read_periods(periodic: Periods | None, axes: int, extend: object) -> Periods:
    """Return the periods, checked; () if no axis has one.

    Args:
        periodic: periods as the user gave them.
        axes: A.
        extend: the extension of the frequencies, None = none.

    Raises:
        ValueError: periods that are not one per axis, or not numbers above 0 whose frequencies float32 holds; an
            extension where all axes are periodic.
    """
    if periodic is None:
        return ()
    if len(periodic) != axes:
        raise ValueError(f"periodic must be one period or None per axis, axes={axes}, got {periodic}")
    for period in periodic:
        if period is not None and not LEAST <= period <= MOST:
            raise ValueError(f"periodic must be None, or above 0, from {LEAST:g} to {MOST:g}, got {period}")
    if extend is not None and None not in periodic:
        raise ValueError(f"extend must have an axis that is not periodic, got {str(extend)!r} with periodic={periodic}")
    return periodic if any(periodic) else ()


def axis_rows(frequencies: Float[np.ndarray, "*A P"], periods: Periods) -> AxisRows:
    """Return the frequencies, those of the periodic axes rounded to whole turns.

    Args:
        frequencies: frequencies of all axes in radians per position; `(P,)` on one axis.
        periods: period of each axis, or None; () = no axis is periodic.
    """
    if not periods:
        return AxisRows(frequencies, frequencies[:0], (), (), ())
    by_axis = frequencies.reshape(len(periods), -1)
    lengths = {axis: period for axis, period in enumerate(periods) if period is not None}
    turns = {axis: whole_turns(by_axis[axis], period) for axis, period in lengths.items()}
    free = [axis for axis in range(len(periods)) if axis not in lengths]
    return AxisRows(
        free=np.where(np.isin(np.arange(len(periods)), free)[:, None], by_axis, np.float32(0.0)),
        rows=np.concatenate([frequency_words(turns[axis], period) for axis, period in lengths.items()]),
        row_axes=tuple(axis for axis in lengths for _ in range(WORDS)),
        free_axes=tuple(free),
        most_turns=tuple((max(turns[axis]), period) for axis, period in lengths.items()),
    )


def whole_turns(frequencies: Float[np.ndarray, " P"], period: float) -> list[int]:
    """Return the whole number of turns per period of each frequency; equal ones have equal turns, and 0 stays 0.

    From slow to fast, each is the nearest whole number, but at least one more than that of the slower one before it:
    `n_i = max(round(f_i P / 2π), n_{i+1} + 1)`, from 1 on.

    Examples:
        >>> whole_turns(np.asarray([1.0, 0.5, 0.01, 0.001, 0.0]), 360.0)
        [57, 29, 2, 1, 0]
    """
    turns, slower = {0.0: 0}, 0
    for frequency in np.unique(frequencies[frequencies != 0]).tolist():
        slower = max(round(frequency * period / math.tau), slower + 1)
        turns[frequency] = slower
    return [turns[frequency] for frequency in frequencies.tolist()]


def frequency_words(turns: Sequence[int], period: float) -> list[Float[np.ndarray, " P"]]:
    """Return float32 numbers whose sum is `2π turns / period`."""
    rests, words = [full_turn() * count / Fraction(period) for count in turns], []
    for _ in range(WORDS):
        words.append(np.asarray(list(map(float, rests)), np.float32))
        rests = [rest - Fraction(word) for rest, word in zip(rests, words[-1].tolist(), strict=True)]
    return words
