"""Exact phases: cosines and sines of position · frequency for sinusoidal and rotary encodings, at any position.

An angle is position · frequency, needed modulo one turn (2π). A float32 product is 0.02 rad off at position 10^6 and
0.5 rad at 2^24, so angles are held in turns, as integers:

    phase = round(2^32 · position · frequency / 2π) mod 2^32

The frequency, a float32 m·2^e, becomes a 64-bit fixed-point fraction of a turn: m times a window of the binary
expansion of 1/2π that starts at 2^-e, without whole turns. A position is an exact sum of int32 · 2^(8·row). Products
and sums over axes wrap modulo 2^32 by integer overflow. Two short polynomials on a half turn give sine and cosine.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Num, UInt32

from pejax._ops.bitcast import bitcast
from pejax._ops.checks import check_frequencies, check_position_type
from pejax._ops.open_sizes import are_open

_INVERSE_2PI = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF1586DC91B8E909374B801924BBA82746487
_LEAD = 320  # zero bits before the expansion: exponents down to -149 (frequency) - 152 (position) start inside them
_WORDS = [_INVERSE_2PI >> shift & 0xFFFFFFFF for shift in range(352, -1, -32)]
_EXPANSION = np.array([0] * (_LEAD // 32) + _WORDS, np.uint32)
_ROWS = range(-19, 14)  # the powers 2^(8·row) that float32 positions need, from the least subnormal to the largest
# For |z| ≤ π/2, sin z = z·SINE(z²) to 3.3e-9 and cos z = COSINE(z²) to 2.5e-10: least maximum error, by reweighting.
_SINE = (0.999999976589803, -0.166666476345876, 0.00833289982246484, -0.000198008977080152, 2.59048838949227e-06)
_COSINE = (1.0, -0.499999995496, 0.0416666407280, -0.00138884035077, 2.47618862187e-5, -2.60771048137e-7)


def full_turn() -> Fraction:
    """Return 2π to 380 bits."""
    return Fraction(1 << 384, _INVERSE_2PI)


def geometric_frequencies(count: int, base: float) -> Float[np.ndarray, " F"]:
    """Return `base^(-i/count)` for i = 0 ... count-1, in radians per token, rounded once to float32.

    Raises:
        ValueError: a base that is not a finite number above 0.
    """
    if not 0 < base < math.inf:
        raise ValueError(f"base must be a finite number above 0, got {base!r}")
    return np.power(float(base), -np.arange(count) / count).astype(np.float32)


def exact_cos_sin(
    positions: Num[Array | np.ndarray, "..."],
    frequencies: Float[Array | np.ndarray, "*KA F"],
    *,
    materialize: bool = False,
) -> tuple[Float[Array, "*BTK F"], Float[Array, "*BTK F"]]:
    """Return the cosine and sine of `sum_a positions_a · frequencies_a`, exact to float32 rounding at any position.

    The frequencies are taken as exact float32 numbers: product, sum over axes and reduction modulo a turn are exact to
    2^-31 turns per axis, rising to 2^-25 for integers near 2^31. The results are within 4e-7 on one axis, without
    `jax_enable_x64`, for frequencies of any magnitude, and exactly 1 and 0 at position 0. Both arguments get gradients.

    Args:
        positions: `(*B, T)`, or `(*B, T, A)` where the frequencies have A > 1 axes; integers of any width, or floats,
            read as float32 (float64 as a sum of two), in tokens or patches.
        frequencies: `(F,)`, `(A, F)` or `(K, A, F)`, radians per token or patch, cast to float32.
        materialize: whether a CPU stores the results once. Otherwise XLA may fuse the computation into every consumer,
            and repeat it there.

    Returns:
        cos and sin in float32, `(*B, T, F)`, or `(*B, T, K, F)` for `(K, A, F)`. A position or a frequency that is not
        finite gives NaN.

    Raises:
        ValueError: frequencies of another rank, or positions without the axes the frequencies have.
        TypeError: positions that are neither integers nor floats of at least 32 bits.
    """
    positions, frequencies = jnp.asarray(positions), jnp.asarray(frequencies).astype(jnp.float32)
    check_position_type(positions)
    axes = position_axes(frequencies)
    if axes > 1 and positions.shape[-1:] != (axes,):
        raise ValueError(f"positions must end in {axes} axes as the frequencies have, got shape {positions.shape}")
    by_axis = frequencies[None] if frequencies.ndim == 1 else jnp.moveaxis(frequencies, -2, 0)
    return _cos_sin(positions if axes > 1 else positions[..., None], by_axis, materialize)


def position_axes(frequencies: Float[Array | np.ndarray, "*KA F"]) -> int:
    """Return A of frequencies `(F,)`, `(A, F)` or `(K, A, F)`: positions carry an axis dimension where A > 1.

    Raises:
        ValueError: frequencies of another rank.
        TypeError: a tuple, or frequencies in 16 bits.
    """
    if isinstance(frequencies, tuple):
        rule = "an array; extensions return (frequencies, attention_factor), to be passed as two arguments"
        raise TypeError(f"frequencies must be {rule}, got a tuple of {len(frequencies)}")
    if not 1 <= frequencies.ndim <= 3:
        raise ValueError(f"frequencies must be (F,), (A, F) or (K, A, F), got shape {frequencies.shape}")
    check_frequencies(frequencies)
    return 1 if frequencies.ndim == 1 else frequencies.shape[-2]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
@functools.partial(jax.jit, static_argnums=2)
def _cos_sin(
    positions: Num[Array, "*BT A"], frequencies: Float[Array, "A *K F"], materialize: bool
) -> tuple[Float[Array, "*BTK F"], Float[Array, "*BTK F"]]:
    """Return cos and sin of `sum_a positions_a · frequencies_a`, with a float32 derivative."""
    if not materialize or are_open(positions) or positions.size == positions.shape[-1]:  # its loop has two halves
        return _fused_cos_sin(positions, frequencies)
    return jax.lax.platform_dependent(positions, frequencies, cpu=_in_halves, default=_fused_cos_sin)


@_cos_sin.defjvp
def _cos_sin_jvp(materialize: bool, primals: tuple, tangents: tuple) -> tuple:
    """Return cos, sin and their tangents, by the angle's tangent in float32."""
    positions, frequencies = primals
    cos, sin = _cos_sin(positions, frequencies, materialize)
    angle = _angle(positions, tangents[1])
    if jnp.issubdtype(positions.dtype, jnp.floating):
        angle = angle + _angle(tangents[0], frequencies)
    return (cos, sin), (-sin * angle, cos * angle)


