"""Glyphs: capital letters and digits of open fonts, drawn from their outlines at any size.

Every size has true detail: an image at 64 pixels is not an enlargement of that at 28, but the same outline with the
same distortion and contrast, drawn at that size. Test images use other font families than training images. O and 0 are
one class, and so are I and 1, which look alike in several fonts.
"""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from train.data.images.outlines import coverage
from train.data.images.source import Dataset, MadeImages, unpack

OUTLINES = Path(__file__).parents[1] / "glyphs.xz"
LICENSES = Path(__file__).parents[1] / "glyph_licenses"
CONTENT = "ca915e33221526ef1001bb24d45e10f1fed2d71f9eafde7c44fabdd304cad1c1"
EM = 2000
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
CLASSES = tuple({"O": "O0", "I": "I1"}.get(letter, letter) for letter in CHARACTERS if letter not in "01")
"""The characters of each class."""
COUNTS = {"train": 10_000, "test": 5_000}
SEEDS = {"train": 0, "test": 1}
DRAWS = 10
MEAN, STD = (0.2551,), (0.2157,)


def glyphs(size: int) -> Dataset:
    """Return glyphs with training images of `size` pixels: 10,000 for training and 5,000 for testing, in 34 classes."""
    return Dataset(
        train=draw("train", size).in_memory(),
        test=functools.partial(draw, "test"),
        classes=CLASSES,
        channels=1,
        size=size,
        mean=MEAN,
        std=STD,
        mirror=False,
        note="glyphs: drawn from outlines at each size, true detail at all of them; families of fonts held out",
        train_at=functools.partial(draw, "train"),
        identity=f"glyphs-{CONTENT[:8]}",
    )


def draw(split: str, size: int, count: int | None = None) -> MadeImages:
    """Return the images of a split at `size` by `size` pixels; an index has the same glyph at every size.

    Args:
        split: `train` or `test`.
        size: pixels.
        count: number of images; None = all.
    """
    labels = (np.arange(COUNTS[split] if count is None else count) % len(CLASSES)).astype(np.uint8)

    def make(indices: Int[np.ndarray, " M"]) -> UInt8[np.ndarray, "M S S 1"]:
        draws = np.stack([np.random.default_rng([SEEDS[split], index]).random(DRAWS) for index in indices])
        return _draw(split, labels[indices], draws, size)[..., None]

    return MadeImages(labels, make)


def _draw(
    split: str, labels: Int[np.ndarray, " N"], draws: Float[np.ndarray, "N draws"], size: int
) -> UInt8[np.ndarray, "N S S"]:
    which, font, *placement, paper, ink = draws.T
    edges, owner, begin = glyph_edges(split, labels, which, font)
    fractions = coverage(size * place(edges, owner, begin, *placement), owner, len(labels), size)
    return shade(fractions, paper, ink)


