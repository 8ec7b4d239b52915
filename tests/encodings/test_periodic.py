"""Axes on which positions repeat: angles against float64, a period that changes nothing, and what is refused."""

import pickle
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pejax
from pejax import Dims, adapt, make_encoding
from pejax._attention.backends import IMPLEMENTATIONS
from pejax._ops.periods import LEAST, MOST, axis_rows, whole_turns
from tests.support.cases import normal, slow

GLOBE = Dims(heads=2, head_dim=32, axes=2)
"""Latitude and longitude."""

DAY = Dims(heads=2, head_dim=32)
LATITUDE_LONGITUDE = "rope_axial(periodic=(None, 360.0))"


def rotated(encoding, positions, dims, extent=None):
    """Return ones turned by an encoding at positions `(T,)` or `(T, A)`: their angles, in both channels of a pair."""
    ones = jnp.ones((len(positions), dims.heads, dims.head_dim))
    return np.asarray(jax.jit(encoding.rotate)(adapt(encoding, {}, extent), ones, positions))


@pytest.mark.parametrize("base", [1.5, 100.0, 1e4, 1e-4])
@pytest.mark.parametrize("period", [360.0, 2 * np.pi, 24.0, 0.001, 365.2425, 1e7])
def test_turns_are_whole_rise_with_the_frequency_and_are_the_nearest_that_differ(base, period):
    frequencies = np.power(base, -np.arange(16) / 16).astype(np.float32)
    turns = whole_turns(frequencies, period)
    exact = frequencies.astype(float) * period / (2 * np.pi)
    ordered = sorted(zip(exact, turns, strict=True))
    assert len({*turns}) == 16
    assert min(turns) >= 1
    for place, (wish, count) in enumerate(ordered):
        least = ordered[place - 1][1] + 1 if place else 1
        assert count == max(round(wish), least)


def test_turns_of_longitude_in_degrees():
    frequencies = np.power(100.0, -np.arange(8) / 8).astype(np.float32)
    assert whole_turns(frequencies, 360.0) == [57, 32, 18, 10, 6, 3, 2, 1]
    assert whole_turns(np.asarray([1.0, 0.0, 1.0], np.float32), 360.0) == [57, 0, 57]


@pytest.mark.parametrize("period", [slow(360.0), slow(365.2425), slow(2 * np.pi), slow(86400.0), slow(LEAST), MOST])
def test_angles_are_those_of_fractions(period):
    """Within three periods and a hundred million, at the shortest and the longest period, too."""
    encoding = make_encoding(f"rope(periodic={period!r})", DAY)
    turns = whole_turns(pejax.rope_frequencies(32), period)
    reach = np.where(np.arange(100) < 50, 3.0, 1e8) * period
    positions = np.random.default_rng(0).uniform(-reach, reach).astype(np.float32)
    shares = [
        [position * count / Fraction(period) % 1 for count in turns] for position in map(Fraction, positions.tolist())
    ]
    angles = 2 * np.pi * np.asarray(shares, float)
    expected = np.stack([np.cos(angles) - np.sin(angles), np.sin(angles) + np.cos(angles)], axis=-1)
    result = rotated(encoding, jnp.asarray(positions), DAY)[:, 0].reshape(100, 16, 2)
    np.testing.assert_allclose(result, expected, atol=2e-6)


FORMS = {
    "rope(periodic=360.0)": DAY,
    "rope(periodic=360.0, rotary_dim=16, pairing='half')": DAY,
    "rope(periodic=360.0, layout='proportional', rotary_dim=16)": DAY,
    "rope_axial(periodic=(360.0,))": DAY,
    LATITUDE_LONGITUDE: GLOBE,
    "rope_axial(periodic=(360.0, 360.0), layout='alternate', indexing='xy', pairing='half')": GLOBE,
    "rope_axial(periodic=(None, 360.0), heads=(1, 1))": GLOBE,
    "rope_axial(periodic=(360.0, None), across_heads=True, spectrum='inclusive', rest='first')": GLOBE,
    "rope_axial(periodic=(None, 360.0), pairing='half_by_axis', widths=(8, 24))": GLOBE,
    "rope_axial(periodic=(None, 360.0), extend='yarn(factor=4, trained_length=16)')": GLOBE,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [jnp.float32, jnp.int32])
@pytest.mark.parametrize("spec", FORMS)
def test_periods_added_change_nothing(spec, kind):
    """At positions whose sum is exact in float32: eighths, and sums below 2^21."""
    dims = FORMS[spec]
    encoding = make_encoding(spec, dims)
    eighths = np.random.default_rng(1).integers(-(2**13), 2**13, (40, dims.axes)) / 8
    at = eighths if kind == jnp.float32 else np.floor(eighths)
    repeats = np.asarray([period or 0.0 for period in encoding.periods])
    place = lambda values: jnp.asarray(values if dims.axes > 1 else values[:, 0], kind)
    before = rotated(encoding, place(at), dims)
    for count in (1, -1, 1000):
        np.testing.assert_allclose(rotated(encoding, place(at + count * repeats), dims), before, atol=2e-6)
    assert np.abs(rotated(encoding, place(at + repeats / 2), dims) - before).max() > 0.1


