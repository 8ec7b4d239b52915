"""Shared memory of the kernels for GPUs: an upper bound by arithmetic, and the tile sizes that fit.

A block of rows that a kernel keeps is in shared memory once. A block that its loop loads is there twice, because the
next one is loaded while the last is used. Also there, once each: the tiles of scores that become operands of another
product, and one float32 tile of scratch space for changes of layout. Triton needs less if it keeps operands in
registers.
"""

from typing import NamedTuple

import jax

STAGES = 2
"""Copies of a block that a loop loads: `num_stages` of the kernels."""

LIMITS = {"8.0": 163, "8.6": 99, "8.7": 163, "8.9": 99, "9.0": 227, "10.0": 227, "10.3": 227, "12.0": 99, "12.1": 99}
"""KiB of shared memory that one program may have, by compute capability (CUDA programming guide, appendix on compute
capabilities)."""

LEAST_TILE = 16
"""The smallest side of a product on GPUs."""


class Held(NamedTuple):
    """Shared memory of a kernel: blocks of queries and keys kept, blocks loaded in the loop, operand tiles."""

    kept: tuple[int, int]
    loaded: tuple[int, int]
    tiles: int


HELD = {
    "forward": Held((1, 0), (0, 2), 1),
    "query_gradients": Held((2, 0), (0, 2), 1),
    "key_gradients": Held((0, 2), (2, 0), 2),
    "numbers_by_queries": Held((2, 0), (0, 2), 0),
    "positions_by_keys": Held((0, 2), (2, 0), 0),
    "diagonal_gradients": Held((0, 0), (2, 2), 0),
}
"""Shared memory by the name of a kernel."""

BACKWARD = tuple(name for name in HELD if name != "forward")


def shared_bytes(kernel: str, blocks: tuple[int, int], width: int) -> int:
    """Return an upper bound on the shared memory of a program of a kernel.

    Args:
        kernel: one of `HELD`; the blocks of "diagonal_gradients" are square, of the smaller side.
        blocks: queries and keys of a tile.
        width: bytes of a head of one token.
    """
    if kernel == "diagonal_gradients":
        blocks = (min(blocks), min(blocks))
    held, (q_size, k_size) = HELD[kernel], blocks
    rows = sum(n * size for n, size in zip(held.kept, blocks, strict=True))
    rows += STAGES * sum(n * size for n, size in zip(held.loaded, blocks, strict=True))
    return rows * width + q_size * k_size * 4 * (held.tiles + 1)


def limit() -> int:
    """Return the bytes of shared memory that a program may have on the first GPU, or on an H100 where there is none."""
    device = next((one for one in jax.devices() if one.platform == "gpu"), None)
    capability = str(getattr(device, "compute_capability", "9.0"))
    known = LIMITS.get(capability, min(LIMITS.values())) * 1024
    return int(getattr(device, "shared_memory_per_block_optin", known))


def fitting(kernels: tuple[str, ...], blocks: tuple[int, int], width: int, most: int) -> tuple[int, int]:
    """Return the blocks after their larger side is halved until all of these kernels fit into `most` bytes.

    Raises:
        NotImplementedError: not even the least tile fits.
    """
    while (needs := max(shared_bytes(kernel, blocks, width) for kernel in kernels)) > most:
        if max(blocks) <= LEAST_TILE:
            raise NotImplementedError(
                f"heads of {width} bytes need {needs} bytes of shared memory, this GPU has {most}"
            )
        q_size, k_size = blocks
        blocks = (q_size // 2, k_size) if q_size >= k_size else (q_size, k_size // 2)
    return blocks
