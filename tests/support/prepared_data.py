"""Three small data sets, prepared by TFDS as a user would: array_record, images given as PNG bytes."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image


def png(value: int, height: int, width: int, channels: int) -> io.BytesIO:
    buffer = io.BytesIO()
    Image.fromarray(np.squeeze(np.full((height, width, channels), value, np.uint8))).save(buffer, "PNG")
    return io.BytesIO(buffer.getvalue())


class _Builder(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    SPLITS: dict[str, int]
    SHAPE: tuple[int | None, int | None, int]
    LABELLED = True
    code_path = None  # of a module in a package TFDS looks for checksums of downloads beside it

    def _info(self) -> tfds.core.DatasetInfo:
        features = {"image": tfds.features.Image(shape=self.SHAPE)}
        if self.LABELLED:
            features["label"] = tfds.features.ClassLabel(names=["dark", "light"])
        keys = ("image", "label") if self.LABELLED else None
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=keys)

    def _split_generators(self, manager: object) -> dict[str, Iterator[tuple[int, dict[str, object]]]]:
        return {split: self._generate_examples(split) for split in self.SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, object]]]:
        height, width, channels = self.SHAPE
        for index in range(self.SPLITS[split]):
            image = png(200 * (index % 2) + index, height or 40, width or 60 + index, channels)
            yield index, {"image": image, **({"label": index % 2} if self.LABELLED else {})}


class TinySquares(_Builder):
    """Grey squares of 10 pixels."""

    SPLITS, SHAPE = {"train": 12, "test": 6}, (10, 10, 1)


class WidePhotos(_Builder):
    """Color images of several widths, one of them damaged."""

    SPLITS, SHAPE = {"train": 6, "validation": 4}, (None, None, 3)

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, object]]]:
        for index, example in super()._generate_examples(split):
            damaged = split == "validation" and index == 2
            yield index, {**example, "image": io.BytesIO(b"damaged")} if damaged else example


class NoLabel(_Builder):
    """Images without classes."""

    SPLITS, SHAPE, LABELLED = {"train": 2, "test": 2}, (10, 10, 1), False


def prepare(folder: Path) -> Path:
    """Prepare all of them below `folder` and return it."""
    for builder in (TinySquares, WidePhotos, NoLabel):
        builder(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder
