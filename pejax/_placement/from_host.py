"""Positions and labels that JAX's 32 bits do not hold, made into those that they do, on the host.

offset_positions    time stamps and other large numbers  ->  distances from an origin, float32
segment_ids_of      hashes, names and other labels        ->  1, 2, 3 ..., int32
"""

import datetime
import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from pejax._calls.host import DigitsLost, check_digits, kept
from pejax._calls.kinds import shown

HostArray: TypeAlias = np.ndarray | np.generic | Array | Sequence[Any]
"""An array of known values, or lists of them."""

TIMES = {
    **{name: seconds * 1000**6 for name, seconds in (("W", 604800), ("D", 86400), ("h", 3600), ("m", 60), ("s", 1))},
    **{name: 1000**power for power, name in zip(range(5, -1, -1), ("ms", "us", "ns", "ps", "fs", "as"), strict=True)},
}
"""Units of time of one length each, in attoseconds, which those of NumPy's `Y` and `M` are not."""

NEAR = 2.0**62
"""Integers that differ by less have a difference that wraps to itself in int64."""


def offset_positions(
    values: HostArray, *, origin: Any = None, unit: float | str | np.timedelta64 | None = None
) -> tuple[Float[Array, "..."], Any]:
    """Return the positions of large numbers or times, counted from an origin: `p = (value - origin) / unit`.

    Float32 has 24 bits: it holds time stamps in seconds since 1970 to within 64 s. The difference is taken on the host,
    in integers or in float64, before it is rounded. Encodings of relative positions give what they give for `values`.
    The origin is returned so that later values (the next chunk, or keys and queries apart) are counted from it, too.

    Args:
        values: known numbers or times of any shape: integers of any width, floats of at least 32 bits, `datetime64`,
            `timedelta64`, or Python's `datetime` and `timedelta`, whose time zones are taken to UTC; arrays or lists.
        origin: the value at position 0, or an array of them that broadcasts to `values`. Rows of a batch `(B, T)` that
            lie far apart are counted each from its own by `origin=values.min(axis=-1, keepdims=True)`, and axes of
            positions `(T, A)` by `values.min(axis=-2, keepdims=True)`. None = the smallest of all values.
        unit: what one position is: of times a `timedelta64` or a unit of NumPy, such as "s" or "ms"; of numbers a
            number above 0. None = "s" for times, 1 for numbers.

    Returns:
        The positions, float32 (float64 with `jax_enable_x64`), and the origin, in the type of the values.

    Raises:
        ValueError: no values, values that are not finite or not known (NaT), or times that NumPy does not hold; a unit
            that is not above 0; positions that are not finite, or that float32 rounds by more than 2^-10 and more than
            2^-20 of their span, because the origin is far away.
        TypeError: traced values, values that are no numbers and no times, times without a unit or of which some have a
            time zone and others, or the origin, have none; a unit or an origin of another kind.

    Examples:
        >>> positions, origin = offset_positions([1764200000000, 1764200001500], unit=1000)  # ms, counted in s
        >>> positions.tolist(), int(origin)
        ([0.0, 1.5], 1764200000000)
        >>> offset_positions([1764200002250], origin=origin, unit=1000)[0].tolist()
        [2.25]
        >>> import numpy as np
        >>> offset_positions(np.asarray(["2026-01-31", "2026-02-01"], "datetime64"), unit="h")[0].tolist()
        [0.0, 24.0]
    """
    numbers = _known("offset_positions", "values", values)
    if numbers.dtype == object or (numbers.dtype.kind == "f" and isinstance(values, list | tuple)):
        numbers = _of_objects("values", numbers, np.asarray(values, object))
    if not numbers.size:
        raise ValueError(f"offset_positions: values must have at least one, got shape {numbers.shape}")
    times = numbers.dtype.kind in "mM"
    numbers = _exact_times("values", numbers) if times else _exact_numbers("values", numbers)
    start = numbers.min() if origin is None else _origin(origin, numbers, values)
    try:
        np.broadcast_to(start, numbers.shape)
    except ValueError:
        rule = f"offset_positions: origin must broadcast to values {numbers.shape}"
        raise ValueError(f"{rule}, got shape {np.shape(start)}") from None
    step: Any = _time_unit(unit) if times else _number_unit(unit)
    with np.errstate(over="ignore"):
        offsets = _ticks_since(numbers, start, step) if times else _difference(numbers, start) / step
    if not np.isfinite(offsets).all():
        raise ValueError(f"offset_positions: positions must be finite, got {offsets[~np.isfinite(offsets)][0]}")
    try:
        check_digits(offsets)
    except DigitsLost as lost:
        advice = "give an origin that is near, such as values.min(axis=-1, keepdims=True), one per row"
        raise ValueError(f"offset_positions: positions {lost}: {advice}") from None
    return jnp.asarray(offsets, kept(np.float64)), start


