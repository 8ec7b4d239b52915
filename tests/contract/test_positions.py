"""Grids, packing and squeezed positions against loops and float64; the masks against the rule, pair by pair."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pejax import TokenPositions, grid_positions, interpolate_positions, packed_positions, segment_positions
from pejax._attention.core.masks import all_of, block_masks, pair_masks, visible
from pejax._attention.core.options import Options
from tests.support.biases import types_unchecked


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (5, 1), (4, 7)])
def test_grid_positions_are_in_raster_order(height, width):
    raster = np.array(list(itertools.product(range(height), range(width))))
    np.testing.assert_array_equal(grid_positions(height, width), raster)
    np.testing.assert_array_equal(grid_positions(height, width, indexing="xy"), raster[:, ::-1])
    np.testing.assert_array_equal(grid_positions((height, width)), raster)
    assert grid_positions(height, width).dtype == jnp.int32


def test_grid_positions_of_volumes_are_in_raster_order():
    for sizes in ((2, 3, 4), (1, 2, 1), (2, 1, 3, 2)):
        expected = list(itertools.product(*map(range, sizes)))
        np.testing.assert_array_equal(grid_positions(*sizes), expected)
        np.testing.assert_array_equal(grid_positions(sizes), expected)


def test_grid_positions_refuse_other_orders_and_empty_grids():
    with pytest.raises(ValueError, match="indexing must be one of ij, xy, got 'yx'"):
        grid_positions(2, 3, indexing="yx")
    with pytest.raises(ValueError, match="indexing='xy' is of two sizes, height and width, got"):
        grid_positions(2, 3, 4, indexing="xy")
    for sizes in ((0, 3), (3,), (), ((2, 3), 4)):
        with pytest.raises(ValueError, match="sizes must be two or more integers of at least 1, such as height and"):
            grid_positions(*sizes)


@given(st.lists(st.lists(st.integers(-2, 3), min_size=9, max_size=9), min_size=2, max_size=2))
def test_packed_positions_count_the_earlier_tokens_of_the_segment(ids):
    expected = [[row[:i].count(item) for i, item in enumerate(row)] for row in ids]
    np.testing.assert_array_equal(segment_positions(jnp.asarray(ids)), expected)


def test_packed_positions_restart_with_each_sequence():
    positions = jax.jit(segment_positions)(jnp.asarray([0, 0, 1, 1, 1, 2, 0], jnp.int8))
    np.testing.assert_array_equal(positions, [0, 1, 0, 1, 2, 0, 2])
    assert positions.dtype == jnp.int32
    assert segment_positions(jnp.zeros((2, 0), jnp.int32)).shape == (2, 0)


@pytest.mark.parametrize(("trained", "length"), [(16, 64), (100, 131), (7, 1000), (4096, 131072)])
def test_interpolated_positions_are_the_trained_share(trained, length):
    positions = np.unique(np.linspace(0, length - 1, 500).astype(np.int32))
    exact = positions.astype(np.float64) * trained / length
    fixed = interpolate_positions(jnp.asarray(positions), trained, length)
    traced = jax.jit(lambda length: interpolate_positions(jnp.asarray(positions), trained, length))(length)
    for squeezed in (fixed, traced):
        assert squeezed.dtype == jnp.float32
        assert np.all(np.abs(squeezed - exact) <= exact * 2.0**-23)
        assert squeezed.max() < trained
    if length % trained == 0 and (length // trained).bit_count() == 1:
        np.testing.assert_array_equal(fixed, exact)


@pytest.mark.parametrize("length", [8, 5, 1])
def test_nothing_longer_than_trained_is_squeezed(length):
    positions = jnp.arange(length)
    assert interpolate_positions(positions, 8, length) is positions
    traced = jax.jit(lambda length: interpolate_positions(positions, 8, length))(length)
    np.testing.assert_array_equal(traced, positions)


def test_each_axis_of_a_grid_is_squeezed_by_its_own_ratio():
    grid = grid_positions(6, 4)
    places = np.asarray(grid, np.float64)
    assert interpolate_positions(grid, (6, 4), (6, 4)) is grid
    for trained, ratio in (((3, 4), (0.5, 1.0)), ((3, 9), (0.5, 1.0)), ((9, 1), (1.0, 0.25))):
        np.testing.assert_array_equal(interpolate_positions(grid, trained, (6, 4)), places * np.array(ratio))


def test_squeezed_positions_differentiate():
    gradient = jax.grad(lambda p: interpolate_positions(p, 3, 12).sum())(jnp.asarray([1.0, 3.0]))
    np.testing.assert_array_equal(gradient, [0.25, 0.25])


@pytest.mark.parametrize(
    ("shape", "trained", "length", "message"),
    [
        ((4,), 2, (4,), "must have the same axes, got 2 and"),
        ((4, 2), (2, 2), (2, 2, 2), "must have the same axes"),
        ((4, 3), (2, 2), (2, 4), r"must end in the 2 axes of length=\(2, 4\), got \(4, 3\)"),
        ((4,), 0, 4, "lengths must be at least 1, got trained_length=0, length=4"),
        ((4, 2), (2, 2), (0, 4), "lengths must be at least 1"),
    ],
)
def test_interpolate_positions_refuses_what_does_not_fit(shape, trained, length, message):
    with pytest.raises(ValueError, match=message):
        interpolate_positions(jnp.zeros(shape, jnp.int32), trained, length)


def pair_rule(q, k, q_segment, k_segment, causal, window, distance_range):
    """Say whether a query at q sees a key at k, as the rule is written."""
    gap = int(q) - int(k)
    if isinstance(window, tuple):
        near = -window[1] <= gap <= window[0]
    else:
        near = window is None or (0 <= gap < window if causal else abs(gap) < window)
    within = distance_range is None or distance_range[0] <= abs(gap) < distance_range[1]
    return (gap >= 0 or not causal) and near and within and q_segment == k_segment != 0


OPTIONS = list(itertools.product([False, True], [None, 1, 3, 2**40], [None, (0, 2), (2, 5), (1, 2**40)], [True]))
OPTIONS += [(False, None, None, False), (True, None, None, False), (False, 3, (2, 5), False), (True, 3, (1, 3), False)]
OPTIONS += [(False, (2, 0), None, True), (False, (1, 2**40), (1, 2**40), True), (False, (0, 3), None, False)]
EXTREMES = [-(2**31), -(2**31) + 2, -5, -1, 0, 1, 2, 3, 3, 9, 2**31 - 3, 2**31 - 1]


@pytest.mark.parametrize(("causal", "window", "distance_range", "packed"), OPTIONS)
def test_visible_is_the_rule_for_every_pair(causal, window, distance_range, packed):
    q, k = EXTREMES[::2], EXTREMES[::-1]
    q_segments, k_segments = ([i % 3 for i in range(len(side))] if packed else [1] * len(side) for side in (q, k))
    segments = [jnp.asarray(side) if packed else None for side in (q_segments, k_segments)]
    tokens = [
        TokenPositions(jnp.asarray(side, jnp.int32), segment_ids=item)
        for side, item in zip((q, k), segments, strict=True)
    ]
    options = {"causal": causal, "window": window, "distance_range": distance_range}
    expected = [
        [pair_rule(a, b, s, r, **options) for b, r in zip(k, k_segments, strict=True)]
        for a, s in zip(q, q_segments, strict=True)
    ]
    mask = visible(Options(1.0, **options), *tokens)
    if mask is None:
        assert np.all(expected)
        assert (causal, window, distance_range, packed) == (False, None, None, False)
    else:
        np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize(("causal", "window", "distance_range", "packed"), OPTIONS)
def test_blocks_miss_no_pair_and_whole_ones_hide_none(causal, window, distance_range, packed):
    rng = np.random.default_rng(0)
    options = Options(1.0, causal, window, distance_range)
    sides = [rng.integers(-6, 6, (count, 1)) + rng.integers(0, 3, (count, 3)) for count in (40, 50)]
    sides[0][:2], sides[1][:2] = [[-(2**31)] * 3, [2**31 - 1] * 3], [[2**31 - 1] * 3, [-(2**31)] * 3]
    orders = jnp.asarray(sides[0], jnp.int32)[:, None], jnp.asarray(sides[1], jnp.int32)[None]
    ids = [rng.integers(0, 3, (len(side), 1)) + (rng.random(side.shape) < 0.1) for side in sides]
    segments = (jnp.asarray(ids[0])[:, None], jnp.asarray(ids[1])[None]) if packed else None
    each = lambda pair: None if pair is None else (pair[0][..., :, None], pair[1][..., None, :])
    pairs = all_of(pair_masks(options, each(orders), each(segments)))
    some, whole = (all_of(block_masks(options, orders, segments, whole=whole)) for whole in (False, True))
    if pairs is None:
        assert some is None
        assert whole is None
        return
    seen = np.asarray(pairs).reshape(40, 50, 9)
    assert np.all(np.asarray(some) >= seen.any(-1))
    assert np.all(np.asarray(whole) <= seen.all(-1))
    assert np.any(~np.asarray(some)) or window == distance_range is None
    assert np.any(np.asarray(whole)) == np.any(seen.all(-1))


def test_order_is_the_index_and_not_the_positions():
    squeezed = TokenPositions(jnp.arange(6) / 4, order=jnp.arange(6))
    on_grid = TokenPositions(grid_positions(2, 3), order=jnp.arange(6))
    plain = TokenPositions(jnp.arange(6))
    expected = visible(Options(1.0, causal=True, window=2), plain, plain)
    for tokens in (
        squeezed,
        on_grid,
        plain._replace(positions=jnp.arange(6)[::-1], order=jnp.arange(6, dtype=jnp.int8)),
    ):
        np.testing.assert_array_equal(visible(Options(1.0, causal=True, window=2), tokens, tokens), expected)


def test_a_side_without_segments_is_segment_one():
    plain, packed = (
        TokenPositions(jnp.arange(4)),
        TokenPositions(jnp.arange(4), segment_ids=jnp.asarray([0, 1, 2, 1], jnp.int8)),
    )
    np.testing.assert_array_equal(visible(Options(1.0), plain, packed), [[False, True, False, True]] * 4)
    np.testing.assert_array_equal(
        visible(Options(1.0), packed, plain), [[False] * 4, [True] * 4, [False] * 4, [True] * 4]
    )


@pytest.mark.parametrize("option", [{"causal": True}, {"window": 2}, {"distance_range": (0, 2)}])
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (
            TokenPositions(jnp.arange(3), has_position=jnp.ones(3, bool)),
            "must have an order if some tokens have no position",
        ),
        (TokenPositions(jnp.arange(3.0)), r"must have an order, or 1-D signed integer .* got float32\[3\]"),
        (TokenPositions(grid_positions(1, 3)), r"got int32\[3, 2\]"),
        (TokenPositions(jnp.arange(3, dtype=jnp.uint32)), r"got uint32\[3\]"),
    ],
)
def test_tokens_without_an_order_are_refused(option, tokens, message):
    other = TokenPositions(jnp.arange(3))
    with pytest.raises(ValueError, match=f"^positions .*{message}"):
        visible(Options(1.0, **option), tokens, other)
    with pytest.raises(ValueError, match=f"k_positions .*{message}"):
        visible(Options(1.0, **option), other, tokens)


def test_unplaced_tokens_need_no_index_where_there_is_no_order():
    tokens = TokenPositions(jnp.arange(3), has_position=jnp.asarray([False, True, True]))
    assert visible(Options(1.0), tokens, tokens) is None


@pytest.mark.parametrize("positions_of", [segment_positions, packed_positions])
def test_segments_of_floats_are_refused(positions_of):
    with types_unchecked(), pytest.raises(TypeError, match=r"segment_ids must be an array of integers .*, got float32"):
        positions_of(jnp.ones(4))
