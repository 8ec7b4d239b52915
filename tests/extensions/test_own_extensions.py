"""Extensions by a function of the user's own: what the function gets, and how its records behave."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pejax
from pejax import Dims, Rotary, adapt, make_encoding, models, rope_axial_frequencies, rope_frequencies
from pejax.extensions import by_step, extension, hard_clip, log_n, ntk, soft_clip, yarn
from pejax.functions import extend_linear, extend_ntk, extend_yarn
from pejax.specs import EncodingSpec, parse_extension
from tests.support.cases import normal

TEXT = Dims(heads=2, head_dim=32, extent=64)
GRID = Dims(heads=2, head_dim=32, axes=2, extent=(8, 4))
FREQUENCIES = rope_frequencies(32)


def halved(frequencies, rotary):
    del rotary
    return frequencies / 2, 1.25


def moved(frequencies, rotary):
    """YaRN whose thresholds move with the step."""
    power = 2.0 * rotary.step**2
    return extend_yarn(frequencies, rotary, beta_fast=16.0**power, beta_slow=2.0**power)


def extended(encoding, extent, **params):
    return adapt(encoding, params, extent)["extended"]


def test_a_function_gets_the_rotary_encoding_and_every_number_of_the_call():
    seen = []

    def watch(frequencies, rotary):
        seen.append((frequencies, rotary))
        return frequencies, 1.0

    axial = make_encoding("rope_axial", GRID, hard_clip(trained_length=100) + extension(watch))
    seen.clear()
    extended(axial, (16, 6), step=0.25)
    frequencies, rotary = seen.pop()
    plain = rope_axial_frequencies(32)
    np.testing.assert_array_equal(frequencies, np.where(plain * 100 < 2 * np.pi, 0, plain))
    np.testing.assert_array_equal(rotary.base_frequencies, plain)
    assert rotary._replace(base_frequencies=None) == Rotary(100.0, 16, (16, 6), None, 0.25, (8, 4))


def test_a_function_computes_what_it_says_known_and_traced():
    text = make_encoding("rope", TEXT, extension(moved))
    for step, length in ((0.0, 128), (0.5, 128), (1.0, 500), (1.3, 9)):
        power = 2.0 * step**2
        rotary = Rotary(10000.0, 32, length)
        betas = {"beta_fast": 16.0**power, "beta_slow": 2.0**power}
        expected = extend_yarn(FREQUENCIES, rotary, trained_length=64, **betas)
        np.testing.assert_allclose(extended(text, length, step=step)[0], expected[0], rtol=1e-7)
        traced = jax.jit(lambda step, length: extended(text, length, step=step))(step, length)
        for ours, theirs in zip(traced, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6)
    assert np.abs(extended(text, 128, step=0.5)[0] / extended(text, 128, step=1.0)[0] - 1).max() > 0.1


def kept(frequencies, rotary, fast, slow):
    """Return 1 for pairs of `fast` turns and more, 0 for those of up to `slow`, by YaRN's ramp."""
    half, _ = extend_yarn(frequencies, rotary, factor=2.0, beta_fast=fast, beta_slow=slow)
    return 2 * half / np.where(frequencies == 0, np.inf, frequencies) - 1


def moving_thresholds(frequencies, rotary):
    """The function of docs/diffusion.md."""
    power = 2 * rotary.step**2
    middle = kept(frequencies, rotary, 1.25**power, 0.75**power)
    fast = kept(frequencies, rotary, 16**power, 2**power)
    slow, _ = extend_linear(frequencies, rotary)
    ntk, _ = extend_ntk(frequencies, rotary)
    slower = slow + middle * (ntk - slow)
    return slower + fast * (frequencies - slower), 1.0


def thresholds_in_double_precision(pairs, base, trained, factor, step):
    """Return the frequencies of one axis: none, NTK and a division, between thresholds to the power 2t²."""
    d, power = 2 * pairs, 2 * step**2
    plain = base ** (-np.arange(pairs) / pairs)
    ntk = (base * factor ** (d / (d - 2))) ** (-np.arange(pairs) / pairs)

    def mask(fast, slow):
        index = [d * np.log(trained / (2 * np.pi * turns**power)) / (2 * np.log(base)) for turns in (fast, slow)]
        low, high = max(np.floor(index[0]), 0), min(np.ceil(index[1]), d - 1)
        return 1 - np.clip((np.arange(pairs) - low) / (high - low or 0.001), 0, 1)

    slower = plain / factor * (1 - mask(1.25, 0.75)) + ntk * mask(1.25, 0.75)
    return slower * (1 - mask(16.0, 2.0)) + plain * mask(16.0, 2.0)


