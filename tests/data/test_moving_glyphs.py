"""Moving glyphs: one glyph per video at a constant velocity, reflected at the walls, and no loops in true videos."""

import math

import numpy as np
import pytest

from train.data.images import moving_glyphs
from train.data.images.moving_glyphs import FASTEST, LEAST, MOST, SLOWEST, draw, places
from train.dit.measures import LOOP, correlations, loops


def test_a_motion_is_constant_and_reflected_at_the_walls():
    """By steps: the next place is one velocity on, and what is beyond a wall comes back."""
    rng = np.random.default_rng(0)
    phase, speed = rng.random((40, 2)), rng.random((40, 2))
    result = places(phase, speed, 60)
    velocity = SLOWEST + (FASTEST - SLOWEST) * speed
    place = result[:, 0].copy()
    toward = np.where(2 * phase < 1, -1.0, 1.0) * velocity
    for frame in range(60):
        np.testing.assert_allclose(result[:, frame], place, atol=1e-9)
        place = place + toward
        toward = np.where((place < 0) | (place > 1), -toward, toward)
        place = np.where(place < 0, -place, np.where(place > 1, 2 - place, place))
    np.testing.assert_array_equal(places(phase, speed, 8), result[:, :8])


def test_a_video_that_begins_again_is_a_loop_and_a_straight_motion_is_none():
    moving = np.zeros((3, 12, 8, 14, 1), np.float32)
    for frame in range(12):
        moving[:, frame, 2:5, frame : frame + 3] = 1.0  # one pixel to the right in every frame
    assert loops(moving, 6) == 0.0
    assert loops(np.concatenate([moving[:, :6], moving[:, :6]], axis=1), 6) == 1.0
    assert loops(np.concatenate([moving[:, :6], moving[:, :3]], axis=1), 6) == 1.0, "the part that there is"
    mixed = np.concatenate([moving[:2], np.tile(moving[:1, :6], (1, 2, 1, 1, 1))])
    assert loops(mixed, 6) == pytest.approx(1 / 3)
    assert loops(np.repeat(moving[:, :1], 12, axis=1), 6) == 1.0, "a picture that stands still repeats itself, too"
    assert math.isnan(loops(moving[:, :6], 6))


@pytest.mark.slow
def test_an_index_has_the_same_glyph_and_motion_however_it_is_drawn():
    indices = np.arange(6)
    videos = draw("test", 28, 12).make(indices)
    assert videos.shape == (6, 12, 28, 28, 1)
    np.testing.assert_array_equal(draw("test", 28, 5).make(indices), videos[:, :5])
    np.testing.assert_array_equal(draw("test", 28).make(indices), videos[:, 0])
    np.testing.assert_array_equal(draw("test", 28, 12).make(indices[3:]), videos[3:])
    fine = draw("test", 56, 12).make(indices).astype(float).reshape(6, 12, 28, 2, 28, 2, 1).mean((3, 5))
    np.testing.assert_allclose(fine, videos, atol=1.01, err_msg="pixels are averages of the scene at every size")
    assert not np.array_equal(draw("train", 28, 12).make(indices), videos)


@pytest.mark.slow
def test_the_whole_glyph_is_in_every_frame_and_goes_everywhere():
    frames = draw("train", 40, 16).make(np.arange(200))[..., 0].astype(int)
    ink = frames > frames.min((1, 2, 3), keepdims=True) + 2
    rows, columns = ink.any(3), ink.any(2)
    for axis in (rows, columns):
        extent = axis.sum(-1)
        assert np.ptp(extent, axis=1).max() <= 1, "the glyph is of one size in all frames: none of it is outside"
        assert extent.max() <= MOST * 40 + 2
        assert axis[:, :, 0].any()
        assert axis[:, :, -1].any()
    larger = np.maximum(rows.sum(-1), columns.sum(-1))
    assert larger.min() >= LEAST * 40 - 1


@pytest.mark.slow
def test_true_videos_are_no_loops_and_looped_ones_are():
    """The threshold of a loop lies between both, also where the repetition is a pixel aside."""
    videos = draw("test", 28, 16).make(np.arange(400)).astype(np.float32)
    assert loops(videos, 8) == 0.0
    flat = lambda frames: frames.reshape(len(frames), -1)
    assert correlations(flat(videos[:, :8]), flat(videos[:, 8:])).max() < LOOP - 0.1
    first = videos[:, :8]
    assert loops(np.concatenate([first, first], axis=1), 8) == 1.0
    rng = np.random.default_rng(0)
    aside = np.stack([np.roll(item, rng.integers(-1, 2, 2), (1, 2)) for item in first])
    assert loops(np.concatenate([first, aside], axis=1), 8) > 0.9


@pytest.mark.slow
def test_a_data_set_of_videos():
    result = moving_glyphs.moving_glyphs(12, 3)
    assert result.frames == 3
    assert result.train[7][0].shape == (3, 12, 12, 1)
    assert result.test(20, 5)[7][0].shape == (5, 20, 20, 1)
    assert result.test(20)[7][0].shape == (20, 20, 1)
    np.testing.assert_array_equal(result.train.images[:9], draw("train", 12, 3).make(np.arange(9)))
    pixels = draw("train", 28, 8).make(np.arange(600)) / 255
    assert abs(pixels.mean() - moving_glyphs.MEAN[0]) < 0.01
    assert abs(pixels.std() - moving_glyphs.STD[0]) < 0.01
