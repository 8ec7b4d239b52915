"""Context extension: every method against a loop in double precision, and what each of them promises."""

import functools
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pejax import alibi_bias, alibi_slopes, interpolate_positions
from pejax._encodings.rope import rope_frequencies
from pejax._encodings.rope_axial import rope_axial_frequencies
from pejax._extensions.base import Rotary
from pejax._extensions.linear import extend_linear
from pejax._extensions.longrope import extend_longrope
from pejax._extensions.ntk import extend_ntk
from pejax._extensions.yarn import extend_yarn
from pejax._ops.rotary import rope_apply
from pejax.functions import scale_alibi_slopes
from tests.support.cases import EXTEND_FREQUENCIES

DIM, BASE, TRAINED = 32, 10000.0, 512
ROTARY = Rotary(BASE, DIM)
LISTS = {
    "short_factors": tuple(1.0 + 0.05 * i for i in range(DIM // 2)),
    "long_factors": tuple(1.0 + 0.4 * i for i in range(DIM // 2)),
}
FREQUENCIES = rope_frequencies(DIM, base=BASE)


def lists_of(name: str) -> dict:
    """Return the arguments that an extension cannot do without."""
    return LISTS if name == "longrope" else {}


def extend(name, frequencies=FREQUENCIES, *, base=BASE, rotary_dim=DIM, length=None, before=None, **options):
    """Call an extension of rotary pairs trained on 512 tokens."""
    rotary = Rotary(base, rotary_dim, length, before)
    return EXTEND_FREQUENCIES[name](frequencies, rotary, **{"trained_length": TRAINED, **lists_of(name), **options})


def yarn_ratio(i, *, dim, base, length, factor, fast=32.0, slow=1.0, truncate=True) -> float:
    """Return by what YaRN multiplies pair i, from the definition of its ramp."""
    pair = lambda turns: dim * math.log(length / (turns * math.tau)) / (2 * math.log(base))
    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = min(max((i - low) / (high - low if high > low else 0.001), 0.0), 1.0)
    return ramp / factor + (1 - ramp)


def llama3_ratio(i, *, dim, base, length, factor, low=1.0, high=4.0) -> float:
    """Return by what Llama 3 multiplies pair i, from wavelengths."""
    wavelength = math.tau * base ** (2 * i / dim)
    if wavelength > length / low:
        return 1 / factor
    if wavelength < length / high:
        return 1.0
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) / factor + smooth


def reference(name: str, i: int, *, factor: float, length: int, dim=DIM, base=BASE, trained=TRAINED) -> float:
    """Return the frequency of pair i after an extension, computed alone and in double precision."""
    frequency = base ** (-2 * i / dim)
    if name == "linear":
        return frequency / factor
    if name == "ntk":
        return (base * factor ** (dim / (dim - 2))) ** (-2 * i / dim)
    if name == "dynamic_ntk":
        grown = factor * max(length, trained) / trained - (factor - 1)
        return (base * grown ** (dim / (dim - 2))) ** (-2 * i / dim)
    if name == "yarn":
        return frequency * yarn_ratio(i, dim=dim, base=base, length=trained, factor=factor)
    if name == "llama3":
        return frequency * llama3_ratio(i, dim=dim, base=base, length=trained, factor=factor)
    return frequency / LISTS["long_factors" if length > trained else "short_factors"][i]


@pytest.mark.parametrize("name", EXTEND_FREQUENCIES)
def test_every_pair_is_what_a_loop_in_double_precision_says(name):
    for factor, length in ((1.0, 400), (4.0, 512), (6.5, 513), (40.0, 4000)):
        expected = [reference(name, i, factor=factor, length=length) for i in range(DIM // 2)]
        actual, _ = extend(name, factor=factor, length=length)
        assert isinstance(actual, np.ndarray)
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=3e-7)


@pytest.mark.parametrize("name", EXTEND_FREQUENCIES)
def test_a_traced_length_and_a_traced_factor_change_nothing(name):
    """In float32, where what is known beforehand is computed in double precision."""
    extended = extend(name, factor=4.0, length=2000)
    by_length = jax.jit(lambda length: extend(name, factor=4.0, length=length))
    for actual in (by_length(2000), jax.jit(lambda factor: extend(name, factor=factor, length=2000))(4.0)):
        np.testing.assert_allclose(actual[0], extended[0], rtol=1e-6)
        np.testing.assert_allclose(actual[1], extended[1], rtol=1e-6)
    np.testing.assert_allclose(by_length(300)[0], extend(name, factor=4.0, length=300)[0], rtol=1e-6)
    traced = jax.jit(lambda frequencies: extend(name, frequencies, factor=4.0, length=2000)[0])(FREQUENCIES)
    np.testing.assert_allclose(traced, extended[0], rtol=1e-6)


@pytest.mark.parametrize("name", EXTEND_FREQUENCIES)
def test_a_factor_of_one_changes_nothing(name):
    flat = dict.fromkeys(LISTS, (1.0,) * (DIM // 2)) if name == "longrope" else {}
    for options in ({"factor": 1.0}, {"length": TRAINED}, {"length": 17}):
        frequencies, attention_factor = extend(name, **options, **flat)
        np.testing.assert_array_equal(frequencies, FREQUENCIES)
        assert attention_factor == 1.0


@pytest.mark.parametrize("name", EXTEND_FREQUENCIES)
def test_a_factor_left_out_follows_from_the_length(name):
    factor = 1.0 if name == "dynamic_ntk" else 4.0
    np.testing.assert_array_equal(extend(name, length=2048)[0], extend(name, factor=factor, length=2048)[0])
    assert extend(name, length=2048)[1] == extend(name, factor=factor, length=2048)[1]


def test_linear_is_position_interpolation():
    """By powers of two to the rounding of the result; else to that of the positions, `position · 2^-24`."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, DIM)), jnp.float32)
    positions = jnp.asarray([5, 1021, 2047])
    for length, tolerance in ((2048, 5e-7), (3072, 2047 * 2.0**-24)):
        factor = length / TRAINED
        squeezed = rope_apply(x, interpolate_positions(positions, TRAINED, length), FREQUENCIES)
        stretched = rope_apply(x, positions, extend_linear(FREQUENCIES, ROTARY, factor=factor)[0])
        np.testing.assert_allclose(stretched, squeezed, rtol=tolerance, atol=tolerance)


def test_ntk_leaves_the_fastest_pair_and_divides_the_slowest_by_the_factor():
    for factor in (2.0, 8.0):
        frequencies, _ = extend("ntk", factor=factor)
        assert frequencies[0] == 1.0
        assert frequencies[-1] == FREQUENCIES[-1] / np.float32(factor)
    np.testing.assert_array_equal(extend_ntk(np.ones(1, np.float32), Rotary(BASE, 2), factor=4.0)[0], [1.0])


def test_dynamic_ntk_begins_beyond_the_trained_length():
    for length in (1, 511, 512):
        np.testing.assert_array_equal(extend("dynamic_ntk", factor=4.0, length=length)[0], FREQUENCIES)
    np.testing.assert_array_equal(extend("dynamic_ntk", factor=4.0)[0], FREQUENCIES)
    grown, _ = extend("dynamic_ntk", factor=4.0, length=1024)
    np.testing.assert_array_equal(grown, extend("ntk", factor=5.0)[0])


def test_yarn_leaves_fast_pairs_divides_slow_ones_and_falls_in_between():
    ratio = extend("yarn", factor=8.0)[0] / FREQUENCIES
    low, high = 1, 8  # 512 tokens hold 32 turns of pair 1.6 and one turn of pair 7.6
    np.testing.assert_array_equal(ratio[: low + 1], 1.0)
    np.testing.assert_array_equal(ratio[high:], 0.125)
    assert np.all(np.diff(ratio[low : high + 1]) < 0)
    np.testing.assert_allclose(np.diff(ratio[low : high + 1]), -0.875 / 7, rtol=1e-5)


def test_yarn_without_truncation_and_with_other_betas():
    for options in ({"truncate": False}, {"beta_fast": 8.0, "beta_slow": 2.0}):
        renamed = {"beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate"}
        options_here = {renamed[name]: value for name, value in options.items()}
        ratios = [
            yarn_ratio(i, dim=DIM, base=BASE, length=TRAINED, factor=8.0, **options_here) for i in range(DIM // 2)
        ]
        np.testing.assert_allclose(extend("yarn", factor=8.0, **options)[0] / FREQUENCIES, ratios, rtol=3e-7)


def paper_ratios(frequencies, *, length, factor, fast=32.0, slow=1.0) -> np.ndarray:
    """Return by what the paper's YaRN multiplies frequencies: its ramp counts turns in the trained length."""
    turns = length * np.asarray(frequencies, np.float64) / (2 * np.pi)
    kept = np.where(turns > fast, 1.0, np.where(turns < slow, 0.0, (turns - slow) / (fast - slow)))
    return kept + (1 - kept) / factor


def test_yarn_of_the_paper_blends_by_the_turns_in_the_trained_length():
    for options, named in (({}, {}), ({"beta_fast": 8.0, "beta_slow": 2.0}, {"fast": 8.0, "slow": 2.0})):
        ratios = paper_ratios(FREQUENCIES, length=TRAINED, factor=8.0, **named)
        assert np.unique(ratios).size > 3
        extended, attention_factor = extend("yarn", factor=8.0, ramp="turns", **options)
        np.testing.assert_allclose(extended / FREQUENCIES, ratios, rtol=3e-7)
        assert attention_factor == extend("yarn", factor=8.0)[1]
    before = FREQUENCIES / np.float32(3)
    extended, _ = extend("yarn", before, before=FREQUENCIES, factor=8.0, ramp="turns")
    np.testing.assert_allclose(extended / before, paper_ratios(FREQUENCIES, length=TRAINED, factor=8.0), rtol=5e-7)
    traced = jax.jit(lambda fast: extend("yarn", factor=8.0, ramp="turns", beta_fast=fast)[0])(8.0)
    expected = paper_ratios(FREQUENCIES, length=TRAINED, factor=8.0, fast=8.0)
    np.testing.assert_allclose(traced / FREQUENCIES, expected, rtol=2e-6)


def test_equal_betas_are_a_threshold():
    by_turns = extend("yarn", factor=4.0, ramp="turns", beta_fast=2.0, beta_slow=2.0)[0] / FREQUENCIES
    np.testing.assert_array_equal(by_turns, np.where(TRAINED * FREQUENCIES / math.tau > 2.0, 1.0, 0.25))
    by_pair = extend("yarn", factor=4.0, beta_fast=2.0, beta_slow=2.0)[0] / FREQUENCIES
    np.testing.assert_allclose(by_pair, by_turns, rtol=3e-7)


def test_the_table_of_ramps_in_the_guide_is_what_they_multiply_pairs_by():
    """On small grids the paper's ramp is nearly 1/2 for every pair, with factor 2; both against float64."""
    guide = (Path(__file__).parents[2] / "docs" / "longer-contexts.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (\d+) \| (.*) \| (.*) \| (.*) \|$", guide, re.MULTILINE)
    assert len(rows) == 4
    for side, base, width, *listed in rows:
        side, base, width = (int(text.replace(",", "")) for text in (side, base, width))
        turned, pair, by_turns = ([float(number) for number in text.split(", ")] for text in listed)
        frequencies = base ** (-np.arange(4) * 2 / width)
        by_index = [yarn_ratio(i, dim=width, base=base, length=side, factor=2.0) for i in range(4)]
        ratios = {"pair": by_index, "turns": paper_ratios(frequencies, length=side, factor=2.0)}
        np.testing.assert_allclose(turned, side * frequencies / (2 * np.pi), rtol=2e-3, atol=5e-3)
        for (ramp, expected), shown in zip(ratios.items(), (pair, by_turns), strict=True):
            np.testing.assert_allclose(shown, expected, atol=6e-3)
            plain, rotary = rope_frequencies(width, base=base), Rotary(base, width)
            extended, _ = extend_yarn(plain, rotary, factor=2.0, trained_length=side, ramp=ramp)
            np.testing.assert_allclose(extended[:4] / plain[:4], expected, rtol=3e-7)


def test_yarn_ends_at_the_last_channel_not_at_the_last_pair():
    """A base so small that every pair turns often: the ramp ends beyond the pairs there are."""
    small = rope_frequencies(16, base=50.0)
    extended, _ = extend_yarn(small, Rotary(50.0, 16), trained_length=256, factor=4.0)
    ratios = [yarn_ratio(i, dim=16, base=50.0, length=256, factor=4.0) for i in range(8)]
    assert 0.25 < ratios[-1] < 1.0
    np.testing.assert_allclose(extended / small, ratios, rtol=3e-7)


def test_yarn_of_a_length_below_one_turn_divides_all_but_the_fastest_pair():
    ratio = extend("yarn", trained_length=2, factor=2.0)[0] / FREQUENCIES
    np.testing.assert_array_equal(ratio, [1.0] + [0.5] * (DIM // 2 - 1))
    np.testing.assert_array_equal(extend("yarn", trained_length=10**12, factor=2.0)[0], FREQUENCIES)


@given(
    st.sampled_from(["linear", "ntk", "dynamic_ntk", "yarn", "llama3"]),
    st.integers(1, 64),
    st.floats(1.5, 1e8),
    st.floats(1.0, 1e4),
    st.integers(1, 10**7),
)
def test_no_pair_is_sped_up_or_slowed_beyond_the_factor_and_slower_pairs_stay_slower(name, pairs, base, factor, length):
    frequencies = rope_frequencies(2 * pairs, base=base)
    rotary, options = Rotary(base, 2 * pairs, 2 * length), {"trained_length": length, "factor": factor}
    extended, attention_factor = EXTEND_FREQUENCIES[name](frequencies, rotary, **options)
    most = factor + 1 if name == "dynamic_ntk" else factor
    assert np.all(extended <= frequencies * (1 + 1e-5))
    assert np.all(extended >= frequencies / most * (1 - 1e-5))
    assert np.all(np.diff(extended) <= 1e-5 * extended[:-1])
    assert 1.0 <= attention_factor < 2.0


def test_attention_factors_are_the_papers():
    heat = 0.1 * math.log(8.0) + 1
    assert extend("yarn", factor=8.0)[1] == pytest.approx(heat, rel=1e-12)
    assert extend("yarn", factor=8.0, mscale=1.0)[1] == pytest.approx(heat, rel=1e-12), "one alone counts as none"
    assert extend("yarn", factor=8.0, mscale=0.7, mscale_all_dim=0.7)[1] == 1.0
    expected = (0.2 * math.log(8.0) + 1) / heat
    assert extend("yarn", factor=8.0, mscale=2.0, mscale_all_dim=1.0)[1] == pytest.approx(expected, rel=1e-12)
    assert extend("yarn", factor=8.0, attention_factor=0.9)[1] == 0.9
    expected = math.sqrt(1 + math.log(8.0) / math.log(512))
    for length in (100, 5000):
        assert extend("longrope", factor=8.0, length=length)[1] == pytest.approx(expected, rel=1e-12)
    assert extend("longrope", factor=8.0, attention_factor=1.19)[1] == 1.19


def test_longrope_changes_lists_beyond_the_trained_length():
    short, long = (np.float32(1) / np.float32(LISTS[name]) for name in ("short_factors", "long_factors"))
    for length, expected in ((None, short), (512, short), (513, long)):
        np.testing.assert_allclose(extend("longrope", factor=2.0, length=length)[0] / FREQUENCIES, expected, rtol=3e-7)
    options = {"trained_length": TRAINED, "factor": 2.0, "long_factors": LISTS["long_factors"]}
    only = extend_longrope(FREQUENCIES, ROTARY._replace(length=512), **options)
    np.testing.assert_array_equal(only[0], FREQUENCIES)


def test_extensions_compose():
    twice, _ = extend("linear", extend("linear", factor=2.0)[0], factor=4.0)
    np.testing.assert_array_equal(twice, extend("linear", factor=8.0)[0])
    ntk, _ = extend("ntk", factor=2.0)
    for name in EXTEND_FREQUENCIES:
        extended, _ = extend(name, ntk, factor=3.0, length=1500, before=FREQUENCIES)
        alone = extend(name, factor=3.0, length=1500)[0] / FREQUENCIES
        np.testing.assert_allclose(extended, ntk * alone, rtol=3e-7)


@pytest.mark.parametrize("name", EXTEND_FREQUENCIES)
def test_gradients_are_finite_at_zero_frequencies_too(name):
    def total(frequencies, factor, length):
        extended, attention_factor = extend(name, frequencies, factor=factor, length=length)
        return jnp.sum(extended) + jnp.sum(jnp.asarray(attention_factor, jnp.float32))

    args = (jnp.asarray(np.append(FREQUENCIES, [0.0, 0.0])), 4.0, 2000.0)
    slopes = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*args)
    assert all(np.all(np.isfinite(slope)) for slope in slopes)
    step = 1e-2
    by_factor = (total(args[0], 4.0 + step, 2000) - total(args[0], 4.0 - step, 2000)) / (2 * step)
    np.testing.assert_allclose(slopes[1], by_factor, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("name", EXTEND_FREQUENCIES)
def test_channels_that_do_not_turn_are_left_alone(name):
    partial = np.append(FREQUENCIES, np.zeros(4, np.float32))
    frequencies, attention_factor = extend(name, partial, factor=4.0, length=2000)
    np.testing.assert_array_equal(frequencies[-4:], 0.0)
    np.testing.assert_array_equal(frequencies[:-4], extend(name, factor=4.0, length=2000)[0])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, DIM + 8)), jnp.float32)
    turned = rope_apply(x, jnp.arange(3), frequencies, attention_factor=attention_factor)
    np.testing.assert_array_equal(turned[..., DIM:], x[..., DIM:])
    norms = np.linalg.norm(turned[..., :DIM], axis=-1) / np.linalg.norm(x[..., :DIM], axis=-1)
    np.testing.assert_allclose(norms, extend(name, factor=4.0, length=2000)[1], rtol=1e-5)


@pytest.mark.parametrize("name", EXTEND_FREQUENCIES)
def test_axes_are_extended_each_by_its_own_length(name):
    grid = rope_axial_frequencies(2 * DIM, base=BASE, layout="alternate")
    frequencies, attention_factor = extend(name, grid, trained_length=(512, 256), length=(1024, 1024))
    alone = [extend(name, trained_length=512, length=1024), extend(name, trained_length=256, length=1024)]
    for axis, (expected, factor) in enumerate(alone):
        np.testing.assert_array_equal(frequencies[axis, axis::2], expected)
        np.testing.assert_array_equal(frequencies[axis, 1 - axis :: 2], 0.0)
        np.testing.assert_allclose(np.broadcast_to(attention_factor, DIM)[axis::2], factor, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *(
            (functools.partial(extend, name, factor=factor), rf"factor must be .*, got {factor}")
            for name in EXTEND_FREQUENCIES
            for factor in (0.5, 0, -1.0, math.nan, math.inf)
        ),
        (lambda: extend_linear(FREQUENCIES, ROTARY), "factor or length must be given, got None for both"),
        (lambda: extend_linear(FREQUENCIES, ROTARY._replace(length=9)), "needs trained_length .*, got None"),
        (lambda: extend("yarn", factor=2.0, trained_length=None), "yarn needs trained_length .*, got None"),
        (lambda: extend("llama3", factor=2.0, trained_length=None), "llama3 needs trained_length"),
        (lambda: extend("longrope", factor=2.0, trained_length=None), "longrope needs trained_length"),
        (lambda: extend("dynamic_ntk", factor=2.0, trained_length=None), "dynamic_ntk needs trained_length"),
        (lambda: extend("linear", length=0), "length must be at least 1, got 0"),
        (lambda: extend("yarn", factor=2.0, trained_length=0), "trained_length must be at least 1, got 0"),
        (lambda: extend("linear", length=(4, 4)), r"length must be a number, or one per axis .*\(16,\), got \(4, 4\)"),
        (lambda: extend("ntk", factor=2.0, base=1.0), "base must be a finite number above 1, got 1.0"),
        (lambda: extend("ntk", factor=2.0, rotary_dim=3), "rotary_dim must be even and at least 2, got 3"),
        (lambda: extend("yarn", factor=2.0, beta_slow=33.0), "beta_fast must be at least beta_slow, .* 32.0 and 33.0"),
        (lambda: extend("yarn", factor=2.0, ramp="turn"), "ramp must be one of pair, turns, got 'turn'; did you mean"),
        (lambda: extend("yarn", factor=2.0, attention_factor=0.0), "attention_factor must be .* above 0, got 0.0"),
        (lambda: extend("longrope", factor=2.0, attention_factor=-1.0), "attention_factor must be .* got -1.0"),
        (lambda: extend("longrope", factor=2.0, long_factors=(1.0,)), "must be 16 finite numbers above 0, got 1"),
        (lambda: extend("longrope", factor=2.0, short_factors=(0.0,) * 16), "above 0, got 0.0"),
        (lambda: extend("longrope", factor=2.0, trained_length=1), "at least 2, got 1"),
        (lambda: extend("llama3", factor=2.0, low_freq_factor=5.0), "at least low_freq_factor, .* 4.0 and 5.0"),
    ],
)
def test_what_no_extension_can_do_is_refused(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_scaled_slopes_keep_the_largest_penalty():
    slopes = alibi_slopes(4)
    largest = lambda slopes, reach: alibi_bias(jnp.asarray([0]), jnp.asarray([reach]), slopes)
    for length in (64, 96, 4096):
        stretched = scale_alibi_slopes(slopes, 64, length)
        np.testing.assert_allclose(largest(stretched, length), largest(slopes, 64), rtol=1e-6)
    np.testing.assert_array_equal(scale_alibi_slopes(slopes, 64, 9), slopes)