@pytest.mark.slow
def test_the_other_axis_turns_as_without_a_period():
    plain, around = (make_encoding(spec, GLOBE) for spec in ("rope_axial", LATITUDE_LONGITUDE))
    at = jnp.stack([jnp.linspace(-90.0, 90.0, 7), jnp.zeros(7)], axis=-1)
    np.testing.assert_array_equal(rotated(plain, at, GLOBE), rotated(around, at, GLOBE))


IMPLEMENTED = ["reference", "dense", "blockwise", "cpu", "gpu", "tpu"]


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTED)
def test_neighbors_across_the_seam_are_neighbors(implementation):
    """359 beside 1 is 1 beside 3, in outputs and gradients, at float and at whole degrees."""
    assert implementation in IMPLEMENTATIONS
    encoding = make_encoding("rope_axial(periodic=(None, 360.0))", Dims(heads=2, head_dim=16, axes=2))
    q = normal(1, 6, 2, 16)
    longitudes = np.asarray([358.5, 359.0, 0.0, 1.0, 2.0, 180.0])
    at = lambda moved: jnp.stack([jnp.linspace(-50.0, 50.0, 6), jnp.asarray(moved, jnp.float32)], axis=-1)

    @jax.jit
    def run(q, positions):
        options = {"causal": False, "implementation": implementation}
        total = lambda q: jnp.sum(pejax.attend(encoding, q, q, q, positions=positions, **options) ** 2)
        return jax.value_and_grad(total)(q)

    before = run(q, at(longitudes))
    for moved in ((longitudes + 2.0) % 360.0, longitudes - 180.0):
        for result, expected in zip(run(q, at(moved)), before, strict=True):
            np.testing.assert_allclose(result, expected, atol=1e-5, rtol=1e-5)
    assert np.abs(np.asarray(run(q, at(-longitudes))[0] - before[0])).max() > 1e-3


