"""Shared by the extensions of frequencies: factors, lengths, the pair that a frequency belongs to.

    f'_i = f_i · ratio(i),   i = -d/2 · log_base(f_i) the pair, d the number of rotated channels

Every `extend_X(frequencies, rotary, ...)` returns the frequencies and the factor that multiplies cosine and sine of
queries and keys. Frequencies are `(F,)`, or `(A, F)` on A axes; zeros, of channels that do not rotate, stay zero.

Values that are not traced are computed by NumPy in float64 and rounded once; traced values by JAX in float32. Every
helper takes both.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Num

from pejax._calls.kinds import shown
from pejax._ops.checks import check_frequencies

Frequencies: TypeAlias = Float[Array | np.ndarray, "*A F"]
Factor: TypeAlias = float | int | tuple[float, ...] | Num[Array, ""] | Num[Array, " A"]
Number: TypeAlias = float | Float[Array, ""]
Length: TypeAlias = int | Num[Array, ""] | Num[Array, " A"] | tuple[int, ...]
Extended: TypeAlias = tuple[Float[Array | np.ndarray, "*A F"], float | Float[Array | np.ndarray, "*F"]]


class Rotary(NamedTuple):
    """The rotary encoding whose frequencies are extended, and its current length.

    Attributes:
        base: base of the frequencies before any extension, above 1; one number, or one per axis.
        rotary_dim: d, number of rotated channels; on A axes those of one axis, D/A, or one number per axis.
        length: L', the current length, tokens, or one length per axis; may be traced.
        base_frequencies: the frequencies before any extension, which identify the pairs, if those to be extended were
            extended before. None = the same.
        step: t, the current step of a schedule, such as the noise level of a diffusion model; it may be traced.
        trained_length: L, tokens, or one length per axis, for extensions that are given none.
    """

    base: float | tuple[float, ...]
    rotary_dim: int | tuple[int, ...]
    length: Length | None = None
    base_frequencies: Frequencies | None = None
    step: float | Num[Array, ""] | None = None
    trained_length: int | tuple[int, ...] | None = None


def together(*values: Any) -> tuple[Any, list[Any]]:
    """Return the array library and the values: NumPy in float64 if none is traced, else `jax.numpy` in float32."""
    traced = any(isinstance(value, Tracer) for value in values)
    xp, dtype = (jnp, jnp.float32) if traced else (np, np.float64)
    return xp, [xp.asarray(value, dtype) for value in values]


def scaled(frequencies: Frequencies, keep: Any, divisor: Any) -> Frequencies:
    """Return `f · (keep + (1 - keep) / divisor)`, rounded once to float32."""
    xp, (frequencies, keep, divisor) = together(frequencies, keep, divisor)
    return (frequencies * (keep + (1.0 - keep) / divisor)).astype(xp.float32)


def powered(frequencies: Frequencies, index: Any, factor: Any, rotary: Rotary) -> Frequencies:
    """Return `f_i · factor^(-2i / (d - 2))`, rounded once to float32; a single pair is unchanged."""
    xp, (frequencies, index, factor) = together(frequencies, index, factor)
    spread = each(lambda dim: max(dim - 2, 1), rotary.rotary_dim)
    return (frequencies * factor ** (-2.0 * index / xp.asarray(spread, index.dtype))).astype(xp.float32)


def unextended(frequencies: Frequencies, rotary: Rotary) -> Frequencies:
    """Return the frequencies before any extension."""
    return frequencies if rotary.base_frequencies is None else rotary.base_frequencies


def pair_index(frequencies: Frequencies, rotary: Rotary) -> Any:
    """Return the pair that each frequency belonged to before any extension, `-d/2 · log_base |f|`; 0 where it is 0.

    Raises:
        ValueError: a base not above 1, a rotary_dim that is odd or below 2, or another number of them than axes.
    """
    for name, values in (("base", rotary.base), ("rotary_dim", rotary.rotary_dim)):
        _check_per_axis(name, values, frequencies.shape)
    for base in _values(rotary.base):
        if not 1 < base < math.inf:
            raise ValueError(f"base must be a finite number above 1, got {base}")
    for rotary_dim in _values(rotary.rotary_dim):
        if rotary_dim < 2 or rotary_dim % 2:
            raise ValueError(f"rotary_dim must be even and at least 2, got {rotary_dim}")
    xp, (unscaled,) = together(unextended(frequencies, rotary))
    size = xp.where(unscaled == 0, 1.0, xp.abs(unscaled))
    return xp.log(size) * xp.asarray(-0.5 * by_axis(rotary.rotary_dim) / log_base(rotary), unscaled.dtype)


def log_base(rotary: Rotary) -> Any:
    """Return the logarithm of the base: one number, or a column of one per axis."""
    return each(math.log, rotary.base)


def each(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a function of one number, or of one per axis as a column `(A, 1)`."""
    return by_axis(tuple(map(function, value))) if isinstance(value, tuple) else function(value)


