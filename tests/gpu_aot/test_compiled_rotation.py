"""Rotation of queries and keys, compiled for an H200: wide loads, and one pass over memory."""

import jax
import jax.numpy as jnp
import pytest

from pejax._ops.rotary import rotate_pairs
from tests.support.absent_gpu import compiler, mean_bytes, program, total_bytes
from tests.support.gpu_ledger import ledger

__all__ = ["compiler"]

pytestmark = pytest.mark.gpu_aot

LENGTH, HEADS, KEY_HEADS, D = 8192, 32, 8, 128
WIDTHS = {("half", False): 12.0, ("half", True): 8.0, ("interleaved", False): 16.0, ("interleaved", True): 16.0}
"""Bytes of a load from global memory, at least, on the mean: of the rotation, and of its gradient."""
MOVED = 1.06
"""Bytes read and written over those of a copy of q and k, at most: beside them it reads cosines and sines."""


@pytest.mark.parametrize(("pairing", "backward"), WIDTHS)
def test_rotation_reads_once_and_in_wide_loads(pairing, backward):
    q, k = (jax.ShapeDtypeStruct((1, LENGTH, heads, D), jnp.bfloat16) for heads in (HEADS, KEY_HEADS))
    table = jax.ShapeDtypeStruct((LENGTH, 1, D // 2), jnp.float32)

    def rotate(q, k, cos, sin):
        turn = lambda q, k: tuple(rotate_pairs(x, cos, sin, pairing=pairing) for x in (q, k))
        return jax.vjp(turn, q, k)[1]((q, k)) if backward else turn(q, k)

    result = program(rotate, q, k, table, table)
    counts = ledger(result.text)
    assert counts.launches == {"fusion": 2}
    assert counts.moved <= MOVED * 2 * 2 * (q.size + k.size)
    for kernel in result.kernels.values():
        assert mean_bytes(kernel.loads) >= WIDTHS[pairing, backward]
        # q and k of 2 bytes, cosine and sine of 4, for every 2 bytes that are written
        assert total_bytes(kernel.loads) <= 3 * total_bytes(kernel.stores)
