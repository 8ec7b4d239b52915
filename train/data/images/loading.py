"""Image data sets by name: from a spec such as "fashion(full=True)" to a data set."""

from collections.abc import Callable

from train.data.bad import way_out
from train.data.images.fashion import fashion
from train.data.images.folder import folder
from train.data.images.glyphs import glyphs
from train.data.images.moving_glyphs import moving_glyphs
from train.data.images.prepared import tfds
from train.data.images.source import Dataset, with_validation
from train.data.spec import parse_data

DATASETS: dict[str, Callable[..., Dataset]] = {
    "fashion": fashion, "glyphs": glyphs, "moving_glyphs": moving_glyphs, "folder": folder, "tfds": tfds,
}  # fmt: skip
"""Each function takes the size of the training images and keyword arguments; "name:VALUE" gives the first of them."""

VIDEOS = ("moving_glyphs",)
"""Those of videos, which take the number of frames after the size."""


def load(spec: str, size: int = 28, validation: float = 0.0, frames: int = 0) -> Dataset:
    """Return the data set that `spec` names, its training images `size` by `size` pixels.

    Args:
        spec: `"fashion"`, `"glyphs"`, `"moving_glyphs"`, `"folder:PATH"`, `"tfds:NAME"`, or a name with arguments:
            `"fashion(full=True)"`, `"folder(path='photos', on_error='skip')"`.
        size: pixels.
        validation: fraction of the training images that take the place of the test images; 0 = none.
        frames: frames of the training videos; 0 = pictures.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument, one that the data set refuses, frames of
            pictures, or videos without frames.
        TypeError: an argument of another type.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    name, options = parse_data(spec, DATASETS, supplied=("size", "frames"))
    if frames and name not in VIDEOS:
        videos = ", ".join(VIDEOS)
        raise ValueError(f"frames must be 0 with {name}, which are pictures, got {frames}; videos: {videos}")
    if name in VIDEOS and not frames:
        rule = f"frames must be at least 1 with {name}, which are videos, as in python -m train.dit --frames=8"
        raise ValueError(f"{rule}, got 0")
    with way_out(name, options):
        dataset = DATASETS[name](size, frames, **options) if frames else DATASETS[name](size, **options)
    return with_validation(dataset, validation) if validation else dataset