def segment_ids_of(labels: HostArray, *, padding: Any = None) -> Int[Array, "*B T"]:
    """Return the segment ids 1, 2, 3 ... of labels, numbered in each row in the order in which they first appear.

    Ids as `packed_positions` and `TokenPositions.segment_ids` take them, where 0 is padding. Labels that count from 0,
    such as chains of a protein, and 64-bit hashes of documents, which int32 does not hold, are numbered by this.

    Args:
        labels: known labels `(T,)` or `(*B, T)`, arrays or lists: integers of any width, or strings.
        padding: the label of padding, which becomes 0. None = no token is padding.

    Returns:
        int32, of the shape of the labels.

    Raises:
        ValueError: labels without an axis.
        TypeError: traced labels, or labels or padding that are neither integers nor strings.

    Examples:
        >>> segment_ids_of([0, 0, 1, 1, 1]).tolist()
        [1, 1, 2, 2, 2]
        >>> segment_ids_of([["b", "b", "a", ""], ["a", "a", "a", ""]], padding="").tolist()
        [[1, 1, 2, 0], [1, 1, 1, 0]]
    """
    numbers = _labels(labels)
    if not numbers.ndim:
        raise ValueError(f"segment_ids_of: labels must be (T,) or (*B, T), got {shown(labels)}")
    known_scalar = isinstance(padding, np.generic | np.ndarray | Array) and not np.ndim(padding)
    padding = padding.item() if known_scalar and not isinstance(padding, Tracer) else padding
    if padding is not None and not _is_label(padding):
        raise TypeError(f"segment_ids_of: padding must be a label, an integer or a string, got {shown(padding)}")
    kinds = {"i": int, "u": int, "U": str, "S": bytes}
    if padding is not None and not isinstance(padding, kinds.get(numbers.dtype.kind, int | str | bytes)):
        kind = kinds[numbers.dtype.kind].__name__
        raise TypeError(f"segment_ids_of: padding must be of the type of labels, {kind}, got {padding!r}")
    rows = numbers.reshape(math.prod(numbers.shape[:-1]), numbers.shape[-1])
    numbered = [_numbered(row, padding) for row in rows]
    return jnp.asarray(np.asarray(numbered, np.int32).reshape(numbers.shape))


