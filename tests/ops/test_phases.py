"""Phases against exact integer arithmetic: every kind of position, every magnitude of frequency, x64 off."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pejax._ops import phases
from pejax._ops.phases import exact_cos_sin, geometric_frequencies
from tests.support.cases import slow

TOLERANCE = 4e-7
USUAL = geometric_frequencies(8, 10000.0)
WILD = np.array([0.0, 1e-45, -1e-38, 1e-30, -3.7, 0.1, 1e6, 2e20, -3.4e38], np.float32)


@functools.cache
def inverse_two_pi(bits: int) -> int:
    """Return `floor(2^bits / 2π)` by Machin's formula, π/4 = 4 arctan(1/5) - arctan(1/239)."""
    one = 1 << (2 * bits)

    def arctan_inverse(n: int) -> int:
        power, total, k = one // n, 0, 0
        while power:
            total += (-1) ** k * (power // (2 * k + 1))
            power, k = power // (n * n), k + 1
        return total

    two_pi = 8 * (4 * arctan_inverse(5) - arctan_inverse(239))
    return (one << bits) // two_pi


def oracle(positions: np.ndarray, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin of every position times every frequency, `(T, F)` in float64, reduced in exact arithmetic."""

    def ratio(x: object) -> tuple[int, int]:
        return (int(x), 1) if isinstance(x, np.integer) else float(x).as_integer_ratio()

    def radians(position: tuple[int, int], frequency: tuple[int, int]) -> float:
        turns = position[0] * frequency[0] * inverse_two_pi(600) // (position[1] * frequency[1])
        return (turns >> 536 & (1 << 64) - 1) / 2**64 * 2 * np.pi

    rows, columns = ([ratio(x) for x in array] for array in (positions, frequencies))
    angles = np.array([[radians(p, f) for f in columns] for p in rows])
    return np.cos(angles), np.sin(angles)


def error(actual: tuple, expected: tuple) -> float:
    """Return the largest error of either table, in float64."""
    return max(float(np.max(np.abs(np.asarray(a, np.float64) - e))) for a, e in zip(actual, expected, strict=True))


def test_the_expansion_of_a_turn():
    assert inverse_two_pi(600) >> (600 - 384) == phases._INVERSE_2PI


@pytest.mark.parametrize("first", [0, 10**6, 2**24 - 4096, -(2**24)])
def test_integers_match_float64_products(first):
    """A 24-bit position times a 24-bit mantissa is exact in float64."""
    positions = np.arange(first, first + 4096, dtype=np.int32)
    angles = positions[:, None].astype(np.float64) * USUAL.astype(np.float64)
    assert error(exact_cos_sin(positions, USUAL), (np.cos(angles), np.sin(angles))) < TOLERANCE


@pytest.mark.parametrize("frequencies", [USUAL, WILD], ids=["usual", "wild"])
@pytest.mark.parametrize("kind", ["int8", *map(slow, ["uint8", "int16", "uint16", "int32"]), "uint32"])
def test_every_integer_type_to_its_ends(kind, frequencies):
    info = np.iinfo(kind)
    positions = np.array([info.min, info.min + 1, 0, 1, 77, info.max // 3, info.max - 1, info.max], kind)
    assert error(exact_cos_sin(positions, frequencies), oracle(positions, frequencies)) < TOLERANCE


@pytest.mark.parametrize("frequencies", [USUAL, WILD], ids=["usual", "wild"])
def test_every_exponent_of_a_fractional_position(frequencies):
    """Subnormals and the largest numbers are among them."""
    sign = np.resize([1.0, -1.0], 277)
    values = np.append(sign * 1.371 * 2.0 ** np.arange(-149.0, 128.0), [0.1, 2 / 3, -1000.5, 131071.67])
    positions = jnp.asarray(values, jnp.float32)
    expected = oracle(np.asarray(positions).astype(np.float64), frequencies)
    assert error(exact_cos_sin(positions, frequencies), expected) < TOLERANCE


def test_four_thousand_frequencies_of_any_bits():
    """Carries between the words of a product are rare: at large positions one that is lost is a fraction of a turn."""
    draws = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    frequencies = draws[np.isfinite(draws)]
    positions = np.array([2**31 - 1, 3 - 2**24], np.int32)
    assert error(exact_cos_sin(positions, frequencies), oracle(positions, frequencies)) < TOLERANCE


compiled = jax.jit(exact_cos_sin)
ONE = {"allow_nan": False, "allow_infinity": False, "width": 32}


@hypothesis.given(
    st.integers(-(2**31), 2**31 - 1) | st.floats(**ONE), st.floats(**ONE), st.floats(**ONE, min_value=-10, max_value=10)
)
def test_any_position_and_any_frequency(position, frequency, usual):
    """Drawn; the frequencies are traced."""
    positions = np.asarray([position], np.int32 if isinstance(position, int) else np.float32)
    frequencies = np.asarray([frequency, usual], np.float32)
    assert error(compiled(positions, frequencies), oracle(positions, frequencies)) < TOLERANCE


def test_axes_are_summed_without_rounding():
    """Two terms of 2^30 radians cancel to the phase of one token; the heads' frequencies differ."""
    positions = np.array([[2**30 + 1, -(2**30), 5], [-(2**31), 2**31 - 1, 0]], np.int32)
    frequencies = np.stack([np.stack([head, head, 0 * head]) for head in (USUAL, 3 * USUAL)])
    cos, sin = exact_cos_sin(positions, frequencies)
    assert cos.shape == sin.shape == (2, 2, 8)
    for head in range(2):
        expected = oracle(np.array([1, -1], np.int32), frequencies[head, 0])
        assert error((cos[:, head], sin[:, head]), expected) < 1e-6


def test_shapes_and_equal_answers_in_every_form():
    """`(*B, T, F)`, of one axis and of two, and `(*B, T, K, F)`: rows as one by one, heads too, floats as integers."""
    draw = np.random.default_rng(0)
    positions = draw.integers(-1000, 100000, (3, 5, 2), np.int32)
    frequencies = draw.normal(size=(4, 2, 3)).astype(np.float32)
    cosines_and_sines = exact_cos_sin(positions, frequencies)
    assert cosines_and_sines[0].shape == (3, 5, 4, 3)
    per_row = jax.jit(jax.vmap(exact_cos_sin, (0, None)))(positions, frequencies)
    floats = exact_cos_sin(positions.astype(np.float32), frequencies)
    two_axes = exact_cos_sin(positions, frequencies[1])
    one_axis, one_head = (exact_cos_sin(positions[..., 0], f) for f in (frequencies[1, 0], frequencies[:1, :1]))
    assert (one_axis[1].shape, one_head[1].shape) == ((3, 5, 3), (3, 5, 1, 3))
    for i in range(2):
        np.testing.assert_allclose(per_row[i], cosines_and_sines[i], atol=2e-7)
        np.testing.assert_allclose(floats[i], cosines_and_sines[i], atol=2e-7)
        np.testing.assert_allclose(two_axes[i], cosines_and_sines[i][..., 1, :], atol=2e-7)


@pytest.mark.parametrize("zero", [jnp.int32(0), jnp.float32(0.0), jnp.float32(-0.0)])
def test_position_zero_is_exactly_no_turn(zero):
    cos, sin = exact_cos_sin(zero[None], WILD)
    assert jnp.all(cos == 1)
    assert jnp.all(sin == 0)


@pytest.mark.slow
def test_what_is_not_finite_gives_nan_and_nothing_else():
    positions = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    frequencies = np.array([1, np.nan, np.inf], np.float32)
    for table in exact_cos_sin(positions, frequencies):
        assert np.isnan(np.asarray(table)).tolist() == [[False, True, True], *[[True] * 3] * 3]
    grids = exact_cos_sin(np.stack([positions, np.ones(4, np.float32)], -1), np.ones((2, 1), np.float32))
    for table in grids:
        assert np.isnan(np.asarray(table))[:, 0].tolist() == [False, True, True, True]


@pytest.mark.parametrize("kind", ["int32", "float32"])
def test_gradients_to_any_order(kind):
    """d cos = -sin·(p df + f dp): reverse for frequencies and positions, forward over reverse for the Hessian."""
    frequencies = np.array([[0.7, -1.3], [0.01, 2.5]], np.float32)
    positions = jnp.asarray([[3, -5], [1024, 2**20]], kind)
    p, f = np.asarray(positions).astype(np.float64), frequencies.astype(np.float64)
    angles = p @ f
    weigh = lambda q, g: jnp.sum(exact_cos_sin(q, g)[0] + 2 * exact_cos_sin(q, g)[1])
    slope, curve = -np.sin(angles) + 2 * np.cos(angles), -np.cos(angles) - 2 * np.sin(angles)
    np.testing.assert_allclose(jax.grad(weigh, 1)(positions, frequencies), p.T @ slope, rtol=1e-5)
    hessian = jax.jit(jax.hessian(weigh, 1))(positions, frequencies)
    np.testing.assert_allclose(hessian, np.einsum("ta,tf,tb,fg->afbg", p, curve, p, np.eye(2)), rtol=1e-5, atol=1)
    if kind != "int32":
        gradient = jax.grad(weigh)(positions, frequencies)
        assert gradient.dtype == positions.dtype
        np.testing.assert_allclose(gradient, slope @ f.T, rtol=1e-5)


@pytest.mark.slow
def test_wide_types_under_x64():
    """int64 and uint64 to their ends, float64 to 48 bits; the tables stay float32."""
    with jax.enable_x64(True):
        for kind in ("int64", "uint64"):
            info = np.iinfo(kind)
            positions = np.array([info.min, 5, 2**24, 2**40 + 12345, info.max - 1, info.max], kind)
            tables = exact_cos_sin(positions, USUAL)
            assert tables[0].dtype == jnp.float32
            assert error(tables, oracle(positions, USUAL)) < 1e-6
        positions = np.array([2.0**40 + 1 / 64, -(2.0**20) - 2.0**-20, 1 + 2.0**-40, 0.0])
        assert error(exact_cos_sin(positions, USUAL.astype(np.float64)), oracle(positions, USUAL)) < 1e-6
        gradient = jax.grad(lambda q: exact_cos_sin(q, USUAL)[1].sum())(jnp.asarray([0.5]))
        assert gradient.dtype == jnp.float64


@pytest.mark.parametrize(
    ("positions", "frequencies", "message"),
    [
        ((5,), (2, 4), r"must end in 2 axes .* got shape \(5,\)"),
        ((5, 3), (2, 4), r"must end in 2 axes .* got shape \(5, 3\)"),
        ((5,), (1, 1, 1, 4), r"\(F,\), \(A, F\) or \(K, A, F\), got shape \(1, 1, 1, 4\)"),
    ],
)
def test_wrong_shapes_are_named(positions, frequencies, message):
    with pytest.raises(ValueError, match=message):
        phases.exact_cos_sin(jnp.zeros(positions), jnp.zeros(frequencies))


@pytest.mark.parametrize("base", [0.0, -10.0, float("inf"), float("nan")])
def test_bases_that_make_no_frequency(base):
    with pytest.raises(ValueError, match=f"base must be a finite number above 0, got {base}"):
        geometric_frequencies(4, base)
