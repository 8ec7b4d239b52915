"""Images in one subfolder per class, as in ImageNet100 and Imagenette."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from train.data.bad import identity_suffix, note_suffix
from train.data.images.augment import central_square
from train.data.images.decode import decode
from train.data.images.scan import file_mark, intact
from train.data.images.source import CorruptImage, Dataset, as_array

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TEST_NAMES = ("val", "valid", "validation", "test")
HELD_OUT = 0.1
SHOWN = 7 / 8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training images, as in all published recipes."""


class Files:
    """A source of image files with their labels."""

    def __init__(
        self, files: Sequence[Path], labels: Sequence[int], size: int | None = None, shown: float = SHOWN
    ) -> None:
        """Make the source; test images are central squares of `size`; if `size` is None, images are not cropped."""
        self.files, self.labels, self.size, self.shown = files, labels, size, shown

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[UInt8[np.ndarray, "H W 3"], int]:
        """Return one image and its label.

        Raises:
            CorruptImage: the file cannot be read or decoded.
        """
        path = self.files[index]
        try:
            encoded = path.read_bytes()
        except OSError as refused:
            raise CorruptImage(str(path), refused.strerror) from None
        picture = decode(encoded, 3, str(path))
        if self.size is not None:
            picture = central_square(picture, self.size, 1 / self.shown)
        return as_array(picture), self.labels[index]

    def mark(self, index: int) -> str:
        """Return the path, the size and the last change of a file.

        Raises:
            CorruptImage: it is no file.
        """
        return file_mark(self.files[index])


def folder(size: int, *, path: str, on_error: str = "stop", shown: float = SHOWN) -> Dataset:
    """Return the images of a folder, in RGB; each was decoded once.

    Either `PATH/train/CLASS/...` and `PATH/val/CLASS/...` (or valid, validation, test), or only `PATH/CLASS/...`, a
    tenth of which is then held out, chosen by the sha256 of each file's path below PATH.

    Args:
        size: side of the training images, pixels.
        path: path of the folder.
        on_error: action at images that cannot be decoded: `stop` refuses the folder and names them; with `skip` it is
            read as if they were not there.
        shown: side of the central square of a test image, as a fraction of the shorter side.

    Raises:
        ValueError: no such folder, no images, a single class, a class without images, images that cannot be decoded,
            test images of an unknown class, or an invalid `on_error` or `shown`.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"folder must be a directory, got {path!r}")
    note, parts = central(shown), _parts(root)
    names = tuple(next(iter(parts.values())))
    splits, skipped = _intact(parts, root, on_error)
    train, test = splits if len(splits) == 2 else _split(splits[0], root)
    pairs = [
        [(file, label) for label, name in enumerate(names) for file in part.get(name, ())] for part in (train, test)
    ]
    (train_files, train_labels), (test_files, test_labels) = (tuple(zip(*part, strict=True)) for part in pairs)
    return Dataset(
        train=Files(train_files, train_labels),
        test=lambda side: Files(test_files, test_labels, side, shown),
        classes=names,
        channels=3,
        size=size,
        mean=MEAN,
        std=STD,
        mirror=True,
        note=f"{root.name}: {note}{note_suffix(skipped)}",
        identity=f"{root.name}-{_digest(root, (*train_files, *test_files))}{identity_suffix(skipped)}",
    )


def central(shown: float) -> str:
    """Return which part of a test image is used, in words.

    Raises:
        ValueError: `shown` is not above 0 and at most 1.
    """
    if not 0 < shown <= 1:
        raise ValueError(f"shown must be above 0 and at most 1, got {shown}")
    fraction = Fraction(shown).limit_denominator(100)
    return f"central square of {fraction} of the shorter side, bicubic, antialiased where it shrinks"


Classes = dict[str, list[Path]]
"""The image files of every class, sorted by name."""


def _parts(root: Path) -> dict[Path, Classes]:
    """Return the images to train on and those to test on by their folders, or all of them where they are not apart."""
    held_out = next((root / name for name in TEST_NAMES if (root / name).is_dir()), None)
    folders = [root]
    if held_out is not None and (root / "train").is_dir():
        if held_out.samefile(root / "train"):
            raise ValueError(f"the test images must be in another folder than those trained on, got {held_out}")
        folders = [root / "train", held_out]
    parts = {folder: _classes(folder) for folder in folders}
    train, *tests = parts.values()
    unknown = sorted({name for test in tests for name in test} - set(train))
    if unknown:
        rule = "the test images must be of the classes trained on"
        raise ValueError(f"{rule}, got class {unknown[0]!r} in {str(root)!r}")
    if len(train) < 2:
        raise ValueError(
            f"a folder of images must hold at least two classes, got {', '.join(train)!r} in {str(root)!r}"
        )
    return parts


def _intact(parts: Mapping[Path, Classes], root: Path, on_error: str) -> tuple[list[Classes], int]:
    """Return the images of all parts that can be decoded, and the number of those that are left out."""
    files = [file for part in parts.values() for images in part.values() for file in images]
    indices = intact(Files(files, [0] * len(files)), root, f"images of {root}", on_error)
    readable = {files[index] for index in indices}
    splits = []
    for folder, part in parts.items():
        splits.append({name: [file for file in images if file in readable] for name, images in part.items()})
        _require_images(splits[-1], folder)
    return splits, len(files) - len(readable)


def _classes(root: Path) -> Classes:
    """Return the files that are images by their names, by the class subfolder of a folder."""
    classes = {}
    for entry in sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        paths = (Path(at) / name for at, _, names in os.walk(entry) for name in names)
        classes[entry.name] = sorted(file for file in paths if file.suffix.lower() in SUFFIXES)
    if not classes:
        raise ValueError(f"a folder of images must have a subfolder per class, got {str(root)!r} with none")
    _require_images(classes, root)
    return classes


def _require_images(classes: Mapping[str, Sequence[Path]], root: Path) -> None:
    for name, files in classes.items():
        if not files:
            raise ValueError(f"every class subfolder must have images, got {str(root / name)!r} with none")


def _split(classes: Classes, root: Path) -> tuple[Classes, Classes]:
    """Return the training files and the held-out tenth of every class, at least one image each."""
    train, test = {}, {}
    for name, files in classes.items():
        if len(files) < 2:
            raise ValueError(f"a class to split must hold two images, got {str(root / name)!r} with {len(files)}")
        ranking = sorted(
            files,
            key=lambda file: hashlib.sha256(
                file.relative_to(root).as_posix().encode(errors="surrogateescape")
            ).digest(),
        )
        count = max(1, round(HELD_OUT * len(files)))
        test[name], train[name] = sorted(ranking[:count]), sorted(ranking[count:])
    return train, test


def _digest(root: Path, files: Sequence[Path]) -> str:
    """Return a digest of the paths of files below the root, and of their sizes."""
    lines = (f"{file.relative_to(root).as_posix()} {file.stat().st_size}" for file in files)
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:8]
