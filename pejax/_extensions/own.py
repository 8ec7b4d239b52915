"""An extension by a function of your own."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from pejax._calls.arguments import checked
from pejax._calls.kinds import shown
from pejax._extensions.base import Extended, Frequencies, Rotary, together, unextended
from pejax._ops.checks import check_frequencies
from pejax._record.specs import Extension, Term


@checked
def extension(
    function: Callable[[Frequencies, Rotary], Extended],
    *,
    varies: bool = True,
    scales: tuple[int, ...] | None = None,
) -> Extension:
    """Return a rotary extension by a function of your own: `(frequencies, rotary) -> (frequencies, factor)`.

    The function gets the frequencies, `(F,)`, or `(A, F)` on A axes, after the terms before it, and a `Rotary`: the
    base and the rotary_dim, the frequencies before any extension, the current length or grid, the step of a schedule
    and the trained length. Any of the frequencies, the length and the step may be traced; the functions `extend_X` of
    `pejax.functions` take all of them. Frequencies of 0 stay 0: these pairs do not turn, or turn with another axis.

    Records are equal where their functions are the same object: define the function once, outside of what is traced.
    A string cannot name a function, so the record goes into `extend=`, and no command line takes it.

    Args:
        function: returns frequencies of the same shape, radians per token, and the factor that multiplies queries and
            keys, a number or one per frequency `(F,)`; 1.0 = none.
        varies: whether the result depends on the current length or the step. False = keys are cached rotated, and the
            function finds None in place of both.
        scales: axes that it scales so that a longer input fits, which no other term may scale: `yarn() +
            extension(function)` is refused. None = all; () = none, as for a function that stops pairs.

    Raises:
        ValueError: an axis below 0. What the function returns is checked when it is called.

    Examples:
        >>> import pejax
        >>> def squared(frequencies, rotary):  # a factor s^(2t²), where by_step has s^t
        ...     return pejax.functions.extend_ntk(frequencies, rotary, factor=4.0 ** (2 * rotary.step**2))
        >>> dims = pejax.Dims(heads=2, head_dim=32, extent=64)
        >>> rope = pejax.encodings.rope(dims, extend=pejax.extensions.extension(squared))
        >>> frequencies, factor = pejax.adapt(rope, {"step": 0.5}, 64)["extended"]
    """
    if scales is not None and min(scales, default=0) < 0:
        raise ValueError(f"extension: scales must be axes from 0, got {scales}")
    options = {"function": function} | ({} if scales is None else {"scales": scales})
    options |= {} if varies else {"varies": False}
    return Extension((Term("extension", "frequencies", extend_by_function, tuple(options.items()), varies),))


def extend_by_function(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    function: Callable[[Frequencies, Rotary], Extended],
    scales: tuple[int, ...] | None = None,
    varies: bool = True,
) -> Extended:
    """Return what a function of the user's makes of the frequencies, checked."""
    del scales
    if not varies:
        rotary = rotary._replace(length=None, step=None)
    # what does not vary is computed once, also where the encoding is made inside of a traced function
    is_known = not varies and not isinstance(frequencies, Tracer)
    with jax.ensure_compile_time_eval() if is_known else contextlib.nullcontext():
        returned = function(frequencies, rotary)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ValueError(f"{shown(function)} must return (frequencies, factor), got {shown(returned)}")
    return _checked_frequencies(function, frequencies, rotary, returned[0]), _checked_factor(function, *returned)


def _checked_frequencies(function: Any, frequencies: Frequencies, rotary: Rotary, returned: Any) -> Any:
    """Return the frequencies of a function of the user's, in float32."""
    name = f"frequencies of {shown(function)}"
    if np.shape(returned) != frequencies.shape:
        raise ValueError(f"{name} must have the shape {frequencies.shape} that it was given, got {np.shape(returned)}")
    check_frequencies(returned)
    xp, (values, unscaled) = together(returned, unextended(frequencies, rotary))
    if xp is np and not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite, got {values[~np.isfinite(values)][0]}")
    if xp is np and values[unscaled == 0].any():
        raise ValueError(f"{name} must be 0 where they were before any extension, got {values[unscaled == 0].max()}")
    return values.astype(xp.float32)


def _checked_factor(function: Any, frequencies: Any, factor: Any) -> Any:
    """Return the attention factor of a function of the user's: a number, or `(F,)`."""
    if np.shape(factor) not in ((), np.shape(frequencies)[-1:]):
        rule = f"the factor of {shown(function)} must be a number, or one per frequency {np.shape(frequencies)[-1:]}"
        raise ValueError(f"{rule}, got {shown(factor)}")
    if isinstance(factor, Tracer):
        return factor
    values = np.asarray(factor, np.float64)
    if not ((values > 0) & (values < math.inf)).all():
        raise ValueError(f"the factor of {shown(function)} must be a finite number above 0, got {shown(factor)}")
    return values.astype(np.float32) if values.ndim else float(values)
