"""Augmentation by its laws: what each step may change, how often, and that labels follow pixels."""

import numpy as np
import pytest
from PIL import Image

from train.data.images import augment, randaugment
from train.data.images.source import as_picture

WITH_MAGNITUDE = [name for name in randaugment.OPS if name not in ("AutoContrast", "Equalize", "Invert", "Posterize")]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rngs(count: int, seed: int = 0) -> list[np.random.Generator]:
    return rng(seed).spawn(count)


def photos(count: int = 8, side: int = 24, channels: int = 3) -> np.ndarray:
    return rng(7).integers(0, 256, (count, side, side, channels), np.uint8)


@pytest.mark.slow
def test_crop_moves_both_ways_along_both_axes_and_repeats_the_border() -> None:
    images = photos(400, 24, 1)
    cropped = augment.random_crop(images, rngs(400))
    seen = set()
    for before, after in zip(images, cropped, strict=True):
        moves = [
            (dy, dx)
            for dy in range(-3, 4)
            for dx in range(-3, 4)
            if np.array_equal(
                after, np.pad(before, ((3, 3), (3, 3), (0, 0)), "edge")[3 + dy : 27 + dy, 3 + dx : 27 + dx]
            )
        ]
        assert len(moves) == 1
        seen.add(moves[0])
    reach = max(dy for dy, _ in seen)
    assert reach >= 1
    assert seen == {(dy, dx) for dy in range(-reach, reach + 1) for dx in range(-reach, reach + 1)}


def test_flip_is_an_involution_of_half_the_images() -> None:
    images = photos(1000, 4)
    flipped = augment.random_flip(images, rngs(1000))
    changed = np.any(flipped != images, axis=(1, 2, 3))
    assert 0.45 < changed.mean() < 0.55
    np.testing.assert_array_equal(flipped[changed], images[changed, :, ::-1])
    np.testing.assert_array_equal(augment.random_flip(flipped, rngs(1000)), images)


def test_resized_crop_stays_inside_and_keeps_the_aspect() -> None:
    ramp = np.stack(np.broadcast_arrays(np.arange(160)[None], np.arange(120)[:, None], 0), axis=2).astype(np.uint8)
    picture, draw, areas = Image.fromarray(ramp), rng(), []
    for _ in range(300):
        crop = np.asarray(augment.random_resized_crop(picture, 16, draw), float)
        width, height = (16 / 15 * (crop[..., axis].max() - crop[..., axis].min()) for axis in range(2))
        areas.append(width * height / (160 * 120))
        assert 0.6 < width / height < 1.65
    assert min(areas) < 0.15
    assert max(areas) > 0.8


def test_a_crop_that_cannot_fit_is_the_central_square() -> None:
    strip = np.zeros((4, 400, 3), np.uint8)
    strip[:, 198:202] = 200
    np.testing.assert_array_equal(augment.random_resized_crop(Image.fromarray(strip), 4, rng()), strip[:, 198:202])


@pytest.mark.parametrize("name", WITH_MAGNITUDE)
def test_level_zero_changes_nothing(name: str) -> None:
    picture = as_picture(photos()[0])
    np.testing.assert_array_equal(randaugment.OPS[name](picture, 0.0, rng()), picture)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", list(randaugment.OPS))
def test_every_operation_keeps_size_and_mode(name: str, channels: int) -> None:
    picture = as_picture(photos(channels=channels)[0])
    after = randaugment.OPS[name](picture, 0.9, rng())
    assert (after.size, after.mode) == (picture.size, picture.mode)
    if (name, channels) != ("Color", 1) and name != "AutoContrast":
        assert np.any(np.asarray(after) != np.asarray(picture))


