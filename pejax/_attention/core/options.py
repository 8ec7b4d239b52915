"""The options of one attention call, and their checks."""

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jax.core import Tracer
from jaxtyping import Array

LEARNED_SCALE = "multiply q by a learned scale and pass scale=1.0"
"""What to do in place of a traced scale."""

Window: TypeAlias = int | tuple[int, int]
"""w, the number of keys on a side that a query sees, its own included; or (before, after), those besides its own."""


class Options(NamedTuple):
    """The static options of attention; hashable. `hides`: whether the bias may be -inf, which hides a key.

    `window` is `as_window` returns it: (before, after) only without `causal`, where the two differ.
    """

    scale: float
    causal: bool = False
    window: Window | None = None
    distance_range: tuple[int, int] | None = None
    soft_cap: float | None = None
    dropout_rate: float = 0.0
    precision: Any = None
    block: int = 0
    hides: bool = False

    @property
    def uses_distance(self) -> bool:
        """Whether a mask depends on the distance from query to key."""
        return self.window is not None or self.distance_range is not None

    @property
    def uses_order(self) -> bool:
        """Whether a mask depends on the order of the tokens."""
        return self.causal or self.uses_distance


def check_options(
    q: Array,
    *,
    causal: bool = False,
    window: Window | None = None,
    distance_range: tuple[int, int] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Options:
    """Return the options, or raise ValueError for one out of range and TypeError for one of another type."""
    window = None if window is None else as_window(window, causal)
    if distance_range is not None and (len(distance_range) != 2 or not 0 <= distance_range[0] < distance_range[1]):
        raise ValueError(f"distance_range must be (lo, hi) with 0 <= lo < hi, got {distance_range!r}")
    if soft_cap is not None and not 0 < soft_cap < math.inf:
        raise ValueError(f"soft_cap must be positive and finite, got {soft_cap}")
    if scale is None:
        scale = float(q.shape[-1] ** -0.5) if q.ndim and q.shape[-1] else 1.0
    if isinstance(scale, Tracer):
        raise TypeError(f"scale must not be traced, got {scale!r}: {LEARNED_SCALE}")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    limits = None if distance_range is None else (distance_range[0], distance_range[1])
    return Options(float(scale), bool(causal), window, limits, None if soft_cap is None else float(soft_cap))


def as_window(window: Window, causal: bool) -> Window:
    """Return w, or (before, after) where no w says the same: without a causal mask, if the two differ.

    (before, after) keeps keys with `-after <= i - j <= before`, as `local_window_size` of `jax.nn`; where keys after
    the query are masked, `after` keeps none of them.

    Raises:
        TypeError: neither an int nor two.
        ValueError: w below 1, or fewer than 0 tokens before or after.
    """
    sides = window if isinstance(window, tuple) else (window,)
    if not all(isinstance(side, int | np.integer) for side in sides) or len(sides) > 2:
        raise TypeError(f"window must be an int, or a tuple (before, after) of ints, in tokens, got {window!r}")
    if not isinstance(window, tuple):
        if window < 1:
            raise ValueError(f"window must be at least 1 token, got {window}")
        return int(window)
    if len(window) != 2 or min(window) < 0:
        raise ValueError(f"window must be (before, after), each at least 0 tokens, got {window!r}")
    before, after = map(int, window)
    return before + 1 if causal or before == after else (before, after)


def sides(window: Window) -> tuple[int, int]:
    """Return the numbers of keys before and after its own that a query sees, without a causal mask."""
    return window if isinstance(window, tuple) else (window - 1, window - 1)


def narrower(window: Window | None, other: Window | None) -> Window | None:
    """Return the window of the keys that are in both; None = all keys."""
    if window is None or other is None:
        return other if window is None else window
    before, after = map(min, sides(window), sides(other))
    return before, after
