"""Coordinates along an axis, and positions made of them: NumPy arrays of int64, or of float64 if they are fractions."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int, Num

from pejax._calls.arguments import checked


@checked
def grid(*axes: Num[np.ndarray, "..."] | Sequence[float]) -> Num[np.ndarray, "N A"]:
    """Return every combination of the coordinates of A axes in raster order, the last axis fastest.

    Args:
        *axes: `(L,)` coordinates along each axis.

    Raises:
        ValueError: no axes, or coordinates that are not on one axis.
        TypeError: coordinates that are neither integers nor floats.

    Examples:
        >>> grid([5], centered(2), centered(3)).tolist()
        [[5, -1, -2], [5, -1, -1], [5, -1, 0], [5, 0, -2], [5, 0, -1], [5, 0, 0]]
    """
    along = [_numbers("axes", axis) for axis in axes]
    if not along or any(axis.ndim != 1 for axis in along):
        shapes = ", ".join(str(axis.shape) for axis in along)
        raise ValueError(f"grid: axes must be one list of coordinates each, got shapes ({shapes})")
    return np.stack(np.meshgrid(*along, indexing="ij"), axis=-1).reshape(-1, len(axes))


@checked
def counted(count: int, start: int = 0) -> Int[np.ndarray, " L"]:
    """Return `start ... start + count - 1`.

    Raises:
        ValueError: fewer than one.

    Examples:
        >>> counted(3, 10).tolist()
        [10, 11, 12]
    """
    return start + _from_zero(count)


@checked
def centered(count: int) -> Int[np.ndarray, " L"]:
    """Return `-(n - ⌊n/2⌋) ... ⌊n/2⌋ - 1` for n = count, so that larger pictures grow to both sides.

    Raises:
        ValueError: fewer than one.

    Examples:
        >>> centered(4).tolist(), centered(5).tolist()
        ([-2, -1, 0, 1], [-3, -2, -1, 0, 1])
    """
    return _from_zero(count) - (count - count // 2)


@checked
def fitted(count: int, reference: int) -> Int[np.ndarray, " L"]:
    """Return `⌊i · reference / count⌋`: the place of each token on a reference grid of a fixed size.

    Raises:
        ValueError: fewer than one, or a reference below 1.

    Examples:
        >>> fitted(4, 6).tolist()
        [0, 1, 3, 4]
    """
    if reference < 1:
        raise ValueError(f"reference must be at least 1, got {reference}")
    return _from_zero(count) * reference // count


@checked
def middles(count: int) -> Float[np.ndarray, " L"]:
    """Return the middles of tokens between -1 and 1: `2 (i + 1/2) / count - 1`.

    Raises:
        ValueError: fewer than one.

    Examples:
        >>> middles(4).tolist()
        [-0.75, -0.25, 0.25, 0.75]
    """
    return scaled(counted(count), Fraction(2, count), Fraction(1, count) - 1)


@checked
def equal(coordinates: Num[np.ndarray, " N"] | Sequence[float], axes: int) -> Num[np.ndarray, "N A"]:
    """Return positions that have the same coordinate on all axes, as texts do beside pictures.

    Raises:
        ValueError: fewer than one axis.

    Examples:
        >>> equal(counted(2, 7), 3).tolist()
        [[7, 7, 7], [8, 8, 8]]
    """
    if axes < 1:
        raise ValueError(f"axes must be at least 1, got {axes}")
    return np.repeat(_numbers("coordinates", coordinates)[:, None], axes, axis=1)


def scaled(
    coordinates: Int[np.ndarray, " L"], step: Fraction, start: Fraction = Fraction(0)
) -> Float[np.ndarray, " L"]:
    """Return `start + step · coordinate`, each rounded once."""
    return np.asarray([float(start + step * int(coordinate)) for coordinate in coordinates], np.float64)


def _numbers(name: str, values: np.ndarray | Sequence[float]) -> Num[np.ndarray, "..."]:
    array = np.asarray(values)
    if not is_exact(array):
        raise TypeError(f"{name} must be integers, or floats of at least 32 bits, got {array.dtype}")
    return array


def is_exact(array: np.ndarray) -> bool:
    """Return whether an array holds integers, or floats of at least 32 bits."""
    return array.dtype.kind in "iu" or (array.dtype.kind == "f" and array.dtype.itemsize >= 4)


def _from_zero(count: int) -> Int[np.ndarray, " L"]:
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    return np.arange(count, dtype=np.int64)
