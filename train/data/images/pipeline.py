"""Batches from a data set, with grain; all random choices depend only on (seed, step).

grain is imported by what returns an iterator: a batch can be made without it.
"""

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, UInt8

from train.data.images.augment import (
    Augment,
    central_square,
    random_crop,
    random_erasing,
    random_flip,
    random_resized_crop,
)
from train.data.images.randaugment import rand_augment
from train.data.images.source import Dataset, Images, MadeImages, Source, as_array, as_picture
from train.data.images.three_augment import three_augment

if TYPE_CHECKING:
    import grain

Batch = dict[str, np.ndarray]


def train_batches(
    ds: Dataset, batch: int, seed: int, augment: Augment, step: int = 0, rows: range | None = None
) -> "grain.DatasetIterator[Batch]":
    """Return an endless iterator of training batches, reshuffled each epoch, without incomplete batches.

    Every row depends only on (seed, step). Batches are made by threads; no process is started.

    Args:
        ds: the data set.
        batch: images per batch, B.
        seed: random seed of the order and of the augmentation.
        augment: the augmentation.
        step: step of the first batch.
        rows: the rows of each batch to make; None = all.

    Returns:
        Batches `{"image": (B, S, S, C) float32, normalized, "label": (B,) int32}`.

    Raises:
        ValueError: fewer training images than one batch.
    """
    import grain

    if not 1 <= batch <= len(ds.train):
        raise ValueError(f"batch must be from 1 to the {len(ds.train)} training images, got {batch}")
    order = grain.MapDataset.range(len(ds.train)).seed(seed).shuffle()
    batches = order.batch(-(-batch // augment.repeats), drop_remainder=True, batch_fn=np.asarray).repeat()
    batches = batches.map(lambda indices: np.repeat(indices, augment.repeats)[:batch])
    batches = batches.random_map(partial(train_batch, ds, augment, range(batch) if rows is None else rows))
    return _iterator(batches[step:], ds.train)


def evaluation_batches(ds: Dataset, size: int, batch: int) -> "grain.DatasetIterator[Batch]":
    """Return an iterator over the test images at `size` pixels; the last batch may be smaller.

    The order is a golden-ratio sequence, so that the first N images are a representative sample of a source that is
    sorted by class.

    Returns:
        Batches `{"image": (B, size, size, C) float32, normalized, "label": (B,) int32}`.
    """
    import grain

    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    source = ds.test(size)
    order = np.argsort(np.arange(len(source)) * (np.sqrt(5) / 2 - 0.5) % 1)
    batches = grain.MapDataset.range(len(source)).map(lambda i: order[i]).batch(batch, batch_fn=np.asarray)
    return _iterator(batches.map(partial(normalized_batch, ds, source)), source)


class Squares:
    """A source of the central squares of the images of another source, at `size` by `size` pixels."""

    def __init__(self, source: Source, size: int) -> None:
        self.source, self.size = source, size

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[UInt8[np.ndarray, "S S C"], int]:
        """Return one image and its label.

        Raises:
            CorruptImage: it cannot be decoded.
        """
        image, label = self.source[index]
        return as_array(central_square(as_picture(image), self.size)), label


def training_source(ds: Dataset, size: int, *frames: int) -> Source:
    """Return the training images at `size` by `size` pixels: drawn, resized, or central squares of files; or videos."""
    return Squares(ds.train, size) if ds.train_at is None else ds.train_at(size, *frames)


def normalize(pixels: UInt8[np.ndarray, "B *F S S C"], ds: Dataset) -> Float32[np.ndarray, "B *F S S C"]:
    """Return `(pixels / 255 - mean) / std`, channel by channel."""
    mean, std = (np.asarray(values, np.float32) for values in (ds.mean, ds.std))
    return pixels * (1 / (255 * std)) - mean / std


def train_batch(ds: Dataset, augment: Augment, rows: range, indices: np.ndarray, rng: np.random.Generator) -> Batch:
    """Return some rows of one augmented training batch.

    Args:
        ds: the data set.
        augment: the augmentation.
        rows: rows of the batch to make.
        indices: indices of the images of all rows.
        rng: generator of the augmentation; each row has a generator of its own, drawn from it.
    """
    # seeds are drawn for all rows, so that a row is the same whichever process makes it
    seeds = rng.integers(2**63, size=len(indices))[rows.start : rows.stop]
    rngs, indices = [np.random.default_rng(int(seed)) for seed in seeds], indices[rows.start : rows.stop]
    if isinstance(ds.train, Images):
        pixels, labels = ds.train.images[indices], ds.train.labels[indices]
        pixels = random_crop(pixels, rngs) if augment.crop else pixels
    else:
        examples = [ds.train[int(index)] for index in indices]
        pairs = zip(examples, rngs, strict=True)
        pixels = np.stack([_square(image, ds.size, rng if augment.crop else None) for (image, _), rng in pairs])
        labels = np.asarray([label for _, label in examples])
    if augment.flip and ds.mirror:
        pixels = random_flip(pixels, rngs)
    if augment.rand_augment:
        pixels = np.stack(
            [as_array(rand_augment(as_picture(image), rng)) for image, rng in zip(pixels, rngs, strict=True)]
        )
    if augment.three_augment:
        pixels = np.stack(
            [as_array(three_augment(as_picture(image), rng)) for image, rng in zip(pixels, rngs, strict=True)]
        )
    images = normalize(pixels, ds)
    if augment.erasing:
        images = random_erasing(images, augment.erasing, rngs)
    return {"image": images, "label": labels.astype(np.int32)}


def _square(
    image: UInt8[np.ndarray, "H W C"], size: int, rng: np.random.Generator | None
) -> UInt8[np.ndarray, "S S C"]:
    """Return a random part of an image at `size` by `size` pixels; without a generator, its central square."""
    picture = as_picture(image)
    return as_array(central_square(picture, size) if rng is None else random_resized_crop(picture, size, rng))


def normalized_batch(ds: Dataset, source: Source, indices: np.ndarray) -> Batch:
    """Return the normalized images of one size and the labels at some indices of a source.

    Returns:
        A batch as those of `evaluation_batches`.
    """
    if isinstance(source, Images | MadeImages):
        pixels, labels = source.batch(indices)
    else:
        pairs = [source[int(index)] for index in indices]
        pixels, labels = np.stack([image for image, _ in pairs]), np.asarray([label for _, label in pairs])
    return {"image": normalize(pixels, ds), "label": labels.astype(np.int32)}


def _iterator(batches: "grain.MapDataset[Any]", source: Source) -> "grain.DatasetIterator[Batch]":
    import grain

    threads = 2 if isinstance(source, Images | MadeImages) else min(16, os.cpu_count() or 1)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)))
