"""A bias by distance in the registers of a warpgroup: a tile cut from one vector, with few loads.

    tile[r, c] = vector[c - r + rows]

In the layout of `wgmma`'s results, thread t, of warp w = t // 32 % 4 and lane l = t % 32, holds the rows
16·w + l // 4 + 8·s and the columns 8·j + 2·(l % 4) + e for s, e in {0, 1}, of every 64 rows. So c - r is a number of
the thread plus 8·(j - s) + e, which are constants: registers with the same j - s share a number, and a tile of 64 x 128
takes 34 loads for the 64 numbers of each thread.

Reference:
    NVIDIA, "PTX ISA", section "Register fragments and shared memory matrix layouts" of wgmma.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.mosaic.gpu  # noqa: F401 - makes the modules below it importable
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import fragmented_array
from jax.experimental.mosaic.gpu import utils as mosaic
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref, vector
from jaxtyping import Array


def by_distance(window: Any, shape: tuple[int, int], *, interpret: bool) -> Array:
    """Return the tile `window[column - row + rows]` from a reference to rows + columns numbers in shared memory."""
    if interpret:  # JAX's interpreter has no registers
        index = lax.broadcasted_iota(jnp.int32, shape, 1) - lax.broadcasted_iota(jnp.int32, shape, 0) + shape[0]
        return window[...][index]
    result = plgpu.ShapeDtypeStruct(shape, np.dtype(np.float32), layout=plgpu.Layout.WGMMA)
    cut = plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=result)(lambda _, window: _cut(window, shape))
    return cut(window)


def first_index(thread: Any, rows: int) -> Any:
    """Return the index of a thread's first number in the vector, where its offset is 0."""
    lane, warp = thread % 32, thread // 32 % 4
    return lane % 4 * 2 + lane // 4 * -1 + warp * -16 + rows


def register_offset(place: tuple[int, ...]) -> int:
    """Return the offset in the vector of the pair of numbers in a register, from its place in the layout's array."""
    row_tile, column_tile, half = place[0], place[1], place[4]
    return 8 * column_tile - 64 * row_tile - 8 * half


def _cut(window: Any, shape: tuple[int, int]) -> Any:
    """Load the numbers of a thread into its registers."""
    layout, pair_type = fragmented_array.WGMMA_LAYOUT, ir.VectorType.get((2,), ir.F32Type.get())
    first = first_index(_Index(mosaic.thread_idx()), shape[0])
    registers = np.empty(layout.registers_shape(shape), dtype=object)
    pairs: dict[int, Any] = {}
    for place in np.ndindex(registers.shape):
        offset = register_offset(place)
        if offset not in pairs:
            at = (arith.index_cast(ir.IndexType.get(), (first + (offset + e)).value) for e in range(2))
            pairs[offset] = vector.from_elements(pair_type, [memref.load(window, [x]) for x in at])
        registers[place] = pairs[offset]
    return fragmented_array.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)


@dataclass(frozen=True)
class _Index:
    """An integer of a kernel, with the arithmetic of `first_index`."""

    value: Any

    def __add__(self, other: "_Index | int") -> "_Index":
        return _Index(arith.addi(self.value, _value(other)))

    def __mul__(self, other: int) -> "_Index":
        return _Index(arith.muli(self.value, _value(other)))

    def __mod__(self, other: int) -> "_Index":
        return _Index(arith.remui(self.value, _value(other)))

    def __floordiv__(self, other: int) -> "_Index":
        return _Index(arith.divui(self.value, _value(other)))


def _value(x: _Index | int) -> Any:
    i32 = ir.IntegerType.get_signless(32)
    return x.value if isinstance(x, _Index) else arith.constant(i32, ir.IntegerAttr.get(i32, x))