def _values(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def resolve_factor(
    frequencies: Frequencies, rotary: Rotary, trained_length: int | tuple[int, ...] | None, factor: Any
) -> Any:
    """Return the factor given, or `max(1, rotary.length / trained_length)`: `(A, 1)` where there is one per axis.

    Raises:
        ValueError: no frequencies, a known factor below 1, neither factor nor length, a length without a trained one,
            or factors or lengths that are not one per axis of the frequencies, or lengths below 1.
    """
    check_some(frequencies)
    check_lengths(frequencies, rotary, trained_length)
    if factor is not None:
        factor = tuple(factor) if np.ndim(factor) and not isinstance(factor, Tracer) else factor
        _check_per_axis("factor", factor, frequencies.shape)
        if not isinstance(factor, Tracer) and not all(1 <= value < math.inf for value in _values(factor)):
            raise ValueError(f"factor must be at least 1, got {factor}")
        return by_axis(factor)
    if rotary.length is None:
        raise ValueError("factor or length must be given, got None for both")
    trained = by_axis(known_length("a factor from the length", rotary, trained_length))
    xp, (size, trained) = together(by_axis(rotary.length), trained)
    return xp.maximum(size / trained, 1.0)


def known_length(needing: str, rotary: Rotary, trained_length: int | tuple[int, ...] | None) -> int | tuple[int, ...]:
    """Return the trained length given, or that of the rotary encoding; refuse None for both."""
    trained_length = rotary.trained_length if trained_length is None else trained_length
    if trained_length is None:
        raise ValueError(f"{needing} needs trained_length (an encoding's is dims.extent), got None")
    return trained_length


def by_axis(value: Any) -> Any:
    """Return numbers, one per axis, as a column `(A, 1)`; a single one unchanged."""
    if isinstance(value, tuple):
        return np.asarray(value, np.float64)[:, None]
    return value[:, None] if np.ndim(value) == 1 else value


def of_axis(value: Any, axis: int) -> Any:
    """Return the number of one axis, of numbers that are one for all axes or one per axis."""
    return value[axis] if np.ndim(value) else value


def check_some(frequencies: Frequencies) -> None:
    """Refuse frequencies that are none, or in 16 bits."""
    check_frequencies(frequencies)
    if 0 in frequencies.shape:
        raise ValueError(f"frequencies must be (F,) or (A, F), at least one, got shape {frequencies.shape}")


def check_lengths(frequencies: Frequencies, rotary: Rotary, trained_length: int | tuple[int, ...] | None) -> None:
    """Refuse known lengths below 1, and lengths that are not one per axis of the frequencies."""
    trained_length = rotary.trained_length if trained_length is None else trained_length
    for name, value in (("trained_length", trained_length), ("length", rotary.length)):
        _check_length(name, value, frequencies.shape)


def _check_length(name: str, length: Length | None, shape: tuple[int, ...]) -> None:
    if length is None:
        return
    _check_per_axis(name, length, shape)
    if not isinstance(length, Tracer) and np.min(np.asarray(length)) < 1:
        raise ValueError(f"{name} must be at least 1, got {length}")


def _check_per_axis(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if np.ndim(value) and (len(shape) < 2 or shape[-2] != len(value)):
        raise ValueError(f"{name} must be a number, or one per axis of frequencies {shape}, got {shown(value)}")


def log_factor(factor: Any, weight: Any) -> Any:
    """Return `weight · ln max(factor, 1)`."""
    xp, (factor, weight) = together(factor, weight)
    return weight * xp.log(xp.maximum(factor, 1.0))


def check_order(low: tuple[str, Number], high: tuple[str, Number]) -> None:
    """Refuse two known numbers, each with its name, that are not finite, above 0 and in order; they may be equal."""
    if any(isinstance(value, Tracer) for _, value in (low, high)):
        return
    if not 0 < float(low[1]) <= float(high[1]) < math.inf:
        raise ValueError(f"{high[0]} must be at least {low[0]}, both above 0, got {high[1]} and {low[1]}")


def ramp_by_turns(frequencies: Frequencies, rotary: Rotary, trained: Any, low: Number, high: Number) -> Any:
    """Return 0 for pairs that made up to `low` turns in the trained length, 1 from `high` on, a line in between."""
    xp, (unscaled, trained, low, high) = together(unextended(frequencies, rotary), trained, low, high)
    turns = trained * xp.abs(unscaled) / math.tau
    return xp.clip((turns - low) / xp.maximum(high - low, 1e-6), 0.0, 1.0)


def positive(name: str, value: Number) -> Number:
    """Return the value; refuse one that is known and not a finite number above 0."""
    if not isinstance(value, Tracer) and not 0 < float(value) < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return value


def check_factors(name: str, factors: Sequence[float] | Array | np.ndarray, count: int) -> None:
    """Refuse a list of another length, and known factors that are not finite or not above 0."""
    rule = f"{name} must be {count} finite numbers above 0"
    if len(factors) != count:
        raise ValueError(f"{rule}, got {len(factors)}")
    values = np.ones(1) if isinstance(factors, Tracer) else np.asarray(factors, np.float64)
    if not np.all((values > 0) & (values < math.inf)):
        raise ValueError(f"{rule}, got {values[~((values > 0) & (values < math.inf))][0]}")


def by_channel(factor: Any, frequencies: Frequencies) -> Any:
    """Return an attention factor as `rope_apply` takes it: a number, or `(F,)` with 1 where no axis rotates a channel.

    A factor `(A, 1)`, one per axis, goes to the channels that the axis rotates; where several axes do, their mean.
    """
    if not isinstance(frequencies, Tracer) and np.ndim(factor) == 0:
        rotated = (np.asarray(frequencies) != 0).reshape(-1, frequencies.shape[-1]).any(axis=0)
        if rotated.all():
            return factor if isinstance(factor, Tracer) else float(factor)
    xp, (factor, unscaled) = together(factor, frequencies)
    turns = (unscaled != 0).astype(unscaled.dtype).reshape(-1, unscaled.shape[-1])
    per_frequency = xp.broadcast_to(factor, unscaled.shape).reshape(turns.shape)
    count = xp.sum(turns, axis=0)
    mean = xp.sum(turns * per_frequency, axis=0) / xp.maximum(count, 1.0)
    return xp.where(count > 0, mean, 1.0).astype(xp.float32)
