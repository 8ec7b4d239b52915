"""Checks of arguments: positions and choices from a list."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Shaped

from pejax._calls.names import did_you_mean


def check_position_type(positions: Shaped[Array | np.ndarray, "..."], name: str = "positions") -> None:
    """Refuse positions that are not numbers, and floats of 16 bits, which would round positions to other ones.

    Args:
        positions: positions, or differences of positions.
        name: the argument in the message.

    Raises:
        TypeError: neither integers nor floats of at least 32 bits.
    """
    kind = positions.dtype
    narrow = jnp.issubdtype(kind, jnp.floating) and jnp.finfo(kind).bits < 32
    if not (narrow or jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.floating)):
        raise TypeError(f"{name} must be integers or floats, got {kind}")
    if narrow:
        largest = 2 ** (jnp.finfo(kind).nmant + 1)
        raise TypeError(f"{name} must be integers or float32, got {kind}, which is exact only up to {largest:,}")


def check_frequencies(frequencies: Shaped[Array | np.ndarray, "..."]) -> None:
    """Raise TypeError for frequencies in 16 bits: their rounding, times the position, is an error of the angle."""
    if jnp.issubdtype(frequencies.dtype, jnp.floating) and jnp.finfo(frequencies.dtype).bits < 32:
        kind = jnp.finfo(frequencies.dtype)
        turned = f"off by up to {1000 * 2.0 ** -(kind.nmant + 2):.1f} rad at position 1,000"
        raise TypeError(f"frequencies must be float32, got {kind.dtype}, {turned}: keep them in float32 in any model")


def check_ids(name: str, ids: Shaped[Array | np.ndarray, "..."]) -> None:
    """Raise TypeError for ids that are not integers; `name` is the argument in the message."""
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, got {ids.dtype}")


def check_token_ids(name: str, ids: Shaped[Array | np.ndarray, "..."], vocab: int) -> None:
    """Refuse ids that are not integers, or outside the vocabulary; the values of traced ids cannot be seen.

    Args:
        name: the argument in the message.
        ids: token ids, or ids of types.
        vocab: number of ids there are.

    Raises:
        TypeError: ids that are not integers.
        ValueError: an id below 0, or from `vocab` on.
    """
    check_ids(name, ids)
    smallest, largest = known_range(ids) or (0, 0)
    if smallest < 0 or largest >= vocab:
        wrong = smallest if smallest < 0 else largest
        raise ValueError(f"{name} must be from 0 to {vocab - 1}, one of {vocab} ids, got {wrong}")


def known_range(values: Shaped[Array | np.ndarray, "..."]) -> tuple[int, int] | None:
    """Return the smallest and the largest of integers; None where they are traced, or where there are none."""
    if isinstance(values, Tracer) or not values.size:
        return None
    with jax.ensure_compile_time_eval():  # also of known integers that a traced function reads
        return int(values.min()), int(values.max())


def check_floats(name: str, values: Shaped[Array | np.ndarray, "..."]) -> None:
    """Raise TypeError for an array that is not of a float type; `name` is the argument in the message."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(f"{name} must be of a float type, got {values.dtype}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError for a value that is not one of the choices; `name` is the argument in the message."""
    if value not in choices:
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


def check_positions(positions: tuple[int, ...], tokens: tuple[int, ...], axes: int) -> None:
    """Raise ValueError for positions of a wrong shape: `(*B, T)`, `(1, ..., 1, T)` or `(T,)`, followed by A if A > 1.

    Args:
        positions: their shape.
        tokens: `(*B, T)`, the shape of the tokens.
        axes: A, number of position axes.
    """
    trailing = (axes,) if axes > 1 else ()
    allowed = (tokens[-1:] + trailing, tokens + trailing)
    one_row = (*(1 for _ in tokens[1:]), *tokens[-1:], *trailing)
    if positions not in (*allowed, one_row):
        shapes = " or ".join(map(str, dict.fromkeys(allowed)))
        raise ValueError(f"positions of tokens {tokens} on {axes} axes must be {shapes}, got {positions}")
