"""The embedded data sets and the batches made of them: content, determinism, true detail, exact resumption."""

import lzma
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import train.data.images as data
from train.data.build import fashion as build_fashion
from train.data.images import fashion, glyphs, outlines, source
from train.data.images.augment import Augment

EVERYTHING = Augment(crop=True, flip=True, rand_augment=True, erasing=0.25)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail whatever opens a socket: nothing is ever downloaded."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError(f"a socket was asked for: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module")
def clothes() -> data.Dataset:
    return data.load("fashion(full=False)")


def small(count: int = 20, size: int = 8) -> data.Dataset:
    """Return a data set whose image i is all i and whose label is i modulo 5."""
    images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, size, size, 1))
    held = data.Images(images, (np.arange(count) % 5).astype(np.uint8))
    return data.Dataset(
        train=held, test=held.at_size, classes=tuple("abcde"), channels=1, size=size, mean=(0.0,), std=(1 / 255,),
        mirror=True, note="", identity="small",
    )  # fmt: skip


def test_fashion_is_balanced_and_whole(clothes: data.Dataset) -> None:
    np.testing.assert_array_equal(np.bincount(clothes.train.labels), np.full(10, 1000))
    assert len(clothes.test(28)) == 10_000
    np.testing.assert_array_equal(np.bincount(clothes.test(28).labels), np.full(10, 1000))
    assert clothes.train[0][0].shape == (28, 28, 1)
    assert len(clothes.classes) == 10
    assert "upsampled above" in clothes.note
    assert len({image.tobytes() for image in clothes.train.images}) > 9_990
    pixels = clothes.train.images / 255
    assert abs(pixels.mean() - clothes.mean[0]) < 0.005
    assert abs(pixels.std() - clothes.std[0]) < 0.005


def test_the_draw_is_fixed_and_balanced() -> None:
    labels = np.tile(np.arange(10, dtype=np.uint8), 6000)
    chosen = build_fashion.choose(labels)
    np.testing.assert_array_equal(np.bincount(labels[chosen]), np.full(10, 1000))
    np.testing.assert_array_equal(chosen[:8], [5, 6, 26, 36, 40, 47, 62, 65])
    assert np.all(np.diff(chosen) > 0)


def test_damage_to_an_embedded_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "fashion.xz"
    broken.write_bytes(fashion.EMBEDDED.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"fashion\.xz must be the embedded file of this version"):
        source.unpack(broken, fashion.CONTENT)
    broken.write_bytes(lzma.compress(b"other"))
    with pytest.raises(ValueError, match=r"fashion\.xz must hold content of sha256 0ea38a47"):
        source.unpack(broken, fashion.CONTENT)


def test_the_whole_set_is_used_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = (small(30).train, small(20).train)
    monkeypatch.setattr(fashion, "DEBIAN", tmp_path)
    monkeypatch.setattr(fashion, "read_folder", lambda folder: splits)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert "embedded" in data.load("fashion").note
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    result = data.load("fashion", size=8)
    assert (len(result.train), str(tmp_path) in result.note) == (30, True)
    assert len(data.load("fashion(full=True)", size=8).train) == 30
    assert len(data.load(f"fashion:{tmp_path}", size=8).train) == 30
    embedded = data.load("fashion(full=False)")
    assert len(embedded.train) == 10_000
    assert embedded.identity != result.identity


