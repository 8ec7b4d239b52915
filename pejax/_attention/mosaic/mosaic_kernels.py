"""The parts that attention kernels on Pallas's Mosaic GPU backend for Hopper share.

A program has three warpgroups: two consumers, with 64 rows of the scores each, and the producer, which copies what they
loop over into rings of buffers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, UInt32

from pejax._attention.core.options import Options
from pejax._attention.kernels.block_masks import TokenRows
from pejax._attention.mosaic.mosaic_distance import by_distance
from pejax._attention.mosaic.mosaic_memory import (
    CONSUMERS,
    FEW,
    ROWS,
    Place,
)
from pejax._attention.mosaic.mosaic_tile import Fields
from pejax._attention.mosaic.mosaic_visits import Kind, Visits

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


def produce(warpgroup: Array, see: Callable[[], Visits], copy: Callable[[Array, Visits], None], times: int = 1) -> None:
    """Let the producer of a program copy what the consumers loop over.

    Args:
        warpgroup: index of this warpgroup; the producer is the last.
        see: `() -> visits`, in this warpgroup.
        copy: `(number of the step, visits) -> None`, which fills one slot of every ring.
        times: number of times that all blocks are visited.
    """

    @pl.when(warpgroup == CONSUMERS)
    def _produce() -> None:
        plgpu.set_max_registers(FEW, action="decrease")
        seen = see()

        @pl.loop(0, times * seen.total)
        def _copy(x: Array) -> None:
            copy(x, seen)
