"""What is done to training images: crop, mirror, RandAugment, random erasing, Mixup and CutMix, each by itself.

Everything is a function of its inputs and a numpy generator. Crop and mirror move uint8 pixels of a whole batch at
once; erasing works on normalised images, Mixup and CutMix on normalised batches and their labels, in that order, as
in the training of DeiT (Touvron et al. 2021, arXiv 2012.12877, table 9).
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8
from PIL import Image

ERASED_AREA = (0.02, 1 / 3)
ERASED_ASPECT = (0.3, 1 / 0.3)
CROPPED_AREA = (0.08, 1.0)
CROPPED_ASPECT = (3 / 4, 4 / 3)
ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class Augment:
    """Which augmentations are on; all are off by default."""

    crop: bool = False  # a random crop of the padded image; of a random area and shape where images are larger
    flip: bool = False  # mirror half of the images, where that keeps their class
    rand_augment: bool = False  # RandAugment(9, 0.5)
    erasing: float = 0.0  # probability that a rectangle of an image becomes noise
    mixup: float = 0.0  # Beta parameter; 0 = off
    cutmix: float = 0.0  # Beta parameter; 0 = off


def random_crop(images: UInt8[np.ndarray, "B S S C"], rng: np.random.Generator) -> UInt8[np.ndarray, "B S S C"]:
    """Return every image moved by up to a sixteenth of its side along both axes, its border repeated where it left."""
    count, side = images.shape[:2]
    reach = side // 16
    moves = rng.integers(-reach, reach + 1, (2, count, 1))
    rows, columns = np.clip(np.arange(side) + moves, 0, side - 1)
    return images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def random_flip(images: UInt8[np.ndarray, "B S S C"], rng: np.random.Generator) -> UInt8[np.ndarray, "B S S C"]:
    """Return every image mirrored left to right with probability 1/2."""
    return np.where(rng.random((len(images), 1, 1, 1)) < 0.5, images[:, :, ::-1], images)


def random_resized_crop(picture: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """Return a random part of a picture, of 8 % to 100 % of its area and aspect 3/4 to 4/3, at `size` by `size` pixels.

    The area is uniform, the aspect log-uniform; after ten parts that do not fit, the central square.

    Reference:
        Szegedy et al. 2015, "Going Deeper with Convolutions" (arXiv 1409.4842), section 6.
    """
    width, height = picture.size
    box = None
    for _ in range(ATTEMPTS):
        area = width * height * rng.uniform(*CROPPED_AREA)
        aspect = math.exp(rng.uniform(*np.log(CROPPED_ASPECT)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
            box = (left, top, left + w, top + h)
            break
    if box is None:
        return central_square(picture, size)
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=box)


def central_square(picture: Image.Image, size: int, margin: float = 1.0) -> Image.Image:
    """Return the central square, 1/margin of the shorter side wide, at `size` by `size` pixels."""
    width, height = picture.size
    side = min(width, height) / margin
    left, top = (width - side) / 2, (height - side) / 2
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


def random_erasing(
    images: Float32[np.ndarray, "B S S C"], probability: float, rng: np.random.Generator
) -> Float32[np.ndarray, "B S S C"]:
    """Return the images, a rectangle of some of them replaced by standard normal noise.

    The rectangle has 2 % to 1/3 of the area (uniform) and aspect 0.3 to 1/0.3 (log-uniform); the first of ten that
    is smaller than the image is taken.

    Reference:
        Zhong et al. 2020, "Random Erasing Data Augmentation" (arXiv 1708.04896), algorithm 1.
    """
    images = images.copy()
    count, side = images.shape[:2]
    area = side * side * rng.uniform(*ERASED_AREA, (count, ATTEMPTS))
    narrow, wide = np.log(ERASED_ASPECT)
    aspect = np.exp(rng.uniform(narrow, wide, (count, ATTEMPTS)))
    heights, widths = np.rint(np.sqrt(area * aspect)).astype(int), np.rint(np.sqrt(area / aspect)).astype(int)
    fits = (heights < side) & (widths < side)
    erased = (rng.random(count) < probability) & fits.any(axis=1)
    for index in np.flatnonzero(erased):
        first = fits[index].argmax()
        h, w = heights[index, first], widths[index, first]
        top, left = rng.integers(0, side - h + 1), rng.integers(0, side - w + 1)
        noise = rng.standard_normal((h, w, images.shape[3]), np.float32)
        images[index, top : top + h, left : left + w] = noise
    return images


def mix(
    images: Float32[np.ndarray, "B S S C"],
    labels: Int[np.ndarray, " B"],
    classes: int,
    mixup: float,
    cutmix: float,
    rng: np.random.Generator,
) -> tuple[Float32[np.ndarray, "B S S C"], Float32[np.ndarray, "B classes"]]:
    """Return a batch mixed with itself in reverse order, and the probabilities of the classes.

        image_i <- λ image_i + (1 - λ) image_{B-1-i}      Mixup:  λ ~ Beta(mixup, mixup)
        image_i <- image_{B-1-i} inside a rectangle       CutMix: λ ~ Beta(cutmix, cutmix), λ <- 1 - its share of pixels
        label_i <- λ label_i + (1 - λ) label_{B-1-i}

    One λ serves the batch. Where both are on, each is taken with probability 1/2.

    Reference:
        Zhang et al. 2018, "mixup" (arXiv 1710.09412), equation 2.
        Yun et al. 2019, "CutMix" (arXiv 1905.04899), equations 1 and 2.
    """
    one_hot = np.eye(classes, dtype=np.float32)[labels]
    if cutmix and (not mixup or rng.random() < 0.5):
        images = images.copy()
        rows, columns = cut_box(images.shape[1], rng.beta(cutmix, cutmix), rng)
        images[:, rows, columns] = images[::-1, rows, columns].copy()
        share = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / images.shape[1] ** 2
    else:
        share = rng.beta(mixup, mixup)
        images = _blend(images, share)
    return images, _blend(one_hot, share)


def _blend(array: Float[np.ndarray, "B *rest"], share: float) -> Float[np.ndarray, "B *rest"]:
    return np.float32(share) * array + np.float32(1 - share) * array[::-1]


def cut_box(side: int, share: float, rng: np.random.Generator) -> tuple[slice, slice]:
    """Return the rows and columns of a square of `1 - share` of the image, its centre uniform, clipped to it."""
    reach = int(side * math.sqrt(1 - share)) // 2
    row, column = (int(centre) for centre in rng.integers(0, side, 2))
    return (
        slice(max(row - reach, 0), min(row + reach, side)),
        slice(max(column - reach, 0), min(column + reach, side)),
    )
