"""Positions from times and large numbers, and segment ids from labels, against Python's integers and float64."""

import datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import offset_positions, segment_ids_of

SECONDS = np.asarray([1764200000.0, 1764200001.0, 1764200060.5, 1764203600.0])
SINCE = [0.0, 1.0, 60.5, 3600.0]
FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "float64": (SECONDS, {}),
    "list": (SECONDS.tolist(), {}),
    "int64 ms": ((SECONDS * 1e3).astype(np.int64), {"unit": 1000}),
    "uint64 ns": ((SECONDS * 1e9).astype(np.uint64), {"unit": 1e9}),
    "list of ints beyond 64 bits": ([2**70 + 2 * int(item * 2) for item in SECONDS], {"unit": 4.0}),
    "datetime64[ms]": ((SECONDS * 1e3).astype(np.int64).astype("datetime64[ms]"), {}),
    "datetime64[ns]": ((SECONDS * 1e9).astype(np.int64).astype("datetime64[ns]"), {"unit": np.timedelta64(1, "s")}),
    "timedelta64": ((SECONDS * 1e6).astype(np.int64).astype("timedelta64[us]"), {"unit": "s"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_offsets_are_those_of_the_times(form):
    values, options = FORMS[form]
    positions, origin = offset_positions(values, **options)
    assert positions.dtype == jnp.float32
    np.testing.assert_array_equal(positions, SINCE)
    later, same = offset_positions(values[2:], origin=origin, **options)
    np.testing.assert_array_equal(later, SINCE[2:])
    assert same == origin


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([-(2**63), 2**63 - 1], {}, [0.0, 2.0**64]),
        ([2**63 + 1, -1], {}, [2.0**63, 0.0]),
        (np.asarray([2**63, 2**63 + 5], np.uint64), {}, [0.0, 5.0]),
        (np.asarray([5, 7], np.int8), {"origin": 6.0}, [-1.0, 1.0]),
        (np.asarray(["1700-01-01", "2250-01-01"], "datetime64[ns]"), {"unit": "D"}, [0.0, 200883.0]),
        (np.asarray(["2026-01", "2026-03"], "datetime64[M]"), {"unit": "D"}, [0.0, 59.0]),
        (np.asarray(["2026-01-02"], "datetime64[D]"), {"origin": np.datetime64("2026", "Y"), "unit": "h"}, [24.0]),
        (np.asarray([0, 3 * 10**18], "M8[as]"), {}, [0.0, 3.0]),
        (np.asarray([10**15, 0], "m8[as]"), {"unit": "ms"}, [1.0, 0.0]),
        (np.asarray([0, 3], "M8[W]"), {"unit": np.timedelta64(2**40, "ps")}, [0.0, np.float32(3 * 604800e12 / 2**40)]),
        (np.asarray([0, 2], "M8[D]"), {"unit": "as"}, [0.0, np.float32(2 * 86400e18)]),
        (np.asarray([0, 2], "m8[5m]"), {"unit": np.asarray(3, "m8[2s]")[()]}, [0.0, 100.0]),
    ],
)
def test_differences_do_not_wrap(values, options, expected):
    np.testing.assert_array_equal(offset_positions(values, **options)[0], expected)


def test_rows_that_lie_far_apart_have_origins_of_their_own():
    values = np.asarray([0.0, 1.5, 4.0, 9.0, 9.5]) + np.asarray([[0.0], [1764200000.0]])
    with pytest.raises(ValueError, match=r"got 1764200000.0, which .*origin that is near, such as values.min"):
        offset_positions(values)
    positions, origin = offset_positions(values, origin=values.min(axis=-1, keepdims=True))
    np.testing.assert_array_equal(positions, [values[0]] * 2)
    np.testing.assert_array_equal(origin, [[0.0], [1764200000.0]])


