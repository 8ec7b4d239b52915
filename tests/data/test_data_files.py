"""Folders of classes, damaged and unusual image files, and data sets prepared by TFDS."""

import errno
import io
import os
import re
import shutil
import socket
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import train.data.images as data
from train.data.images import scan
from train.data.images.augment import Augment
from train.data.images.decode import decode
from train.data.images.folder import Files
from train.engine.progress import last_progress

COLORS = {"blue": (20, 30, 220), "green": (20, 200, 40), "red": (220, 10, 20)}


def encoded(image: np.ndarray | Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def plain(color: tuple[int, int, int], height: int = 20, width: int = 30) -> np.ndarray:
    return np.full((height, width, 3), color, np.uint8)


def make_folder(root: Path, splits: dict[str, int]) -> Path:
    """Write `splits[part]` images of every color to ROOT/part/color; the part "" is ROOT itself."""
    for part, count in splits.items():
        for name, color in COLORS.items():
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                (root / part / name / f"{index}.png").write_bytes(encoded(plain(color)))
    return root


@pytest.mark.parametrize("held_out", ["val", "test"])
def test_a_folder_with_splits(tmp_path: Path, held_out: str) -> None:
    ds = data.load(f"folder:{make_folder(tmp_path, {'train': 4, held_out: 2})}", size=16)
    assert (len(ds.train), len(ds.test(24)), ds.classes, ds.channels) == (12, 6, ("blue", "green", "red"), 3)
    for index in range(6):
        image, label = ds.test(24)[index]
        assert image.shape == (24, 24, 3)
        np.testing.assert_array_equal(image, plain(COLORS[ds.classes[label]], 24, 24))
    batch = next(data.train_batches(ds, 12, 0, Augment(crop=True, flip=True)))
    assert batch["image"].shape == (12, 16, 16, 3)
    pixels = np.rint((batch["image"][:, 0, 0] * ds.std + ds.mean) * 255)
    np.testing.assert_array_equal(pixels, [COLORS[ds.classes[label]] for label in batch["label"]])


def test_a_folder_of_classes_alone_holds_a_tenth_out(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"": 20})
    ds, again = data.load(f"folder:{root}"), data.load(f"folder(path={str(root)!r})")
    assert (len(ds.train), len(ds.test(8))) == (54, 6)
    assert not set(ds.train.files) & set(ds.test(8).files)
    assert ds.test(8).files == again.test(8).files
    assert sorted({label for _, label in (ds.test(8)[i] for i in range(6))}) == [0, 1, 2]
    assert ds.identity == again.identity
    (root / "red" / "0.png").write_bytes(encoded(plain((1, 2, 3), 40)))
    assert data.load(f"folder:{root}").identity != ds.identity, "other content, other identity"


def test_the_central_square_is_shown(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.arange(210, dtype=np.uint8)[None, :, None], (70, 210, 3))
    (tmp_path / "a.png").write_bytes(encoded(np.ascontiguousarray(ramp)))
    image, _ = Files([tmp_path / "a.png"], [0], 61)[0]
    assert abs(int(image[30, 0, 0]) - 74.5) <= 1
    assert abs(int(image[30, -1, 0]) - 134.5) <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "must have a subfolder per class"),
        (lambda root: (root / "a").mkdir(), "every class subfolder must have images"),
        (
            lambda root: [make_folder(root, {"": 2}), *(shutil.rmtree(root / name) for name in list(COLORS)[1:])],
            "at least two classes, got",
        ),
        (lambda root: make_folder(root, {"": 1}), "a class to split must hold two images"),
        (lambda root: (make_folder(root, {"train": 1}), make_folder(root / "val", {"odd": 1})), "got class 'odd'"),
        (lambda root: root.rmdir(), "folder must be a directory"),
    ],
)
def test_folders_that_cannot_serve(tmp_path: Path, make: object, message: str) -> None:
    root = tmp_path / "images"
    root.mkdir()
    make(root)
    with pytest.raises(ValueError, match=message) as raised:
        data.load(f"folder:{root}")
    assert "\n" not in str(raised.value)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_in_a_circle(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (link_to_nothing, "a link to nothing"),
        (link_in_a_circle, "a link to nothing"),
        (link_to_a_device, "a pipe or a device"),
        (os.mkfifo, "a pipe or a device"),
    ],
)
def test_what_is_no_file_among_images_is_named_before_it_is_read(tmp_path: Path, make: Any, what: str) -> None:
    root = make_folder(tmp_path / "images", {"train": 4, "val": 3})
    make(root / "val" / "blue" / "9.png")
    rule = rf"images of {root} must be readable, got 1 of 22 that is not: .*val/blue/9\.png: {what}; to go on without"
    with pytest.raises(ValueError, match=rule):
        data.load(f"folder:{root}", size=16)


