"""An image data set for training: two random-access sources of (uint8 image, label), and their description."""

import dataclasses
import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image

from train.devices.memory import host_memory, require_room

VALIDATION_SEED = 1
"""Seed of the choice of held-out training images."""

CHUNK = 250
"""Images that are made at once where all are."""


class CorruptImage(ValueError):
    """An image that cannot be decoded."""

    def __init__(self, name: str, reason: object) -> None:
        self.name, self.reason = name, " ".join(str(reason).split())
        super().__init__(f"an image must be decodable, got {name}: {self.reason}")


@runtime_checkable
class Source(Protocol):
    """Random access to images and labels, grain's RandomAccessDataSource."""

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def __getitem__(self, index: int) -> tuple[UInt8[np.ndarray, "H W C"], int]:
        """Return one image and its label.

        Raises:
            CorruptImage: it cannot be decoded.
        """
        ...


class Images:
    """A source in memory, whose images all have one size, so that a batch is gathered at once."""

    def __init__(self, images: UInt8[np.ndarray, "N H W C"], labels: Integer[np.ndarray, " N"]) -> None:
        if len(images) != len(labels) or not len(images):
            counts = f"{len(images)} and {len(labels)}"
            raise ValueError(f"images and labels must be equally many, at least one, got {counts}")
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[UInt8[np.ndarray, "H W C"], int]:
        """Return one image and its label."""
        return self.images[index], int(self.labels[index])

    def batch(self, indices: Integer[np.ndarray, " M"]) -> tuple[UInt8[np.ndarray, "M H W C"], np.ndarray]:
        """Return the images of these indices and their labels."""
        return self.images[indices], self.labels[indices]

    def subset(self, indices: Integer[np.ndarray, " M"]) -> "Images":
        """Return the source with some of the images."""
        return Images(*self.batch(indices))

    def at_size(self, size: int) -> "MadeImages":
        """Return the source with all images resized to `size` by `size` pixels, each when it is read."""
        if self.images.shape[1:3] == (size, size):
            return MadeImages(self.labels, lambda indices: self.images[indices])
        return MadeImages(
            self.labels, lambda indices: np.stack([resize(self.images[index], size) for index in indices])
        )


class MadeImages:
    """A source of images of one size that are made when they are read, a batch at once.

    Args:
        labels: classes of all images.
        make: indices to images.
    """

    def __init__(
        self,
        labels: Integer[np.ndarray, " N"],
        make: Callable[[Integer[np.ndarray, " M"]], UInt8[np.ndarray, "M H W C"]],
    ) -> None:
        self.labels, self.make = labels, make

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[UInt8[np.ndarray, "H W C"], int]:
        """Return one image and its label."""
        images, (label,) = self.batch(np.asarray([range(len(self))[index]]))
        return images[0], int(label)

    def batch(self, indices: Integer[np.ndarray, " M"]) -> tuple[UInt8[np.ndarray, "M H W C"], np.ndarray]:
        """Return the images of these indices and their labels."""
        return self.make(indices), self.labels[indices]

    def subset(self, indices: Integer[np.ndarray, " M"]) -> "MadeImages":
        """Return the source with some of the images."""
        return MadeImages(self.labels[indices], lambda positions: self.make(indices[positions]))

    def in_memory(self) -> Images:
        """Return the source with all its images made.

        Raises:
            ValueError: they do not fit into memory.
        """
        image = self[0][0]
        sides = " x ".join(map(str, image.shape[:-1]))
        require_room(len(self) * image.size, host_memory(), f"{len(self):,} images of {sides} pixels")
        parts = [self.make(part) for part in np.split(np.arange(len(self)), range(CHUNK, len(self), CHUNK))]
        return Images(np.concatenate(parts), self.labels)


def resize(image: UInt8[np.ndarray, "H W C"], size: int) -> UInt8[np.ndarray, "S S C"]:
    """Return the image at `size` by `size` pixels: bicubic (a = -0.5), antialiased when it shrinks."""
    return as_array(as_picture(image).resize((size, size), Image.Resampling.BICUBIC))


def as_picture(image: UInt8[np.ndarray, "H W C"]) -> Image.Image:
    """Return the pixels as a picture, grayscale or RGB."""
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)


def as_array(picture: Image.Image) -> UInt8[np.ndarray, "H W C"]:
    """Return the pixels of a grayscale or RGB picture, channels last."""
    pixels = np.asarray(picture)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def unpack(path: Path, digest: str) -> bytes:
    """Return the content of an embedded xz file.

    Raises:
        ValueError: its sha256 is not `digest`.
    """
    try:
        content = lzma.decompress(path.read_bytes())
    except lzma.LZMAError as broken:
        raise ValueError(f"{path} must be the embedded file of this version, got a damaged one: {broken}") from None
    content_digest = hashlib.sha256(content).hexdigest()
    if content_digest != digest:
        raise ValueError(f"{path} must hold content of sha256 {digest[:16]}..., got {content_digest[:16]}...")
    return content


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training images and test images, at any size, or videos.

    `train[i]` and `test(size)[i]` are `(uint8 H W C, int)`. If `train` is `Images`, its images are `size` pixels
    wide; otherwise they have their stored sizes, and the pipeline crops them to `size`. Of videos, `train[i]` and
    `test(size, F)[i]` are `(uint8 F H W C, int)`, and `test(size)` are their first frames, as pictures.
    """

    train: Source
    test: Callable[..., Source]
    classes: tuple[str, ...]  # names of the classes
    channels: int  # 1 or 3
    size: int  # side of the training images, pixels
    mean: tuple[float, ...]  # of each channel, in units of 255
    std: tuple[float, ...]
    mirror: bool  # whether a mirrored image keeps its class
    note: str  # one line for tables of results
    identity: str  # different for different content; stored in checkpoints
    train_at: Callable[..., MadeImages] | None = None  # the training images at any size; None: they have one size
    frames: int = 0  # frames of the training videos; 0: they are pictures


def with_validation(dataset: Dataset, fraction: float) -> Dataset:
    """Return the data set with a fraction of its training images in place of its test images.

    Settings can be chosen by the accuracy on them without a look at the test images. They are drawn at random, the
    same for every run.

    Args:
        dataset: one whose training images can be had at any size.
        fraction: fraction of the training images; at least one is held out, and at least one is trained on.

    Raises:
        ValueError: training images that are not held in memory.
    """
    draw, train = dataset.train_at, dataset.train
    if draw is None or not isinstance(train, Images):
        raise ValueError(f"validation must be 0 where the images are read from files, got {fraction}")
    order = np.random.default_rng(VALIDATION_SEED).permutation(len(train))
    held_indices, train_indices = np.split(order, [min(max(1, round(fraction * len(train))), len(train) - 1)])
    return dataclasses.replace(
        dataset,
        train=train.subset(np.sort(train_indices)),
        test=lambda *at: draw(*at).subset(np.sort(held_indices)),
        note=f"{dataset.note}; {len(held_indices):,} training images, not trained on, are evaluated on",
        identity=f"{dataset.identity}-validation-{len(held_indices)}",
        train_at=lambda *at: draw(*at).subset(np.sort(train_indices)),
    )
