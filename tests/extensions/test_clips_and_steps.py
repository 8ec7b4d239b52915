"""Extensions of single pairs, and from one extension to another by the step of a schedule."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import Dims, Rotary, adapt, attend, make_encoding, rope_axial_frequencies, rope_frequencies
from pejax.extensions import by_step, hard_clip, linear, ntk, resonance, riflex, soft_clip, yarn
from pejax.functions import (
    extend_by_step,
    extend_hard_clip,
    extend_linear,
    extend_llama3,
    extend_ntk,
    extend_resonance,
    extend_riflex,
    extend_soft_clip,
    extend_yarn,
)
from tests.support.cases import normal

DIM, BASE, TRAINED = 32, 1e4, 512
FREQUENCIES = rope_frequencies(DIM, base=BASE)
ROTARY = Rotary(BASE, DIM)
WIDTHS, BASES = (8, 4, 6), (256.0, 100.0, 1000.0)
AXES = rope_axial_frequencies(18, widths=WIDTHS, base=BASES)
BY_AXIS = Rotary(BASES, WIDTHS)
TEXT = Dims(heads=2, head_dim=DIM, extent=TRAINED)
VIDEO = Dims(heads=2, head_dim=18, axes=3, extent=(9, 4, 4))
SPEC = "rope_axial(widths=(8, 4, 6), base=(256, 100, 1000))"


# RIFLEx

MODELS = {"hunyuan_video": (256.0, 33, 50, 4), "cogvideox": (1e4, 13, 20, 2)}
"""By model, of the 16 channels of time: base, frames of latents in training, N and the number of the pair from 1."""


def riflex_by_loop(base: float, number: int, length: int) -> list[float]:
    """Return the published frequencies of 16 channels, with the pair of this number slowed down."""
    frequencies = [1.0 / base ** (j / 16) for j in range(0, 16, 2)]
    frequencies[number - 1] = 0.9 * 2 * math.pi / length
    return frequencies


@pytest.mark.parametrize("model", MODELS)
def test_riflex_slows_the_published_pair_of_time_beyond_the_first_repetition(model):
    base, trained, repeats_at, number = MODELS[model]
    frequencies = rope_axial_frequencies(24, widths=(16, 8), base=(base, 100.0))
    rotary = Rotary((base, 100.0), (16, 8))
    for options in ({"repeats_at": repeats_at}, {"trained_length": trained}, {"trained_length": (trained, 4)}):
        for length in (repeats_at + 1, 2 * trained, 200):
            result, factor = extend_riflex(frequencies, rotary._replace(length=(length, 8)), **options)
            np.testing.assert_allclose(result[0, :8], riflex_by_loop(base, number, length), rtol=3e-7)
            np.testing.assert_array_equal(result[1], frequencies[1])
            assert factor == 1.0
            assert result.dtype == np.float32
        for length in (None, 1, repeats_at):
            unchanged, _ = extend_riflex(frequencies, rotary._replace(length=length), **options)
            np.testing.assert_array_equal(unchanged, frequencies)


def test_riflex_chooses_by_the_pairs_before_any_extension_and_takes_another_axis():
    rotary = BY_AXIS._replace(length=(30, 40, 50), base_frequencies=AXES)
    divided, _ = extend_linear(AXES, rotary, factor=2.0)
    extended, _ = extend_riflex(divided, rotary, axis=2, repeats_at=20)
    expected = divided.copy()
    expected[2, 6] = 0.9 * math.tau / 50  # axis 2 has the periods 6, 63 and 628, and 6 is nearest to 20
    np.testing.assert_allclose(extended, expected, rtol=1e-7)


@pytest.mark.slow
def test_riflex_follows_the_grid_in_an_encoding_traced_or_not():
    encoding = make_encoding(SPEC, VIDEO, "riflex(repeats_at=25)")
    assert encoding is make_encoding(SPEC, VIDEO, riflex(repeats_at=25))
    assert not pejax.caches_rotated_keys(encoding)
    for frames in (9, 25, 26, 40):
        expected = AXES.copy()
        if frames > 25:
            expected[0, 1] = 0.9 * math.tau / frames  # periods 6, 25, 101, 402
        np.testing.assert_allclose(adapt(encoding, {}, (frames, 4, 4))["extended"][0], expected, rtol=1e-6)
    of_heads = make_encoding(
        "rope_axial(heads=(2, 1), base=256)", Dims(heads=3, head_dim=8, axes=2), "riflex(repeats_at=25)"
    )
    result = np.asarray(adapt(of_heads, {}, (40, 4))["extended"][0])
    np.testing.assert_allclose(result[0, [1, 5]], 0.9 * math.tau / 40, rtol=1e-6)
    time = rope_axial_frequencies(16, axes=1, base=256.0)
    by_length = jax.jit(lambda n: extend_riflex(time, Rotary(256.0, 16, n), repeats_at=50)[0])
    for length in (50, 51, 99):
        reference = extend_riflex(time, Rotary(256.0, 16, length), repeats_at=50)[0]
        np.testing.assert_allclose(by_length(length), reference, rtol=1e-6)
    traced = jax.jit(lambda f: extend_riflex(f, Rotary(256.0, 16, 99), trained_length=33)[0])(time)
    np.testing.assert_allclose(traced, extend_riflex(time, Rotary(256.0, 16, 99), trained_length=33)[0], rtol=1e-6)


# Clips and resonance


def test_soft_clip_slows_the_last_pairs_until_the_last_one_stops():
    for pairs in (2, 5, 16):
        expected = [float(item) for item in FREQUENCIES]
        for j in range(pairs):
            expected[16 - pairs + j] *= 0.5 * (1 + math.cos(math.pi * j / (pairs - 1)))
        result, factor = extend_soft_clip(FREQUENCIES, ROTARY, pairs=pairs)
        np.testing.assert_allclose(result, expected, rtol=3e-7, atol=1e-20)
        assert result[-1] == 0.0 == expected[-1]
        assert result[-pairs] == FREQUENCIES[-pairs]
        assert factor == 1.0
    partial = np.append(FREQUENCIES, np.zeros(3, np.float32))
    np.testing.assert_array_equal(
        extend_soft_clip(partial, ROTARY, pairs=5)[0][:16], extend_soft_clip(FREQUENCIES, ROTARY, pairs=5)[0]
    )
    slowed, _ = extend_soft_clip(FREQUENCIES / 8, ROTARY._replace(base_frequencies=FREQUENCIES), pairs=5)
    np.testing.assert_allclose(slowed, extend_soft_clip(FREQUENCIES, ROTARY, pairs=5)[0] / 8, rtol=1e-6)


def test_soft_clip_counts_the_pairs_of_each_axis_or_of_the_spectrum_that_they_share():
    result, _ = extend_soft_clip(AXES, BY_AXIS, pairs=2)
    ends = [3, 5, 8]
    np.testing.assert_array_equal(result[[0, 1, 2], ends], 0.0)
    unchanged = np.ones(9, bool)
    unchanged[ends] = False
    np.testing.assert_array_equal(result[:, unchanged], AXES[:, unchanged])
    shared = rope_axial_frequencies(18, widths=WIDTHS, spectrum="shared")
    result, _ = extend_soft_clip(shared, Rotary(100.0, 18), pairs=3)
    alone, _ = extend_soft_clip(rope_frequencies(18, base=100.0), Rotary(100.0, 18), pairs=3)
    np.testing.assert_allclose(result.sum(0), alone, rtol=1e-6)
    turning = rope_frequencies(32, rotary_dim=16, layout="proportional")
    result, _ = extend_soft_clip(turning, Rotary(1e4, 32), pairs=4)
    np.testing.assert_allclose(result[:8], turning[:8] * [1, 1, 1, 1, 1, 0.75, 0.25, 0], rtol=1e-6)


def test_hard_clip_stops_pairs_without_a_turn_in_training():
    periods = [2 * math.pi * BASE ** (i / 16) for i in range(16)]
    expected = [0.0 if period > TRAINED else 1 / BASE ** (i / 16) for i, period in enumerate(periods)]
    result, factor = extend_hard_clip(FREQUENCIES, ROTARY, trained_length=TRAINED)
    np.testing.assert_allclose(result, expected, rtol=3e-7)
    assert 0 < np.count_nonzero(result) < 16
    assert factor == 1.0
    divided, _ = extend_hard_clip(
        FREQUENCIES / 8, ROTARY._replace(base_frequencies=FREQUENCIES), trained_length=TRAINED
    )
    np.testing.assert_allclose(divided, result / 8)
    by_axis, _ = extend_hard_clip(AXES, BY_AXIS, trained_length=(26, 10, 7))
    np.testing.assert_array_equal(np.argwhere(by_axis), [[0, 0], [0, 1], [1, 4], [2, 6]])


def test_resonance_rounds_every_period():
    expected = [2 * math.pi / round(2 * math.pi * BASE ** (i / 16)) for i in range(16)]
    result, factor = extend_resonance(np.append(FREQUENCIES, np.float32(0.0)), ROTARY)
    np.testing.assert_allclose(result, [*expected, 0.0], rtol=3e-7)
    assert factor == 1.0


@pytest.mark.slow
def test_traced_frequencies_change_nothing():
    known = {"soft_clip": {"pairs": 5}, "hard_clip": {"trained_length": TRAINED}, "resonance": {}}
    for name, options in known.items():
        extend = functools.partial(getattr(pejax.functions, f"extend_{name}"), rotary=ROTARY, **options)
        traced = jax.jit(lambda f, extend=extend: extend(f)[0])(FREQUENCIES)
        np.testing.assert_allclose(traced, extend(FREQUENCIES)[0], rtol=2e-6, atol=1e-9)


@pytest.mark.slow
def test_extensions_of_single_pairs_join_with_all_others():
    frequencies = dict[str, np.ndarray]()
    for added in ("", "+soft_clip(pairs=4)", "+hard_clip", "+resonance"):
        extend = f"yarn(factor=8){added}"
        encoding = make_encoding("rope", TEXT, extend)
        assert encoding.adapt is None, "no length is needed, and keys are cached rotated"
        turned = encoding.rotate({}, jnp.ones((1, 2, DIM)), jnp.ones(1, jnp.int32))[0, 0]
        one, other = np.asarray(turned[::2], np.float64), np.asarray(turned[1::2], np.float64)
        frequencies[extend] = np.arctan2(other, one) - math.pi / 4
    reference, _ = extend_yarn(FREQUENCIES, ROTARY, factor=8.0, trained_length=TRAINED)
    for extend, expected in zip(
        frequencies,
        (
            reference,
            extend_soft_clip(reference, ROTARY._replace(base_frequencies=FREQUENCIES), pairs=4)[0],
            extend_hard_clip(reference, ROTARY._replace(base_frequencies=FREQUENCIES), trained_length=TRAINED)[0],
            extend_resonance(reference, ROTARY)[0],
        ),
        strict=True,
    ):
        np.testing.assert_allclose(frequencies[extend], expected, atol=2e-6)
    joined = yarn(factor=8) + soft_clip(pairs=4) + hard_clip() + resonance()
    assert str(joined) == "yarn(factor=8)+soft_clip(pairs=4)+hard_clip+resonance"


# By step


def stepped(step, **options):
    """Return the frequencies and the attention factor at a step."""
    return extend_by_step(FREQUENCIES, ROTARY._replace(step=step), trained_length=TRAINED, **options)


def test_between_two_extensions_frequencies_are_interpolated_geometrically():
    first, second = yarn(factor=2), ntk(factor=8)
    (g, low), (h, high) = (
        extend_yarn(FREQUENCIES, ROTARY, factor=2.0, trained_length=TRAINED),
        extend_ntk(FREQUENCIES, ROTARY, factor=8.0),
    )
    for step in (0.0, 0.3, 1.0):
        result, factor = stepped(step, below=first, above=second)
        expected = [float(a) ** (1 - step) * float(b) ** step for a, b in zip(g, h, strict=True)]
        np.testing.assert_allclose(result, expected, rtol=3e-7)
        assert factor == pytest.approx(low ** (1 - step) * high**step, rel=1e-6)
    for step in (0.0, 0.25, 1.0):
        np.testing.assert_allclose(stepped(step, above=linear(factor=4))[0], FREQUENCIES / 4**step, rtol=3e-7)
        other, _ = extend_ntk(FREQUENCIES, ROTARY, factor=4.0**step)
        np.testing.assert_allclose(stepped(step, above=ntk(factor=4))[0], other, rtol=3e-7)
        clipped, _ = extend_hard_clip(FREQUENCIES, ROTARY, trained_length=TRAINED)
        weighed = (1 - step) * FREQUENCIES + step * clipped
        np.testing.assert_allclose(stepped(step, above=hard_clip())[0], weighed, rtol=3e-7)


def test_beyond_one_the_factor_is_a_higher_power_and_stopped_pairs_stay_stopped():
    """A schedule s^(2t²), of noise levels t from 1 to 0, has steps from 2 to 0; known and traced ones agree."""
    clipped = FREQUENCIES[extend_hard_clip(FREQUENCIES, ROTARY, trained_length=TRAINED)[0] == 0]
    for level in (0.0, 0.4, 0.8, 1.0):
        step = 2 * level**2
        expected = (BASE * (4.0**step) ** (DIM / (DIM - 2))) ** (-2 * np.arange(DIM // 2) / DIM)
        result, _ = stepped(step, above=ntk(factor=4))
        np.testing.assert_allclose(result, expected, rtol=3e-7)
        traced = jax.jit(lambda step: stepped(step, above=ntk(factor=4))[0])(step)
        np.testing.assert_allclose(traced, expected, rtol=2e-6)
        stopping, starting = stepped(step, above=hard_clip())[0], stepped(step, below=hard_clip())[0]
        np.testing.assert_allclose(stopping[-len(clipped) :], max(1 - step, 0) * clipped, rtol=1e-6)
        np.testing.assert_allclose(starting[-len(clipped) :], min(step, 1) * clipped, rtol=1e-6)


def test_a_watershed_is_between_two_extensions_as_in_lumina_next():
    """Below it every frequency is divided by s, from it on the base is multiplied by s."""
    s, s_of_ntk = 4.0, 4.0 ** ((DIM - 2) / DIM)
    options = {"below": linear(factor=s), "above": ntk(factor=s_of_ntk), "watershed": 0.3}
    for step, expected in (
        (0.0, [BASE ** (-2 * i / DIM) / s for i in range(DIM // 2)]),
        (0.29, [BASE ** (-2 * i / DIM) / s for i in range(DIM // 2)]),
        (0.3, [(BASE * s) ** (-2 * i / DIM) for i in range(DIM // 2)]),
        (7.0, [(BASE * s) ** (-2 * i / DIM) for i in range(DIM // 2)]),
    ):
        result, factor = stepped(step, **options)
        np.testing.assert_allclose(result, expected, rtol=3e-7)
        assert factor == 1.0


def test_steps_of_steps_and_terms_before_count_the_pairs_as_they_were():
    rotary = ROTARY._replace(step=0.5, base_frequencies=FREQUENCIES)
    halved, _ = extend_linear(FREQUENCIES, rotary, factor=2.0)
    result, _ = extend_by_step(halved, rotary, above=by_step(above=ntk(factor=16.0)))
    expected, _ = extend_ntk(halved, rotary, factor=2.0)
    np.testing.assert_allclose(result, expected, rtol=3e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [SPEC, "rope_axial(widths=(8, 4, 6), pairing='half_by_axis')", "rope(sections=(4, 2, 3))"]
)
def test_a_schedule_of_50_steps_is_traced_once(spec):
    extend = "by_step(below='yarn(factor=(1, 2, 2))', above='linear(factor=2)+resonance')"
    encoding, traces = make_encoding(spec, VIDEO, extend), []
    assert encoding is make_encoding(spec, VIDEO, extend)
    where = pejax.positions_of([pejax.placement.video(18, 4, 4)], rule="wan")
    q, k, v = (normal(288, 2, 18, seed=seed) for seed in range(3))
    at = functools.partial(attend, encoding, q, k, v, positions=where, extent=(18, 4, 4))

    @jax.jit
    def denoise(step):
        traces.append(step)
        return at(params={"step": step**2})

    steps = np.linspace(0.0, 1.0, 50, dtype=np.float32)
    result = [np.asarray(denoise(step)) for step in steps]
    assert len(traces) == 1
    for step in (0, 17, 49):
        np.testing.assert_allclose(result[step], at(params={"step": float(steps[step]) ** 2}), atol=2e-5)
    assert np.abs(result[0] - result[49]).max() > 1e-2
    scanned = jax.lax.scan(lambda carry, step: (carry, at(params={"step": step**2})), None, steps[[0, 17, 49]])[1]
    np.testing.assert_allclose(scanned, np.stack([result[0], result[17], result[49]]), atol=2e-5)


def test_one_program_computes_the_frequencies_of_all_50_steps():
    encoding, traces = (
        make_encoding("rope", TEXT, by_step(above=ntk(factor=8))),
        [],
    )

    @jax.jit
    def extended(step):
        traces.append(step)
        return adapt(encoding, {"step": step}, 4096)["extended"]

    steps = np.linspace(0.0, 1.0, 50)
    for step in steps:
        result, factor = extended(step)
        np.testing.assert_allclose(result, stepped(step, above=ntk(factor=8))[0], rtol=2e-6)
        assert factor == 1.0
    assert len(traces) == 1


@pytest.mark.slow
def test_a_step_has_gradients():
    total = lambda step: jnp.sum(stepped(step, below=hard_clip(), above=yarn(factor=8))[0])
    for step in (0.0, 0.4, 1.0):
        slope = jax.jit(jax.grad(total))(step)
        inside = min(max(step, 1e-3), 1 - 1e-3)
        expected = (total(inside + 1e-3) - total(inside - 1e-3)) / 2e-3
        np.testing.assert_allclose(slope, expected, rtol=2e-2)


def test_learned_frequencies_are_divided_by_a_power_of_the_factor():
    dims = pejax.Dims(heads=2, head_dim=8, axes=2, extent=(4, 4))
    encoding = make_encoding("rope_mixed", dims, "by_step(above='linear')")
    params = pejax.init_params(encoding, jax.random.key(0))
    extended = adapt(encoding, {**params, "step": 0.5}, (16, 4))["extended"]
    np.testing.assert_allclose(extended, params["frequencies"] / np.array([2.0, 1.0])[:, None], rtol=1e-6)
    with pytest.raises(ValueError, match=r"^rope_mixed: above of by_step must be of linear, by_step, got 'ntk'$"):
        make_encoding("rope_mixed", dims, "by_step(above='ntk')")


def test_without_a_step_an_encoding_says_what_it_needs():
    encoding = make_encoding("rope", TEXT, "by_step(above='linear(factor=2)')")
    with pytest.raises(
        ValueError, match="by_step needs the step of the schedule: params must have a number 'step', got None"
    ):
        adapt(encoding, {}, 16)
    below = jnp.float32(-2.0)
    with pytest.raises(ValueError, match="step must be a finite number from 0 where there is no watershed, got -2"):
        jax.eval_shape(lambda length: adapt(encoding, {"step": below}, length)["extended"], jnp.int32(9))
    assert not pejax.caches_rotated_keys(encoding)
    for step, divisor in ((1, 2), (2, 4), (0, 1)):
        np.testing.assert_allclose(adapt(encoding, {"step": step}, 16)["extended"][0], FREQUENCIES / divisor)


# Traced numbers


@pytest.mark.slow
def test_numbers_of_an_extension_may_be_traced():
    yarned = lambda fast, slow, a: extend_yarn(
        FREQUENCIES, ROTARY, factor=8.0, trained_length=TRAINED, beta_fast=fast, beta_slow=slow, attention_factor=a
    )
    llama = lambda low, high, _: extend_llama3(
        FREQUENCIES, ROTARY, factor=8.0, trained_length=TRAINED, low_freq_factor=low, high_freq_factor=high
    )
    for function, numbers in ((yarned, (20.0, 1.5, 1.2)), (llama, (1.5, 5.0, 0.0))):
        for traced, known in zip(jax.jit(function)(*numbers), function(*numbers), strict=True):
            np.testing.assert_allclose(traced, known, rtol=2e-6)


# Wrong input


@pytest.mark.parametrize(
    ("extend", "words"),
    [
        ("riflex(axis=3)", "axis must be from 0 to 2, got 3"),
        ("riflex(axis=-1)", "axis must be from 0 to 2, got -1"),
        ("riflex(repeats_at=0)", "repeats_at must be at least 1, got 0"),
        ("riflex(trained_length=500)", "repeats_at must be given where no period is above the trained length 500"),
        ("riflex(trained_length=(9, 4))", "trained_length must be a number, or one per axis of frequencies (3, 9)"),
        ("soft_clip", "pairs must be from 2 to 2, the pairs that turn, got 20"),
        ("soft_clip(pairs=1)", "pairs must be from 2 to 2, the pairs that turn, got 1"),
        ("hard_clip(trained_length=0)", "trained_length must be at least 1, got 0"),
        ("by_step", "by_step must be given an extension, below or above, got neither"),
        ("by_step(above='pi')", "above must be extensions of rotary frequencies, such as linear, got 'pi'"),
        ("by_step(below='log_n + ntk')", "below must be extensions of rotary frequencies, such as linear, got 'log_n'"),
        ("by_step(above='ntk(factor=0.5)')", "factor must be at least 1, got 0.5"),
        ("by_step(above='ntkk')", "by_step: above: unknown extension 'ntkk'; did you mean 'ntk'"),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused_in_one_line(extend, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        make_encoding(SPEC, VIDEO, extend)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_encoding("rope", TEXT, "riflex"), "riflex needs frequencies by axis, (A, F)"),
        (lambda: make_encoding("rope", Dims(heads=2, head_dim=8, axes=2, extent=(9, 9)), "riflex"), "got shape (4,)"),
        (lambda: make_encoding("t5", VIDEO, "riflex"), "t5 has no extension 'riflex'; it takes pi"),
        (lambda: make_encoding("rope_mixed", TEXT, "riflex"), "rope_mixed has no extension 'riflex'"),
        (lambda: make_encoding("rope(sections=(0, 2, 2))", Dims(heads=2, head_dim=8, axes=3), "riflex(repeats_at=9)"),
         "axis must be one on which pairs turn, got 0"),
        (lambda: make_encoding("rope", Dims(heads=2, head_dim=8), "hard_clip"), "hard_clip needs trained_length"),
        (lambda: make_encoding(SPEC, Dims(heads=2, head_dim=18, axes=3), "riflex"), "riflex without repeats_at needs"),
        (lambda: extend_resonance(np.float32([20.0, 1.0]), ROTARY), "periods above half a token, got 0.314"),
        (lambda: stepped(-0.1, above=ntk(factor=2)), "step must be a finite number from 0 where there is no watershed"),
        (lambda: stepped(jnp.zeros(3), above=ntk(factor=2)), "rotary.step must be"),
        (lambda: stepped(math.nan, above=ntk(factor=2)), "rotary.step must be"),
    ],
)  # fmt: skip
def test_what_an_encoding_or_a_step_cannot_be_is_refused_in_one_line(call, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_record_holds_no_traced_numbers():
    words = r"ntk: factor must be a plain value, got a traced float32 \(\): by_step goes between two by a tr"
    with pytest.raises(TypeError, match=words):
        jax.eval_shape(lambda s: make_encoding("rope", Dims(heads=2, head_dim=8), ntk(factor=s)), jnp.float32(2.0))
    with pytest.raises(TypeError, match=r"by_step: above must be an extension such as .* got 'ntk'"):
        by_step(above="ntk")
