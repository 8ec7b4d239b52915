"""Three small data sets, prepared by TFDS as a user would: array_record, with one text, with two, with none."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds


class _TextBuilder(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    code_path = None  # of a module in a package TFDS looks for checksums of downloads beside it
    SPLITS: ClassVar[dict[str, int]]
    FEATURES: ClassVar[dict[str, object]]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(self.FEATURES))

    def _split_generators(self, manager: object) -> dict[str, Iterator[tuple[int, dict[str, object]]]]:
        return {split: self._generate_examples(split) for split in self.SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, object]]]:
        for index in range(self.SPLITS[split]):
            yield index, self.example(split, index)


class Stories(_TextBuilder):
    """One text a record."""

    SPLITS: ClassVar = {"train": 10, "validation": 3}
    FEATURES: ClassVar = {"number": tfds.features.Scalar(dtype=np.int32), "story": tfds.features.Text()}

    def example(self, split: str, index: int) -> dict[str, object]:
        return {"number": index, "story": f"{split} é {index}"}


class Books(_TextBuilder):
    """Two texts a record, one of them not UTF-8 in the second record; scalars of strings, as from other libraries."""

    SPLITS: ClassVar = {"train": 2}
    FEATURES: ClassVar = {"title": tfds.features.Scalar(dtype=np.object_), "body": tfds.features.Text()}

    def example(self, split: str, index: int) -> dict[str, object]:
        return {"title": f"title {index}", "body": b"ab\xff" if index else b"ab"}


class Numbers(_TextBuilder):
    """No text."""

    SPLITS: ClassVar = {"train": 2}
    FEATURES: ClassVar = {"number": tfds.features.Scalar(dtype=np.int32)}

    def example(self, split: str, index: int) -> dict[str, object]:
        return {"number": index}


def prepare(folder: Path) -> Path:
    """Prepare all of them below `folder` and return it."""
    for builder in (Stories, Books, Numbers):
        builder(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder
