"""3-Augment: one of three simple changes to a picture, then color jitter: the augmentation of DeiT III.

    one of      grayscale | invert the pixels from 128 on | Gaussian blur, radius ~ U(0.1, 2) pixels
    then        brightness, contrast and color by factors ~ U(0.7, 1.3) each, in random order

Reference:
    Touvron et al. 2022, "DeiT III: Revenge of the ViT" (arXiv 2204.07118), section 3.2.
"""

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

BLUR = (0.1, 2.0)
JITTER = 0.3
ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


def three_augment(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a picture after one of three random changes and color jitter."""
    return jitter(CHANGES[rng.integers(len(CHANGES))](picture, rng), rng)


def gray(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return the picture in gray, with the same number of channels."""
    del rng
    return picture.convert("L").convert(picture.mode)


def solarize(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return the picture with its pixels from 128 on inverted."""
    del rng
    return ImageOps.solarize(picture, 128)


def blur(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return the picture blurred."""
    return picture.filter(ImageFilter.GaussianBlur(rng.uniform(*BLUR)))


def jitter(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return the picture with its brightness, contrast and color changed, in random order."""
    for which in rng.permutation(len(ENHANCERS)):
        picture = ENHANCERS[which](picture).enhance(rng.uniform(1 - JITTER, 1 + JITTER))
    return picture


CHANGES = (gray, solarize, blur)