@pytest.mark.slow
def test_attention_of_offsets_is_that_of_the_times():
    q, rope = jnp.linspace(-1, 1, 4 * 8).reshape(1, 4, 1, 8), pejax.encodings.rope(pejax.Dims(1, 8))
    with pytest.raises(ValueError, match="offset_positions"):
        pejax.attend(rope, q, q, q, positions=SECONDS)
    seen = pejax.attend(rope, q, q, q, positions=offset_positions(SECONDS)[0])
    with jax.enable_x64(True):
        exact = pejax.attend(rope, q, q, q, positions=SECONDS)
    np.testing.assert_allclose(seen, exact, atol=3e-7)


NOON = datetime.datetime(2026, 3, 29, 12)


def test_time_zones_are_taken_to_utc():
    """On the last Sunday of March the clocks of Berlin go from 2 to 3 o'clock."""
    berlin = [datetime.timezone(datetime.timedelta(hours=hours)) for hours in (1, 2)]
    night = [NOON.replace(hour=1, minute=30, tzinfo=berlin[0]), NOON.replace(hour=3, minute=30, tzinfo=berlin[1])]
    for values in (night, np.asarray(night, object), [night[0], night[1].astimezone(datetime.UTC)]):
        positions, origin = offset_positions(values)
        assert positions.tolist() == [0.0, 3600.0]
        assert origin == np.datetime64("2026-03-29T00:30")
    assert offset_positions(np.asarray([NOON, NOON.replace(hour=13)], object))[0].tolist() == [0.0, 3600.0]


@pytest.mark.parametrize("zone", [None, datetime.UTC])
def test_an_origin_may_be_a_time_of_python(zone):
    noon, hour = NOON.replace(tzinfo=zone), datetime.timedelta(hours=1)
    for origin in (noon, [noon, noon]):
        positions, start = offset_positions([noon + hour, noon - hour], origin=origin)
        assert positions.tolist() == [3600.0, -3600.0]
        assert (start == np.datetime64("2026-03-29T12:00")).all()
        assert offset_positions([noon], origin=np.max(start))[0].tolist() == [0.0]
    assert offset_positions(np.asarray(["2026-03-30"], "M8[D]"), origin=noon, unit="h")[0].tolist() == [12.0]
    assert offset_positions([hour], origin=2 * hour, unit="m")[0].tolist() == [-60.0]


class Timedelta(datetime.timedelta):
    """The time of pandas that has nanoseconds besides."""

    nanoseconds = 1


class Timestamp(datetime.datetime):
    """The date of pandas that has nanoseconds besides."""

    nanosecond = 1