def glyph_edges(
    split: str, labels: Int[np.ndarray, " N"], which: Float[np.ndarray, " N"], font: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "E 2 2"], Int[np.ndarray, " E"], Int[np.ndarray, " N"]]:
    """Return the edges of a glyph of each class, in ems, the glyph of each edge, and the first edge of each glyph.

    Args:
        split: `train` or `test`, whose fonts differ.
        labels: classes.
        which: uniform random numbers in [0, 1) that choose among the characters of a class.
        font: those that choose among the fonts.
    """
    edges, first = font_edges(split)
    members = [CLASSES[label] for label in labels]
    character = [CHARACTERS.index(chars[int(u * len(chars))]) for chars, u in zip(members, which, strict=True)]
    glyph = (font * (len(first) // len(CHARACTERS))).astype(int) * len(CHARACTERS) + np.asarray(character)
    count = np.append(first[1:], len(edges))[glyph] - first[glyph]
    owner = np.repeat(np.arange(len(labels)), count)
    begin = np.cumsum(count) - count
    return edges[np.arange(len(owner)) + (first[glyph] - begin)[owner]], owner, begin


def shade(
    fractions: Float[np.ndarray, "N S S"], paper: Float[np.ndarray, " N"], ink: Float[np.ndarray, " N"]
) -> UInt8[np.ndarray, "N S S"]:
    """Return covered fractions as gray pixels: light ink on dark paper, both by uniform random numbers in [0, 1]."""
    dark, light = 0.35 * paper[:, None, None], 0.55 + 0.45 * ink[:, None, None]
    return np.rint(255 * (dark + (light - dark) * fractions)).astype(np.uint8)


def place(
    edges: Float[np.ndarray, "E 2 2"],
    owner: Int[np.ndarray, " E"],
    begin: Int[np.ndarray, " N"],
    extent: Float[np.ndarray, " N"],
    aspect: Float[np.ndarray, " N"],
    turn: Float[np.ndarray, " N"],
    slant: Float[np.ndarray, " N"],
    right: Float[np.ndarray, " N"],
    down: Float[np.ndarray, " N"],
) -> Float[np.ndarray, "E 2 2"]:
    """Return outlines that are distorted and moved into the unit square, y down, by uniform random numbers in [0, 1].

    The aspect ratio changes by up to 16 % either way; the outline is sheared by up to 0.2 and rotated by up to 12
    degrees; its larger side becomes 0.55 to 0.85; its center moves by up to 0.1 along both axes, and a margin of 0.05
    remains.
    """
    edges, low, high = distort(edges, owner, begin, aspect, turn, slant)
    scale = (0.55 + 0.3 * extent)[:, None] / (high - low).max(axis=1, keepdims=True)
    free = np.minimum(0.9 - scale * (high - low), 0.2)
    center = 0.5 + free * (np.stack([right, down], axis=1) - 0.5)
    shift = center - scale * (low + high) / 2
    return scale[owner, None] * edges + shift[owner, None]


def distort(
    edges: Float[np.ndarray, "E 2 2"],
    owner: Int[np.ndarray, " E"],
    begin: Int[np.ndarray, " N"],
    aspect: Float[np.ndarray, " N"],
    turn: Float[np.ndarray, " N"],
    slant: Float[np.ndarray, " N"],
) -> tuple[Float[np.ndarray, "E 2 2"], Float[np.ndarray, "N 2"], Float[np.ndarray, "N 2"]]:
    """Return outlines, y down, with another aspect ratio, sheared and rotated, and the corners of each glyph's box."""
    width, lean, angle = np.exp(0.15 * (2 * aspect - 1)), 0.2 * (2 * slant - 1), np.radians(12) * (2 * turn - 1)
    rotation = np.moveaxis(np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]), 2, 0)
    zero = np.zeros_like(width)
    shape = np.moveaxis(np.array([[width, lean], [zero, zero - 1]]), 2, 0)
    edges = np.einsum("eij,ekj->eki", (rotation @ shape)[owner], edges)
    return edges, np.minimum.reduceat(edges[:, 0], begin), np.maximum.reduceat(edges[:, 0], begin)


@functools.cache
def font_edges(split: str) -> tuple[Float[np.ndarray, "E 2 2"], Int[np.ndarray, " G"]]:
    """Return the edges of all glyphs of a split, in ems, and the index of the first edge of each glyph."""
    fonts, points = read_outlines()
    ends = np.cumsum([length for font in fonts for glyph in font["lengths"] for length in glyph])
    polygons = iter(np.split(points / EM, ends[:-1]))
    outlines = []
    for font in fonts:
        glyphs = [[next(polygons) for _ in lengths] for lengths in font["lengths"]]
        if font["split"] == split:
            loops = [
                [np.stack([polygon, np.roll(polygon, -1, axis=0)], axis=1) for polygon in glyph] for glyph in glyphs
            ]
            outlines += [np.concatenate(glyph) for glyph in loops]
    begin = np.cumsum([0, *map(len, outlines[:-1])])
    return np.concatenate(outlines), begin


def read_outlines() -> tuple[list[dict[str, Any]], Int[np.ndarray, "P 2"]]:
    """Return the description of each font (split, package, file, lengths of its polygons) and the points of all fonts.

    Raises:
        ValueError: the embedded file is damaged.
    """
    head, _, body = unpack(OUTLINES, CONTENT).partition(b"\n")
    return json.loads(head), np.cumsum(np.frombuffer(body, "<i2").reshape(2, -1), axis=1, dtype=np.int64).T