def _of_objects(name: str, numbers: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return the numbers or times of a list or of objects as they are, where NumPy would round or not know them."""
    for kind, dtype in ((datetime.datetime, "datetime64[us]"), (datetime.timedelta, "timedelta64[us]")):
        if items.size and all(isinstance(item, kind) and not _nanoseconds(item) for item in items.flat):
            return _converted(name, _in_utc(name, items), dtype)
    are_whole = [isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items.flat]
    if all(are_whole):  # integers of both signs beyond 63 bits, of which NumPy makes float64
        return np.asarray([int(item) for item in items.flat], object).reshape(items.shape)
    largest = max((abs(int(item)) for item, is_whole in zip(items.flat, are_whole, strict=True) if is_whole), default=0)
    if largest > 2**53:
        raise ValueError(f"offset_positions: {name} must be all whole, or all below 2^53, got {largest} beside floats")
    return numbers


def _nanoseconds(item: Any) -> int:
    """Return the nanoseconds that subclasses have, such as `Timestamp` and `Timedelta` of pandas."""
    return getattr(item, "nanosecond", 0) or getattr(item, "nanoseconds", 0)


def _converted(name: str, times: np.ndarray, dtype: str) -> np.ndarray:
    """Return times in another type, in which they must fit: NumPy wraps others in silence."""
    try:
        converted = times.astype(dtype)
        held = converted.astype(times.dtype) == times
    except OverflowError:
        held = np.zeros(times.shape, bool)
    if not held.all():
        raise ValueError(f"offset_positions: {name} must fit {dtype}, got {times[~held][0]!s}")
    return converted


def _has_zone(item: Any) -> bool:
    return getattr(item, "tzinfo", None) is not None


def _in_utc(name: str, items: np.ndarray) -> np.ndarray:
    """Return dates and times without their time zones, as they are in UTC; refuse some with and some without one."""
    zoned = list(map(_has_zone, items.flat))
    if not any(zoned):
        return items
    if not all(zoned):
        plain = next(item for item, is_zoned in zip(items.flat, zoned, strict=True) if not is_zoned)
        raise TypeError(f"offset_positions: {name} must all have a time zone, or none, got {plain!s} beside others")
    try:
        in_utc = [item.astimezone(datetime.UTC).replace(tzinfo=None) for item in items.flat]
    except OverflowError:
        rule = f"offset_positions: {name} must be of the years 1 to 9999 in UTC"
        raise ValueError(f"{rule}, got from {min(items.flat)!s} to {max(items.flat)!s}") from None
    return np.asarray(in_utc, object).reshape(items.shape)


def _numbered(row: np.ndarray, padding: Any) -> list[int]:
    """Return the numbers of the labels of one row."""
    numbers: dict[Any, int] = {}
    skipped = () if padding is None else (padding,)
    return [0 if label in skipped else numbers.setdefault(label, len(numbers) + 1) for label in row.tolist()]


def _labels(labels: Any) -> np.ndarray:
    """Return labels as an array; those of a list as they are, since NumPy would make 1 and "1" one label."""
    values = _known("segment_ids_of", "labels", labels, None if isinstance(labels, np.ndarray | Array) else object)
    plain = values.dtype.kind in "iuUS"
    if not plain and not (values.dtype == object and all(map(_is_label, values.flat))):
        ragged = values.dtype == object and any(isinstance(item, list | tuple | np.ndarray) for item in values.flat)
        rule = "an array, or lists of equal lengths" if ragged else "integers or strings"
        raise TypeError(f"segment_ids_of: labels must be {rule}, got {shown(labels)}")
    return values


def _is_label(label: Any) -> bool:
    return isinstance(label, int | np.integer | str | bytes) and not isinstance(label, bool)


def _known(caller: str, name: str, values: Any, dtype: Any = None) -> np.ndarray:
    """Return host values as an array of NumPy; refuse traced ones, and lists of no one shape."""
    if isinstance(values, Tracer):
        rule = f"{caller}: {name} must be known, an array or a list"
        raise TypeError(f"{rule}: call it outside jax.jit, got {shown(values)}")
    if not isinstance(values, np.ndarray | np.generic | Array | list | tuple | range):
        raise TypeError(f"{caller}: {name} must be an array or a list, got {shown(values)}")
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{caller}: {name} must have no mask, got a masked array: give its data where it is valid")
    try:
        return np.asarray(values, dtype)
    except (ValueError, TypeError, jax.errors.JAXTypeError):
        raise TypeError(f"{caller}: {name} must be an array, or lists of equal lengths, got {shown(values)}") from None


def _exact_numbers(name: str, values: np.ndarray) -> np.ndarray:
    """Return numbers in a type of integers, or in float64; whole numbers beyond 64 bits are Python's."""
    if values.dtype == object and all(type(value) is int for value in values.flat):
        return values
    if values.dtype.kind not in "iuf" or (values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8)):
        rule = f"offset_positions: {name} must be integers, floats of 32 or 64 bits, or times"
        of = f" of {', '.join(sorted({type(value).__name__ for value in values.flat}))}" * (values.dtype == object)
        raise TypeError(f"{rule} such as datetime64, got {values.dtype}{of}")
    if values.dtype.kind != "f":
        return values
    if not np.isfinite(values).all():
        raise ValueError(f"offset_positions: {name} must be finite, got {values[~np.isfinite(values)][0]}")
    return values.astype(np.float64)


def _exact_times(name: str, values: np.ndarray) -> np.ndarray:
    """Return times in a unit that has one length: dates of months and years become their first days."""
    if np.isnat(values).any():
        raise ValueError(f"offset_positions: {name} must be known times, got NaT")
    if np.datetime_data(values.dtype)[0] not in TIMES:
        if np.datetime_data(values.dtype)[0] == "generic":
            raise TypeError(f"offset_positions: {name} must have a unit, such as {values.dtype}[s], got {values.dtype}")
        if values.dtype.kind == "m":
            raise TypeError(f"offset_positions: {name} must be in weeks or a shorter unit, got {values.dtype}")
        return _converted(name, values, "datetime64[D]")
    return values