def test_a_wrong_file_of_the_whole_set_is_named(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz must be a gzip file"):
        data.load(f"fashion:{tmp_path}")
    with pytest.raises(ValueError, match="a Fashion-MNIST folder holds"):
        data.load(f"fashion:{tmp_path / 'elsewhere'}")


def test_resizing_is_bicubic_and_antialiased(clothes: data.Dataset) -> None:
    images = data.Images(clothes.train.images[:5], clothes.train.labels[:5])
    for size in (12, 64):
        expected = Image.fromarray(images[3][0][..., 0]).resize((size, size), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(images.at_size(size)[3][0][..., 0], expected)
        assert images.at_size(size)[3][1] == images[3][1]
    assert clothes.test(12)[7][0].shape == (12, 12, 1)
    checks = np.indices((32, 32)).sum(0) % 2 * 255
    np.testing.assert_allclose(source.resize(checks[..., None].astype(np.uint8), 8), 127.5, atol=4)


def polygon_edges(points: list[tuple[float, float]]) -> np.ndarray:
    return np.stack([np.array(points), np.roll(points, -1, axis=0)], axis=1).astype(float)


def test_coverage_is_exact() -> None:
    square = polygon_edges([(1.25, 0.5), (3.5, 0.5), (3.5, 2.75), (1.25, 2.75)])
    across, down = np.array([0, 0.75, 1, 0.5, 0]), np.array([0.5, 1, 0.75, 0, 0])
    owner = np.zeros(4, int)
    np.testing.assert_allclose(outlines.coverage(square, owner, 1, 5)[0], np.outer(down, across), atol=1e-12)
    triangle = polygon_edges([(0, 0), (4, 0), (0, 4)])
    expected = np.tri(4)[::-1] * 0.5 + np.tri(4, k=-1)[::-1] * 0.5
    np.testing.assert_allclose(outlines.coverage(triangle, owner[:3], 1, 4)[0], expected, atol=1e-12)
    np.testing.assert_allclose(outlines.coverage(triangle[::-1, ::-1], owner[:3], 1, 4)[0], expected, atol=1e-12)


def test_coverage_of_outlines_beyond_the_image_and_of_several_images() -> None:
    beyond = polygon_edges([(-3, -2), (2, -2), (2, 9), (-3, 9)])
    away = beyond + 20
    two = np.concatenate([beyond, away, polygon_edges([(1, 1), (9, 1), (9, 9), (1, 9)])])
    first, second = outlines.coverage(two, np.repeat([0, 0, 1], 4), 2, 4)
    np.testing.assert_allclose(first, np.tile([1, 1, 0, 0], (4, 1)), atol=1e-12)
    np.testing.assert_allclose(second, np.outer([0, 1, 1, 1], [0, 1, 1, 1]), atol=1e-12)


def test_coverage_against_a_drawing_forty_times_as_fine() -> None:
    draw = np.random.default_rng(0)
    for _ in range(5):
        points = draw.random((3, 2)) * 14 + 1
        canvas = Image.new("L", (640, 640))
        ImageDraw.Draw(canvas).polygon([tuple(40 * point - 0.5) for point in points], fill=255)
        fine = np.asarray(canvas.reduce(40), float) / 255
        share = outlines.coverage(polygon_edges(list(points)), np.zeros(3, int), 1, 16)[0]
        np.testing.assert_allclose(share, fine, atol=0.06)
        sides = np.diff(points[[0, 1, 2]], axis=0)
        assert abs(share.sum() - abs(np.linalg.det(sides)) / 2) < 1e-9


def test_families_of_fonts_are_on_one_side() -> None:
    fonts, points = glyphs.read_outlines()
    sides = {split: {font["package"] for font in fonts if font["split"] == split} for split in ("train", "test")}
    assert len(sides["train"]) >= 30
    assert len(sides["test"]) >= 12
    assert not sides["train"] & sides["test"]
    for package in sides["train"] | sides["test"]:
        license = (glyphs.LICENSES / f"{package}.txt").read_text()
        assert re.search("SIL Open Font|OFL|Apache|Bitstream|Expat|MIT|public domain|BSD|Go license", license, re.I), (
            package
        )
    assert sum(length for font in fonts for glyph in font["lengths"] for length in glyph) == len(points)
    assert all(len(font["lengths"]) == len(glyphs.CHARACTERS) for font in fonts)


def test_glyphs_follow_split_and_index_alone() -> None:
    glyphs_40, glyphs_300 = glyphs.draw("train", 16, 40).in_memory(), glyphs.draw("train", 16, 300).in_memory()
    np.testing.assert_array_equal(glyphs_40.images, glyphs_300.images[:40])
    np.testing.assert_array_equal(np.bincount(glyphs.draw("test", 12, 340).labels), np.full(34, 10))
    assert not np.array_equal(glyphs_40.images, glyphs.draw("test", 16, 40).in_memory().images)


def test_glyphs_have_true_detail_at_every_size() -> None:
    base = glyphs.draw("test", 28, 34).in_memory()
    for size in (12, 36, 64):
        native = glyphs.draw("test", size, 34).in_memory()
        enlarged = base.at_size(size).in_memory().images.astype(float)
        difference = np.abs(native.images - enlarged).mean()
        assert 1 < difference < 20, "the same scene, not the same pixels"
        if size > 28:
            sharpness = lambda images: np.abs(np.diff(images.astype(float), axis=2)).max(axis=(1, 2, 3))
            assert np.mean(sharpness(native.images) > 1.1 * sharpness(enlarged)) > 0.9
    fine = glyphs.draw("test", 56, 34).in_memory().images.astype(float)
    mean = fine.reshape(34, 28, 2, 28, 2, 1).mean((2, 4))
    np.testing.assert_allclose(mean, base.images, atol=1.01, err_msg="pixels are averages of the scene at every size")


def test_every_glyph_is_inside_and_visible() -> None:
    for split in ("train", "test"):
        images = glyphs.draw(split, 24, 680).in_memory().images[..., 0].astype(int)
        border = np.concatenate([images[:, [0, -1]].reshape(680, -1), images[:, :, [0, -1]].reshape(680, -1)], axis=1)
        assert np.ptp(border, axis=1).max() == 0, "no outline touches the border"
        ink = images.max((1, 2)) - border[:, 0]
        assert ink.min() > 30
        covered = (images - border[:, :1, None]).sum((1, 2)) / (ink * 576)
        assert covered.min() > 0.02
        assert covered.max() < 0.6


def take(batches: Iterator[dict[str, np.ndarray]], count: int) -> list[dict[str, np.ndarray]]:
    return [next(batches) for _ in range(count)]


def same(batches: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]]) -> bool:
    return all(np.array_equal(a[key], b[key]) for a, b in zip(batches, expected, strict=True) for key in a)


