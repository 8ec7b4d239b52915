"""Checks of what users give."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped


def check_position_type(positions: Shaped[Array | np.ndarray, "..."]) -> None:
    """Refuse positions that are no numbers, and floats that do not hold every position: it would be another one.

    Raises:
        TypeError: neither integers nor floats of at least 32 bits.
    """
    kind = positions.dtype
    narrow = jnp.issubdtype(kind, jnp.floating) and jnp.finfo(kind).bits < 32
    if not (narrow or jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.floating)):
        raise TypeError(f"positions must be integers or floats, got {kind}")
    if narrow:
        most = 2 ** (jnp.finfo(kind).nmant + 1)
        raise TypeError(f"positions must be integers or float32, got {kind}, which is exact only up to {most:,}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_positions(positions: tuple[int, ...], tokens: tuple[int, ...], axes: int) -> None:
    """Refuse a shape that is neither the tokens' own `(*B, T)` nor `(T,)`, followed by A where A > 1."""
    trailing = (axes,) if axes > 1 else ()
    allowed = (tokens[-1:] + trailing, tokens + trailing)
    if positions not in allowed:
        shapes = " or ".join(map(str, dict.fromkeys(allowed)))
        raise ValueError(f"positions of tokens {tokens} on {axes} axes must be {shapes}, got {positions}")
