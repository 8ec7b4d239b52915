"""True pictures of any shape: those of a data set at the longer side, averaged along the other one."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32

from train.data.images import Dataset, Source
from train.data.images.pipeline import normalized_batch
from train.dit.config import Shape
from train.dit.measures import area_weights


class Pictures(NamedTuple):
    """Normalized pictures of one shape with their classes."""

    images: Float32[np.ndarray, "N h w C"]
    labels: Int32[np.ndarray, " N"]


def true_pictures(dataset: Dataset, source: Source, shape: Shape, indices: Int[np.ndarray, " M"]) -> Pictures:
    """Return pictures of a source of squares that have the longer side of the shape; corrupt ones are missing.

    A picture that is wider than high shows the whole square, stretched: its rows are averages over the area of pixels.

    Args:
        dataset: whose pictures they are.
        source: of squares.
        shape: height and width, pixels.
        indices: indices in the source.
    """
    batch = normalized_batch(dataset, source, indices)
    if batch is None:
        nothing = np.zeros((0, *shape, dataset.channels), np.float32)
        return Pictures(nothing, np.zeros((0,), np.int32))
    return Pictures(averaged(batch["image"], shape), batch["label"])


def averaged(images: Float32[np.ndarray, "N S S C"], shape: Shape) -> Float32[np.ndarray, "N h w C"]:
    """Return images at a smaller shape: each pixel is the average over its area."""
    height, width = images.shape[1:3]
    if height != shape[0]:
        images = np.einsum("hs,nswc->nhwc", area_weights(height, shape[0]), images)
    if width != shape[1]:
        images = np.einsum("ws,nhsc->nhwc", area_weights(width, shape[1]), images)
    return images


def spread(count: int, most: int) -> Int[np.ndarray, " M"]:
    """Return up to `most` of `count` indices that represent all of them, also where these are sorted by class."""
    return np.argsort(np.arange(count) * (np.sqrt(5) / 2 - 0.5) % 1)[:most]
