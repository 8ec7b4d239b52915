"""The options of one attention call, and their checks."""

import math
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer
from jaxtyping import Array

LEARNED_SCALE = "multiply q by a learned scale and pass scale=1.0"
"""What to do in place of a traced scale."""


class Options(NamedTuple):
    """The static options of attention; hashable. `hides`: whether the bias may be -inf, which hides a key."""

    scale: float
    causal: bool = False
    window: int | None = None
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
    window: int | None = None,
    distance_range: tuple[int, int] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Options:
    """Return the options, or raise ValueError for one out of range and TypeError for one of another type."""
    if window is not None:
        if not isinstance(window, int | np.integer):
            raise TypeError(f"window must be an int, in tokens, got {window!r}")
        if window < 1:
            raise ValueError(f"window must be at least 1 token, got {window}")
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
