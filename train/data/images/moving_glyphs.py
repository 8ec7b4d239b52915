"""Moving glyphs: videos of one letter or digit that crosses the picture at a constant velocity, reflected at the walls.

    x(t) = W · |(2φ + v t) mod 2 - 1|        t in frames, along each axis

W is the range that the glyph has, φ its phase, v its velocity. Over 8 frames it crosses 0.48 to 1.12 of the
range, so that its period, 2/v, is 14 to 33 frames along each axis: frames 9 to 16 of a video are never its first eight.
The phase is uniform, so that every frame is distributed like the first. A video has the same glyph and motion at every
size and number of frames, drawn from outlines as in `glyphs`, with the same fonts held out.
"""

import functools

import numpy as np
from jaxtyping import Float, Int, UInt8

from train.data.images import glyphs
from train.data.images.outlines import coverage
from train.data.images.source import Dataset, MadeImages

SEEDS = {"train": 2, "test": 3}
DRAWS = 12
SLOWEST, FASTEST = 0.06, 0.14
"""Velocity along an axis: fractions of the range per frame."""

AT_ONCE = 2048
"""Frames that are drawn at once."""

LEAST, MOST = 0.5, 0.6
"""Larger side of a glyph, as a fraction of the picture."""

MEAN, STD = (0.2260,), (0.1832,)


def moving_glyphs(size: int, frames: int) -> Dataset:
    """Return videos of `frames` frames of `size` pixels: 10,000 for training and 5,000 for testing, in 34 classes."""
    return Dataset(
        train=draw("train", size, frames).in_memory(),
        test=functools.partial(draw, "test"),
        classes=glyphs.CLASSES,
        channels=1,
        size=size,
        mean=MEAN,
        std=STD,
        mirror=False,
        note="moving glyphs: drawn from outlines at each size, any number of frames; families of fonts held out",
        train_at=functools.partial(draw, "train"),
        identity=f"moving-glyphs-{glyphs.CONTENT[:8]}",
        frames=frames,
    )


def draw(split: str, size: int, frames: int = 0) -> MadeImages:
    """Return the videos of a split, `(F, size, size, 1)`; an index has the same glyph and motion, however it is drawn.

    Args:
        split: `train` or `test`.
        size: pixels.
        frames: F; 0 = the first frame of each, as a picture.
    """
    labels = (np.arange(glyphs.COUNTS[split]) % len(glyphs.CLASSES)).astype(np.uint8)

    def make_part(indices: Int[np.ndarray, " M"]) -> UInt8[np.ndarray, "M F S S 1"]:
        draws = np.stack([np.random.default_rng([SEEDS[split], index]).random(DRAWS) for index in indices])
        return _draw(split, labels[indices], draws, size, max(frames, 1))

    def make(indices: Int[np.ndarray, " M"]) -> UInt8[np.ndarray, "M *F S S 1"]:
        step = max(1, AT_ONCE // max(frames, 1))
        videos = np.concatenate([make_part(part) for part in np.split(indices, range(step, len(indices), step))])
        return videos if frames else videos[:, 0]

    return MadeImages(labels, make)


def _draw(
    split: str, labels: Int[np.ndarray, " N"], draws: Float[np.ndarray, "N draws"], size: int, frames: int
) -> UInt8[np.ndarray, "N F S S 1"]:
    which, font, extent, aspect, turn, slant, paper, ink = draws[:, :8].T
    edges, owner, begin = glyphs.glyph_edges(split, labels, which, font)
    edges, low, high = glyphs.distort(edges, owner, begin, aspect, turn, slant)
    scale = (LEAST + (MOST - LEAST) * extent)[:, None] / (high - low).max(axis=1, keepdims=True)
    corner = places(draws[:, 8:10], draws[:, 10:12], frames) * (1 - scale * (high - low))[:, None]
    shift = corner - (scale * low)[:, None]
    paths = (scale[owner, None] * edges)[:, None] + shift[owner][:, :, None]  # (E, F, 2, 2)
    picture = owner[:, None] * frames + np.arange(frames)
    fractions = coverage(size * paths.reshape(-1, 2, 2), picture.reshape(-1), len(labels) * frames, size)
    shades = glyphs.shade(fractions, np.repeat(paper, frames), np.repeat(ink, frames))
    return shades.reshape(len(labels), frames, size, size, 1)


def places(phase: Float[np.ndarray, "N 2"], speed: Float[np.ndarray, "N 2"], frames: int) -> Float[np.ndarray, "N F 2"]:
    """Return where a reflected motion is in each frame, from 0 to 1 along both axes.

    Args:
        phase: uniform random numbers in [0, 1), the place and the direction at frame 0.
        speed: uniform random numbers in [0, 1), from the slowest to the fastest.
        frames: F.
    """
    velocity = SLOWEST + (FASTEST - SLOWEST) * speed
    travel = 2 * phase[:, None] + velocity[:, None] * np.arange(frames)[:, None]
    return np.abs(travel % 2 - 1)