def _in_halves(
    positions: Num[Array, "*BT A"], frequencies: Float[Array, "A *K F"]
) -> tuple[Float[Array, "*BTK F"], Float[Array, "*BTK F"]]:
    """Compute the tables in a loop over two halves of the tokens, because XLA:CPU does not fuse across a loop."""
    tokens = positions.shape[:-1]
    rows = positions.reshape(math.prod(tokens), positions.shape[-1])
    halves = jnp.pad(rows, [(0, len(rows) % 2), (0, 0)]).reshape(2, -1, rows.shape[1])
    tables = jax.lax.map(lambda half: _fused_cos_sin(half, frequencies), halves)
    join = lambda table: table.reshape(-1, *table.shape[2:])[: len(rows)].reshape(*tokens, *table.shape[2:])
    return join(tables[0]), join(tables[1])


def _fused_cos_sin(
    positions: Num[Array, "*BT A"], frequencies: Float[Array, "A *K F"]
) -> tuple[Float[Array, "*BTK F"], Float[Array, "*BTK F"]]:
    """Return the tables in operations that XLA may fuse; NaN where a position or a frequency is not finite."""
    radians = jnp.where(jnp.isfinite(frequencies).all(axis=0), jnp.float32(math.tau / 2**32), jnp.float32(np.nan))
    if jnp.issubdtype(positions.dtype, jnp.floating):
        finite = jnp.isfinite(positions).all(axis=-1)
        radians = _lift(lambda ok: jnp.where(ok, radians, jnp.float32(np.nan)), finite.ndim)(finite)
    phase = functools.reduce(jnp.add, (_phase(positions[..., a], frequencies[a]) for a in range(len(frequencies))))
    return _half_turn(phase, radians)


def _angle(positions: Num[Array, "*BT A"], frequencies: Float[Array, "A *K F"]) -> Float[Array, "*BTK F"]:
    """Return `sum_a positions_a · frequencies_a` in plain float32, which is accurate enough for a derivative."""
    of_token = lambda position: jnp.tensordot(position, frequencies, 1, precision="highest")
    return _lift(of_token, positions.ndim - 1)(positions.astype(jnp.float32))


def _lift(function: Callable, ndim: int) -> Callable:
    """Return the function mapped over `ndim` leading dimensions of all its arguments."""
    for _ in range(ndim):
        function = jax.vmap(function)
    return function


def _phase(positions: Num[Array, "*BT"], frequencies: Float[Array, "*K F"]) -> Int32[Array, "*BTK F"]:
    """Return `2^32 · position · frequency / 2π` modulo 2^32, on one axis."""
    total = jnp.int32(0)
    for digit, row in _digits(positions):
        if isinstance(row, int):
            high, low = _turns(frequencies, jnp.int32(8 * row))
            total = total + _lift(lambda d, high=high, low=low: _wrap(d, high, low), digit.ndim)(digit)
        else:
            high, low = jax.vmap(lambda power: _turns(frequencies, power))(8 * jnp.array(_ROWS, jnp.int32))
            index = row - jnp.int32(_ROWS.start)
            total = total + _lift(lambda d, r, high=high, low=low: _wrap(d, high[r], low[r]), digit.ndim)(digit, index)
    return total