def test_an_image_that_may_not_be_read_is_named_before_it_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    root = make_folder(tmp_path / "images", {"": 4})
    read = Path.read_bytes

    def refusing(path: Path) -> bytes:
        if path.name == "2.png":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refusing)
    with pytest.raises(ValueError, match=r"got 3 of 12 that are not: .*/2\.png: Permission denied"):
        data.load(f"folder:{root}", size=16)


def test_a_name_that_is_not_utf_8_is_one_of_an_image(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images", {"": 4})
    (root / "red" / "0.png").rename(root / "red" / os.fsdecode(b"\xff.png"))
    assert len(data.load(f"folder:{root}", size=16).train) == 9


def corrupt_folder(root: Path) -> Path:
    make_folder(root, {"train": 4, "val": 3})
    content = (root / "train" / "red" / "1.png").read_bytes()
    (root / "train" / "red" / "1.png").write_bytes(content[:60])
    (root / "val" / "blue" / "2.png").write_bytes(b"not an image")
    return root


def test_corrupt_images_are_named_before_anything_is_made_of_them(tmp_path: Path) -> None:
    root = corrupt_folder(tmp_path)
    with pytest.raises(ValueError, match=rf"images of {root} must be readable, got 2 of 21 that are not: ") as raised:
        data.load(f"folder(path={str(root)!r}, shown=1.0)", size=16)
    said = str(raised.value)
    assert "\n" not in said
    assert re.search(r"red/1\.png: .+; .*blue/2\.png: no format that Pillow knows; to go on without: ", said)
    assert said.endswith(f"--data=\"folder(path={str(root)!r}, shown=1.0, on_error='skip')\"")
    for name in ("3", "0"):
        (root / "train" / "red" / f"{name}.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"got 4 of 21 .*red/0\.png: .*red/1\.png: .*red/3\.png: [^;]*; and 1 more;"):
        data.load(f"folder:{root}", size=16)


@pytest.mark.parametrize("split", [False, True])
def test_skipped_images_are_as_if_they_were_not_there(tmp_path: Path, split: bool, capsys: Any) -> None:
    root = corrupt_folder(tmp_path / "images")
    if split:
        shutil.move(root / "train", tmp_path / "train")
        shutil.rmtree(root)
        (tmp_path / "train").rename(root)
    skipping = data.load(f"folder(path={str(root)!r}, on_error='skip')", size=16)
    count = 1 if split else 2
    assert f"{count} of {12 if split else 21} images of {root} are left out: " in capsys.readouterr().err
    for file in root.rglob("*.png"):
        if len(file.read_bytes()) < 61:
            file.unlink()
    without = data.load(f"folder(path={str(root)!r}, on_error='skip')", size=16)
    assert skipping.train.files == without.train.files
    assert skipping.test(16).files == without.test(16).files
    assert skipping.identity == f"{without.identity}-without-{count}"
    assert skipping.note == f"{without.note}; left out, since unreadable: {count}"
    with pytest.raises(ValueError, match="on_error must be 'stop' or 'skip', got 'ignore'"):
        data.load(f"folder(path={str(root)!r}, on_error='ignore')")


def test_a_class_of_nothing_but_corrupt_images_is_refused(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"train": 1, "val": 1})
    (root / "train" / "red" / "0.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"every class subfolder must have images, got '.*train/red' with none"):
        data.load(f"folder(path={str(root)!r}, on_error='skip')")
    for file in root.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"must be readable, got none of 6: .*blue/0\.png: [^;]*$"):
        data.load(f"folder(path={str(root)!r}, on_error='skip')")


def test_an_image_that_is_lost_later_is_named(tmp_path: Path) -> None:
    ds = data.load(f"folder:{make_folder(tmp_path, {'train': 1, 'val': 1})}")
    (tmp_path / "train" / "red" / "0.png").unlink()
    with pytest.raises(data.CorruptImage, match=r"got .*red/0\.png: No such file or directory"):
        next(data.train_batches(ds, 3, 0, Augment()))


def test_what_was_intact_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """What is new, changed in place or corrupt is decoded again; a cache that is lost or damaged is made anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(scan, "KEPT_SECONDS", 0.0)
    root, seen = make_folder(tmp_path / "images", {"train": 4, "val": 3}), []
    decode_as_before = Files.__getitem__
    monkeypatch.setattr(
        Files, "__getitem__", lambda self, at: seen.append(self.files[at]) or decode_as_before(self, at)
    )

    def decoded(on_error: str = "stop") -> int:
        seen.clear()
        data.load(f"folder(path={str(root)!r}, on_error={on_error!r})", size=16)
        return sum(root in file.parents for file in seen)  # threads of other tests may decode still

    assert [decoded(), decoded()] == [21, 0]
    image = root / "val" / "red" / "0.png"
    image.write_bytes(image.read_bytes())
    os.utime(image, (0, 0))
    shutil.copy(image, root / "val" / "red" / "new.png")
    assert [decoded(), decoded()] == [2, 0]
    image.write_bytes(b"\0" * image.stat().st_size)
    assert [decoded("skip"), decoded("skip")] == [1, 1], "why it is corrupt is not kept"
    (folder,) = (tmp_path / "cache" / "pejax").iterdir()
    folder.write_bytes(folder.read_bytes()[: 8 * 5 + 3])
    assert decoded("skip") == 22 - 5
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_bytes(b"")
    assert [decoded("skip"), decoded("skip")] == [22, 22], "without a cache, nothing is kept, and nothing is said"
    monkeypatch.setattr(scan, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(scan, "AT_ONCE", 20)
    capsys.readouterr()
    decoded("skip")
    said = capsys.readouterr().err.splitlines()[0]
    assert re.fullmatch(r"preparing · looked at 20 of 22 images · \d+ s left", said)
    assert last_progress(said) is not None


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_becomes_gray_or_color(mode: str, channels: int) -> None:
    red, gray = (200, 0, 0), (100, 100, 100)
    color = mode in ("P", "RGB", "RGBA", "CMYK", "YCbCr")
    picture = Image.fromarray(plain(red if color else gray))
    if mode == "I;16":
        picture = Image.fromarray(np.full((20, 30), 100 * 256 + 77, np.uint16))
    elif mode == "1":
        picture, gray = Image.new("1", (30, 20), 1), (255, 255, 255)
    else:
        picture = picture.quantize(2) if mode == "P" else picture.convert(mode)
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    image = decode(
        encoded(picture, kind, **({"quality": 100, "subsampling": 0} if kind == "JPEG" else {})), channels, "x"
    )
    assert image.mode == ("L" if channels == 1 else "RGB")
    expected = np.asarray(Image.fromarray(plain(red if color else gray)).convert(image.mode), int)
    assert np.abs(np.asarray(image, int) - expected).max() <= 3


def test_of_sixteen_bits_the_upper_eight_remain() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    np.testing.assert_array_equal(decode(encoded(values), 1, "x"), values // 256)


@pytest.mark.parametrize(("largest", "kind"), [(4095, "PNG"), (1023, "TIFF"), (1, "PNG")])
def test_pictures_of_12_bits_in_16_are_not_shown_black(largest: int, kind: str) -> None:
    values = np.linspace(0, largest, 256, dtype=np.uint16).reshape(16, 16)
    message = rf"got x: 16-bit pixels must use their range, to 65,535, or they are .* got at most {largest:,}$"
    with pytest.raises(data.CorruptImage, match=message):
        decode(encoded(values, kind), 1, "x")
    scaled = decode(encoded(values * (65535 // largest), kind), 1, "x")
    assert np.asarray(scaled).max() == 255
    assert np.asarray(decode(encoded(values * 0, kind), 1, "x")).max() == 0


@pytest.mark.parametrize("bands", [2, 3, 4])
def test_colors_of_12_bits_in_16_are_not_shown_black(bands: int) -> None:
    """Pillow has no pixels of 16 bits and several bands, so that the file is written by hand."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    def png(value: int) -> bytes:
        pixels = np.full((4, 4, bands), value, ">u2")
        if bands % 2 == 0:
            pixels[..., -1] = 65535  # opaque
        rows = b"".join(b"\0" + row.tobytes() for row in pixels)
        head = struct.pack(">IIBBBBB", 4, 4, 16, {2: 4, 3: 2, 4: 6}[bands], 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")

    with pytest.raises(data.CorruptImage, match=r"16-bit pixels must use their range, .* got at most 4,095$"):
        decode(png(4095), 3, "x")
    for value in (0, 4096, 65535):
        assert np.asarray(decode(png(value), 3, "x")).max() == value // 256


def test_training_images_are_no_test_images(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="test must be another split than the one trained on, got 'train'"):
        data.load("tfds(name='tiny_squares', test='train')")
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.fromarray(plain((0, 0, 0))).save(tmp_path / "train" / name / "one.png")
    (tmp_path / "val").symlink_to(tmp_path / "train")
    with pytest.raises(ValueError, match=r"the test images must be in another folder than those trained on, got .*val"):
        data.load(f"folder:{tmp_path}")


def test_transparency_shows_white() -> None:
    half = np.zeros((4, 4, 4), np.uint8)
    half[:, :2, 3] = 255
    pixels = np.asarray(decode(encoded(half), 3, "x"))
    assert (pixels[:, :2].max(), pixels[:, 2:].min()) == (0, 255)
    palette = Image.fromarray(plain((0, 0, 0), 4, 4)).convert("P")
    assert np.asarray(decode(encoded(palette, transparency=palette.getpixel((0, 0))), 1, "x")).min() == 255


def test_exif_orientation_is_followed() -> None:
    picture = Image.fromarray(np.repeat(np.arange(40, dtype=np.uint8)[None] * 6, 20, axis=0))
    exif = Image.Exif()
    exif[0x0112] = 6
    image = decode(encoded(picture, "JPEG", exif=exif, quality=95), 1, "x")
    assert image.size == (20, 40)
    assert np.asarray(image)[0].mean() < 20 < 200 < np.asarray(image)[-1].mean()


def odd_exif() -> bytes:
    """Return a JPEG that is turned, and whose width is a text in EXIF, at which Pillow raises struct.error."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "x" * 8
    return encoded(plain((0, 0, 0)), "JPEG", exif=exif).replace(b"\x01\x0e\x00\x02", b"\x01\x00\x00\x02")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n broken",
        encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8), "JPEG")[:900],
        encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))[:-2000],
        encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).replace(b"IDAT", b"IDAX"),
        encoded(Image.new("F", (4, 4)), "TIFF"),
        odd_exif(),
    ],
    ids=["empty", "header", "cut-jpeg", "cut-png", "chunk", "float", "exif"],
)
def test_damaged_files_are_corrupt_images(content: bytes) -> None:
    with pytest.raises(data.CorruptImage, match=r"got place/name\.png: .+") as raised:
        decode(content, 3, "place/name.png")
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare two small data sets with TFDS itself and return their data folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.support import prepared_data

        return prepared_data.prepare(tmp_path_factory.mktemp("tfds"))


@pytest.fixture
def data_dir(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name the prepared folder as the user would, and fail whatever opens a socket from here on."""

    def refuse(*args: object) -> None:
        raise AssertionError(f"a socket was asked for: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    return prepared


def test_small_prepared_images_are_kept_in_memory(data_dir: Path) -> None:
    ds = data.load("tfds:tiny_squares", size=12)
    assert (len(ds.train), len(ds.test(12)), ds.channels, ds.classes) == (12, 6, 1, ("dark", "light"))
    assert isinstance(ds.train, data.Images)
    for image, label in (ds.test(20)[index] for index in range(6)):
        assert image.shape == (20, 20, 1)
        assert (image.min() > 100) == label
    assert data.load(f"tfds:{data_dir / 'tiny_squares'}", size=12).identity == ds.identity == "tfds-tiny_squares/1.0.0"


def test_large_prepared_images_are_cropped(data_dir: Path, capsys: Any) -> None:
    with pytest.raises(
        ValueError, match=r"images of wide_photos/1\.0\.0 validation must be readable, got 1 of 4 that "
    ):
        data.load("tfds:wide_photos", size=16)
    ds = data.load("tfds(name='wide_photos', on_error='skip')", size=16)
    assert not isinstance(ds.train, data.Images)
    assert ds.channels == 3
    batch = next(data.train_batches(ds, 4, 0, Augment(crop=True)))
    assert batch["image"].shape == (4, 16, 16, 3)
    count = sum(len(batch["label"]) for batch in data.evaluation_batches(ds, 24, 2))
    assert count == len(ds.test(24)) == 3, "one of the four is corrupt"
    assert "1 of 4 images of wide_photos/1.0.0 validation are left out: wide_photos/1.0.0 va" in capsys.readouterr().err
    assert ds.identity == "tfds-wide_photos/1.0.0-without-1"
    with pytest.raises(ValueError, match="must have the split 'test', got train, validation"):
        data.load("tfds(name='wide_photos', test='test')")


def test_fashion_is_found_as_a_prepared_copy(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="got none of them"):
        data.load("fashion(full=True)")
    ds = data.load(f"fashion:{data_dir / 'tiny_squares'}", size=28)
    assert (len(ds.train), "TFDS copy" in ds.note) == (12, True)


def test_what_cannot_be_read_says_how_to_prepare_it(data_dir: Path) -> None:
    with pytest.raises(ValueError, match="must be prepared before") as raised:
        data.load("tfds:cifar10")
    assert "tfds build cifar10 --file_format=array_record" in str(raised.value)
    with pytest.raises(ValueError, match="an image and a class label, got no_label with image"):
        data.load("tfds:no_label")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("dataset_info.json", "{", "", r"must have the dataset_info.json .* cannot be read \(ParseError\)$"),
        ("features.json", '"featuresDict"', '"another"', r"must have the dataset_info.json .* read \(ParseError\)$"),
        ("dataset_info.json", '"{DATASET}', '"../{DATASET}', r"must be in files of its folder, got .*/\.\./tiny"),
        ("dataset_info.json", '"12"', '"13"', r"a record must be readable, got tiny_squares/1.0.0 train 12: index"),
        ("dataset_info.json", '"12"', '"6", "6"', r"a record must be readable, got .* No such file"),
    ],
)
def test_a_prepared_set_with_a_wrong_description(
    data_dir: Path, tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    folder = tmp_path / "tiny_squares" / "1.0.0"
    shutil.copytree(data_dir / "tiny_squares" / "1.0.0", folder)
    (folder / file).write_text((folder / file).read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as refusal:
        data.load(f"tfds:{folder}", size=12)
    assert "\n" not in str(refusal.value)