def test_operations_at_nine_tenths() -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    level = lambda name, seed=0: np.asarray(randaugment.OPS[name](Image.fromarray(gray), 0.9, rng(seed)), int)
    ramp = gray.astype(int)
    np.testing.assert_array_equal(level("Invert"), 255 - ramp)
    np.testing.assert_array_equal(level("Posterize"), ramp // 128 * 128)
    np.testing.assert_array_equal(level("Solarize"), np.where(ramp < 26, ramp, 255 - ramp))
    np.testing.assert_array_equal(level("SolarizeAdd"), np.where(ramp < 128, np.minimum(ramp + 99, 255), ramp))
    bright = {tuple(np.unique(np.rint(level("Brightness", seed)[4:8] / ramp[4:8] * 100))) for seed in range(8)}
    assert all(abs(np.array(values) - 19).max() < 2 or abs(np.array(values) - 181).max() < 23 for values in bright)
    assert len(bright) == 2


@pytest.mark.parametrize(("name", "axis"), [("TranslateX", 1), ("TranslateY", 0)])
def test_translation_is_by_a_share_of_the_side(name: str, axis: int) -> None:
    dot = np.full((41, 41), 128, np.uint8)
    dot[20, 20] = 255
    places = {
        tuple(
            np.unravel_index(
                np.asarray(randaugment.OPS[name](Image.fromarray(dot), 20 / 41 / 0.45 * 0.8, rng(seed))).argmax(),
                (41, 41),
            )
        )
        for seed in range(12)
    }
    assert places == {tuple(np.roll((4, 20), axis)), tuple(np.roll((36, 20), axis))}


def test_rotation_is_by_thirty_degrees_at_most_either_way() -> None:
    line = np.full((101, 101), 0, np.uint8)
    line[49:52] = 255
    slopes = set()
    for seed in range(8):
        turned = np.asarray(randaugment.OPS["Rotate"](Image.fromarray(line), 1.0, rng(seed)), float)[:, 20:81]
        rows = np.where(turned > 200, np.arange(101)[:, None], 0).sum(0) / (turned > 200).sum(0)
        slopes.add(round(float(np.degrees(np.arctan(np.polyfit(np.arange(61), rows, 1)[0])))))
    assert slopes == {-30, 30}


def test_rand_augment_takes_each_of_two_draws_half_of_the_time() -> None:
    calls = []
    counting = {name: lambda picture, level, rng: calls.append(level) or picture for name in randaugment.OPS}
    original, draw = dict(randaugment.OPS), rng()
    randaugment.OPS.update(counting)
    try:
        for _ in range(2000):
            randaugment.rand_augment(as_picture(photos()[0]), draw)
    finally:
        randaugment.OPS.update(original)
    levels = np.asarray(calls)
    assert 0.47 < len(levels) / 4000 < 0.53
    assert abs(levels.mean() - 0.9) < 0.005
    assert 0.035 < levels.std() < 0.05
    assert levels.max() <= 1.0


def test_rand_augment_follows_its_generator() -> None:
    picture = as_picture(photos()[0])
    outcomes = [np.asarray(randaugment.rand_augment(picture, rng(seed))) for seed in (3, 3, 4, 5, 6, 7)]
    np.testing.assert_array_equal(outcomes[0], outcomes[1])
    assert len({outcome.tobytes() for outcome in outcomes[1:]}) > 1


def test_erasing_puts_noise_in_one_rectangle_of_a_quarter_of_the_images() -> None:
    images = np.full((2000, 28, 28, 1), 100, np.float32)
    erased = augment.random_erasing(images, 0.25, rngs(2000))
    assert np.all(images == 100), "the batch given is left as it was"
    changed = erased[..., 0] != 100
    hit = changed.any(axis=(1, 2))
    assert 0.22 < hit.mean() < 0.28
    areas = []
    for mask in changed[hit]:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        areas.append(mask.mean())
    assert 0.01 < min(areas) < 0.04
    assert 0.29 < max(areas) < 0.37
    assert abs(np.mean(areas) - 0.177) < 0.02
    noise = erased[changed[..., None]]
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
