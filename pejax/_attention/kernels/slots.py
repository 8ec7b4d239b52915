"""Tokens on a grid or in a volume as slots of a line, on which the difference of two is that of their positions.

For positions p with axes of n_a tokens, lowest first,

    slot = Σ_a (p_a - low_a) · s_a,   s_A = 1,   s_(a-1) = s_a · (2 n_a - 1)

Between the slots of two rows, n_A - 1 are empty. So slot_j - slot_i tells p_j - p_i, and a bias of the distance, on any
number of axes, is read from one vector: one number per difference of slots.
"""

import math
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

Box: TypeAlias = tuple[tuple[int, int], ...]
"""The lowest and the highest position on each axis."""


def slot_count(box: Box) -> int:
    """Return the number of slots: those of the highest position and of all below."""
    return 1 + sum((high - low) * stride for (low, high), stride in zip(box, _strides(box), strict=True))


def slots_of(box: Box, positions: Int[Array, "T *A"]) -> Int[Array, " T"]:
    """Return the slot of each token; one outside the box, which has no position, gets any slot.

    Args:
        box: the range of positions on each axis.
        positions: positions of tokens, without A where there is one axis.
    """
    places = positions.astype(jnp.int32).reshape(len(positions), -1)
    lows = np.asarray([low for low, _ in box], np.int32)
    return jnp.sum((places - lows) * np.asarray(_strides(box), np.int32), axis=1).clip(0, slot_count(box) - 1)


def slot_distances(box: Box) -> Int[np.ndarray, "R *A"]:
    """Return the difference of positions for each difference of slots, from the lowest to the highest."""
    count = slot_count(box)
    rest, axes = np.arange(1 - count, count, dtype=np.int64), []
    for (low, high), stride in zip(box, _strides(box), strict=True):
        reach = (stride - 1) // 2  # of the axes that follow
        on_axis = np.floor_divide(rest + reach, stride)
        rest = rest - on_axis * stride
        # A difference that no two tokens have may leave the box.
        axes.append(on_axis.clip(low - high, high - low))
    return np.stack(axes, -1).astype(np.int32) if len(box) > 1 else axes[0].astype(np.int32)


def _strides(box: Box) -> list[int]:
    """Return how many slots apart neighbors on each axis are."""
    sides = [2 * (high - low) + 1 for low, high in box]
    return [math.prod(sides[axis + 1 :]) for axis in range(len(sides))]
