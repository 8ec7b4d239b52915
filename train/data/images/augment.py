"""Augmentation of single training images: random crops, mirroring and random erasing, and the options of all kinds.

Every function takes one numpy generator per image, so the augmentation of an image does not depend on the others in the
batch. Crops and mirroring work on uint8 pixels, erasing on normalized images, in this order, as in DeiT (Touvron et al.
2021, arXiv 2012.12877, table 9). `train.vit.mixing` mixes images.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

Generators: TypeAlias = Sequence[np.random.Generator]
"""One per image."""

ERASED_AREA = (0.02, 1 / 3)
ERASED_ASPECT = (0.3, 1 / 0.3)
CROPPED_AREA = (0.08, 1.0)
CROPPED_ASPECT = (3 / 4, 4 / 3)
ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class Augment:
    """Which augmentations are on; all are off by default."""

    crop: bool = False  # random crop of the padded image; for larger images, of random area and aspect
    flip: bool = False  # mirror half of the images, if that does not change their class
    rand_augment: bool = False  # RandAugment(9, 0.5)
    three_augment: bool = False  # 3-Augment: one of grayscale, solarize, blur, then color jitter
    repeats: int = 1  # differently augmented copies of an image per batch
    erasing: float = 0.0  # probability that a rectangle of an image becomes noise


def random_crop(images: UInt8[np.ndarray, "B S S C"], rngs: Generators) -> UInt8[np.ndarray, "B S S C"]:
    """Return every image shifted by up to a sixteenth of its side along both axes, with its border repeated."""
    count, side = images.shape[:2]
    reach = side // 16
    moves = np.stack([rng.integers(-reach, reach + 1, (2, 1)) for rng in rngs], axis=1)
    rows, columns = np.clip(np.arange(side) + moves, 0, side - 1)
    return images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def random_flip(images: UInt8[np.ndarray, "B S S C"], rngs: Generators) -> UInt8[np.ndarray, "B S S C"]:
    """Return every image mirrored left to right with probability 1/2."""
    flips = np.asarray([rng.random() < 0.5 for rng in rngs])
    return np.where(flips[:, None, None, None], images[:, :, ::-1], images)


def random_resized_crop(picture: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """Return a random part of a picture, of 8 % to 100 % of its area and aspect 3/4 to 4/3, at `size` by `size` pixels.

    The area is uniform, the aspect log-uniform; if ten random parts do not fit, the central square is used.

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
            x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
            box = (x, y, x + w, y + h)
            break
    if box is None:
        return central_square(picture, size)
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=box)


def central_square(picture: Image.Image, size: int, margin: float = 1.0) -> Image.Image:
    """Return the central square, with side `shorter side / margin`, at `size` by `size` pixels."""
    width, height = picture.size
    side = min(width, height) / margin
    x, y = (width - side) / 2, (height - side) / 2
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=(x, y, x + side, y + side))


def random_erasing(
    images: Float32[np.ndarray, "B S S C"], probability: float, rngs: Generators
) -> Float32[np.ndarray, "B S S C"]:
    """Return the images, with a rectangle of some of them replaced by standard normal noise.

    The rectangle has 2 % to 1/3 of the area (uniform) and aspect 0.3 to 1/0.3 (log-uniform); the first of ten that
    is smaller than the image is used.

    Reference:
        Zhong et al. 2020, "Random Erasing Data Augmentation" (arXiv 1708.04896), algorithm 1.
    """
    images = images.copy()
    for image, rng in zip(images, rngs, strict=True):
        if rng.random() < probability:
            _erase(image, rng)
    return images


def _erase(image: Float32[np.ndarray, "S S C"], rng: np.random.Generator) -> None:
    side = len(image)
    area = side * side * rng.uniform(*ERASED_AREA, ATTEMPTS)
    narrow, wide = np.log(ERASED_ASPECT)
    aspect = np.exp(rng.uniform(narrow, wide, ATTEMPTS))
    heights, widths = np.rint(np.sqrt(area * aspect)).astype(int), np.rint(np.sqrt(area / aspect)).astype(int)
    fits = (heights < side) & (widths < side)
    if fits.any():
        h, w = heights[fits.argmax()], widths[fits.argmax()]
        y, x = rng.integers(0, side - h + 1), rng.integers(0, side - w + 1)
        image[y : y + h, x : x + w] = rng.standard_normal((h, w, image.shape[2]), np.float32)