@pytest.mark.parametrize("augment", [Augment(), EVERYTHING], ids=["none", "everything"])
def test_same_seed_same_batches_and_exact_resumption(augment: Augment) -> None:
    straight = take(data.train_batches(small(), 6, 1, augment), 9)
    assert same(straight, take(data.train_batches(small(), 6, 1, augment), 9))
    assert not same(straight, take(data.train_batches(small(), 6, 2, augment), 9))
    assert same(straight[4:], take(data.train_batches(small(), 6, 1, augment, step=4), 5))


@pytest.mark.parametrize("augment", [Augment(), EVERYTHING], ids=["none", "everything"])
def test_rows_alone_are_the_rows_of_the_whole(augment: Augment) -> None:
    batches = take(data.train_batches(small(), 6, 1, augment, step=2), 3)
    for rows in (range(2), range(2, 6), range(6)):
        parts = take(data.train_batches(small(), 6, 1, augment, step=2, rows=rows), 3)
        cut = [{name: array[rows.start : rows.stop] for name, array in batch.items()} for batch in batches]
        assert same(cut, parts)


def test_each_epoch_shows_each_image_once_in_a_new_order() -> None:
    batches = data.train_batches(small(20), 6, 0, Augment())
    epochs = [[int(pixel) for batch in take(batches, 3) for pixel in batch["image"][:, 0, 0, 0]] for _ in range(3)]
    assert all(len(set(epoch)) == 18 for epoch in epochs), "the last two of twenty do not fill a batch of six"
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len(set(epochs[0]) & set(epochs[1])) < 18 or epochs[0] != epochs[1]
    batch = next(batches)
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0] % 5, batch["label"])
    assert (batch["image"].dtype, batch["label"].dtype) == (np.float32, np.int32)