def _wrap(digit: Int32[Array, ""], high: Int32[Array, "*K F"], low: Float[Array, "*K F"]) -> Int32[Array, "*K F"]:
    """Return `digit · (high + low)` modulo 2^32. As |low| ≤ 1/2, the product with low fits and float32 is enough."""
    return digit * high + (digit.astype(jnp.float32) * low).astype(jnp.int32)


def _digits(positions: Num[Array, "*BT"]) -> list[tuple[Int32[Array, "*BT"], Int32[Array, "*BT"] | int]]:
    """Write positions as an exact sum of `digit · 2^(8·row)`, digits in int32."""
    kind, bits = positions.dtype.kind, 8 * positions.dtype.itemsize
    if jnp.issubdtype(positions.dtype, jnp.floating):
        nearest = positions.astype(jnp.float32)
        remainder = _digits((positions - nearest.astype(positions.dtype)).astype(jnp.float32)) if bits == 64 else []
        sign, mantissa, exponent = _float_parts(nearest)
        return [(sign * (mantissa << (exponent & 7)), exponent >> 3), *remainder]
    if bits < 32 or (bits == 32 and kind == "i"):
        return [(positions.astype(jnp.int32), 0)]
    mask = jnp.asarray(0xFFFFFF, positions.dtype)
    shifted = [positions >> jnp.asarray(shift, positions.dtype) for shift in range(0, bits, 24)]
    digits = [*(part & mask for part in shifted[:-1]), shifted[-1]]
    return [(digit.astype(jnp.int32), 3 * i) for i, digit in enumerate(digits)]


def _float_parts(x: Float[Array, "*N"]) -> tuple[Int32[Array, "*N"], Int32[Array, "*N"], Int32[Array, "*N"]]:
    """Write float32 numbers, subnormals too, as `sign · mantissa · 2^exponent` with mantissas below 2^24."""
    bits = bitcast(x, jnp.int32)
    biased = (bits >> 23) & 0xFF
    mantissa = (bits & 0x7FFFFF) | jnp.where(biased > 0, jnp.int32(1 << 23), jnp.int32(0))
    return jnp.where(bits < 0, jnp.int32(-1), jnp.int32(1)), mantissa, jnp.maximum(biased, 1) - 150


def _turns(frequencies: Float[Array, "*N"], power: Int32[Array, ""]) -> tuple[Int32[Array, "*N"], Float[Array, "*N"]]:
    """Return `2^32 · frequency · 2^power / 2π` modulo 2^32 as an integer and a float32 remainder within 1/2."""
    sign, mantissa, exponent = _float_parts(frequencies)
    start = exponent + power + _LEAD
    indices = jax.vmap(lambda i: (start >> 5) + i)(jnp.arange(4, dtype=jnp.int32))
    words = jnp.asarray(_EXPANSION).at[indices].get(mode="promise_in_bounds")
    shift, mantissa = (start & 31).astype(jnp.uint32), mantissa.astype(jnp.uint32)
    window = (words[:-1] << shift) | ((words[1:] >> 1) >> (31 - shift))
    lower, upper = mantissa * window, _high_product(mantissa, window)
    below = lower[1] + upper[2]
    above = lower[0] + upper[1] + (below < lower[1]).astype(jnp.uint32)
    high = (above + (below >> 31)).astype(jnp.int32)
    low = below.astype(jnp.int32).astype(jnp.float32) * jnp.float32(2**-32)
    return sign * high, sign.astype(jnp.float32) * low


def _high_product(a: UInt32[Array, "*N"], b: UInt32[Array, "M *N"]) -> UInt32[Array, "M *N"]:
    """Return the upper 32 bits of the 64-bit product, from products of 16-bit halves."""
    a1, a0, b1, b0 = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    inner = a1 * b0 + (a0 * b0 >> 16)
    outer = a0 * b1 + (inner & 0xFFFF)
    return a1 * b1 + (inner >> 16) + (outer >> 16)


def _half_turn(phase: Int32[Array, "*N"], radians: Float[Array, "*M"]) -> tuple[Float[Array, "*N"], Float[Array, "*N"]]:
    """Return cosine and sine of an angle of `phase` · 2^-32 turns; `radians` is 2π/2^32, or NaN for a NaN result.

    Both are exact at phase 0. Beyond a quarter turn, cos x = -cos(half a turn - x) and sin x = sin(half a turn - x).
    """
    beyond = (phase ^ (phase << 1)) < 0
    angle = jnp.where(beyond, jnp.int32(-(2**31)) - phase, phase).astype(jnp.float32) * radians
    square = angle * angle
    cos, sin = _polynomial(_COSINE, square), angle * _polynomial(_SINE, square)
    return jnp.where(beyond, -cos, cos), sin


def _polynomial(coefficients: tuple[float, ...], x: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Return `Σ_n coefficients[n] · x^n`, by Horner's method."""
    descending = [jnp.float32(coefficient) for coefficient in coefficients[::-1]]
    return functools.reduce(lambda total, coefficient: total * x + coefficient, descending)
