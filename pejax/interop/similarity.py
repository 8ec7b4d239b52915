"""Similarities of vectors: of every one of a list to every one of another."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from pejax.interop.pooling import SMALLEST_NORM

ROWS = 64
"""Rows whose differences to all others are in memory at once."""

Rows = Float[np.ndarray, "N C"]
Others = Float[np.ndarray, "M C"]


def _dot(a: Rows, b: Others) -> np.ndarray:
    """Return the inner products."""
    return a @ b.T


def _cosine(a: Rows, b: Others) -> np.ndarray:
    """Return the cosines of the angles."""
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), SMALLEST_NORM) for x in (a, b))
    return a @ b.T


def _negative_distance(a: Rows, b: Others, order: int) -> np.ndarray:
    """Return minus the distances, the norms of this order of the differences."""
    result = np.empty((len(a), len(b)), np.float32)
    for start in range(0, len(a), ROWS):
        result[start : start + ROWS] = -np.linalg.norm(a[start : start + ROWS, None] - b, ord=order, axis=-1)
    return result


SIMILARITIES: dict[str, Callable[[Rows, Others], np.ndarray]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": lambda a, b: _negative_distance(a, b, 2),
    "manhattan": lambda a, b: _negative_distance(a, b, 1),
}
"""Functions from vectors `(N, C)` and `(M, C)` to similarities `(N, M)`, by their names in files."""