EAST = datetime.timezone(datetime.timedelta(hours=5))
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing": ([], {}, r"values must have at least one, got shape \(0,\)"),
    "nan": ([0.0, np.nan], {}, "values must be finite, got nan"),
    "NaT": (np.asarray(["NaT"], "datetime64[s]"), {}, "values must be known times, got NaT"),
    "text": ("2026", {}, "values must be an array or a list, got '2026'"),
    "text as the origin": ([NOON], {"origin": "2025"}, "origin must be a number or a time, .*, got '2025'"),
    "a unit beyond floats": ([1, 2], {"unit": 10**400}, "unit must be .*, got an integer beyond float64"),
    "texts": (["2026"], {}, "values must be integers, floats of 32 or 64 bits, .*, got <U4"),
    "no unit of time": (np.asarray([1, 2]).view("M8"), {}, r"values must have a unit, such as datetime64\[s\], got"),
    "some time zones": (
        [NOON, NOON.replace(tzinfo=datetime.UTC)], {}, "values must all have a time zone, or none, got 2026-03-29"
    ),
    "nanoseconds of a time": ([Timedelta(1)], {}, "values must be integers, .*, got object of Timedelta"),
    "nanoseconds of a date": ([Timestamp(2026, 1, 1)], {}, "values must be integers, .*, got object of Timestamp"),
    "nanoseconds of an origin": ([NOON], {"origin": Timestamp(2026, 1, 1)}, "origin must be a time as the values"),
    "a zone of the values alone": (
        [NOON.replace(tzinfo=EAST)], {"origin": NOON}, r"origin must have a time zone if .*, got datetime.datetime\("
    ),
    "a zone of the origin alone": ([NOON], {"origin": NOON.replace(tzinfo=EAST)}, "origin must have a time zone if"),
    "before the year 1": (
        [datetime.datetime(1, 1, 1, tzinfo=EAST)], {}, "values must be of the years 1 to 9999 in UTC, got from 0001-01"
    ),
    "months beyond 64 bits": (np.asarray([0, 2**59], "M8[M]"), {}, r"values must fit datetime64\[D\], got 4803"),
    "years beyond 64 bits": (np.asarray([0, 10**17], "M8[Y]"), {}, r"values must fit datetime64\[D\], got 1000"),
    "a long time": ([datetime.timedelta.max], {}, r"values must fit timedelta64\[us\], got 999999999 days"),
    "a date": ([NOON], {"origin": NOON.date()}, r"origin must be a time as the values, .*, got datetime.date\("),
    "too small a unit": ([0, 1], {"unit": 1e-310}, "positions must be finite, got inf"),
    "too far apart": ([-1.7e308, 1.7e308], {}, "positions must be finite, got inf"),
    "too large": ([0, 2**1024], {}, "values must be within 1e308 of the origin"),
    "objects": ([NOON, 1.0], {}, "values must be integers, .*, got object of datetime, float"),
    "16 bits": (np.ones(2, np.float16), {}, "values must be integers, floats of 32 or 64 bits, .*, got float16"),
    "a far origin": (SECONDS, {"origin": 0}, "positions must not lose digits in float32, got 1764200000.0"),
    "half an origin": ([1, 2], {"origin": 0.5}, "origin must be whole, as the values are, got 0.5"),
    "an origin of another kind": (np.asarray([1], "M8[s]"), {"origin": 1}, "origin must be a time as .*, got 1"),
    "an origin too fine": (
        np.asarray(["2026-01-01"], "M8[D]"), {"origin": np.datetime64(1, "as")}, "origin must have a unit"
    ),
    "other shapes": ([1, 2, 3], {"origin": np.arange(2)}, r"origin must broadcast to values \(3,\), got shape \(2,\)"),
    "months": (np.asarray([1], "m8[M]"), {}, r"values must be in weeks or a shorter unit, got timedelta64\[M\]"),
    "a unit of months": (np.asarray([1], "M8[s]"), {"unit": "M"}, "unit must be one of W, D, h, .*, got 'M'"),
    "a number of times": (np.asarray([1], "M8[s]"), {"unit": 3}, "unit of times must be a timedelta64 or .*, got 3"),
    "no time": (np.asarray([1], "M8[s]"), {"unit": np.timedelta64(0, "s")}, "unit must be above 0, got 0 seconds"),
    "a time of numbers": ([1], {"unit": "s"}, "unit of numbers must be a number above 0, got 's'"),
    "no unit": ([1], {"unit": 0}, "unit must be a finite number above 0, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_offsets_are_refused_in_one_line(name):
    values, options, words = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=f"^offset_positions: {words}") as refusal:
        offset_positions(values, **options)
    assert "\n" not in str(refusal.value)


def test_traced_numbers_are_refused():
    with pytest.raises(TypeError, match=r"values must be known, .* call it outside jax.jit, got float32 \(2,\)"):
        jax.jit(lambda values: offset_positions(values)[0])(jnp.ones(2))
    with pytest.raises(TypeError, match=r"labels must be known, .* call it outside jax.jit, got int32 \(2,\)"):
        jax.jit(segment_ids_of)(jnp.arange(2))


