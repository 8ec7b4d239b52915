"""Image data sets that TensorFlow Datasets has prepared, read without TensorFlow; nothing is downloaded."""

import hashlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from train.data.bad import identity_suffix, note_suffix
from train.data.images.augment import central_square
from train.data.images.decode import decode
from train.data.images.folder import MEAN, SHOWN, STD, central
from train.data.images.scan import file_mark, intact
from train.data.images.source import CorruptImage, Dataset, Images, as_array
from train.data.tfds_folder import open_prepared, open_split, read_record

TEST_SPLITS = ("test", "validation")
IN_MEMORY = 64
"""Largest side of square images that are read once and kept in memory."""


class Records:
    """A source of the records of one split, or of those at `indices`."""

    def __init__(
        self,
        builder: Any,
        split: str,
        size: int | None = None,
        shown: float = SHOWN,
        indices: Sequence[int] | None = None,
    ) -> None:
        """Open a split; images are central squares of `size`; if `size` is None, images are not cropped."""
        import tensorflow_datasets

        self.image, self.label = keys(builder)
        skip = {self.image: tensorflow_datasets.decode.SkipDecoding()}
        self.records = open_split(builder, split, decoders=skip)
        self.name, self.size = f"{builder.info.full_name} {split}", size
        shards = "\n".join(file_mark(Path(shard)) for shard in builder.info.splits[split].filepaths)
        self.shards = hashlib.sha256(os.fsencode(shards)).hexdigest()
        self.shown, self.indices = shown, range(len(self.records)) if indices is None else indices
        self.channels = 1 if builder.info.features[self.image].shape[-1] == 1 else 3

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[UInt8[np.ndarray, "H W C"], int]:
        """Return one image and its label.

        Raises:
            CorruptImage: it cannot be decoded.
        """
        at = self.indices[index]
        try:
            record = read_record(self.records, at, self.name)
        except ValueError as broken:
            raise CorruptImage(f"{self.name} {at}", broken) from None
        picture = decode(record[self.image], self.channels, f"{self.name} {at}")
        if self.size is not None:
            picture = central_square(picture, self.size, 1 / self.shown)
        return as_array(picture), int(record[self.label])

    def mark(self, index: int) -> str:
        """Return the number of the record, with a digest of the paths, sizes and last changes of the split's files."""
        return f"{self.indices[index]} of {self.shards}"

    def in_memory(self) -> Images:
        """Return the same images in memory; they must have one size."""
        images, labels = zip(*(self[index] for index in range(len(self))), strict=True)
        return Images(np.stack(images), np.asarray(labels))


def tfds(size: int, *, name: str, test: str = "", on_error: str = "stop", shown: float = SHOWN) -> Dataset:
    """Return a data set of images that TensorFlow Datasets has prepared as array_record.

    Images are grayscale if they have one channel, else RGB. Small square images are resized, others are cropped.

    Args:
        size: side of the training images, pixels.
        name: `NAME` or `NAME/CONFIG` in `$TFDS_DATA_DIR` (by default `~/tensorflow_datasets`), or a folder.
        test: the test split; if empty, `test`, or else `validation`.
        on_error: action at images that cannot be decoded: `stop` refuses the data and names them; `skip` leaves them
            out.
        shown: side of the central square of a test image, as a fraction of the shorter side.

    Raises:
        ValueError: it is not prepared, does not consist of labeled images, lacks a split, or has images that cannot be
            decoded.
    """
    if test == "train":
        raise ValueError("test must be another split than the one trained on, got 'train'")
    builder = open_prepared(name)
    held_out = test or next((split for split in TEST_SPLITS if split in builder.info.splits), "test")
    for split in ("train", held_out):
        if split not in builder.info.splits:
            raise ValueError(f"tfds {name} must have the split {split!r}, got {', '.join(builder.info.splits)}")
    image, label = keys(builder)
    train, test_records = (_intact(builder, split, on_error) for split in ("train", held_out))
    skipped = sum(len(records.records) - len(records) for records in (train, test_records))
    height, width = builder.info.features[image].shape[:2]
    small = height is not None and height == width <= IN_MEMORY
    squares = partial(Records, builder, held_out, shown=shown, indices=test_records.indices)
    method = "resized bicubic: antialiased where it shrinks, upsampled where it grows"
    originals = train.in_memory() if small else None
    return Dataset(
        train=train if originals is None else originals.at_size(size).in_memory(),
        train_at=None if originals is None else originals.at_size,
        test=test_records.in_memory().at_size if small else squares,
        classes=tuple(builder.info.features[label].names),
        channels=train.channels,
        size=size,
        mean=MEAN if train.channels == 3 else (float(np.mean(MEAN)),),
        std=STD if train.channels == 3 else (float(np.mean(STD)),),
        mirror=True,
        note=f"{builder.info.full_name}: {f'{height} px {method}' if small else central(shown)}{note_suffix(skipped)}",
        identity=f"tfds-{builder.info.full_name}{identity_suffix(skipped)}",
    )


def _intact(builder: Any, split: str, on_error: str) -> Records:
    """Return the records of a split whose images can be decoded."""
    records = Records(builder, split)
    indices = intact(records, Path(builder.data_dir) / split, f"images of {records.name}", on_error)
    return Records(builder, split, indices=indices)


def keys(builder: Any) -> tuple[str, str]:
    """Return the names of the image feature and of the class feature of a data set.

    Raises:
        ValueError: it has no image, or no class.
    """
    import tensorflow_datasets

    features, names = builder.info.features, ("Image", "ClassLabel")
    kinds = tuple(getattr(tensorflow_datasets.features, kind) for kind in names)
    pair = builder.info.supervised_keys or ("image", "label")
    if len(pair) != 2 or not all(
        key in features and isinstance(features[key], kind) for key, kind in zip(pair, kinds, strict=True)
    ):
        raise ValueError(
            f"tfds data must have an image and a class label, got {builder.info.name} with {', '.join(features)}"
        )
    return pair