@pytest.mark.slow
def test_the_gradient_of_a_position_is_that_of_its_angle():
    encoding, weight = make_encoding("rope(periodic=360.0)", DAY), normal(1, 2, 32)
    turns = np.asarray(whole_turns(pejax.rope_frequencies(32), 360.0), float)
    total = lambda at: jnp.sum(weight * encoding.rotate({}, jnp.ones((1, 2, 32)), at))
    for at in (-0.25, 359.75, 361.0, -1e5):
        angles = 2 * np.pi * np.mod(turns * at / 360, 1.0)
        slopes = np.stack([-np.sin(angles) - np.cos(angles), np.cos(angles) - np.sin(angles)], -1).reshape(32)
        expected = np.sum(np.asarray(weight, float)[0] * slopes * np.repeat(turns, 2) * 2 * np.pi / 360)
        np.testing.assert_allclose(jax.grad(total)(jnp.float32([at]))[0], expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("extend", ["yarn(factor=4)", "ntk", "linear(factor=2)", "pi", "pi(factor=(2, 3))"])
def test_extensions_leave_a_periodic_axis_as_it_is(extend):
    dims = Dims(heads=2, head_dim=32, axes=2, extent=(32, 90))
    plain, longer = (make_encoding(LATITUDE_LONGITUDE, dims, name) for name in ("none", extend))
    along = lambda axis: jnp.where(jnp.arange(2) == axis, jnp.arange(0, 90, 7)[:, None], 0).astype(jnp.float32)
    extent = (64, 180)
    np.testing.assert_array_equal(
        rotated(longer, along(1), dims, extent)[..., 16:], rotated(plain, along(1), dims)[..., 16:]
    )
    assert np.abs(rotated(longer, along(0), dims, extent) - rotated(plain, along(0), dims)).max() > 0.1


@pytest.mark.slow
def test_a_panorama_can_begin_at_any_column():
    """A vision transformer gives the same states for columns of patches that are turned round."""
    from pejax.models import ViT, vit

    sizes = {"image_size": (12, 24), "patch": 3, "channels": 1, "classes": 2, "width": 32, "layers": 2, "heads": 2}
    images = normal(1, 12, 24, 1)
    rolled = jnp.roll(images, 9, axis=2)
    for pe, is_round in (("rope_axial(periodic=(None, 8.0))", True), ("rope_axial", False)):
        model = ViT(vit(**sizes, pe=pe, pool="mean"), rngs=nnx.Rngs(0))
        states, moved = (model.states(x).reshape(4, 8, 32) for x in (images, rolled))
        change = float(jnp.abs(jnp.roll(states, 3, axis=1) - moved).max())
        assert (change < 2e-5) == is_round


@pytest.mark.slow
def test_with_64_bits_periods_are_those_of_float64():
    with jax.enable_x64(True):
        encoding = make_encoding("rope(periodic=365.2425)", DAY)
        at = np.asarray([0.1, 17.25, 300.0])
        far = jnp.asarray(at + 365.2425 * 2000)
        np.testing.assert_allclose(rotated(encoding, far, DAY), rotated(encoding, jnp.asarray(at), DAY), atol=2e-6)


def test_a_periodic_encoding_is_its_spec():
    encoding = make_encoding(LATITUDE_LONGITUDE, GLOBE)
    assert encoding is pejax.encodings.rope_axial(GLOBE, periodic=[None, 360])
    assert pickle.loads(pickle.dumps(encoding)) is encoding
    assert str(encoding.spec) == "rope_axial(periodic=(None, 360.0))"
    assert make_encoding("rope_axial(periodic=(None, None))", GLOBE).periods == ()
    text = pejax.explain(encoding)
    assert "periods: positions repeat every 360.0 on axis 1\n" in text
    assert "periods" not in pejax.explain(make_encoding("rope_axial", GLOBE))


@pytest.mark.slow
def test_costs_are_counted_at_positions_that_tell_all_turns_apart():
    assert "cost: rotate" in pejax.explain(make_encoding("rope(periodic=2.0)", DAY), DAY)


def test_a_sum_keeps_the_periods_of_its_rotation():
    dims = Dims(heads=2, head_dim=32, axes=2, extent=(4, 8))
    encoding = make_encoding("learned+rope_axial(periodic=(None, 8.0), widths=(24, 8))", dims)
    assert encoding.periods == (None, 8.0)


REFUSED = {
    "rope(periodic=0.0)": "periodic must be None, or above 0, from 1e-30 to 1e+12, got 0.0",
    "rope(periodic=-360.0)": "periodic must be None, or above 0, from 1e-30 to 1e+12, got -360.0",
    "rope(periodic=2e12)": "periodic must be None, or above 0, from 1e-30 to 1e+12, got 2000000000000.0",
    "rope(periodic=360.0, extend='yarn(factor=2)')": "extend must have an axis that is not periodic, got 'yarn",
    "rope(periodic=360.0, extend='pi')": "extend must have an axis that is not periodic, got 'linear'",
    "rope(periodic=360.0, extend='rerope')": "rerope must extend an axis that is not periodic, got periods",
    "rope_axial(periodic=(None, 0.0))": "periodic must be None, or above 0, from 1e-30 to 1e+12, got 0.0",
    "rope_axial(periodic=(360.0,))": "periodic must be one period or None per axis, axes=2, got (360.0,)",
    "rope_axial(preset='prx', periodic=(None, 360.0))": "periodic must be None with a preset, whose frequencies",
    "rope_mixed(periodic=(None, 360.0))": "got 'periodic': its frequencies are trained, and make no whole turns",
    "rope_axial(periodic=(None, 360.0), extend='riflex(axis=1)')": "axis must be one on which pairs turn, got 1",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_what_no_period_can_be_is_refused(spec):
    dims = GLOBE if spec.startswith(("rope_axial", "rope_mixed")) else Dims(2, 32, extent=16, causal=True)
    with pytest.raises(ValueError, match=re.escape(REFUSED[spec])) as refusal:
        make_encoding(spec, dims)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("period", [float("nan"), float("inf"), "360"])
def test_a_period_that_is_no_number_is_refused(period):
    with pytest.raises((ValueError, TypeError), match="rope_axial: periodic must be "):
        pejax.encodings.rope_axial(GLOBE, periodic=(None, period))


def test_on_several_axes_rope_points_to_the_encoding_with_a_period_per_axis():
    with pytest.raises(ValueError, match="periodic must be None on axes=2, where rope_axial has one per axis"):
        make_encoding("rope(periodic=360.0)", Dims(2, 32, axes=2, extent=(4, 4)))


def test_rope_mixed_says_why_it_has_no_periods():
    with pytest.raises(TypeError, match="got 'periodic': its frequencies are trained, and make no whole turns"):
        pejax.encodings.rope_mixed(GLOBE, periodic=(None, 360.0))


@pytest.mark.slow
def test_integer_positions_that_tell_no_more_turns_apart_are_refused():
    encoding = make_encoding("rope(periodic=24)", Dims(2, 32))
    assert np.isfinite(rotated(encoding, jnp.arange(24.0), DAY)).all()
    words = "tell at most 12 turns per period 24.0 apart, got pairs of up to 16: make fewer pairs turn, or give floats"
    with pytest.raises(ValueError, match=words):
        rotated(encoding, jnp.arange(24), DAY)
    few = make_encoding("rope(periodic=24, rotary_dim=24)", DAY)
    turned = rotated(few, jnp.arange(24), DAY)[:, 0, :24]
    assert np.linalg.matrix_rank(turned, tol=1e-3) == 23  # every wave is another one; of 12 turns only the cosine


def test_positions_of_a_wrong_shape_are_named_as_they_were_given():
    with pytest.raises(ValueError, match=r"positions of tokens \(5,\) on 2 axes must be \(5, 2\), got \(5, 3\)"):
        rotated(make_encoding(LATITUDE_LONGITUDE, GLOBE), jnp.zeros((5, 3)), GLOBE)


def test_without_periods_nothing_is_added():
    frequencies = pejax.rope_axial_frequencies(32)
    assert axis_rows(frequencies, ()).beside(frequencies) is frequencies