@pytest.mark.parametrize(
    ("labels", "padding", "expected"),
    [
        ([0, 0, 1, 1, 1], None, [1, 1, 2, 2, 2]),
        (np.asarray([[5, 5, 2**32 + 5], [2**32, 0, 2**32]]), None, [[1, 1, 2], [1, 2, 1]]),
        (np.asarray([2**64 - 1, 2**53, 2**53 + 1, 2**64 - 1], np.uint64), 2**64 - 1, [0, 1, 2, 0]),
        (np.asarray([-1, 3, 3, -1]), np.int64(-1), [0, 1, 1, 0]),
        ([["b", "b", "a", ""], ["a", "c", "a", ""]], "", [[1, 1, 2, 0], [1, 2, 1, 0]]),
        (np.asarray(["x", "y", "x"]), None, [1, 2, 1]),
        ([1, "1", 2**80, 2**80], None, [1, 2, 3, 3]),
        (jnp.asarray([7, 0, 7]), 0, [1, 0, 1]),
        ([], None, []),
        ([[[4], [4]], [[5], [6]]], 6, [[[1], [1]], [[1], [0]]]),
    ],
)
def test_labels_are_numbered_from_1_in_each_row(labels, padding, expected):
    ids = segment_ids_of(labels, padding=padding)
    assert ids.dtype == jnp.int32
    assert ids.tolist() == expected


@pytest.mark.slow
def test_chains_that_count_from_0_are_apart_and_none_is_padding():
    q, rope = jnp.linspace(-1, 1, 6 * 8).reshape(1, 6, 1, 8), pejax.encodings.rope(pejax.Dims(1, 8))
    tokens = pejax.packed_positions(segment_ids_of([[0, 0, 0, 1, 1, 1]]))
    packed = pejax.attend(rope, q, q, q, positions=tokens)
    alone = [pejax.attend(rope, item, item, item) for item in (q[:, :3], q[:, 3:])]
    np.testing.assert_allclose(packed, jnp.concatenate(alone, axis=1), atol=3e-7)


@pytest.mark.parametrize(
    ("labels", "padding", "words"),
    [
        ([0.5, 1.0], None, r"labels must be integers or strings, got \[0.5, 1.0\]"),
        ([True, False], None, "labels must be integers or strings"),
        ([[1, 2], [3]], None, r"labels must be an array, or lists of equal lengths, got \[\[1, 2\], \[3\]\]"),
        (np.asarray(5), None, r"labels must be \(T,\) or \(\*B, T\), got array\(5\)"),
        ([1, 2], 1.0, "padding must be a label, an integer or a string, got 1.0"),
    ],
)
def test_labels_are_refused_in_one_line(labels, padding, words):
    with pytest.raises((TypeError, ValueError), match=f"^segment_ids_of: {words}") as refusal:
        segment_ids_of(labels, padding=padding)
    assert "\n" not in str(refusal.value)


def test_datetimes_of_python_are_times():
    start = datetime.datetime(2026, 1, 1)
    later = [start + datetime.timedelta(milliseconds=250 * n) for n in range(3)]
    assert offset_positions(later)[0].tolist() == [0.0, 0.25, 0.5]


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ([2**60 + 1, 0.5], r"all whole, or all below 2\^53"),
        (np.asarray([np.longdouble(2) ** 60]), "integers, floats of 32 or 64 bits"),
        (np.ma.masked_array([1.0, 2.0], [False, True]), "must have no mask"),
    ],
)
def test_what_float64_does_not_hold_is_refused(values, rule):
    with pytest.raises((TypeError, ValueError), match=rule):
        offset_positions(values)


def test_integers_of_several_types_are_exact():
    assert offset_positions([np.uint64(2**60 + 1), 2**60 - 1])[0].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("labels", "padding"), [(np.asarray([b"a", b""]), ""), (np.asarray([1, 0]), "0")])
def test_padding_of_another_type_is_refused(labels, padding):
    with pytest.raises(TypeError, match="padding must be of the type of labels"):
        segment_ids_of(labels, padding=padding)
