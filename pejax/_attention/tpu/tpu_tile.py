"""One tile of attention inside a Mosaic kernel: S keys down the sublanes, T queries along the lanes.

In this orientation, one number per query is a row, which broadcasts at no cost; maxima and sums over keys stay in the
vector unit; and the gradients of k and v are plain products. One number per key is a column.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pejax._attention.core.dropout import finalize
from pejax._attention.core.masks import keep_hidden, pair_masks
from pejax._attention.core.options import Options
from pejax._attention.tpu.tpu_pairs import TilePairs
from pejax._ops.relative import difference

LANES = 128
"""Numbers in a row of a vector register: blocks are multiples of it."""

Refs: TypeAlias = dict[str, Any]
"""The operands of a kernel by name, each one block; what a call does not need is not there."""


class Plan(NamedTuple):
    """The static settings of a kernel; hashable.

    Attributes:
        options: scale, masks, soft cap and dropout rate of the attention.
        fields: names of the numbers of each token, in the order of the rows of `rows` and the columns of `columns`:
            "order", "segment", "placed", "axis0" ..., and for keys "word", the key's part of the dropout's hash.
        queries: number of queries in a tile.
        keys: number of keys in a tile.
        query_blocks: number of query blocks in a sequence.
        inside: `(numbers, relative positions on each axis) -> bias`, where the bias is made in the tile.
        lanes: numbers in a row of a register; one strided roll serves so many keys.
        interpret: whether to run in Pallas's interpreter.
        pairs: hooks of pairs, which are run in the tile.
    """

    options: Options
    fields: tuple[str, ...]
    queries: int
    keys: int
    query_blocks: int
    inside: Callable[..., Array] | None
    lanes: int
    interpret: bool
    pairs: TilePairs | None = None

    @property
    def step(self) -> int:
        """The distance between one diagonal and the next, in tokens: all tiles start at multiples of it."""
        return math.gcd(self.queries, self.keys)


def diagonal_of(plan: Plan, i: Any, j: Any) -> Any:
    """Return which diagonal the tile of query block i and key block j lies on, from 0."""
    return (j * plan.keys - i * plan.queries + (plan.query_blocks - 1) * plan.queries) // plan.step


def tile_bias(plan: Plan, diagonal: Float[Array, "1 W"]) -> Float[Array, "S T"]:
    """Return `bias[x, y] = diagonal[S + y - x]`, which one strided roll makes, cut at whole registers."""
    width = plan.queries + plan.keys
    rows = jnp.broadcast_to(diagonal, (plan.lanes, width))
    rolled = pltpu.roll(rows, 0, axis=1, stride=1, stride_axis=0)
    starts = range(plan.keys, 0, -plan.lanes)
    return jnp.concatenate([rolled[:, start : start + plan.queries] for start in starts], axis=0)


def diagonal_gradient(plan: Plan, d_logits: Float[Array, "S T"], sums: Any) -> Float[Array, "1 W"]:
    """Return the sum of each diagonal of `d_logits`: the transpose of `tile_bias`; `sums` is scratch."""
    width = plan.queries + plan.keys
    sums[...] = jnp.zeros(sums.shape, jnp.float32)
    for x, start in zip(range(0, plan.keys, plan.lanes), range(plan.keys, 0, -plan.lanes), strict=True):
        sums[:, start : start + plan.queries] += d_logits[x : x + plan.lanes]
    rows = sums[...]
    # Row x holds its diagonals x places further right. The lower half of the rows moves left by its height and is added
    # to the upper half, until one row is left: log2 of the lanes rolls of whole registers.
    while len(rows) > 1:
        half = len(rows) // 2
        rows = rows[:half] + pltpu.roll(rows[half:], width - half, axis=1)
    return rows


class Place(NamedTuple):
    """Where a step of the grid is: example, query head, key head, block of queries, block of keys."""

    n: Any
    head: Any
    key_head: Any
    i: Any
    j: Any


def tile_logits(plan: Plan, refs: Refs, place: Place) -> tuple[Float[Array, "S T"], Float[Array, "S T"] | None]:
    """Return the logits, -inf where the key is not seen, and their cap_derivative where there is a soft cap."""
    options, cap_derivative = plan.options, None
    logits = options.scale * product(options, refs["k"][0, 0], refs["q"][0, 0], (1, 1))
    bias = None
    if "diagonals" in refs:
        bias = tile_bias(plan, refs["diagonals"][0, pl.ds(diagonal_of(plan, place.i, place.j), 1), :])
    elif plan.inside is not None:
        bias = plan.inside(numbers_of(refs, place), relative_of(plan, refs))
    elif has_program(plan, "bias"):
        (bias,) = run_pairs(plan, refs, "bias")
    if bias is not None:
        logits = logits + placed_only(plan, refs, bias)
    if options.soft_cap is not None:
        share = jnp.tanh(logits / options.soft_cap)
        logits, cap_derivative = keep_hidden(options, logits, options.soft_cap * share), 1.0 - share * share
    if "key_bias" in refs:
        logits = logits + down_the_keys(plan, refs["key_bias"][0, 0])
    fields = (_field(plan, refs, name) if name in plan.fields else None for name in ("order", "segment"))
    for allowed in pair_masks(options, *fields, comparable=_signed):
        logits = jnp.where(allowed, logits, -jnp.inf)
    return logits, cap_derivative


def down_the_keys(plan: Plan, row: Float[Array, "1 S"]) -> Float[Array, "S 1"]:
    """Return a row of one number per key as a column, by the transpose of whole registers."""
    return jnp.broadcast_to(row, (plan.lanes, plan.keys)).T[:, :1]


def sums_of_keys(d_logits: Float[Array, "S T"]) -> Float[Array, "1 S"]:
    """Return the sum over the queries for each key, as a row: a product with ones."""
    ones = jnp.ones((8, d_logits.shape[1]), jnp.float32)
    contract = (((1,), (1,)), ((), ()))
    return lax.dot_general(ones, d_logits, contract, precision=lax.Precision.HIGHEST)[:1]


def numbers_of(refs: Refs, place: Place) -> list[Array]:
    """Return the numbers that the bias of this head reads."""
    if "numbers" not in refs:
        return []
    return [refs["numbers"][place.head, number] for number in range(refs["numbers"].shape[1])]


def relative_of(plan: Plan, refs: Refs) -> tuple[Int[Array, "S T"], ...]:
    """Return key - query on each axis."""
    axes = [name for name in plan.fields if name.startswith("axis")]
    return tuple(difference(*_field(plan, refs, name)) for name in axes)


def numbers_gradient(plan: Plan, refs: Refs, place: Place, d_bias: Float[Array, "S T"]) -> Float[Array, "1 L"]:
    """Return the gradients of the numbers that the bias reads, the first of the lanes."""
    inside: Any = plan.inside
    relative = relative_of(plan, refs)
    _, pull = jax.vjp(lambda numbers: inside(numbers, relative), numbers_of(refs, place))
    lane = lax.broadcasted_iota(jnp.int32, (1, plan.lanes), 1)
    parts = [jnp.where(lane == number, d, 0.0) for number, d in enumerate(pull(d_bias)[0])]
    return functools.reduce(jnp.add, parts)


def has_program(plan: Plan, name: str) -> bool:
    """Return whether hooks of pairs have this program."""
    return plan.pairs is not None and plan.pairs.program(name) is not None


def run_pairs(plan: Plan, refs: Refs, name: str, *d_bias: Float[Array, "S T"]) -> list[Array]:
    """Return the outputs of a program of the `bias` hook, given the gradient of the bias where it needs one."""
    q, k = refs["q"][0, 0].astype(jnp.float32).T, refs["k"][0, 0].astype(jnp.float32)
    return _run(plan, refs, name, [q, k, *_positions(plan, refs), *d_bias])


def run_values(plan: Plan, refs: Refs, name: str, weights: Float[Array, "S T"]) -> list[Array]:
    """Return the outputs of a program of the `relative_values` hook, given the weights of placed tokens."""
    d_values = [] if name == "values" else [refs["d_output"][0, 0].astype(jnp.float32).T]
    return _run(plan, refs, name, [*_positions(plan, refs), placed_only(plan, refs, weights), *d_values])


def _run(plan: Plan, refs: Refs, name: str, tile: list[Array]) -> list[Array]:
    pairs: Any = plan.pairs
    return pairs.run(name, refs, tile, (plan.keys, plan.queries))


def _positions(plan: Plan, refs: Refs) -> tuple[Int[Array, "A T"], Int[Array, "S A"]]:
    """Return the positions of queries and keys."""
    axes = [place for place, field in enumerate(plan.fields) if field.startswith("axis")]
    columns = refs["columns"][0, :, axes[0] : axes[-1] + 1]
    return refs["rows"][0, axes[0] : axes[-1] + 1, :], columns


def placed_only(plan: Plan, refs: Refs, bias: Float[Array, "S T"]) -> Float[Array, "S T"]:
    """Return the bias of pairs of two placed tokens, 0 for others: a linear map that is its own transpose."""
    if "placed" not in plan.fields:
        return bias
    q, k = _field(plan, refs, "placed")
    return jnp.where((q != 0) & (k != 0), bias, 0.0)


def drop(plan: Plan, refs: Refs, weights: Float[Array, "S T"]) -> Float[Array, "S T"]:
    """Drop weights as `apply_dropout` does: a linear map that is its own transpose."""
    rate = plan.options.dropout_rate
    if not rate:
        return weights
    column = lax.bitcast_convert_type(_column(plan, refs, "word"), jnp.uint32)
    keep = finalize(column + refs["words"][0, 0]) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(keep, weights / (1.0 - rate), 0.0)


def product(options: Options, a: Array, b: Array, contract: tuple[int, int]) -> Float[Array, "M N"]:
    """Return the product over one axis of each, in float32."""
    return lax.dot_general(
        a,
        b,
        (((contract[0],), (contract[1],)), ((), ())),
        precision=options.precision,
        preferred_element_type=jnp.float32,
    )


def _signed(distance: Any) -> Any:
    """Return numbers that compare, as Mosaic compares int32, as distances do: those of any two int32 wrap there."""
    return distance ^ np.int32(-(2**31))


def _field(plan: Plan, refs: Refs, name: str) -> tuple[Int[Array, "1 T"], Int[Array, "S 1"]]:
    place = plan.fields.index(name)
    return refs["rows"][0, place : place + 1, :], _column(plan, refs, name)


def _column(plan: Plan, refs: Refs, name: str) -> Int[Array, "S 1"]:
    place = plan.fields.index(name)
    return refs["columns"][0, :, place : place + 1]
