"""From memory to the registers of a warpgroup, on Mosaic GPU: rings of blocks, numbers of tokens, and products.

One warpgroup, the producer, copies blocks into rings of buffers in shared memory; the others, the consumers, work on
them. The registers of a warpgroup hold a tile in the layout of `wgmma`'s results, rows and columns spread over 128
threads.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from pejax._attention.mosaic.mosaic_tile import across

CONSUMERS = 2
"""Warpgroups of a program that compute."""

ROWS = 64
"""Rows of a warpgroup's tile: those of one `wgmma`."""

MANY, FEW = 240, 24
"""Registers of a consumer's thread and of the producer's: with 128 threads in each, nearly all of a multiprocessor."""

TILE = plgpu.Layout.WGMMA
"""Layout of a tile. `TILE.reduce(1)` is that of one number per row, `TILE.reduce(0)` of one per column."""


TRANSFORMS: Any = (plgpu.TilingTransform, plgpu.SwizzleTransform)
"""Of blocks in shared memory, into the order that `wgmma` reads."""


class Place(NamedTuple):
    """The place of a tile: example, query head, and its queries and keys as (first, number).

    `transposed` says whether queries are its columns.
    """

    n: Array
    head: Array
    queries: tuple[Array, int]
    keys: tuple[Array, int]
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns."""
        q_size, k_size = self.queries[1], self.keys[1]
        return (k_size, q_size) if self.transposed else (q_size, k_size)

    def of_queries(self, ref: Any, *index: Any) -> Array:
        """Load one number per query of `ref[*index]`, as an array of the tile's shape."""
        return self._load(ref, index, self.queries, int(self.transposed))

    def of_keys(self, ref: Any, *index: Any) -> Array:
        """Load one number per key of `ref[*index]`, likewise."""
        return self._load(ref, index, self.keys, int(not self.transposed))

    def _load(self, ref: Any, index: tuple[Any, ...], tokens: tuple[Array, int], axis: int) -> Array:
        """Load numbers of tokens, on an axis of the tile; an axis of size 1 in `ref` is shared by all."""
        index = tuple(i if size > 1 else 0 for i, size in zip(index, ref.shape, strict=False))
        return spread(ref.at[(*index, pl.ds(*tokens))], self.shape, axis)


class Ring(NamedTuple):
    """Buffers that one producer fills and all consumers empty, in turn.

    Attributes:
        ready: barriers of the buffers that are full.
        done: barriers of the buffers that all consumers have read.
        buffers: references to shared memory, with the buffers of the ring on the first axis.
    """

    ready: Any
    done: Any
    buffers: tuple[Any, ...]

    def slot(self, x: Array) -> Array:
        """Return the index of the buffer of step x."""
        return lax.rem(x, jnp.int32(self.buffers[0].shape[0]))

    def wait(self, x: Array) -> None:
        """Wait until the buffer of step x is full."""
        plgpu.barrier_wait(self.ready.at[self.slot(x)])

    def release(self, x: Array) -> None:
        """Say that this consumer has read the buffer of step x."""
        if any(buffer.dtype == jnp.float32 for buffer in self.buffers):
            plgpu.commit_smem()  # a barrier alone orders products, but not loads, with the next copy
        plgpu.barrier_arrive(self.done.at[self.slot(x)])

    def fill(self, x: Array, sources: Sequence[Any]) -> None:
        """Copy the sources, references to global memory, into the buffer of step x, once all have read it."""
        slot = self.slot(x)

        @pl.when(x >= self.buffers[0].shape[0])
        def _() -> None:
            plgpu.barrier_wait(self.done.at[slot])

        for source, buffer in zip(sources, self.buffers, strict=True):
            plgpu.copy_gmem_to_smem(source, buffer.at[slot], self.ready.at[slot])


def ring(stages: int, *blocks: Any, consumers: int = CONSUMERS) -> Ring:
    """Return the allocation of a ring of `stages` buffers, each of these blocks of shared memory."""
    buffers = tuple(swizzled((stages, *x.shape), x.dtype) for x in blocks)
    ready = plgpu.Barrier(num_arrivals=len(blocks), num_barriers=stages)
    return Ring(ready, plgpu.Barrier(num_arrivals=consumers, num_barriers=stages), buffers)


def swizzled(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return shared memory for blocks of heads in the order that `wgmma` reads, or for plain rows of float32."""
    if dtype == jnp.float32:
        return plgpu.SMEM(shape, dtype)
    tiling, swizzle = TRANSFORMS
    return plgpu.SMEM(shape, dtype, transforms=(tiling((8, 64)), swizzle(128)))


def spread(ref: Any, shape: tuple[int, int], axis: int) -> Array:
    """Load one number per row (axis 0) or per column (axis 1), as an array of the tile's shape."""
    return across(plgpu.load(ref, layout=TILE.reduce(1 - axis)), shape, axis)


def in_layout(x: Array) -> Array:
    """Return a tile, or one number per row, in the registers' layout of it."""
    return plgpu.layout_cast(x, TILE if x.ndim == 2 else TILE.reduce(1))


def products(*pairs: tuple[Any, Any]) -> list[Array]:
    """Return a · b^T in float32 for pairs of references to blocks of rows in shared memory."""

    def multiply(*sums: Any) -> list[Array]:
        for total, (a, b) in zip(sums, pairs, strict=True):
            plgpu.wgmma(total, a, b.transpose((1, 0)))
        return [total[...] for total in sums]

    sums = (plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[0]), jnp.float32) for a, b in pairs)
    return pl.run_scoped(multiply, *sums)


def accumulated(total: Array, a: Array, b: Any, *, interpret: bool) -> Array:
    """Return total + a · b, for a tile in registers and a reference to shared memory."""
    if interpret:  # JAX's interpreter multiplies what is in shared memory alone
        b = b[...]
        plgpu.commit_smem()  # as if b had been read by a product
        return total + jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32))
    result: Any = pl.run_state(lambda sums: plgpu.wgmma(sums, a, b))(plgpu.WGMMAAccumulatorRef.init(total))
    return result
