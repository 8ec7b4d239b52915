"""Attention kernels on Pallas's Mosaic GPU backend for Hopper: what they share, and the forward pass.

A program has three warpgroups: two consumers, with 64 rows of the scores each, and the producer, which copies what they
loop over into rings of buffers. In `forward`, a program owns 128 queries and loops over blocks of keys.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, UInt32

from pejax._attention.core.options import Options
from pejax._attention.kernels.block_masks import TokenRows
from pejax._attention.mosaic.mosaic_distance import by_distance
from pejax._attention.mosaic.mosaic_memory import (
    CONSUMERS,
    FEW,
    MANY,
    ROWS,
    Place,
    accumulated,
    in_layout,
    products,
    ring,
    swizzled,
)
from pejax._attention.mosaic.mosaic_tile import Fields, across, ends_of_rows, scores, softmax_step

OWNED = CONSUMERS * ROWS
"""Tokens that a program owns: queries, or keys."""

FORWARD = 128
"""Keys in a block that the forward pass loops over."""


class Plan(NamedTuple):
    """The static settings of a kernel.

    Attributes:
        options: scale, masks, soft cap and dropout rate of the attention.
        group: number of query heads per key head.
        far: the ends of the keys at which tiles have one bias for all pairs and may be visible: 0 = far before the
            queries, 1 = far after them.
        interpret: whether to run in JAX's interpreter.
    """

    options: Options
    group: int
    far: tuple[int, ...]
    interpret: bool


class Inputs(NamedTuple):
    """Inputs of a kernel. T and S are multiples of `OWNED`, D is 64 or 128; a first axis of size 1 is shared by all.

    Attributes:
        q: queries.
        k: keys.
        v: values.
        q_tokens: tokens of the queries; no kernel reads their positions.
        k_tokens: tokens of the keys.
        diagonals: bias by distance times `bias_unit`, at index `j - i + T` for query i and key j; R = T + S. In a
            kernel that owns keys, the same at index `i - j + S`. None = no bias.
        far: the bias that all pairs of a far tile share, times `bias_unit`: of keys far before the queries, and far
            after them. None = no tile is far.
        key_bias: bias of each key, in base 2; None = none.
        q_words: word of each query that dropout hashes; None = no dropout.
        k_words: word of each key.
        spans: where each program's loop begins and ends, `(N, I, 6)` as `block_masks.spans` returns; None = it visits
            all tiles, in which every pair is visible.
    """

    q: Float[Array, "N T H D"]
    k: Float[Array, "N S K D"]
    v: Float[Array, "N S K D"]
    q_tokens: TokenRows
    k_tokens: TokenRows
    diagonals: Float[Array, "H R"] | None = None
    far: Float[Array, "H 2"] | None = None
    key_bias: Float[Array, "N H S"] | None = None
    q_words: UInt32[Array, "N H T"] | None = None
    k_words: UInt32[Array, " S"] | None = None
    spans: Array | None = None

    @property
    def lengths(self) -> tuple[int, int]:
        """T and S."""
        return self.q.shape[1], self.k.shape[1]


class Kind(NamedTuple):
    """What is known of the tiles of one loop.

    Attributes:
        masked: whether they may have masked pairs.
        end: 0 where all keys are far before the queries, 1 where they are far after them, and all pairs share one bias.
            None = the bias differs from pair to pair, or there is none.
    """

    masked: bool
    end: int | None = None


class Visits(NamedTuple):
    """The blocks that a program visits: first those whose pairs are all visible, then the others.

    Attributes:
        full: number of the blocks whose pairs are all visible.
        total: number of all blocks.
        full_start: index of the first of the full ones.
        before: number of the other blocks that are before the full ones; the rest follow them.
        near: numbers of the steps before the first near block, and before the first after the near ones, of the full
            ones; where a block is not near, all its pairs share one bias.
        far: the ends at which some may be far, as `Kind.end` has them.
        descending: whether the full blocks are visited from the last to the first.
        some_masked: whether there may be other blocks than the full ones.
    """

    full: Array
    total: Array
    full_start: Array
    before: Array
    near: tuple[Array, Array]
    far: tuple[int, ...]
    descending: bool
    some_masked: bool

    def block(self, x: Array) -> Array:
        """Return the index of the block of step x."""
        return jnp.where(x < self.full, self.full_block(x), self.masked_block(x))

    def full_block(self, x: Array) -> Array:
        """Return the index of the block of one of the first steps."""
        return self.full_start + (self.full - 1 - x if self.descending else x)

    def masked_block(self, x: Array) -> Array:
        """Return the index of the block of a step after the full ones."""
        beyond = x - self.full
        return self.full_start + jnp.where(beyond < self.before, beyond - self.before, x - self.before)

    def loop(self, step: Callable, carry: Any, begun: Array | int = 0, turn: tuple[Any, int] = (0, 1)) -> Any:
        """Return the carry after all blocks, or after those of one consumer of several that take turns.

        Args:
            step: `(number of the step, index of the block, carry, kind of its tiles) -> carry`.
            carry: carry before the first block.
            begun: number of the first step.
            turn: (i, n): only the steps whose number is i modulo n.
        """
        consumer, count = turn

        def run(low: Any, high: Any, kind: Kind, carry: Any) -> Any:
            # The first step from `low` on whose number, `begun` more, is that of the consumer modulo count.
            first = low + (lax.rem(consumer + (count - 1) * (begun + low), jnp.int32(count)) if count > 1 else 0)

            def own_step(y: Array, carry: Any) -> Any:
                x = first + y * count
                return step(begun + x, self.masked_block(x) if kind.masked else self.full_block(x), carry, kind)

            return lax.fori_loop(0, lax.div(high - first + count - 1, jnp.int32(count)), own_step, carry)

        zero = jnp.int32(0)
        start, end = (self.near[0] if 0 in self.far else zero), (self.near[1] if 1 in self.far else self.full)
        if 0 in self.far:
            carry = run(zero, start, Kind(masked=False, end=0), carry)
        carry = run(start, end, Kind(masked=False), carry)
        if 1 in self.far:
            carry = run(end, self.full, Kind(masked=False, end=1), carry)
        return run(self.full, self.total, Kind(masked=True), carry) if self.some_masked else carry


def visits(
    spans: Any, n: Array, owner: Array, count: int, far: tuple[int, ...] = (), *, descending: bool = False
) -> Visits:
    """Return what a program visits: the only reader of `Inputs.spans`.

    Args:
        spans: reference to the spans, or None.
        n: index of the example.
        owner: index of the block that the program owns.
        count: number of blocks to visit if there are no spans.
        far: as in `Visits`.
        descending: as in `Visits`; where blocks of queries are visited, the keys before them then come first.
    """
    if spans is None:
        zero, all_blocks = jnp.int32(0), jnp.int32(count)
        return Visits(all_blocks, all_blocks, zero, zero, (zero, all_blocks), (), descending, False)
    example = n if spans.shape[0] > 1 else 0
    first, full_start, near_start, near_end, full_end, end = (spans[example, owner, i] for i in range(6))
    near = (
        (full_end - near_end, full_end - near_start) if descending else (near_start - full_start, near_end - full_start)
    )
    return Visits(full_end - full_start, end - first, full_start, full_start - first, near, far, descending, True)


def call(plan: Plan, kernel: Callable, grid: dict[str, int], outputs: Any, scratch: Any, *operands: Any) -> Any:
    """Return the outputs of a kernel that runs over a grid.

    Args:
        plan: static settings.
        kernel: `(*references to operands, *references to outputs, *scratch) -> None`, with the name that profiles show.
        grid: number of programs along each axis, by name.
        outputs: list of the shapes and types of the outputs.
        scratch: list of what the kernel allocates in shared memory.
        *operands: pytrees of arrays.
    """
    leaves, treedef = jax.tree.flatten(operands)

    def body(*refs: Any) -> None:
        kernel(*jax.tree.unflatten(treedef, refs[: len(leaves)]), *refs[len(leaves) :])

    run = plgpu.kernel(
        body,
        out_type=outputs,
        scratch_types=scratch,
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name=f"pejax_mosaic_{kernel.__name__}",
        interpret=plgpu.InterpretGPUParams() if plan.interpret else None,
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )
    return jax.jit(run)(*leaves)  # JAX removes an unused jit, but not an unused kernel


def fields(plan: Plan, inputs: Any, place: Place, window: Any, kind: Kind) -> Fields:
    """Load what a tile's scores are made of beside its products.

    Args:
        plan: static settings.
        inputs: references to the inputs.
        place: place of the tile.
        window: reference to the part of `Inputs.diagonals` for the tile, in shared memory; None = no bias.
        kind: what is known of the tile.
    """
    q_tokens, k_tokens = inputs.q_tokens, inputs.k_tokens

    def sides(q: Any, k: Any, *index: Any) -> tuple[Array, Array] | None:
        return None if q is None or k is None else (place.of_queries(q, place.n, *index), place.of_keys(k, place.n))

    is_far = kind.end is not None
    bias = None if window is None or is_far else by_distance(window, place.shape, interpret=plan.interpret)
    placed = None if bias is None else sides(q_tokens.has_position, k_tokens.has_position)
    key_bias, q_words, k_words = inputs.key_bias, inputs.q_words, inputs.k_words
    return Fields(
        bias=bias,
        shift=inputs.far[place.head, kind.end] if is_far else None,
        placed=None if placed is None else (placed[0] != 0) & (placed[1] != 0),
        key_bias=None if key_bias is None else place.of_keys(key_bias, place.n, place.head),
        orders=sides(q_tokens.order, k_tokens.order) if kind.masked else None,
        segments=sides(q_tokens.segment_ids, k_tokens.segment_ids) if kind.masked else None,
        dropout_words=None
        if q_words is None
        else (place.of_queries(q_words, place.n, place.head), place.of_keys(k_words)),
    )


def window_of(inputs: Any, head: Array, owned: Array, other: Array, size: int, length: int) -> list[Any]:
    """Return the part of the diagonals for `OWNED` rows and a block of columns, to be copied; [] without a bias.

    Args:
        inputs: references to the inputs.
        head: index of the query head.
        owned: index of the first row.
        other: index of the first column.
        size: number of columns.
        length: number of rows in all.
    """
    if inputs.diagonals is None:
        return []
    return [inputs.diagonals.at[head, pl.ds(other - owned + length - OWNED, OWNED + size)]]


def window_for(window: Sequence[Any], warpgroup: Array, size: int) -> Any:
    """Return the part of a program's window that one warpgroup cuts its tile from; None without a window."""
    return next((x.at[pl.ds((CONSUMERS - 1 - warpgroup) * ROWS, ROWS + size)] for x in window), None)


