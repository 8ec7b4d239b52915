"""Small tiles in the kernels, so that short sequences have many of them."""

import contextlib
from collections.abc import Iterator

import pytest

from pejax._attention.gpu import gpu_call
from pejax._attention.tpu import tpu_attention, tpu_tile

SIDE = 16
"""Queries, or keys, in a tile; queries of the GPU's forward pass are twice as many."""


@contextlib.contextmanager
def small_tiles() -> Iterator[None]:
    """Let kernels of TPUs, and those on Triton, have small tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tpu_attention, "BLOCK", SIDE)
        patch.setattr(tpu_tile, "LANES", SIDE // 2)
        patch.setattr(gpu_call, "tile_sizes", lambda *limits: ((2 * SIDE, SIDE), (SIDE, SIDE)))
        yield


@pytest.fixture
def many_tiles():
    """Have small tiles in a test."""
    with small_tiles():
        yield
