"""Rotates pairs of channels by the position, for all rotary encodings.

    (x1, x2) -> (x1 cos θ - x2 sin θ, x1 sin θ + x2 cos θ),   θ = sum_a positions_a · frequencies_a

Reference:
    Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 34.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Num

from pejax._ops.checks import check_choice, check_positions
from pejax._ops.phases import exact_cos_sin, geometric_frequencies, position_axes

PAIRINGS = ("interleaved", "half")


@functools.partial(jax.jit, static_argnames="pairing")
def rotate_pairs(
    x: Float[Array, "*B T H D"], cos: Float[Array, "*b T K F"], sin: Float[Array, "*b T K F"], *, pairing: str
) -> Float[Array, "*B T H D"]:
    """Rotate pairs of channels: `(x1, x2) -> (x1 cos - x2 sin, x1 sin + x2 cos)`.

    Args:
        x: queries or keys; head h takes row h // (H/K) of cos and sin.
        cos: K divides H, 1 where all heads share it; `(T, K, F)` broadcasts over the batch.
        sin: likewise.
        pairing: "interleaved": channels 2i and 2i+1 are pair i; "half": channels i and F+i. Channels from 2F on stay.

    Returns:
        The rotated array in x's dtype, computed in float32.

    Raises:
        ValueError: an unknown pairing.
    """
    check_choice("pairing", pairing, PAIRINGS)
    *tokens, heads, channels = x.shape
    groups = cos.shape[-2]
    grouped = x.reshape(*tokens, groups, heads // groups, channels)
    cos, sin = cos[..., None, :], sin[..., None, :]
    turn = _turn_pairs if pairing == "interleaved" else _turn_halves
    return turn(grouped, cos, sin).reshape(x.shape)


def _rotated(
    first: Float[Array, "*BTKG F"],
    second: Float[Array, "*BTKG F"],
    cos: Float[Array, "*btKG F"],
    sin: Float[Array, "*btKG F"],
) -> tuple[Float[Array, "*BTKG F"], Float[Array, "*BTKG F"]]:
    return first * cos - second * sin, second * cos + first * sin


def _with_table_gradients(axis: int) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Make a decorator: on a CPU, gradients of cos and sin are sums over the batch in the form XLA is quickest at.

    For the sum over the first axis of what it multiplies, XLA:CPU takes up to 30 times longer than for a product with
    ones, which is what the transpose of another product with ones is: that of the tables and the batch's.

    Args:
        axis: of the two channels of a pair, -1 or -2, once the channels that turn are an array of pairs.
    """

    def turn_batch(x: Array, *tables: Array) -> Array:
        batch, tokens, count = x.shape[: -tables[0].ndim], x.shape[-tables[0].ndim : -1], tables[0].shape[-1]
        ones = jnp.ones(batch, tables[0].dtype)
        for_one = (jnp.broadcast_to(table, (*tokens, count)) for table in tables)
        cos, sin = (jnp.tensordot(ones, table, 0, precision="highest") for table in for_one)
        pairs = x.reshape(*x.shape[:-1], *((count, 2) if axis == -1 else (2, count)))
        swapped = jax.lax.rev(pairs, (pairs.ndim + axis,))
        # stacked: broadcast over the two, as in `_by_swapping`, their gradients would be slow sums once more
        return (pairs * jnp.stack([cos, cos], axis) + swapped * jnp.stack([-sin, sin], axis)).reshape(x.shape)

    def decorate(turn: Callable[..., Array]) -> Callable[..., Array]:
        turning: Any = jax.custom_jvp(turn)

        @functools.partial(turning.defjvp, symbolic_zeros=True)
        def jvp(primals: tuple[Array, Array, Array], tangents: tuple[Any, Any, Any]) -> tuple[Array, Array]:
            (x, *tables), (d_x, *d_tables) = primals, tangents
            change = jnp.zeros_like(x) if _is_zero(d_x) else turning(d_x, *tables)
            if not all(map(_is_zero, d_tables)):
                d_tables = [jnp.zeros(t.shape, t.dtype) if _is_zero(t) else t for t in d_tables]
                count = 2 * d_tables[0].shape[-1]
                wide = x[..., :count].astype(jnp.float32)
                rotated = jax.lax.platform_dependent(wide, *d_tables, cpu=turn_batch, default=turn).astype(x.dtype)
                change += jnp.pad(rotated, [(0, 0)] * (x.ndim - 1) + [(0, x.shape[-1] - count)])
            return turn(*primals), change

        return turning

    return decorate


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


