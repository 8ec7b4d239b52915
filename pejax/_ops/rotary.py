"""Rotation of pairs of channels by position, for all rotary encodings.

    (x1, x2) -> (x1 cos θ - x2 sin θ, x1 sin θ + x2 cos θ),   θ = sum_a positions_a · frequencies_a

Reference:
    Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 34.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Num

from pejax._calls.arguments import checked
from pejax._ops.checks import check_choice, check_floats, check_positions
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
        sin: sines of the angles, of the same shape.
        pairing: "interleaved": channels 2i and 2i+1 are pair i; "half": channels i and F+i. Channels from 2F on are
            unchanged.

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
    rotate = _rotate_interleaved if pairing == "interleaved" else _rotate_halves
    return rotate(grouped, cos, sin).reshape(x.shape)


def _rotated(
    first: Float[Array, "*BTKG F"],
    second: Float[Array, "*BTKG F"],
    cos: Float[Array, "*btKG F"],
    sin: Float[Array, "*btKG F"],
) -> tuple[Float[Array, "*BTKG F"], Float[Array, "*BTKG F"]]:
    """Return the first and second channels of all pairs, rotated."""
    return first * cos - second * sin, second * cos + first * sin


def _with_table_gradients(axis: int) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Return a decorator of rotations that makes the gradients of cos and sin fast on CPUs.

    These gradients are sums over the batch. XLA:CPU takes up to 30 times longer to sum a product over its first axis
    than to multiply it by a vector of ones. So the tables are broadcast to the batch as a product with ones, whose
    transpose is again a product with ones.

    Args:
        axis: the axis of the two channels of a pair, -1 or -2, in the array of pairs that is rotated.
    """

    def rotate_batch(x: Array, *tables: Array) -> Array:
        batch, tokens, count = x.shape[: -tables[0].ndim], x.shape[-tables[0].ndim : -1], tables[0].shape[-1]
        ones = jnp.ones(batch, tables[0].dtype)
        per_token = (jnp.broadcast_to(table, (*tokens, count)) for table in tables)
        cos, sin = (jnp.tensordot(ones, table, 0, precision="highest") for table in per_token)
        pairs = x.reshape(*x.shape[:-1], *((count, 2) if axis == -1 else (2, count)))
        swapped = jax.lax.rev(pairs, (pairs.ndim + axis,))
        # stacked, not broadcast over the pair as in `_by_swapping`, whose gradients would again be slow sums
        return (pairs * jnp.stack([cos, cos], axis) + swapped * jnp.stack([-sin, sin], axis)).reshape(x.shape)

    def decorate(rotate: Callable[..., Array]) -> Callable[..., Array]:
        with_rule: Any = jax.custom_jvp(rotate)

        @functools.partial(with_rule.defjvp, symbolic_zeros=True)
        def jvp(primals: tuple[Array, Array, Array], tangents: tuple[Any, Any, Any]) -> tuple[Array, Array]:
            (x, *tables), (d_x, *d_tables) = primals, tangents
            change = jnp.zeros_like(x) if _is_zero(d_x) else with_rule(d_x, *tables)
            if not all(map(_is_zero, d_tables)):
                d_tables = [jnp.zeros(t.shape, t.dtype) if _is_zero(t) else t for t in d_tables]
                count = 2 * d_tables[0].shape[-1]
                wide = x[..., :count].astype(jnp.float32)
                rotated = jax.lax.platform_dependent(wide, *d_tables, cpu=rotate_batch, default=rotate).astype(x.dtype)
                change += jnp.pad(rotated, [(0, 0)] * (x.ndim - 1) + [(0, x.shape[-1] - count)])
            return rotate(*primals), change

        return with_rule

    return decorate


def _is_zero(tangent: Any) -> bool:
    """Return whether JAX knows a tangent to be zero, as that of an argument that is not differentiated."""
    return isinstance(tangent, SymbolicZero)


