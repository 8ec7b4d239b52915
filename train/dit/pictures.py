"""True pictures and videos of any shape: those of a data set at the longer side, averaged along the other one."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32

from train.data.images import Dataset, Source
from train.data.images.pipeline import normalized_batch
from train.dit.config import Shape
from train.dit.measures import area_weights


class Pictures(NamedTuple):
    """Normalized pictures, or videos, of one shape with their classes."""

    images: Float32[np.ndarray, "N *F h w C"]
    labels: Int32[np.ndarray, " N"]


def true_pictures(dataset: Dataset, source: Source, shape: Shape, indices: Int[np.ndarray, " M"]) -> Pictures:
    """Return pictures of a source of squares that have the longer side of the shape.

    A picture that is wider than high shows the whole square, stretched: its rows are averages over the area of pixels.
    """
    batch = normalized_batch(dataset, source, indices)
    return Pictures(average_areas(batch["image"], shape), batch["label"])


def size_of(shape: Shape) -> Shape:
    """Return the arguments of a source of squares for a shape: the longer side, and the frames of videos."""
    return (max(shape[-2:]), *shape[:-2])


def average_areas(images: Float32[np.ndarray, "N *F S S C"], shape: Shape) -> Float32[np.ndarray, "N *F h w C"]:
    """Return images at a smaller shape: each pixel is the average over its area."""
    (height, width), (rows, columns) = images.shape[-3:-1], shape[-2:]
    if height != rows:
        images = np.einsum("hs,...swc->...hwc", area_weights(height, rows), images)
    if width != columns:
        images = np.einsum("ws,...hsc->...hwc", area_weights(width, columns), images)
    return images


def spread(count: int, most: int) -> Int[np.ndarray, " M"]:
    """Return up to `most` of `count` indices that represent all of them, also where these are sorted by class."""
    return np.argsort(np.arange(count) * (np.sqrt(5) / 2 - 0.5) % 1)[:most]
