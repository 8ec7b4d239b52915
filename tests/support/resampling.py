"""Resampling in float64, one row and one tap after the other, for tests to compare with."""

import jax
import numpy as np

from pejax.functions import resize_embedding

resize = jax.jit(resize_embedding, static_argnames=("old_grid", "new_grid", "method", "antialias", "prefix"))


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def cubic(x, a):
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def resampled(table, new, method, antialias):
    """Resample the rows of one table in float64, one row and one tap after the other."""
    old = len(table)
    stretch = max(old / new, 1.0) if antialias else 1.0
    result = np.zeros((new, table.shape[1]))
    for n in range(new):
        center = n * (old - 1) / max(new - 1, 1) if method == "align_corners" else (n + 0.5) * old / new - 0.5
        total = 0.0
        for m in range(-3 * old, 4 * old):
            x = (m - center) / stretch
            weight = cubic(x, -0.5 if antialias else -0.75) if method == "bicubic" else max(1.0 - abs(x), 0.0)
            if antialias and not 0 <= m < old:
                continue
            result[n] += weight * table[min(max(m, 0), old - 1)].astype(np.float64)
            total += weight
        result[n] /= total
    return result
