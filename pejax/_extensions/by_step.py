"""One extension at some steps of a schedule and another one at others, as in sampling from a diffusion model.

The step is a parameter of the encoding, which may be traced: a whole schedule runs in one compiled program.
"""

import math
from collections.abc import Callable
from typing import Any

from jax.core import Tracer

from pejax._calls.arguments import checked
from pejax._extensions.base import Extended, Frequencies, Rotary, check_some, together, unextended
from pejax._extensions.extension import extension_factory
from pejax._extensions.frequencies import apply_terms
from pejax._record.encoding import STEP
from pejax._record.specs import Extension


@checked
def extend_by_step(
    frequencies: Frequencies,
    rotary: Rotary,
    *,
    below: Extension | None = None,
    above: Extension | None = None,
    watershed: float | None = None,
    trained_length: int | tuple[int, ...] | None = None,
) -> Extended:
    """Go from one extension to another with the step of a schedule: by a weight, or all at once at a watershed.

    `f'_i = g_i^(1-t) · h_i^t`, where t is the step, from 0 on, g are the frequencies by `below` and h those by
    `above`; `f'_i = (1-t) · g_i + t · h_i`, with t at most 1, for a pair that one of the two stops. With a watershed,
    `f' = g` at steps below it, else `f' = h`. Attention factors go the same way.

    From no extension to `linear(factor=s)`, this divides by s^t; from none to `ntk(factor=s)`, it is
    `ntk(factor=s^t)`, beyond t = 1, too. An encoding reads the step among its parameters at every call, as a number or
    traced: `attend(encoding, q, k, v, params={"step": t})`.

    Args:
        frequencies: radians per token, `(F,)`, or `(A, F)` on A axes.
        rotary: the encoding that has these frequencies, L', its current length, and t, its current step.
        below: one or several extensions of frequencies, at t = 0, or below the watershed. None = no extension.
        above: the same at t = 1, or from the watershed on. None = no extension.
        watershed: the step from which on `above` takes the place of `below`, in the unit of t. None = t is a weight.
        trained_length: L, tokens, or one length per axis, for those that have none of their own.

    Returns:
        The frequencies, float32, and the attention factor: one number, or `(F,)` where one of the two has that.

    Raises:
        ValueError: neither `below` nor `above`, one that is no extension of frequencies, no step, one below
            0 (not checked if traced) without a watershed, or what the two refuse.

    Reference:
        Zhuo et al. 2024, "Lumina-Next: Making Lumina-T2X Stronger and Faster with Next-DiT" (arXiv 2406.18583):
        time-aware scaling, with a watershed between `linear` and a larger base.

    Examples:
        >>> import pejax
        >>> from pejax.extensions import by_step, linear
        >>> dims = pejax.Dims(heads=2, head_dim=32, extent=64)
        >>> rope = pejax.encodings.rope(dims, extend=by_step(above=linear(factor=4)))
        >>> [float(pejax.adapt(rope, {"step": t}, 64)["extended"][0][0]) for t in (0.0, 0.5, 1.0)]
        [1.0, 0.5, 0.25]
    """
    check_some(frequencies)
    if below is None and above is None:
        raise ValueError("by_step must be given an extension, below or above, got neither")
    for name, end in (("below", below), ("above", above)):
        terms = () if end is None else end.terms
        names = [term.name for term in terms if term.target != "frequencies"]
        if names:
            raise ValueError(f"{name} must be extensions of rotary frequencies, such as linear, got {names[0]!r}")
    between = _between(rotary.step, watershed)
    trained = rotary.trained_length if trained_length is None else trained_length
    rotary = rotary._replace(base_frequencies=unextended(frequencies, rotary), trained_length=trained)
    first, second = (apply_terms(end, frequencies, rotary) for end in (below, above))
    extended, factor = map(between, first, second)
    return extended, factor if factor.ndim or isinstance(factor, Tracer) else float(factor)


def _between(step: Any, watershed: float | None) -> Callable[[Any, Any], Any]:
    """Return the function of two values that goes from one to the other with the step."""
    if step is None:
        raise ValueError(f"by_step needs the step of the schedule: params must have a number {STEP!r}, got None")
    if watershed is None and not isinstance(step, Tracer) and not 0 <= float(step) < math.inf:
        raise ValueError(f"step must be a finite number from 0 where there is no watershed, got {step}")

    def between(first: Any, second: Any) -> Any:
        xp, (first, second, at, limit) = together(first, second, step, watershed or 0.0)
        if watershed is not None:
            return xp.where(at < limit, first, second).astype(xp.float32)
        nonzero = (first != 0) & (second != 0)
        ratio = xp.where(nonzero, second, 1.0) / xp.where(nonzero, first, 1.0)
        weight = xp.where(at > 1.0, 1.0, at)  # a pair that has stopped does not turn the other way
        return xp.where(nonzero, first * ratio**at, (1.0 - weight) * first + weight * second).astype(xp.float32)

    return between


by_step = extension_factory("by_step", "frequencies", extend_by_step, varies=True)
