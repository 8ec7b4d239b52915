"""Channels divided among axes: each pair against a list of all pairs, their axes and frequencies, in float64."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import Dims, adapt, make_encoding, rope_axial_frequencies, rope_frequencies
from pejax._extensions.interpolation import FACTOR
from tests.support.cases import EXTEND_FREQUENCIES, normal

GRID = Dims(heads=2, head_dim=16, axes=3, extent=(4, 8, 8))
WIDTHS = (4, 2, 6)


def spectrum(width: int, base: float = 100.0, above: int = 0) -> list[float]:
    """Return the frequencies of an axis of some channels; `above` is 1 where the last one is 1/base."""
    return [base ** (-2 * j / (width - 2 * above)) for j in range(width // 2)]


def neighbors(axes: list[int], frequencies: list[float], first: int = 0) -> list[tuple]:
    """Return the pairs `(channel, channel, axis, frequency)` of neighboring channels."""
    each = enumerate(zip(axes, frequencies, strict=True))
    return [(first + 2 * t, first + 2 * t + 1, axis, frequency) for t, (axis, frequency) in each]


def halves(axes: list[int], frequencies: list[float], first: int = 0) -> list[tuple]:
    """Return the pairs of channels that are half of all apart."""
    each = enumerate(zip(axes, frequencies, strict=True))
    return [(first + t, first + len(axes) + t, axis, frequency) for t, (axis, frequency) in each]


T, H, W = (spectrum(width) for width in WIDTHS)
ALL = spectrum(12)
BLOCKS = [0, 0, 1, 2, 2, 2]
IN_TURN = [0, 1, 2, 0, 2, 2]
TURNED = [T[0], H[0], W[0], T[1], W[1], W[2]]
LTX = "across_heads=True, layout='alternate', spectrum='inclusive', rest='first', base=0.01"
RISING = [frequency for three in spectrum(10, 0.01, 1) for frequency in [three] * 3]

DIVISIONS = {
    "widths=(4, 2, 6)": neighbors(BLOCKS, T + H + W),
    "widths=(4, 2, 6), indexing='xy'": neighbors([2, 2, 2, 1, 0, 0], W + H + T),
    "widths=(4, 2, 6), base=(9.0, 1.0, 25.0)": neighbors(
        BLOCKS, spectrum(4, 9.0) + spectrum(2, 1.0) + spectrum(6, 25.0)
    ),
    "widths=(4, 2, 6), base=(9.0, 1.0, 25.0), indexing='xy'": neighbors(
        [2, 2, 2, 1, 0, 0], spectrum(6, 25.0) + spectrum(2, 1.0) + spectrum(4, 9.0)
    ),
    "rotary_dim=12": neighbors([0, 0, 1, 1, 2, 2], spectrum(4) * 3),
    "widths=(4, 2, 6), pairing='half'": halves(BLOCKS, T + H + W),
    "widths=(4, 2, 6), pairing='half_by_axis'": halves([0, 0], T) + halves([1], H, 4) + halves([2] * 3, W, 6),
    "widths=(4, 2, 6), rest='first'": neighbors(BLOCKS, T + H + W, 4),
    "widths=(4, 2, 6), layout='alternate'": neighbors(IN_TURN, TURNED),
    "widths=(4, 2, 6), layout=((2, 0), (1,))": neighbors([2, 0, 2, 0, 2, 1], [W[0], T[0], W[1], T[1], W[2], H[0]]),
    "widths=(4, 2, 6), spectrum='inclusive'": neighbors(BLOCKS, [1, 0.01, 1, 1, 0.1, 0.01]),
    "widths=(4, 2, 6), spectrum='shared'": neighbors(BLOCKS, ALL),
    "widths=(4, 2, 6), layout='alternate', spectrum='shared', pairing='half'": halves(IN_TURN, ALL),
    "widths=(4, 2, 6), spectrum='dealt'": neighbors(BLOCKS, [ALL[0], ALL[3], ALL[1], ALL[2], ALL[4], ALL[5]]),
    "heads=(1, 0, 1)": neighbors([0] * 8 + [2] * 8, spectrum(16) * 2),
    "heads=(1, 0, 1), rotary_dim=4, indexing='xy'": [
        *neighbors([2, 2], spectrum(4)),
        *neighbors([0, 0], spectrum(4), 16),
    ],
    LTX: neighbors([0, 1, 2] * 5, RISING, 2),
    f"{LTX}, pairing='half'": [
        *((t, t + 8, (t - 1) % 3, RISING[t - 1]) for t in range(1, 8)),
        *((t + 8, t + 16, (t - 1) % 3, RISING[t - 1]) for t in range(8, 16)),
    ],
    "across_heads=True": neighbors([0] * 5 + [1] * 5 + [2] * 5, spectrum(10) * 3),
}
"""By options, the pairs of the channels of one head, or of both heads together; base 100."""
SECTIONS = {
    "sections=(2, 1, 3), section_order='interleaved'": neighbors(IN_TURN, ALL),
    "sections=(2, 2, 2), section_order=((1, 2), (0,))": neighbors([1, 2, 1, 2, 0, 0], ALL),
}


def turned(x: np.ndarray, at: np.ndarray, pairs: list[tuple]) -> np.ndarray:
    """Rotate the listed pairs in float64; heads are alike if the list is that of one."""
    tokens, heads, channels = x.shape
    out = np.asarray(x, np.float64).reshape(tokens, -1)
    alike = max(pair[1] for pair in pairs) < channels
    for head in range(heads if alike else 1):
        for item, other, axis, frequency in pairs:
            angle = at[:, axis] * np.float64(np.float32(frequency))
            pair = out[:, head * channels + item] + 1j * out[:, head * channels + other]
            pair = pair * np.exp(1j * angle)
            out[:, head * channels + item], out[:, head * channels + other] = pair.real, pair.imag
    return out.reshape(x.shape)


def rotated(spec: str, dims: Dims, x: jax.Array, at: np.ndarray, extend: str = "none", extent=(9, 9, 9)) -> jax.Array:
    encoding = make_encoding(spec, dims, extend)
    return encoding.rotate(adapt(encoding, {}, extent), x, jnp.asarray(at))


def places(count: int = 5) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 50, (count, 3)).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("options", DIVISIONS)
def test_every_pair_turns_with_its_axis_at_its_frequency(options):
    x, at = normal(5, 2, 16), places()
    options_with_base = options if "base" in options else f"{options}, base=100"
    result = rotated(f"rope_axial({options_with_base})", GRID, x, at)
    np.testing.assert_allclose(result, turned(x, at, DIVISIONS[options]), atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", SECTIONS)
def test_sections_of_one_spectrum_come_in_any_order(options):
    x, at = normal(5, 2, 12), places()
    result = rotated(f"rope({options}, base=100)", Dims(heads=2, head_dim=12, axes=3), x, at)
    np.testing.assert_allclose(result, turned(x, at, SECTIONS[options]), atol=5e-6)


def test_widths_spectra_and_rests_are_what_they_say():
    tenths = rope_axial_frequencies(12, widths=(2, 6), base=1000.0, rest="first")
    np.testing.assert_allclose(tenths, [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0.1, 0.01]], rtol=1e-6)
    np.testing.assert_array_equal(rope_axial_frequencies(12, widths=(6, 6)), rope_axial_frequencies(12))
    np.testing.assert_array_equal(rope_axial_frequencies(16, axes=3, rotary_dim=12), rope_axial_frequencies(12, axes=3))
    shared = rope_axial_frequencies(12, widths=WIDTHS, spectrum="shared", layout="alternate")
    np.testing.assert_array_equal(shared.sum(0), rope_frequencies(12, base=100.0))
    np.testing.assert_array_equal(shared.argmax(0), IN_TURN)


@pytest.mark.slow
def test_query_heads_turn_with_the_axis_of_their_key_head():
    dims = Dims(heads=4, kv_heads=2, head_dim=8, axes=2)
    x, at = normal(5, 4, 8), places()[:, :2]
    result = rotated("rope_axial(heads=(1, 1))", dims, x, at)
    for head in range(4):
        alone = rotated("rope(base=100)", Dims(heads=1, head_dim=8), x[:, head : head + 1], at[:, head // 2])
        np.testing.assert_allclose(result[:, head : head + 1], alone, atol=1e-6)


# Extensions

BASES = (100.0, 1000.0, 50.0)
PER_AXIS = pejax.Rotary(BASES, WIDTHS)


@pytest.mark.parametrize("name", ["linear", "ntk", "dynamic_ntk", "yarn", "llama3"])
def test_each_axis_is_extended_by_its_own_width_base_and_factor(name):
    frequencies, lengths = rope_axial_frequencies(12, widths=WIDTHS, base=BASES), (16, 64, 32)
    longer = tuple(2 * length for length in lengths)
    factors, firsts = (2.0, 1.5, 3.0), (0, 2, 3, 6)
    result, factor = EXTEND_FREQUENCIES[name](
        frequencies, PER_AXIS._replace(length=longer), factor=factors, trained_length=lengths
    )
    for axis in range(3):
        pairs_of_axis = slice(firsts[axis], firsts[axis + 1])
        alone, heat = EXTEND_FREQUENCIES[name](
            frequencies[axis, pairs_of_axis],
            pejax.Rotary(BASES[axis], WIDTHS[axis], longer[axis]),
            factor=factors[axis],
            trained_length=lengths[axis],
        )
        np.testing.assert_array_equal(result[axis, pairs_of_axis], alone)
        np.testing.assert_allclose(np.broadcast_to(factor, 6)[pairs_of_axis], heat, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "ntk", "yarn"])
def test_traced_factors_per_axis_change_nothing_and_have_gradients(name):
    frequencies = rope_axial_frequencies(12, widths=WIDTHS, base=BASES)
    extended = lambda factor: EXTEND_FREQUENCIES[name](frequencies, PER_AXIS, factor=factor, trained_length=64)
    factors = jnp.asarray([1.5, 2.0, 3.0])
    np.testing.assert_allclose(jax.jit(extended)(factors)[0], extended((1.5, 2.0, 3.0))[0], rtol=1e-6)
    total = lambda factor: jnp.sum(extended(factor)[0])
    slope, step = jax.jit(jax.grad(total))(factors), 1e-2
    for axis in range(3):
        change = jnp.zeros(3).at[axis].set(step)
        by_step = (total(factors + change) - total(factors - change)) / (2 * step)
        np.testing.assert_allclose(slope[axis], by_step, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_an_encoding_extends_each_axis_by_its_own():
    """In heads of one axis, the attention factor is that of the axis."""
    dims = Dims(heads=2, head_dim=8, axes=2, extent=(8, 32))
    x, at = normal(5, 2, 8), places()[:, :2]
    for extend in ("yarn", "yarn(factor=(2, 3))", "ntk(factor=(2, 3))"):
        result = rotated("rope_axial(heads=(1, 1), base=50)", dims, x, at, extend, (16, 96))
        for axis, (length, factor) in enumerate([(8, 2), (32, 3)]):
            one = Dims(heads=1, head_dim=8, extent=length)
            term = f"{extend.partition('(')[0]}(factor={factor})"
            alone = rotated("rope(base=50)", one, x[:, axis : axis + 1], at[:, axis], term)
            np.testing.assert_allclose(result[:, axis : axis + 1], alone, atol=5e-6)


@pytest.mark.slow
def test_positions_are_divided_by_a_factor_per_axis():
    x, at = normal(5, 2, 16), places()
    for spec in ("rope_axial(widths=(4, 2, 6))", "rope(sections=(2, 3, 3))"):
        plain = rotated(spec, GRID, x, at / np.float32([1, 2, 4]))
        for extend in ("pi(factor=(1, 2, 4))", "linear(factor=(1, 2, 4))"):
            np.testing.assert_allclose(rotated(spec, GRID, x, at, extend), plain, atol=1e-5)


@pytest.mark.slow
def test_a_factor_of_positions_holds_at_any_extent():
    dims = Dims(heads=2, head_dim=8, axes=2, extent=(6, 4))
    divided, followed = (make_encoding("t5", dims, extend) for extend in ("pi(factor=(2, 3))", "pi"))
    params = pejax.init_params(divided, jax.random.key(0))
    expected = adapt(followed, params, (12, 12))
    for extent in ((12, 12), (5, 5)):
        np.testing.assert_array_equal(adapt(divided, params, extent)[FACTOR], expected[FACTOR])
    assert FACTOR not in adapt(make_encoding("t5", dims, "pi(factor=1)"), params, (12, 12))
    sequence = Dims(heads=2, head_dim=8)
    assert make_encoding("rope", sequence, "pi(factor=2)") is make_encoding("rope", sequence, "linear(factor=2)")


# Wrong input


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rope_axial(widths=(4, 6, 8))", "widths must be 16 channels together at most, got (4, 6, 8), which are 18"),
        ("rope_axial(widths=(4, 3, 5))", "widths must be even and at least 2, got (4, 3, 5)"),
        ("rope_axial(widths=(8, 0, 8))", "widths must be even and at least 2, got (8, 0, 8)"),
        ("rope_axial(widths=(8, 8))", "widths must be one per axis, axes=3, got (8, 8)"),
        ("rope_axial(widths=(4, 2, 6), rotary_dim=16)", "must be the sum of the widths (4, 2, 6), 12, got 16"),
        ("rope_axial(rotary_dim=8)", "rotary_dim must be a multiple of 2·axes = 6, got 8; widths= divides"),
        ("rope_axial", "head_dim must be a multiple of 2·axes = 6, got 16; widths= divides the channels unequally"),
        ("rope_axial(rotary_dim=6, base=(1, 2))", "base must be one number, or one per axis, axes=3, got (1.0, 2.0)"),
        ("rope_axial(rotary_dim=6, spectrum='shared', base=(1, 2, 2))", "base must be one number with spectrum="),
        ("rope_axial(rotary_dim=6, spectrum='mine')", "spectrum must be one of own, inclusive, shared, dealt, got"),
        ("rope_axial(rotary_dim=6, rest='middle')", "rest must be one of last, first, got 'middle'"),
        ("rope_axial(rotary_dim=6, layout=((0, 1),))", "layout must hold each axis from 0 to 2 once, in groups"),
        ("rope_axial(heads=(1, 1))", "heads must be one count per axis, axes=3, and kv_heads=2 together, got (1, 1)"),
        ("rope_axial(heads=(1, 1, 1))", "axes=3, and kv_heads=2 together, got (1, 1, 1)"),
        ("rope_axial(heads=(1, 0, 1), rest='first')", "heads must come without another division of the channels"),
        ("rope_axial(across_heads=True, pairing='half_by_axis')", "must come with channels axis by axis in each head"),
        ("rope_axial(rotary_dim=6, extend='ntk(factor=(2, 2))')", "factor must be a number, or one per axis of freq"),
        ("rope_axial(rotary_dim=6, extend='pi(factor=(2, 2))')", "factor must be a number, or one per axis, axes=3"),
        ("rope_axial(rotary_dim=6, extend='pi(factor=(1, 1, 0.5))')", "factor must be at least 1, got (1.0, 1.0, 0.5)"),
        ("rope_axial(rotary_dim=6, extend='pi(factor=2, stretch=True)')", "pi must have stretch=False with a factor"),
        (
            "rope_axial(widths=(4, 2, 6), extend='longrope(long_factors=(1, 2))')",
            "longrope needs one rotary_dim for all axes, got (4, 2, 6)",
        ),
        ("rope(section_order='interleaved')", "section_order must come with sections, got 'interleaved' alone"),
        ("rope(sections=(2, 3, 3), section_order='mixed')", "section_order must be one of chunked, interleaved, got"),
        ("rope(sections=(2, 3, 3), section_order=((0, 1),))", "section_order must hold each axis from 0 to 2 once"),
    ],
)  # fmt: skip
def test_bad_divisions_are_refused_in_one_line(spec, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        make_encoding(spec, GRID)
    assert "\n" not in str(error.value)


def test_bad_numbers_per_axis_are_named():
    frequencies = rope_axial_frequencies(12, widths=WIDTHS)
    for rotary, words in (
        (pejax.Rotary(100.0, (4, 8)), "rotary_dim must be a number, or one per axis"),
        (pejax.Rotary((9.0, 9.0), 4), "base must be a number, or one per axis"),
        (pejax.Rotary(100.0, (4, 2, 5)), "rotary_dim must be even and at least 2, got 5"),
    ):
        with pytest.raises(ValueError, match=words):
            EXTEND_FREQUENCIES["ntk"](frequencies, rotary, factor=2.0)
