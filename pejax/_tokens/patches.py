"""Images of several sizes in one batch: cut into patches, padded to one number of tokens, and put together again."""

import functools
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
    """A batch of images of several sizes, as patches; what comes after the patches of an image is padding.

    Attributes:
        pixels: `(B, T, N)`, the N = patch² · channels numbers of each patch, ordered by row, column, channel; 0 in
            padding.
        tokens: (row, column) of each patch, `(B, T, 2)`, and `segment_ids` `(B, T)`, 1 for patches and 0 for padding.
        extent: grid (rows, columns) of each image, `(B, 2)`, in patches.
    """

    pixels: Float[Array, "B T N"]
    tokens: TokenPositions
    extent: Int[Array, "B 2"]


SCALED = "bytes are scaled first, image / 255, and a batch array is list(images)"
"""What to do with images of other kinds."""


@functools.partial(checked, images=SCALED)
def patchify(images: Sequence[Float[Array, "..."]], patch: int, *, budget: int | None = None) -> Patches:
    """Cut images of several sizes into patches, in raster order, and pad them to one number of tokens (NaViT, NaFlex).

    Patch n of an image of W columns of patches is at (⌊n / W⌋, n mod W). Under `jax.jit`, images of other sizes compile
    another program; cut outside it, they do not, as long as T is the same.

    Args:
        images: each `(height, width, channels)`, whose sides must be multiples of the patch.
        patch: side of a patch, pixels.
        budget: T, tokens of each image with its padding. None = those of the largest image.

    Raises:
        ValueError: no images, images with different numbers of channels or types, a side that is not a multiple of the
            patch, or a budget below the patches of an image.
        TypeError: images of an integer type, whose scale a model cannot know.

    Reference:
        Dehghani et al. 2023, "Patch n' Pack: NaViT" (arXiv 2307.06304).
        Tschannen et al. 2025, "SigLIP 2" (arXiv 2502.14786), section 2.4: NaFlex.

    Examples:
        >>> patches = patchify([jnp.ones((8, 12, 3)), jnp.ones((4, 4, 3))], patch=4)
        >>> patches.pixels.shape, patches.extent.tolist()
        ((2, 6, 48), [[2, 3], [1, 1]])
    """
    grids = [_grid(n, image, patch) for n, image in enumerate(images)]
    if not images or len({(image.shape[-1], image.dtype) for image in images}) > 1:
        types_and_shapes = [f"{image.dtype} {image.shape}" for image in images]
        raise ValueError(f"images must be one or more, of equal channels and one type, got {types_and_shapes}")
    counts = [rows * columns for rows, columns in grids]
    length = max(counts) if budget is None else budget
    for n, (grid, count) in enumerate(zip(grids, counts, strict=True)):
        if count > length:
            product = f"{grid[0]} rows of {grid[1]} patches = {count}"
            raise ValueError(f"budget must hold all patches of images[{n}], {product}, got {length}")
    pad = lambda rows: jnp.pad(rows, ((0, length - len(rows)), (0, 0)))
    pixels = jnp.stack([pad(_cut(image, *grid, patch)) for image, grid in zip(images, grids, strict=True)])
    positions = jnp.stack([pad(grid_positions(*grid)) for grid in grids])
    is_patch = np.arange(length) < np.asarray(counts)[:, None]
    tokens = TokenPositions(positions, segment_ids=jnp.asarray(is_patch, jnp.int32))
    return Patches(pixels, tokens, jnp.asarray(grids, jnp.int32))


@checked
def unpatchify(
    pixels: Real[Array, "B T N"], extent: Int[Array | np.ndarray, "B 2"], patch: int
) -> list[Real[Array, "height width channels"]]:
    """Put patches together to images: the inverse of `patchify`.

    Args:
        pixels: the numbers of each patch, ordered by row, column, channel; in raster order, padding last.
        extent: grid (rows, columns) of each image; known, not traced.
        patch: side of a patch, pixels.

    Returns:
        One image `(rows·patch, columns·patch, channels)` per grid.

    Raises:
        ValueError: traced grids, a grid without patches or of more patches than T, or numbers of a patch that are no
            multiple of patch².

    Examples:
        >>> images = [jnp.ones((8, 12, 3)), jnp.ones((4, 4, 3))]
        >>> patches = patchify(images, patch=4)
        >>> [image.shape for image in unpatchify(patches.pixels, patches.extent, patch=4)]
        [(8, 12, 3), (4, 4, 3)]
    """
    length, numbers = pixels.shape[1:]
    if isinstance(extent, Tracer):
        raise ValueError(f"extent must be known, as the sizes of images are, got {shown(extent)}")
    grids = np.asarray(extent).tolist()
    wrong = [grid for grid in grids if min(grid) < 1 or grid[0] * grid[1] > length]
    if wrong:
        raise ValueError(f"extent must be grids of 1 to {length} patches, the tokens of pixels, got {wrong[0]}")
    if patch < 1 or not numbers or numbers % patch**2:
        rule = "pixels must be (B, T, N) with N a multiple of patch²"
        raise ValueError(f"{rule}, got N={numbers} and patch={patch}")

    def to_image(patches: Array, rows: int, columns: int) -> Array:
        cells = patches[: rows * columns].reshape(rows, columns, patch, patch, -1).swapaxes(1, 2)
        return cells.reshape(rows * patch, columns * patch, -1)

    return [to_image(patches, *grid) for patches, grid in zip(pixels, grids, strict=True)]


def _grid(n: int, image: Array, patch: int) -> tuple[int, int]:
    """Return the rows and columns of patches of image n."""
    if image.ndim != 3:
        raise ValueError(f"images[{n}] must be (height, width, channels), got shape {image.shape}")
    height, width = image.shape[:2]
    if patch < 1 or min(height, width) < 1 or height % patch or width % patch:
        raise ValueError(f"images[{n}] must have sides that are multiples of patch={patch}, got {height} x {width}")
    return height // patch, width // patch


def _cut(image: Array, rows: int, columns: int, patch: int) -> Float[Array, "T N"]:
    """Return the patches of an image `(height, width, channels)`, in raster order."""
    cells = image.reshape(rows, patch, columns, patch, -1).swapaxes(1, 2)
    return cells.reshape(rows * columns, -1)
