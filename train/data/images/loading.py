"""Image data sets by name: from a spec such as "fashion(full=True)" to a data set."""

from collections.abc import Callable

from train.data.images.fashion import fashion
from train.data.images.folder import folder
from train.data.images.glyphs import glyphs
from train.data.images.prepared import tfds
from train.data.images.source import Dataset, with_validation
from train.data.spec import parse_data

DATASETS: dict[str, Callable[..., Dataset]] = {"fashion": fashion, "glyphs": glyphs, "folder": folder, "tfds": tfds}
"""Each function takes the size of the training images and keyword arguments; "name:VALUE" gives the first of them."""


def load(spec: str, size: int = 28, validation: float = 0.0) -> Dataset:
    """Return the data set that `spec` names, its training images `size` by `size` pixels.

    Args:
        spec: `"fashion"`, `"glyphs"`, `"folder:PATH"`, `"tfds:NAME"`, or a name with arguments: `"fashion(full=True)"`,
            `"folder(path='photos', on_error='skip')"`.
        size: pixels.
        validation: fraction of the training images that take the place of the test images; 0 = none.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument, or one that the data set refuses.
        TypeError: an argument of another type.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    name, options = parse_data(spec, DATASETS, supplied=("size",))
    dataset = DATASETS[name](size, **options)
    return with_validation(dataset, validation) if validation else dataset