@_with_table_gradients(axis=-2)
def _turn_halves(
    x: Float[Array, "*BTKG D"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG D"]:
    count, channels = cos.shape[-1], x.shape[-1]
    wide = x if x.dtype.itemsize > 4 else x.astype(jnp.float32)
    first, second = (wide[..., start : start + count].astype(jnp.float32) for start in (0, count))
    channel = jnp.arange(channels)

    def at(start: int, rotated: Float[Array, "*BTKG F"]) -> Float[Array, "*BTKG D"]:
        room = [(0, 0, 0)] * (x.ndim - 1) + [(start, channels - start - count, 0)]
        return jax.lax.pad(rotated.astype(wide.dtype), jnp.zeros((), wide.dtype), room)

    # selects, not a concatenation: of that, XLA:CPU makes a loop over the whole array for each part
    first, second = _rotated(first, second, cos, sin)
    out = jnp.where(channel < count, at(0, first), at(count, second))
    return (out if 2 * count == channels else jnp.where(channel < 2 * count, out, wide)).astype(x.dtype)


@_with_table_gradients(axis=-1)
def _turn_pairs(
    x: Float[Array, "*BTKG D"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG D"]:
    count = cos.shape[-1]
    turning, passing = x[..., : 2 * count], x[..., 2 * count :]
    pairs = turning.astype(jnp.float32).reshape(*x.shape[:-1], count, 2)
    if x.dtype.itemsize < 4:
        out = _by_parts(pairs, cos, sin)
    else:  # from 32 bits on, which CPUs read in any order without a loop for each part
        out = jax.lax.platform_dependent(pairs, cos, sin, cpu=_by_swapping, default=_by_parts)
    return jnp.concatenate([out.reshape(turning.shape).astype(x.dtype), passing], axis=-1)


def _by_parts(
    pairs: Float[Array, "*BTKG F 2"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG F 2"]:
    # split, not indexing: the gradient is then one concatenation and no sum of padded parts
    first, second = (part[..., 0] for part in jax.lax.split(pairs, (1, 1), pairs.ndim - 1))
    return jnp.stack(_rotated(first, second, cos, sin), -1)


def _by_swapping(
    pairs: Float[Array, "*BTKG F 2"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG F 2"]:
    """Return `(x1, x2) cos + (-x2, x1) sin`, one loop on a CPU."""
    signs = jnp.asarray([-1.0, 1.0], jnp.float32)
    return pairs * cos[..., None] + jax.lax.rev(pairs, (pairs.ndim - 1,)) * (sin[..., None] * signs)


def rope_apply(
    x: Float[Array, "*B T H D"],
    positions: Num[Array | np.ndarray, "..."] | Sequence | float,
    frequencies: Float[Array | np.ndarray, "*KA F"] | None = None,
    *,
    pairing: str = "interleaved",
    attention_factor: float | Float[Array | np.ndarray, "*F"] = 1.0,
) -> Float[Array, "*B T H D"]:
    """Rotate every pair of channels by its frequency times the token's position.

    `x'_i = attention_factor · R(sum_a positions_a · frequencies_{a,i}) x_i`, R(θ) = [[cos θ, -sin θ], [sin θ, cos θ]]

    Args:
        x: queries or keys, any float dtype; the angles never see it, those of bfloat16 are no worse. Tokens come before
            heads: `(*B, H, T, D)` is not noticed where T = H, and would be rotated along the heads.
        positions: `(T,)` or `(*B, T)`, with A > 1 axes `(T, A)` or `(*B, T, A)`; integer or float, tokens or patches;
            arrays or lists.
        frequencies: `(F,)`, `(A, F)`, or `(K, A, F)` per key head, each serving H/K consecutive heads of x; radians per
            token or patch. F ≤ D/2; channels from 2F on are left alone. None = RoFormer's
            `10000^(-2i/D)`, on one axis. They are rounded to float32, and the angles are exact for that: against a
            formula in float64 an angle is off by up to 2^-25 of itself, 2e-3 at position 100,000.
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (channels i, F+i).
        attention_factor: multiplies cos and sin, one number or `(F,)`.

    Returns:
        The rotated array, in x's shape and dtype, computed in float32.

    Raises:
        ValueError: an odd D, more than D/2 frequencies, K that does not divide H, an unknown pairing, or positions or
            an attention factor of another shape.
        TypeError: positions that are neither integers nor floats of at least 32 bits.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 34.

    Example:
        >>> q = jnp.ones((6, 8, 64))  # tokens, heads, channels
        >>> rope_apply(q, jnp.arange(6)).shape
        (6, 8, 64)
    """
    if frequencies is None:
        frequencies = geometric_frequencies(x.shape[-1] // 2, 10000.0)
    axes = position_axes(frequencies)
    positions = positions if isinstance(positions, jax.Array | np.ndarray) else jnp.asarray(positions)
    _check_rope(x.shape, positions.shape, frequencies.shape, axes)
    factor = jnp.asarray(attention_factor, jnp.float32)
    if factor.shape not in ((), frequencies.shape[-1:]):
        raise ValueError(f"attention_factor must be a number or {frequencies.shape[-1:]}, got shape {factor.shape}")
    cos, sin = exact_cos_sin(positions, frequencies, apart=True)
    if frequencies.ndim < 3:
        cos, sin = cos[..., None, :], sin[..., None, :]
    return rotate_pairs(x, *(cos * factor, sin * factor), pairing=pairing)


def _check_rope(x: tuple[int, ...], positions: tuple[int, ...], frequencies: tuple[int, ...], axes: int) -> None:
    if len(x) < 3 or x[-1] % 2:
        raise ValueError(f"x must be (*B, T, H, D) with an even head_dim D, got shape {x}")
    if 2 * frequencies[-1] > x[-1]:
        raise ValueError(f"frequencies must be at most head_dim/2 = {x[-1] // 2}, got {frequencies[-1]}")
    try:
        check_positions(positions, x[:-2], axes)
    except ValueError as error:
        raise ValueError(f"x is (*B, T, H, D) = {x}: {error}") from None
    if len(frequencies) == 3 and x[-2] % frequencies[0]:
        raise ValueError(f"heads of x must be a multiple of the frequencies' heads, got {x[-2]} and {frequencies[0]}")