def forward(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "N T H D"], Float[Array, "N H T"]]:
    """Return the output and each query's log-sum-exp."""
    (n_count, length, heads, dim), dtype, size = inputs.q.shape, inputs.q.dtype, FORWARD
    count = length // OWNED

    def forward(inputs: Any, o_ref: Any, lse_ref: Any, q_buffer: Any, lse_buffer: Any, loaded: Any, k_ring: Any,
                v_ring: Any) -> None:  # fmt: skip
        n, head, warpgroup = (lax.axis_index(name) for name in ("example", "head", "warpgroup"))
        i = count - 1 - lax.axis_index("block")  # where causal, the blocks with the most work first
        see = lambda: visits(inputs.spans, n, i, inputs.lengths[1] // size, plan.far)

        @pl.when(warpgroup == CONSUMERS)
        def _produce() -> None:
            plgpu.set_max_registers(FEW, action="decrease")
            seen = see()

            @pl.loop(0, seen.total)
            def _copy(x: Array) -> None:
                keys = seen.block(x) * size
                place = n, pl.ds(keys, size), lax.div(head, jnp.int32(plan.group))
                window = window_of(inputs, head, i * OWNED, keys, size, length)
                k_ring.fill(x, [inputs.k.at[place], *window])
                v_ring.fill(x, [inputs.v.at[place]])

        @pl.when(warpgroup < CONSUMERS)
        def _consume() -> None:
            plgpu.set_max_registers(MANY, action="increase")
            first = i * OWNED + warpgroup * ROWS
            queries, q = pl.ds(first, ROWS), q_buffer.at[warpgroup]
            plgpu.copy_gmem_to_smem(inputs.q.at[n, queries, head], q, loaded.at[warpgroup])
            plgpu.barrier_wait(loaded.at[warpgroup])

            def step(x: Array, j: Array, carry: Any, kind: Kind) -> Any:
                row_max, total, value_sums = carry
                slot = k_ring.slot(x)
                k_ring.wait(x)
                (logits,) = products((q, k_ring.buffers[0].at[slot]))
                window = window_for([buffer.at[slot] for buffer in k_ring.buffers[1:]], warpgroup, size)
                place = Place(n, head, (first, ROWS), (j * size, size))
                tile = scores(plan.options, logits, fields(plan, inputs, place, window, kind))
                k_ring.release(x)
                row_max, total, weights, shrink = softmax_step(tile, row_max, total)
                value_sums = value_sums * across(shrink, value_sums.shape, 0)
                v_ring.wait(x)
                values = v_ring.buffers[0].at[slot]
                value_sums = accumulated(value_sums, weights.astype(dtype), values, interpret=plan.interpret)
                v_ring.release(x)
                return row_max, total, value_sums

            row = jnp.zeros(ROWS, jnp.float32)
            zeros = map(in_layout, (row - jnp.inf, row, jnp.zeros((ROWS, dim), jnp.float32)))
            row_max, total, value_sums = see().loop(step, tuple(zeros))
            divisor, lse = ends_of_rows(row_max, total)
            q[...] = (value_sums / across(divisor, value_sums.shape, 0)).astype(dtype)
            lse_buffer.at[warpgroup][...] = lse
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(q, o_ref.at[n, queries, head])
            plgpu.copy_smem_to_gmem(lse_buffer.at[warpgroup], lse_ref.at[n, head, queries])
            plgpu.wait_smem_to_gmem(0)

    block, stages = jax.ShapeDtypeStruct((size, dim), dtype), 256 // dim
    window = [] if inputs.diagonals is None else [jax.ShapeDtypeStruct((OWNED + size,), jnp.float32)]
    scratch = [
        swizzled((CONSUMERS, ROWS, dim), dtype),
        swizzled((CONSUMERS, ROWS), jnp.float32),
        plgpu.Barrier(num_barriers=CONSUMERS),
        ring(stages, block, *window),
        ring(stages, block),
    ]
    outputs = [
        jax.ShapeDtypeStruct(inputs.q.shape, dtype),
        jax.ShapeDtypeStruct((n_count, heads, length), jnp.float32),
    ]
    grid = {"head": heads, "block": count, "example": n_count}
    output, lse = call(plan, forward, grid, outputs, scratch, inputs)
    return output, lse
