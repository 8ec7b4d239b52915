"""Shared memory of the kernels for GPUs: an upper bound by arithmetic, and the tile sizes that fit.

A block of rows that a kernel keeps is in shared memory once. A block that its loop loads is there twice, because the
next one is loaded while the last is used. Also there, once each: the tiles of scores that become operands of another
product, and one float32 tile of scratch space for changes of layout. Triton needs less if it keeps operands in
registers.
"""

from typing import Any, NamedTuple

import jax

STAGES = 2
"""Copies of a block that a loop loads: `num_stages` of the kernels."""

LIMITS = {"8.0": 163, "8.6": 99, "8.7": 163, "8.9": 99, "9.0": 227, "10.0": 227, "10.3": 227, "12.0": 99, "12.1": 99}
"""KiB of shared memory that one program may have, by compute capability (CUDA programming guide, appendix on compute
capabilities)."""

SMALLEST_SIDE = 16
"""Smallest side of a tile: Triton multiplies no smaller matrices."""


class Contents(NamedTuple):
    """The contents of a kernel's shared memory.

    Attributes:
        kept: numbers of blocks of queries, and of keys, that the kernel keeps.
        loaded: numbers of blocks of queries, and of keys, that its loop loads.
        tiles: number of tiles of scores that become operands of another product.
    """

    kept: tuple[int, int]
    loaded: tuple[int, int]
    tiles: int


CONTENTS = {
    "forward": Contents((1, 0), (0, 2), 1),
    "query_gradients": Contents((2, 0), (0, 2), 1),
    "key_gradients": Contents((0, 2), (2, 0), 2),
    "bias_gradients_by_queries": Contents((2, 0), (0, 2), 0),
    "bias_gradients_by_keys": Contents((0, 2), (2, 0), 0),
    "diagonal_gradients": Contents((0, 0), (2, 2), 0),
}
"""Contents of shared memory, by the name of the kernel."""

BACKWARD = tuple(name for name in CONTENTS if name != "forward")
"""Names of the kernels of the backward pass."""


def shared_bytes(kernel: str, blocks: tuple[int, int], row_bytes: int) -> int:
    """Return an upper bound on the shared memory of a program of a kernel.

    Args:
        kernel: one of `CONTENTS`; the blocks of "diagonal_gradients" are square, of the smaller side.
        blocks: numbers of queries and of keys in a tile.
        row_bytes: bytes of one token's channels in a head.
    """
    if kernel == "diagonal_gradients":
        blocks = (min(blocks), min(blocks))
    contents, (q_size, k_size) = CONTENTS[kernel], blocks
    rows = sum(n * size for n, size in zip(contents.kept, blocks, strict=True))
    rows += STAGES * sum(n * size for n, size in zip(contents.loaded, blocks, strict=True))
    return rows * row_bytes + q_size * k_size * 4 * (contents.tiles + 1)


def memory_limit() -> int:
    """Return the bytes of shared memory that a program may have on the first GPU, or on an H100 where there is none.

    A GPU that neither says its limit nor is in `LIMITS` gets the lowest of them.
    """
    device = _first_gpu()
    capability = str(getattr(device, "compute_capability", "9.0"))
    limit = LIMITS.get(capability, min(LIMITS.values())) * 1024
    return int(getattr(device, "shared_memory_per_block_optin", limit))


def is_rocm() -> bool:
    """Return whether the first GPU is AMD's."""
    device = _first_gpu()
    return device is not None and "rocm" in device.client.platform_version.lower()


def _first_gpu() -> Any:
    return next((device for device in jax.devices() if device.platform == "gpu"), None)


def fitting_blocks(
    kernels: tuple[str, ...], blocks: tuple[int, int], row_bytes: int, available: int
) -> tuple[int, int]:
    """Return the blocks after their larger side is halved until all of these kernels fit into the `available` bytes.

    Raises:
        NotImplementedError: not even the smallest tile fits.
    """
    while (needs := max(shared_bytes(kernel, blocks, row_bytes) for kernel in kernels)) > available:
        if max(blocks) <= SMALLEST_SIDE:
            raise NotImplementedError(
                f"heads of {row_bytes} bytes need {needs} bytes of shared memory, but this GPU has {available}"
            )
        q_size, k_size = blocks
        blocks = (q_size // 2, k_size) if q_size >= k_size else (q_size, k_size // 2)
    return blocks
