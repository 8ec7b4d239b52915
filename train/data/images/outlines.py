"""Rasterization of filled outlines: the exact covered fraction of every pixel, for many images at once.

In every row of pixels that it crosses, a directed edge adds its height in that row to all pixels on its right, and to
its own pixel in proportion to the area on its right. The sum over a closed outline is the winding number, averaged over
the pixel. Edges are cut at pixel borders, so that each piece lies in one pixel and the area is that of a trapezoid.
"""

import numpy as np
from jaxtyping import Float, Int


def coverage(
    edges: Float[np.ndarray, "E 2 2"], owner: Int[np.ndarray, " E"], images: int, size: int
) -> Float[np.ndarray, "N S S"]:
    """Return the fraction of every pixel inside the outlines (nonzero winding rule), from 0 to 1.

    Args:
        edges: start and end, (x, y) in pixels, x to the right and y down; each outline closed.
        owner: the image of each edge.
        images: N.
        size: S, pixels.
    """
    start, end, which = _pieces(edges)
    height, middle = (end - start)[:, 1], (start + end) / 2
    column, row = np.floor(middle).astype(np.int64).T
    inside = (row >= 0) & (row < size) & (column < size)
    column, right = np.maximum(column, 0), np.where(column < 0, 1.0, column + 1 - middle[:, 0])
    cell = ((owner[which] * size + row) * (size + 1) + column)[inside]
    in_cell, in_next = (height * right)[inside], (height * (1 - right))[inside]
    cells = images * size * (size + 1)
    steps = np.bincount(cell, in_cell, cells) + np.bincount(cell + 1, in_next, cells)
    winding = np.cumsum(steps.reshape(images, size, size + 1), axis=2)[:, :, :size]
    return np.minimum(np.abs(winding), 1.0)


def _pieces(
    edges: Float[np.ndarray, "E 2 2"],
) -> tuple[Float[np.ndarray, "P 2"], Float[np.ndarray, "P 2"], Int[np.ndarray, " P"]]:
    """Return the edges cut at pixel borders: starts and ends of the pieces, and the edge of each piece."""
    start, along = edges[:, 0], edges[:, 1] - edges[:, 0]
    which, when = [np.arange(len(edges))], [np.zeros(len(edges))]
    for axis in range(2):
        low, high = np.sort(edges[:, :, axis], axis=1).T
        first = np.floor(low) + 1
        count = np.maximum(np.ceil(high) - first, 0).astype(np.int64)
        edge = np.repeat(np.arange(len(edges)), count)
        nth = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
        which.append(edge)
        when.append((first[edge] + nth - start[edge, axis]) / along[edge, axis])
    edge, time = np.concatenate(which), np.concatenate(when)
    order = np.argsort(edge + np.minimum(time, 1 - 2**-30), kind="stable")
    edge, time = edge[order], time[order]
    until = np.where(np.append(edge[1:] != edge[:-1], True), 1.0, np.append(time[1:], 1.0))
    begin, end = (start[edge] + moment[:, None] * along[edge] for moment in (time, until))
    return begin, end, edge
