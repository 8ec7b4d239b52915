"""RandAugment(9, 0.5): two random operations per image, each applied with probability 1/2, at magnitudes near 9 of 10.

The recipe that DeiT calls "9/0.5": fifteen operations, drawn uniformly and with replacement; the magnitude of each is
drawn from N(9, 0.5²) and clipped to [0, 10]; operations with two directions get a random sign. Strength grows with
the magnitude m for every operation that has one (the published search space mixes both directions), with M = m / 10:

    Rotate        ±30·M degrees                  Posterize   keep 4 - floor(4·M) bits
    ShearX/Y      ±0.3·M                         Solarize    invert pixels from 256 - floor(256·M)
    TranslateX/Y  ±0.45·M of the side            SolarizeAdd add floor(110·M) to pixels below 128
    Color, Contrast, Brightness, Sharpness       blend by max(0.1, 1 ± 0.9·M)
    AutoContrast, Equalize, Invert               no magnitude

New pixels at the border are mid-gray.

Reference:
    Cubuk et al. 2020, "RandAugment" (arXiv 1909.13719), section 3; operations of Cubuk et al. 2019, "AutoAugment"
    (arXiv 1805.09501), table 6; magnitudes as in DeiT's recipe `rand-m9-mstd0.5-inc1`.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

MAGNITUDE, DEVIATION, OPERATIONS, PROBABILITY = 9.0, 0.5, 2, 0.5
GRAY = 128


def rand_augment(
    picture: Image.Image,
    rng: np.random.Generator,
    *,
    magnitude: float = MAGNITUDE,
    deviation: float = DEVIATION,
    operations: int = OPERATIONS,
    probability: float = PROBABILITY,
) -> Image.Image:
    """Return a picture after `operations` draws from `OPS`.

    Args:
        picture: grayscale or RGB.
        rng: random generator.
        magnitude: 0 to 10.
        deviation: standard deviation of the magnitude.
        operations: number of random operations.
        probability: probability of applying each of them.
    """
    names = list(OPS)
    for _ in range(operations):
        operation = OPS[names[rng.integers(len(names))]]
        if rng.random() < probability:
            level = float(np.clip(rng.normal(magnitude, deviation), 0, 10)) / 10
            picture = operation(picture, level, rng)
    return picture


def _sign(rng: np.random.Generator) -> int:
    return 1 if rng.random() < 0.5 else -1


def _transform(picture: Image.Image, matrix: tuple[float, ...], rng: np.random.Generator) -> Image.Image:
    """Return the picture whose pixel (x, y) is that at (a·x + b·y + c, d·x + e·y + f)."""
    resample = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)[rng.integers(2)]
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, resample, fillcolor=_gray(picture))


def _gray(picture: Image.Image) -> int | tuple[int, ...]:
    return GRAY if picture.mode == "L" else (GRAY,) * len(picture.getbands())


def _rotate(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    resample = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)[rng.integers(2)]
    return picture.rotate(_sign(rng) * 30 * level, resample, fillcolor=_gray(picture))


def _shear_x(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return _transform(picture, (1.0, _sign(rng) * 0.3 * level, 0.0, 0.0, 1.0, 0.0), rng)


def _shear_y(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return _transform(picture, (1.0, 0.0, 0.0, _sign(rng) * 0.3 * level, 1.0, 0.0), rng)


def _translate_x(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return _transform(picture, (1.0, 0.0, _sign(rng) * 0.45 * level * picture.width, 0.0, 1.0, 0.0), rng)


def _translate_y(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return _transform(picture, (1.0, 0.0, 0.0, 0.0, 1.0, _sign(rng) * 0.45 * level * picture.height), rng)


def _posterize(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    bits = 4 - int(4 * level)
    mask = 256 - 2 ** (8 - bits)
    return picture.point([value & mask for value in range(256)] * len(picture.getbands()))


def _solarize(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    return ImageOps.solarize(picture, 256 - int(256 * level))


def _solarize_add(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
    step = int(110 * level)
    table = [min(255, value + step) if value < 128 else value for value in range(256)]
    return picture.point(table * len(picture.getbands()))


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[..., Image.Image]:
    def operation(picture: Image.Image, level: float, rng: np.random.Generator) -> Image.Image:
        return kind(picture).enhance(max(0.1, 1 + _sign(rng) * 0.9 * level))

    return operation


def _plain(function: Callable[[Image.Image], Image.Image]) -> Callable[..., Image.Image]:
    return lambda picture, level, rng: function(picture)


OPS: dict[str, Callable[[Image.Image, float, np.random.Generator], Image.Image]] = {
    "AutoContrast": _plain(ImageOps.autocontrast),
    "Equalize": _plain(ImageOps.equalize),
    "Invert": _plain(ImageOps.invert),
    "Rotate": _rotate,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "SolarizeAdd": _solarize_add,
    "Color": _enhance(ImageEnhance.Color),
    "Contrast": _enhance(ImageEnhance.Contrast),
    "Brightness": _enhance(ImageEnhance.Brightness),
    "Sharpness": _enhance(ImageEnhance.Sharpness),
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
}
"""Each takes a picture, a level from 0 to 1 and a generator."""
