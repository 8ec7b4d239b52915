"""Images or videos of several sizes in one batch: cut into patches, padded to one length, and put together again."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Real

from pejax._calls.arguments import checked
from pejax._calls.kinds import shown
from pejax._tokens.positions import TokenPositions, grid_positions


class Patches(NamedTuple):
    """A batch of images or videos of several sizes, as patches; what comes after the patches of one is padding.

    Attributes:
        pixels: `(B, T, N)`, the N = pixels of a patch · channels numbers of each, ordered by frame, row, column,
            channel; 0 in padding.
        tokens: (row, column) or (frame, row, column) of each patch, `(B, T, A)`, and `segment_ids` `(B, T)`, 1 for
            patches and 0 for padding.
        extent: grid (rows, columns) or (frames, rows, columns) of each image or video, `(B, A)`, in patches.
    """

    pixels: Float[Array, "B T N"]
    tokens: TokenPositions
    extent: Int[Array, "B A"]


SCALED = "bytes are scaled first, image / 255, and a batch array is list(images)"
"""What to do with images of other kinds."""


@functools.partial(checked, images=SCALED)
def patchify(
    images: Sequence[Float[Array, "..."]], patch: int | tuple[int, ...], *, budget: int | None = None
) -> Patches:
    """Cut images or videos of several sizes into patches, in raster order, and pad them to one number of tokens.

    As in NaViT and NaFlex. Patch n of an image of W columns of patches is at (⌊n / W⌋, n mod W). Under `jax.jit`,
    images of other sizes compile another program; cut outside it, they do not, as long as T is the same.

    Args:
        images: each `(height, width, channels)`, or each a video `(frames, height, width, channels)`, whose sides must
            be multiples of those of the patch.
        patch: side of a patch, pixels; of videos `(frames, rows, columns)`.
        budget: T, tokens of each image with its padding. None = those of the largest image.

    Raises:
        ValueError: no images, images with different numbers of channels or types, a side that is not a multiple of the
            patch, a patch of other axes, or a budget below the patches of an image.
        TypeError: images of an integer type, whose scale a model cannot know.

    Reference:
        Dehghani et al. 2023, "Patch n' Pack: NaViT" (arXiv 2307.06304).
        Tschannen et al. 2025, "SigLIP 2" (arXiv 2502.14786), section 2.4: NaFlex.

    Examples:
        >>> patches = patchify([jnp.ones((8, 12, 3)), jnp.ones((4, 4, 3))], patch=4)
        >>> patches.pixels.shape, patches.extent.tolist()
        ((2, 6, 48), [[2, 3], [1, 1]])
        >>> patchify([jnp.ones((6, 8, 12, 3))], patch=(2, 4, 4)).extent.tolist()
        [[3, 2, 3]]
    """
    sides = _sides(patch)
    grids = [_grid(n, image, sides) for n, image in enumerate(images)]
    if not images or len({(image.shape[-1], image.dtype) for image in images}) > 1:
        types_and_shapes = [f"{image.dtype} {image.shape}" for image in images]
        raise ValueError(f"images must be one or more, of equal channels and one type, got {types_and_shapes}")
    counts = [math.prod(grid) for grid in grids]
    length = max(counts) if budget is None else budget
    for n, (grid, count) in enumerate(zip(grids, counts, strict=True)):
        if count > length:
            product = f"{' x '.join(map(str, grid))} = {count}"
            raise ValueError(f"budget must hold all patches of images[{n}], {product}, got {length}")
    pad = lambda rows: jnp.pad(rows, ((0, length - len(rows)), (0, 0)))
    pixels = jnp.stack([pad(_cut(image, grid, sides)) for image, grid in zip(images, grids, strict=True)])
    positions = jnp.stack([pad(grid_positions(grid)) for grid in grids])
    is_patch = np.arange(length) < np.asarray(counts)[:, None]
    tokens = TokenPositions(positions, segment_ids=jnp.asarray(is_patch, jnp.int32))
    return Patches(pixels, tokens, jnp.asarray(grids, jnp.int32))


@checked
def unpatchify(
    pixels: Real[Array, "B T N"], extent: Int[Array | np.ndarray, "B A"], patch: int | tuple[int, ...]
) -> list[Real[Array, "..."]]:
    """Put patches together to images or videos: the inverse of `patchify`.

    Args:
        pixels: the numbers of each patch, ordered by frame, row, column, channel; in raster order, padding last.
        extent: grid (rows, columns) of each image or (frames, rows, columns) of each video; known, not traced.
        patch: side of a patch, pixels; of videos `(frames, rows, columns)`.

    Returns:
        One image `(rows·patch, columns·patch, channels)`, or one video with its frames first, per grid.

    Raises:
        ValueError: traced grids, a grid without patches or of more patches than T, a patch of other axes, or numbers of
            a patch that are no multiple of its pixels.

    Examples:
        >>> images = [jnp.ones((8, 12, 3)), jnp.ones((4, 4, 3))]
        >>> patches = patchify(images, patch=4)
        >>> [image.shape for image in unpatchify(patches.pixels, patches.extent, patch=4)]
        [(8, 12, 3), (4, 4, 3)]
    """
    (length, numbers), sides = pixels.shape[1:], _sides(patch)
    if isinstance(extent, Tracer):
        raise ValueError(f"extent must be known, as the sizes of images are, got {shown(extent)}")
    if extent.shape[1] != len(sides):
        raise ValueError(f"extent must be (B, {len(sides)}), grids of patch={patch}, got shape {extent.shape}")
    grids = np.asarray(extent).tolist()
    wrong = [grid for grid in grids if min(grid) < 1 or math.prod(grid) > length]
    if wrong:
        raise ValueError(f"extent must be grids of 1 to {length} patches, the tokens of pixels, got {wrong[0]}")
    if not numbers or numbers % math.prod(sides):
        rule = "pixels must be (B, T, N) with N a multiple of the pixels of a patch"
        raise ValueError(f"{rule}, got N={numbers} and patch={patch}")

    def to_image(patches: Array, grid: list[int]) -> Array:
        cells = patches[: math.prod(grid)].reshape(*grid, *sides, -1)
        order = [axis + offset for axis in range(len(grid)) for offset in (0, len(grid))]
        image = [count * side for count, side in zip(grid, sides, strict=True)]
        return cells.transpose(*order, 2 * len(grid)).reshape(*image, -1)

    return [to_image(patches, grid) for patches, grid in zip(pixels, grids, strict=True)]


def _sides(patch: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the sides of a patch of an image, or of a video."""
    sides = (patch, patch) if isinstance(patch, int) else patch
    if len(sides) not in (2, 3) or min(sides) < 1:
        raise ValueError(f"patch must be a side of at least 1, or (frames, rows, columns) of videos, got {patch}")
    return sides


def _grid(n: int, image: Array, sides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the patches of image n along each axis."""
    if image.ndim != len(sides) + 1:
        axes = ("frames", "height", "width")[-len(sides) :]
        what = f"({', '.join(axes)}, channels) for patches of {len(sides)} sides"
        raise ValueError(f"images[{n}] must be {what}, got shape {image.shape}")
    shape = image.shape[:-1]
    if min(shape) < 1 or any(size % side for size, side in zip(shape, sides, strict=True)):
        patch, received = (" x ".join(map(str, item)) for item in (sides, shape))
        raise ValueError(f"images[{n}] must have sides that are multiples of the patch, {patch}, got {received}")
    return tuple(size // side for size, side in zip(shape, sides, strict=True))


def _cut(image: Array, grid: tuple[int, ...], sides: tuple[int, ...]) -> Float[Array, "T N"]:
    """Return the patches of an image or a video, in raster order."""
    pairs = [item for pair in zip(grid, sides, strict=True) for item in pair]
    cells, axes = image.reshape(*pairs, -1), range(2 * len(grid))
    return cells.transpose(*axes[::2], *axes[1::2], len(axes)).reshape(math.prod(grid), -1)