def test_augmentation_differs_from_epoch_to_epoch(clothes: data.Dataset) -> None:
    images = data.Images(clothes.train.images[:8], clothes.train.labels[:8])
    batches = data.train_batches(_with(clothes, images), 8, 0, Augment(crop=True, flip=True))
    by_label = [batch["image"][np.argsort(batch["label"], kind="stable")] for batch in take(batches, 2)]
    assert not np.array_equal(*by_label)


def test_switches_reach_the_images(clothes: data.Dataset) -> None:
    dataset = _with(clothes, data.Images(clothes.train.images[:16], clothes.train.labels[:16]))
    plain = next(data.train_batches(dataset, 16, 0, Augment()))
    for switch in ("crop", "flip", "rand_augment", "erasing"):
        batch = next(data.train_batches(dataset, 16, 0, Augment(**{switch: 1.0 if switch == "erasing" else True})))
        assert not np.array_equal(plain["image"], batch["image"]), switch


def test_glyphs_are_never_mirrored() -> None:
    plain, flipped = (next(data.train_batches(_glyphs(), 34, 0, Augment(flip=flip))) for flip in (False, True))
    np.testing.assert_array_equal(plain["image"], flipped["image"])


def test_test_batches_show_everything_once_and_the_last_one_short(clothes: data.Dataset) -> None:
    batches = list(data.evaluation_batches(small(20), 8, 6))
    assert [len(batch["label"]) for batch in batches] == [6, 6, 6, 2]
    assert sorted(int(pixel) for batch in batches for pixel in batch["image"][:, 0, 0, 0]) == list(range(20))
    sorted_by_class = data.Images(small(200).train.images, np.sort(small(200).train.labels))
    first = next(data.evaluation_batches(_with(small(20), sorted_by_class), 8, 50))
    np.testing.assert_allclose(np.bincount(first["label"]), np.full(5, 10), atol=1)
    image = next(data.evaluation_batches(clothes, 28, 4))["image"]
    assert image.dtype == np.float32
    assert np.isclose(image.min(), -0.2860 / 0.3530, atol=1e-6)


@pytest.mark.parametrize("batch", [0, 21])
def test_a_batch_that_cannot_be_filled_is_refused(batch: int) -> None:
    with pytest.raises(ValueError, match=f"batch must be from 1 to the 20 training images, got {batch}"):
        data.train_batches(small(20), batch, 0, Augment())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fashon", "unknown data 'fashon'; did you mean 'fashion'"),
        (
            "mnist",
            "unknown data 'mnist'; known: fashion, glyphs, moving_glyphs, folder, tfds. A data set .* is 'tfds:mnist'",
        ),
        ("fashion(ful=True)", "fashion takes folder, full; got 'ful'"),
        ("fashion(full=3)", r"full must be bool | None, got 3"),
        ("fashion(folder='x', full=False)", "takes a folder or full=False"),
        ("pictures/cats", r"a path after a colon, got 'pictures/cats'; did you mean folder:pictures/cats\?"),
        ("fashion(True)", r"apart from name:VALUE, data is written name or name\(key=value, ...\), got"),
        ("fashion(full=open)", "full must be a Python literal, got 'open'"),
        ("fashion(", "data is written name"),
        ("glyphs:x", "needs a data set that takes one"),
        ("folder", "folder needs path"),
        ("folder:", "needs a value"),
        ("tfds:no_such_data", r"must be prepared before \(tfds build no_such_data --file_format=array_record\)"),
    ],
)
def test_a_bad_spec_is_answered_in_one_line(spec: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        data.load(spec)
    assert "\n" not in str(raised.value)


def test_the_full_set_is_never_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion, "DEBIAN", tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=r"fashion\(full=True\) needs folder=.*got none of them"):
        data.load("fashion(full=True)")


def _with(ds: data.Dataset, images: data.Images) -> data.Dataset:
    return source.dataclasses.replace(ds, train=images, test=images.at_size)


def _glyphs() -> data.Dataset:
    ds = source.dataclasses.replace(small(), mirror=False, classes=glyphs.CLASSES, mean=glyphs.MEAN, std=glyphs.STD)
    return _with(ds, glyphs.draw("train", 16, 34).in_memory())
