"""The figure of samples: a block per shape, in it a row of true pictures and one per extension; a row per video."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32
from matplotlib.figure import Figure

from train.data.images import Dataset
from train.dit.config import Shape, in_words
from train.engine.figures import literal_text, write_figure

DPI, SCALE, GAP, HEAD, LETTER = 150, 2, 4, 30, 8.4
"""Dots per inch, dots per pixel of a picture; dots between rows, above a block, and of a letter of a row's name."""


def strip(images: Float32[np.ndarray, "N *F h w C"], dataset: Dataset) -> Float[np.ndarray, "H W C"]:
    """Return normalized pictures side by side, a white line between them, from 0 to 1; of videos a row of frames."""
    if images.ndim == 5:
        rows = [strip(frames, dataset) for frames in images]
        return np.concatenate([np.pad(row, ((0, 2), (0, 0), (0, 0)), constant_values=1.0) for row in rows])
    pixels = np.clip(images * np.asarray(dataset.std) + np.asarray(dataset.mean), 0.0, 1.0)
    return np.concatenate(
        [np.pad(picture, ((0, 0), (0, 2), (0, 0)), constant_values=1.0) for picture in pixels], axis=1
    )


@literal_text
def draw_grid(
    path: Path,
    dataset: Dataset,
    trained: Shape,
    true: Mapping[Shape, Float32[np.ndarray, "N *F h w C"]],
    sampled: Mapping[tuple[str, Shape], Float32[np.ndarray, "N *F h w C"]],
    title: str,
) -> None:
    """Write the figure.

    Args:
        path: path of the figure.
        dataset: says how pictures are normalized.
        trained: the trained shape.
        true: some true pictures or videos of each shape.
        sampled: some of those that were sampled, by extension, or other words, and shape.
        title: title of the figure.
    """
    blocks = {}
    for shape, pictures in true.items():
        rows = {"true": pictures} | {
            "as trained" if extend == "none" else extend: images
            for (extend, at), images in sampled.items()
            if at == shape
        }
        blocks[shape] = {label: strip(images, dataset) for label, images in rows.items()}
    strips = [row for rows in blocks.values() for row in rows.values()]
    label_width = GAP + LETTER * max(len(label) for rows in blocks.values() for label in rows)
    width = label_width + SCALE * max(row.shape[1] for row in strips)
    height = HEAD * (len(blocks) + 1) + sum(SCALE * len(row) + GAP for row in strips)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")

    def place(x: float, y: float) -> tuple[float, float]:  # from dots below the top to matplotlib's fractions
        return x / width, 1 - y / height

    figure.text(*place(GAP, HEAD / 2), title, fontsize=9, va="center", weight="bold")
    top = HEAD
    for shape, rows in blocks.items():
        frames = "".join(f"{count} frames of " for count in shape[:-2])
        what = f"{frames}{in_words(shape[-2:])} pixels{', as in training' if shape == trained else ''}"
        figure.text(*place(GAP, top + HEAD / 2), what, fontsize=8, va="center")
        top += HEAD
        for label, row in rows.items():
            tall, wide = SCALE * len(row), SCALE * row.shape[1]
            axes = figure.add_axes((*place(label_width, top + tall), wide / width, tall / height))
            axes.imshow(
                row.squeeze(-1) if row.shape[-1] == 1 else row, cmap="gray", vmin=0, vmax=1, interpolation="none"
            )
            axes.set_axis_off()
            figure.text(*place(GAP, top + tall / 2), label, fontsize=7, va="center")
            top += tall + GAP
    write_figure(figure, path)