def test_thresholds_that_move_with_the_noise_level_are_said_by_a_function():
    """Flux's rows of 64 patches, 56 channels and base 10,000, at four times the side."""
    dims = Dims(heads=1, head_dim=112, axes=2, extent=(64, 64))
    encoding = make_encoding("rope_axial(base=10000)", dims, extension(moving_thresholds))
    traced = jax.jit(lambda step: extended(encoding, (256, 64), step=step)[0])
    for step in (1.0, 0.7, 0.3, 0.0):
        expected = thresholds_in_double_precision(28, 1e4, 64, 4.0, step)
        np.testing.assert_allclose(traced(step)[0, :28], expected, rtol=5e-6)
        np.testing.assert_allclose(extended(encoding, (256, 64), step=step)[0][0, :28], expected, rtol=1e-6)
        np.testing.assert_allclose(traced(step)[1, 28:], 1e4 ** (-np.arange(28) / 28), rtol=1e-6)
    first, last = (thresholds_in_double_precision(28, 1e4, 64, 4.0, step) for step in (1.0, 0.3))
    assert np.abs(last / first - 1).max() > 0.3


@pytest.mark.slow
def test_a_schedule_runs_in_one_program():
    powers = extension(lambda f, rotary: extend_linear(f, rotary, factor=4.0**rotary.step))
    encoding, traces = make_encoding("rope_axial", GRID, powers), []
    where, (q, k, v) = pejax.grid_positions(16, 4), (normal(64, 2, 32, seed=seed) for seed in range(3))

    @jax.jit
    def denoise(step):
        traces.append(step)
        return pejax.attend(encoding, q, k, v, positions=where, extent=(16, 4), params={"step": step})

    results = [denoise(step) for step in np.linspace(0.1, 1.0, 7, dtype=np.float32)]
    assert len(traces) == 1
    assert np.abs(results[0] - results[-1]).max() > 1e-3
    known = pejax.attend(encoding, q, k, v, positions=where, extent=(16, 4), params={"step": 1.0})
    np.testing.assert_allclose(results[-1], known, atol=2e-5)


@pytest.mark.slow
def test_a_model_with_padding_reads_each_row_at_its_own_length():
    """As it does with `linear`, which the function calls."""
    config = models.decoder(vocab=11, length=8, width=16, layers=2, heads=2, pe="rope")
    ids = jnp.asarray(np.random.default_rng(0).integers(1, 11, (2, 24)))
    segments = jnp.asarray(np.stack([np.arange(24) >= 10, np.ones(24)]), jnp.int32)
    own, linear = (
        models.Decoder(config.extended(extend), rngs=nnx.Rngs(0))(ids, segment_ids=segments)
        for extend in (extension(lambda f, rotary: extend_linear(f, rotary)), parse_extension("linear"))
    )
    np.testing.assert_array_equal(own, linear)


def test_it_joins_with_others_from_left_to_right_and_factors_multiply():
    joined = extension(halved) + soft_clip(pairs=4)
    rotary = Rotary(10000.0, 32, base_frequencies=FREQUENCIES)
    expected, _ = pejax.functions.extend_soft_clip(FREQUENCIES / 2, rotary, pairs=4)
    result, factor = extended(make_encoding("rope", TEXT, joined), 64)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert factor == 1.25
    one_axis = extension(lambda f, rotary: (f / np.float32([[1.0], [3.0]]), 2.0), scales=(1,)) + yarn(factor=(2.0, 1.0))
    result, factor = extended(make_encoding("rope_axial", GRID, one_axis), (16, 12))
    plain = rope_axial_frequencies(32)
    rows, heat = extend_yarn(plain, Rotary(100.0, 16), factor=(2.0, 1.0), trained_length=(8, 4))
    np.testing.assert_allclose(result, [rows[0], plain[1] / 3], rtol=1e-6)
    np.testing.assert_allclose(factor, 2 * heat, rtol=1e-6)
    stepped = make_encoding("rope", TEXT, by_step(below=ntk(factor=4), above=extension(halved)))
    result, _ = extended(stepped, 64, step=0.5)
    ends = extend_ntk(FREQUENCIES, rotary, factor=4.0)[0], FREQUENCIES / 2
    np.testing.assert_allclose(result, np.sqrt(ends[0] * ends[1]), rtol=1e-6)


def test_a_record_is_a_value_by_the_function_itself():
    assert extension(halved) == extension(halved) != extension(moved)
    assert {extension(halved): 1}[extension(halved)] == 1
    encoding = pejax.encodings.rope(TEXT, extend=extension(halved) + log_n())
    assert encoding is make_encoding("rope", TEXT, extension(halved) + log_n())
    assert encoding is make_encoding(encoding.spec, TEXT)
    assert encoding.spec == EncodingSpec("rope", extend=extension(halved) + log_n())
    assert str(extension(halved, scales=(1,)) + log_n()) == "extension(function=halved, scales=(1,))+log_n"
    words = "extension takes a function, which a string cannot name: pass the record, got 'extension(function=halved)'"
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_extension(str(extension(halved)))
    assert make_encoding("learned+rope", TEXT, extension(halved)).rotate is not None


