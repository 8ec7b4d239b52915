"""Kernels of a peer, compiled for an H200 as pejax's are: what docs/hardware.md says of them."""

import importlib
import importlib.metadata
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support.absent_gpu import Program, compiler, program
from tests.support.cases import slow
from tests.support.sass_loops import innermost_loops

__all__ = ["compiler"]

VERSION = "0.0.17"
LENGTH, HEADS = 2048, 16


def installed() -> str | None:
    """Return the version of tokamax that is installed."""
    try:
        return importlib.metadata.version("tokamax")
    except importlib.metadata.PackageNotFoundError:
        return None


pytestmark = [
    pytest.mark.gpu_aot,
    pytest.mark.skipif(installed() != VERSION, reason=f"figures are those of tokamax {VERSION}"),
]


def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an operand."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def forward(size: int, biased: bool) -> Program:
    """Compile causal attention of one sequence, with the tiles that tokamax chooses without tuning."""
    kernels = importlib.import_module("tokamax._src.ops.attention.pallas_mosaic_gpu_kernel_sm90")

    config = kernels.Config(block_q=64, block_kv=128, num_stages=2, persistent=False)

    def attend(q, k, v, bias=None):
        return kernels.flash_attention_kernel(
            *(q, k, v, bias, None, None, None),  # no mask, no ranges of keys
            is_causal=True,
            logits_soft_cap=None,
            logits_scale=size**-0.5,
            out_dtype=jnp.dtype(jnp.bfloat16),
            normalize_output=True,
            return_residuals=True,
            use_stable_softmax=True,
            rescale_threshold=1.0,
            config=config,
        )

    return program(attend, *[shape(LENGTH, HEADS, size)] * 3, *[shape(HEADS, LENGTH, LENGTH)] * biased)


def issued(result: Program) -> list[list[int]]:
    """Return, by kernel, the instructions of an iteration of each loop that uses tensor cores."""
    loops = [[loop.total() for loop in innermost_loops(k) if loop["HGMMA"]] for k in result.kernels.values()]
    return sorted(counts for counts in loops if counts)


@pytest.mark.parametrize(
    ("size", "biased", "counts"), [(64, False, [431, 603]), slow(64, True, [606, 805])], ids=["no bias", "bias"]
)
def test_loops_of_the_forward_pass(size, biased, counts):
    """Tiles of 64 x 128 scores per warpgroup: those whose pairs are all visible, and those with masked pairs."""
    assert issued(forward(size, biased)) == [counts]
