"""The law of digits: a number from the host that JAX's types would change is refused, never changed in silence.

    whole numbers   must fit int32: others would wrap, so that 2^32 + 5 becomes 5
    positions       may be rounded by 2^-10 of their unit, or by 2^-20 of their span along the tokens if that is more

With `jax_enable_x64`, the types are int64 and float64, which lose nothing of NumPy's. Arrays of JAX have their type
already and pass as they are; values that are no positions, such as queries and keys, may be rounded to float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROUNDING = 2.0**-10
"""How far a position may be rounded, in its unit."""

ROUNDING_OF_SPAN = 2.0**-20
"""How far positions may be rounded, as a fraction of their span."""

MOST_AXES = 4
"""A last axis no longer than this may be the axes of a position, `(*B, T, A)`, or tokens, `(*B, T)`."""

WAYS = (
    ("segment", "number the labels by pejax.segment_ids_of"),
    ("position", "count from an origin by pejax.offset_positions"),
    ("relative", "subtract positions counted from an origin (pejax.offset_positions)"),
    ("order", "rank the tokens by numpy.unique(order, return_inverse=True)[1]"),
)
"""The way out, by a part of the name of an argument."""


class DigitsLost(ValueError):
    """A value that JAX's types would change; the message goes on from the name of the argument."""


def kept(dtype: Any) -> np.dtype:
    """Return the type in which JAX keeps numbers of a type of NumPy."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def with_way_out(name: str, lost: DigitsLost) -> str:
    """Return the message for an argument, with what to do instead."""
    argument = name.rpartition(": ")[2].rpartition(".")[2]
    way = next((way for part, way in WAYS if part in argument), None)
    if "must be numbers" in str(lost):  # times, which no type of JAX holds
        return f"{name} {lost}: {way or dict(WAYS)['position']}"
    wider = "" if jax.config.jax_enable_x64 else ", or set jax_enable_x64"
    return f"{name} {lost}: {way}{wider}" if way else f"{name} {lost}"


def check_whole(values: np.ndarray) -> None:
    """Raise DigitsLost for whole numbers that would wrap."""
    bounds = np.iinfo(kept(np.int64))
    if values.dtype == object and values.size and all(type(value) is int for value in values.flat):
        raise DigitsLost(f"must fit {bounds.dtype}, got {max(values.flat, key=abs)}")  # beyond all types of NumPy
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 4 or not values.size:
        return
    for extreme in (values.max(), values.min()):
        if not bounds.min <= int(extreme) <= bounds.max:
            wrapped = np.asarray(extreme).astype(bounds.dtype)
            raise DigitsLost(f"must fit {bounds.dtype}, got {extreme}, which would become {wrapped}")


def check_digits(values: np.ndarray) -> None:
    """Raise DigitsLost for positions that would wrap, or be rounded by more than the law allows."""
    if values.dtype.kind in "mM":
        raise DigitsLost(f"must be numbers, got {values.dtype}")
    check_whole(values)
    if values.dtype.kind != "f" or values.dtype.itemsize <= kept(np.float64).itemsize:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(kept(np.float64))
        change = np.abs(rounded.astype(values.dtype) - values)
        lost = change > np.maximum(ROUNDING, ROUNDING_OF_SPAN * _span(values))
    if lost.any():
        number, becomes = values[lost][0], rounded[lost][0]
        raise DigitsLost(
            f"must not lose digits in {rounded.dtype}, got {number!s}, which would become {float(becomes)}"
        )


def _span(values: np.ndarray) -> np.ndarray:
    """Return how far positions extend along the tokens, in a shape that broadcasts to theirs.

    Where the last axis may be that of the tokens or that of their coordinates, it is the smaller of both.
    """
    if not values.ndim:
        return np.zeros(())
    spans = _extent_along(values, -1)
    if values.ndim > 1 and values.shape[-1] <= MOST_AXES:
        spans = np.minimum(spans, _extent_along(values, -2))
    return spans


def _extent_along(values: np.ndarray, axis: int) -> np.ndarray:
    """Return largest minus smallest; without 0 where others differ: it is also where padding is, away from the text."""

    def extent(counts: np.ndarray) -> np.ndarray:
        largest = values.max(axis, keepdims=True, initial=-np.inf, where=counts)
        return np.maximum(largest - values.min(axis, keepdims=True, initial=np.inf, where=counts), 0.0)

    finite = np.isfinite(values)
    others = extent(finite & (values != 0))
    return np.where(others > 0, others, extent(finite))


def to_jax(name: str, values: Any) -> jax.Array:
    """Return positions or ids as an array of JAX; `name` is the argument in messages.

    Raises:
        ValueError: numbers that JAX's types would change.
    """
    if isinstance(values, jax.Array):
        return values
    try:
        check_digits(np.asarray(values))
    except DigitsLost as lost:
        raise ValueError(with_way_out(name, lost)) from None
    return jnp.asarray(signed(values))


def signed(values: Any) -> Any:
    """Return unsigned numbers, which are known to fit, in a signed type that JAX keeps, and others in native bytes."""
    if not isinstance(values, np.ndarray | np.generic):
        return values
    if values.dtype.kind == "u":
        return values.astype(kept(np.int64))
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
