"""Decoding of image files: everything that Pillow reads becomes upright 8-bit grayscale or RGB."""

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from train.data.images.source import CorruptImage

LEAST = 4096
"""Pixels of 16 bits that are all below it are those of 12 bits or fewer."""


def decode(encoded: bytes, channels: int, name: str) -> Image.Image:
    """Return the picture in an image file.

    The EXIF orientation is applied; transparent pixels become white; palettes and CMYK become RGB; 16-bit values are
    reduced to their upper 8 bits, which makes values of 12 bits nearly black: they are refused.

    Args:
        encoded: content of the file.
        channels: 1 for grayscale, 3 for RGB.
        name: name of the file, for the message.

    Raises:
        CorruptImage: it cannot be decoded, or its pixels are floating-point, whose scale is unknown, or 16-bit numbers
            that use 12 bits or fewer.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image_file:
            deep = any(
                ";16" in f"{tile.args}" for tile in image_file.tile
            )  # Pillow keeps the upper 8 bits of colors alone
            picture = ImageOps.exif_transpose(image_file)
            if picture.mode == "F":
                raise CorruptImage(name, "floating-point pixels have no scale")
            if picture.mode.startswith("I"):
                values = np.asarray(picture).clip(0, 65535)
                require_range(values.max(initial=0), name)
                picture = Image.fromarray((values // 256).astype(np.uint8))
            elif deep and picture.mode in ("RGB", "RGBA"):
                upper = np.asarray(picture)[..., :3].max(initial=0)
                require_range(upper and 256 * int(upper) + 255, name)
            if picture.has_transparency_data:
                layer = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
            return picture.convert("L" if channels == 1 else "RGB")
    except CorruptImage:
        raise
    except Exception as broken:  # of Pillow on damaged files: OSError, SyntaxError, struct.error and others
        unknown = isinstance(broken, UnidentifiedImageError)  # its message names a memory address
        raise CorruptImage(name, "no format that Pillow knows" if unknown else broken) from None


def require_range(largest: int, name: str) -> None:
    """Check that the largest 16-bit value of a picture needs more than 12 bits, if it is not 0.

    Raises:
        CorruptImage: it does not.
    """
    if 0 < largest < LEAST:
        rule = "16-bit pixels must use their range, to 65,535, or they are nearly black"
        raise CorruptImage(name, f"{rule}, got at most {largest:,}")