def _origin(origin: Any, values: np.ndarray, given: Any) -> Any:
    """Return the origin in the kind of the values, so that their difference is exact; `given` are these as given."""
    if isinstance(origin, bool | str | bytes):
        raise TypeError(f"offset_positions: origin must be a number or a time, as the values are, got {shown(origin)}")
    scalar = isinstance(origin, int | float | datetime.date | datetime.timedelta)
    start = np.asarray(origin) if scalar else _known("offset_positions", "origin", origin)
    if start.dtype == object and values.dtype.kind in "mM":
        items = np.asarray(given)
        if items.dtype == object and any(map(_has_zone, items.flat)) != any(map(_has_zone, start.flat)):
            raise TypeError(f"offset_positions: origin must have a time zone if values do, got {shown(origin)}")
        start = _of_objects("origin", start, start)
    if values.dtype.kind in "mM":
        if start.dtype.kind != values.dtype.kind:
            rule = f"offset_positions: origin must be a time as the values, {values.dtype}"
            raise TypeError(f"{rule}, got {shown(origin)}")
        return _exact_times("origin", start)[()]
    start = _exact_numbers("origin", start)
    if values.dtype.kind != "f" and start.dtype.kind == "f":
        if not (np.abs(start) < NEAR).all() or (start != np.floor(start)).any():
            raise TypeError(f"offset_positions: origin must be whole, as the values are, got {shown(origin)}")
        start = start.astype(np.int64)
    return start[()]


def _ticks_since(values: np.ndarray, start: Any, step: np.timedelta64) -> np.ndarray:
    """Return times minus their origin in steps, in float64; their difference may be longer than a `timedelta64`."""
    pair = values, np.asarray(start)
    try:
        kind = np.promote_types(*(array.dtype for array in pair))
        ticks = [array.astype(kind) for array in pair]
        fit = all((tick.astype(array.dtype) == array).all() for tick, array in zip(ticks, pair, strict=True))
    except OverflowError:
        fit = False
    if not fit:
        units = " and ".join(str(array.dtype) for array in pair)
        raise ValueError(f"offset_positions: origin must have a unit that the values fit, too, got {units}")
    unit, count = cast(Any, np.datetime_data(kind))
    return _difference(*(tick.astype(np.int64) for tick in ticks)) * _steps(count, unit, step)


def _steps(count: int, unit: str, step: np.timedelta64) -> float:
    """Return `count` units of time in steps, also where NumPy has no integer that measures both."""
    step_unit, step_count = cast(Any, np.datetime_data(step.dtype))
    length = int(step.astype(np.int64)) * step_count * TIMES[step_unit]
    return float(Fraction(count * TIMES[unit], length))


def _difference(values: np.ndarray, start: Any) -> np.ndarray:
    """Return numbers minus their origin in float64, exact up to 2^53 for integers of any width."""
    if values.dtype == object or np.asarray(start).dtype == object:
        try:
            return (values.astype(object) - start).astype(np.float64)
        except OverflowError:
            raise ValueError("offset_positions: values must be within 1e308 of the origin, got longer ones") from None
    if values.dtype.kind == "f":
        return values - np.asarray(start, np.float64)
    nearly = values.astype(np.float64) - np.asarray(start).astype(np.float64)
    wrapping = values.astype(np.uint64) - np.asarray(start).astype(np.uint64)
    return np.where(np.abs(nearly) < NEAR, wrapping.astype(np.int64).astype(np.float64), nearly)


def _time_unit(unit: Any) -> np.timedelta64:
    if isinstance(unit, str) and unit not in TIMES:
        raise ValueError(f"offset_positions: unit must be one of {', '.join(TIMES)}, got {unit!r}")
    unit = "s" if unit is None else unit
    step = np.timedelta64(1, cast(Any, unit)) if isinstance(unit, str) else unit
    if not isinstance(step, np.timedelta64) or np.datetime_data(step.dtype)[0] not in TIMES:
        raise TypeError(f"offset_positions: unit of times must be a timedelta64 or such as 's', got {shown(unit)}")
    if int(step.astype(np.int64)) <= 0:
        raise ValueError(f"offset_positions: unit must be above 0, got {step}")
    return step


def _number_unit(unit: Any) -> float:
    if unit is None:
        return 1.0
    if isinstance(unit, bool) or not isinstance(unit, int | float | np.integer | np.floating):
        raise TypeError(f"offset_positions: unit of numbers must be a number above 0, got {shown(unit)}")
    if not 0 < unit <= sys.float_info.max:
        text = "an integer beyond float64" if isinstance(unit, int) and abs(unit) > sys.float_info.max else unit
        raise ValueError(f"offset_positions: unit must be a finite number above 0, got {text}")
    return float(unit)