@_with_table_gradients(axis=-2)
def _rotate_halves(
    x: Float[Array, "*BTKG D"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG D"]:
    """Rotate channels i and F+i."""
    return _by_platform("half", _halves_selected, x, cos, sin)


def _by_platform(pairing: str, elsewhere: Callable[..., Array], x: Array, cos: Array, sin: Array) -> Array:
    """Return the rotation, on a GPU in the form of `rotate_linear` unless types say how arrays are sharded."""
    from pejax._ops.linear_rotation import rotate_linear  # imports much of JAX that nothing else here needs

    if jax.sharding.get_abstract_mesh().explicit_axes:
        return elsewhere(x, cos, sin)
    on_gpu = functools.partial(rotate_linear, pairing=pairing)
    return jax.lax.platform_dependent(x, cos, sin, cuda=on_gpu, rocm=on_gpu, default=elsewhere)


def _halves_selected(
    x: Float[Array, "*BTKG D"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG D"]:
    """Rotate channels i and F+i by selects: XLA:CPU would loop over the full array once per part of a concatenation."""
    count, channels = cos.shape[-1], x.shape[-1]
    wide = x if x.dtype.itemsize > 4 else x.astype(jnp.float32)
    first, second = (wide[..., start : start + count].astype(jnp.float32) for start in (0, count))
    channel = jnp.arange(channels)

    def padded(start: int, rotated: Float[Array, "*BTKG F"]) -> Float[Array, "*BTKG D"]:
        padding = [(0, 0, 0)] * (x.ndim - 1) + [(start, channels - start - count, 0)]
        return jax.lax.pad(rotated.astype(wide.dtype), jnp.zeros((), wide.dtype), padding)

    first, second = _rotated(first, second, cos, sin)
    out = jnp.where(channel < count, padded(0, first), padded(count, second))
    return (out if 2 * count == channels else jnp.where(channel < 2 * count, out, wide)).astype(x.dtype)


@_with_table_gradients(axis=-1)
def _rotate_interleaved(
    x: Float[Array, "*BTKG D"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG D"]:
    """Rotate channels 2i and 2i+1."""
    count = cos.shape[-1]
    rotating, unchanged = x[..., : 2 * count], x[..., 2 * count :]
    if x.dtype.itemsize == 2 and 2 * count == x.shape[-1]:
        return _by_platform("interleaved", _narrow_by_parts, x, cos, sin)
    if x.dtype.itemsize < 4:
        out = _narrow_by_parts(rotating, cos, sin)
    else:  # 32 bits and more, which CPUs read in any order without one loop per channel of the pair
        pairs = rotating.astype(jnp.float32).reshape(*x.shape[:-1], count, 2)
        out = jax.lax.platform_dependent(pairs, cos, sin, cpu=_by_swapping, default=_by_parts)
    return jnp.concatenate([out.reshape(rotating.shape).astype(x.dtype), unchanged], axis=-1)


def _narrow_by_parts(
    x: Float[Array, "*BTKG D"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG D"]:
    """Rotate channels 2i and 2i+1 of an array of fewer than 32 bits."""
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    return _by_parts(pairs, cos, sin).reshape(x.shape).astype(x.dtype)


def _by_parts(
    pairs: Float[Array, "*BTKG F 2"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG F 2"]:
    """Rotate pairs by computing first and second channels separately."""
    # split, not indexing: its gradient is one concatenation instead of a sum of padded parts
    first, second = (part[..., 0] for part in jax.lax.split(pairs, (1, 1), pairs.ndim - 1))
    return jnp.stack(_rotated(first, second, cos, sin), -1)


def _by_swapping(
    pairs: Float[Array, "*BTKG F 2"], cos: Float[Array, "*btKG F"], sin: Float[Array, "*btKG F"]
) -> Float[Array, "*BTKG F 2"]:
    """Rotate pairs as `(x1, x2) cos + (-x2, x1) sin`, which is a single loop on a CPU."""
    signs = jnp.asarray([-1.0, 1.0], jnp.float32)
    return pairs * cos[..., None] + jax.lax.rev(pairs, (pairs.ndim - 1,)) * (sin[..., None] * signs)


@functools.partial(checked, frequencies="extensions return (frequencies, attention_factor), to be passed as two")
def rope_apply(
    x: Float[Array, "*B T H D"],
    positions: Num[Array | np.ndarray, "..."],
    frequencies: Float[Array | np.ndarray, "*KA F"] | None = None,
    *,
    pairing: str = "interleaved",
    attention_factor: float | Float[Array | np.ndarray, "*KF"] = 1.0,
) -> Float[Array, "*B T H D"]:
    """Rotate every pair of channels by its frequency times the token's position.

    `x'_i = attention_factor · R(sum_a positions_a · frequencies_{a,i}) x_i`, R(θ) = [[cos θ, -sin θ], [sin θ, cos θ]]

    Args:
        x: queries or keys of any float dtype, which does not affect the precision of the angles. Tokens come before
            heads. `(*B, H, T, D)` cannot be detected if T = H, and would be rotated along the heads.
        positions: `(T,)` or `(*B, T)`, with A > 1 axes `(T, A)` or `(*B, T, A)`; integer or float, tokens or patches;
            arrays or lists.
        frequencies: `(F,)`, `(A, F)`, or `(K, A, F)` per key head, each serving H/K consecutive heads of x; radians per
            token or patch. F ≤ D/2; channels from 2F on are unchanged. None = RoFormer's `10000^(-2i/D)`, on one axis.
            Those in float64 are rounded to float32, and the angles are exact for the rounded numbers: compared with
            float64 frequencies, an angle is off by up to 2^-25 times the position, 3e-3 rad at 100,000.
            Those in 16 bits are refused.
        pairing: "interleaved" (channels 2i, 2i+1) or "half" (channels i, F+i).
        attention_factor: factor of cos and sin: one number, `(F,)`, or `(K, F)` with frequencies per key head.

    Returns:
        The rotated array, in x's shape and dtype, computed in float32.

    Raises:
        ValueError: an odd D, no frequencies or over D/2, K that does not divide H, an unknown pairing, or positions
            or an attention factor of another shape.
        TypeError: x that is not of a float type, positions that are neither integers nor floats of at least 32 bits, or
            frequencies in 16 bits.

    Reference:
        Su et al. 2021, "RoFormer" (arXiv 2104.09864), equation 34.

    Examples:
        >>> q = jnp.ones((6, 8, 64))  # tokens, heads, channels
        >>> rope_apply(q, jnp.arange(6)).shape
        (6, 8, 64)
    """
    if frequencies is None:
        frequencies = geometric_frequencies(x.shape[-1] // 2, 10000.0)
    axes = position_axes(frequencies)
    _refuse_tables(positions.shape, frequencies.shape, axes)
    return rotate_at(x, positions, frequencies, pairing=pairing, attention_factor=attention_factor)


def rotate_at(
    x: Float[Array, "*B T H D"],
    positions: Num[Array | np.ndarray, "..."],
    frequencies: Float[Array | np.ndarray, "*KA F"],
    *,
    pairing: str,
    attention_factor: Any,
) -> Float[Array, "*B T H D"]:
    """Rotate as `rope_apply` does, by frequencies of any number of axes."""
    axes = position_axes(frequencies)
    check_floats("x", x)
    _check_rope(x.shape, positions.shape, frequencies.shape, axes)
    factor = jnp.asarray(attention_factor, jnp.float32)
    if factor.shape not in ((), frequencies.shape[-1:], frequencies.shape[:-2] + frequencies.shape[-1:]):
        raise ValueError(f"attention_factor must be a number or {frequencies.shape[-1:]}, got shape {factor.shape}")
    cos, sin = exact_cos_sin(positions, frequencies, materialize=True)
    if frequencies.ndim < 3:
        cos, sin = cos[..., None, :], sin[..., None, :]
    return rotate_pairs(x, *(cos * factor, sin * factor), pairing=pairing)


MOST_AXES = 4
"""Axes that tokens have: more of them in positions and frequencies of one shape are the cos and sin of transformers."""


def _refuse_tables(positions: tuple[Any, ...], frequencies: tuple[int, ...], axes: int) -> None:
    """Raise ValueError for cos and sin in place of positions and frequencies."""
    if len(frequencies) == 2 and positions == frequencies and axes > MOST_AXES:
        rule = "rope_apply takes positions and frequencies, and computes cos and sin"
        raise ValueError(f"{rule}, got two arrays of shape {positions}")


def _check_rope(x: tuple[Any, ...], positions: tuple[Any, ...], frequencies: tuple[int, ...], axes: int) -> None:
    """Raise ValueError for shapes of x, positions and frequencies that do not fit together."""
    if len(x) < 3 or x[-1] % 2:
        raise ValueError(f"x must be (*B, T, H, D) with an even head_dim D, got shape {x}")
    if not 0 < 2 * frequencies[-1] <= x[-1]:
        raise ValueError(f"frequencies must be from 1 to head_dim/2 = {x[-1] // 2} of x {x}, got {frequencies[-1]}")
    try:
        check_positions(positions, x[:-2], axes)
    except ValueError as error:
        raise ValueError(f"x is (*B, T, H, D) = {x}, frequencies {frequencies}: {error}") from None
    if len(frequencies) == 3 and x[-2] % frequencies[0]:
        raise ValueError(f"heads of x must be a multiple of the frequencies' heads, got {x[-2]} and {frequencies[0]}")