def test_what_does_not_vary_is_computed_once_also_inside_of_a_trace():
    def by_jax(frequencies, rotary):
        assert rotary.length is rotary.step is None
        return jnp.asarray(frequencies) / 2, jnp.float32(1.25)

    fixed = extension(by_jax, varies=False)
    q = normal(3, 2, 32)
    inside = jax.jit(lambda q: make_encoding("rope", TEXT, fixed).rotate({}, q, jnp.arange(3)))(q)
    encoding = make_encoding("rope", TEXT, fixed)
    assert pejax.caches_rotated_keys(encoding)
    assert not pejax.caches_rotated_keys(make_encoding("rope", TEXT, extension(halved)))
    expected = pejax.rope_apply(q, jnp.arange(3), FREQUENCIES / 2, attention_factor=1.25)
    for result in (inside, encoding.rotate({}, q, jnp.arange(3))):
        np.testing.assert_allclose(result, expected, atol=1e-6)


SCALED = "an extension must scale an axis once, got "


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: yarn() + extension(halved), SCALED + "yarn and extension(function=halved), which both do"),
        (lambda: extension(halved) + extension(moved), "; extension(function, scales=(1,)) scales axis 1, scales=()"),
        (lambda: parse_extension("pi") + extension(halved), SCALED),
        (lambda: yarn(factor=2) + extension(halved, scales=(1,)), SCALED),
        (lambda: ntk(factor=(1, 1, 2)) + extension(halved, scales=(2,)), SCALED),
        (lambda: extension(halved, scales=(0, 1)) + extension(moved, scales=(1, 2)), SCALED),
        (lambda: extension(halved, scales=(-1,)), "scales must be axes from 0, got (-1,)"),
        (lambda: make_encoding("rope_mixed", TEXT, extension(halved)), "rope_mixed has no extension 'extension'"),
        (lambda: make_encoding("t5", TEXT, extension(halved)), "t5 has no extension 'extension'; it takes pi"),
        (lambda: pejax.extend_encoding(make_encoding("rope", TEXT), None, extension(halved)), "cannot extend a record"),
    ],
)  # fmt: skip
def test_two_scalings_of_an_axis_and_other_encodings_are_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        make()
    assert "\n" not in str(error.value)


def test_functions_that_scale_other_axes_or_nothing_join():
    for terms in (
        yarn(factor=2) + extension(halved, scales=()),
        ntk(factor=(1, 2, 2)) + extension(halved, scales=(0,)),
        extension(halved, scales=(0,)) + extension(moved, scales=(1,)),
    ):
        assert len(terms.terms) == 2


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda f: f, "must return (frequencies, factor), got float32 (2, 16)"),
        (lambda f: (f, 1.0, 2), "must return (frequencies, factor), got tuple of"),
        (lambda f: (f[0], 1.0), "must have the shape (2, 16) that it was given, got (16,)"),
        (lambda f: (f * np.nan, 1.0), "must be finite, got nan"),
        (lambda f: (f + 1, 1.0), "must be 0 where they were before any extension, got 1.0"),
        (lambda f: (f, np.ones(2)), "must be a number, or one per frequency (16,), got float64 (2,)"),
        (lambda f: (f, 0.0), "must be a finite number above 0, got 0.0"),
        (lambda f: (f, np.inf), "must be a finite number above 0, got inf"),
    ],
)
def test_what_a_function_may_not_return_is_refused_by_its_name(returned, words):
    def mine(frequencies, rotary):
        del rotary
        return returned(frequencies)

    with pytest.raises(ValueError, match=re.escape(words)) as error:
        make_encoding("rope_axial", GRID, extension(mine))
    assert "mine" in str(error.value)
    assert "\n" not in str(error.value)


def test_narrow_frequencies_and_wrong_arguments_are_refused():
    narrow = extension(lambda f, rotary: (jnp.asarray(f, jnp.bfloat16), 1.0))
    with pytest.raises(TypeError, match="frequencies must be float32, got bfloat16"):
        make_encoding("rope", TEXT, narrow)
    with pytest.raises(TypeError, match="extension: function must be a function, got 'yarn'"):
        extension("yarn")
    wide = extension(lambda f, rotary: (np.asarray(f, np.float64) / 3, np.full(16, 1.5)))
    result, factor = make_encoding("rope", TEXT, wide).adapt({}, 64)["extended"]
    np.testing.assert_array_equal(result, np.float32(FREQUENCIES.astype(np.float64) / 3))
    np.testing.assert_array_equal(factor, np.full(16, 1.5, np.float32))


def test_a_trained_length_of_the_rotary_serves_every_function():
    rotary = Rotary(10000.0, 32, 256, trained_length=64)
    np.testing.assert_array_equal(
        extend_linear(FREQUENCIES, rotary)[0], extend_linear(FREQUENCIES, rotary, factor=4.0)[0]
    )
    np.testing.assert_array_equal(extend_linear(FREQUENCIES, rotary, trained_length=128)[0], FREQUENCIES / 2)
    with pytest.raises(ValueError, match="trained_length must be at least 1, got 0"):
        extend_linear(FREQUENCIES, rotary._replace(trained_length=0))
