"""Temporary memory of attention with every encoding, forward and backward, as XLA plans it: linear in the length.

Of sequences, and of points in space, whose encoding takes their coordinates.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.operands import DTYPES
from benchmarks.report import Case, Column, Part, Settings
from benchmarks.timing import Say, forward_and_backward
from pejax import ENCODINGS, Dims, Encoding, attend, grid_positions, make_encoding, merge_params

GRID_ONLY = ("rope_axial",)
"""Encodings that refuse a sequence: they get a grid of as many tokens, as square as can be, without a mask."""

OF_POINTS = ("kerple", "alibi(learned=True)", "fire")
"""Encodings of points, whose bias has parameters that get gradients."""

LINEAR = 1.1
"""Memory that grows by a smaller power of the length, between the last two lengths, counts as linear."""

ALLOWANCE = 8 * 2**20
"""Bytes that temporary memory may take beyond those of q, k, v and the output."""


def planned(spec: str, dtype: str, length: int, heads: int, head_dim: int) -> tuple[int, int]:
    """Return temporary bytes of forward and backward, and the bytes of q, k, v and the output."""
    if spec in GRID_ONLY:
        side = next(side for side in range(math.isqrt(length), 0, -1) if length % side == 0)
        dims = Dims(heads, head_dim, axes=2, extent=(side, length // side))
    else:
        dims = Dims(heads, head_dim, extent=length, causal=True)
    return temporary(make_encoding(spec, dims), dims, dtype)


def temporary(encoding: Encoding, dims: Dims, dtype: str) -> tuple[int, int]:
    """Return temporary bytes of forward and backward at the trained extent, and the bytes of q, k, v and the output."""
    assert dims.extent is not None
    grid = dims.extent if isinstance(dims.extent, tuple) else (dims.extent,)
    positions = grid_positions(*grid) if dims.axes > 1 else np.arange(*grid, dtype=np.int32)
    return temporary_at(jax.ShapeDtypeStruct(positions.shape, positions.dtype), encoding, dims, dtype)


def temporary_at(place: jax.ShapeDtypeStruct, encoding: Encoding, dims: Dims, dtype: str) -> tuple[int, int]:
    """Return the bytes of `temporary` at positions of a shape and type; fractional positions get gradients, too."""
    params = jax.eval_shape(lambda key: merge_params(encoding.init(key), encoding.init_layer(key)), jax.random.key(0))
    operand = jax.ShapeDtypeStruct((1, place.shape[0], dims.heads, dims.head_dim), jnp.dtype(dtype))
    fractional = jnp.issubdtype(place.dtype, jnp.floating)

    def forward(params: dict, q: Array, k: Array, v: Array, positions: Array) -> Array:
        options = {"positions": positions, "extent": dims.extent, "axes": dims.axes, "causal": dims.causal}
        return attend(encoding, q, k, v, params=params, embedded=True, **options)

    @jax.jit
    def both(cotangent: Array, positions: Array, *operands: Any) -> tuple:
        if fractional:
            return forward_and_backward(forward)(cotangent, *operands, positions)
        return forward_and_backward(functools.partial(forward, positions=positions))(cotangent, *operands)

    plan: Any = both.lower(operand, place, params, operand, operand, operand).compile().memory_analysis()
    return plan.temp_size_in_bytes, 4 * operand.dtype.itemsize * math.prod(operand.shape)


def measure(spec: str, dtype: str, lengths: tuple[int, ...], heads: int, head_dim: int, say: Say) -> Column:
    """Return the planned bytes at every length, the bytes of each further token, and the power of their growth."""
    plans = []
    for i, length in enumerate(lengths):
        say(f"L = {length:,}", i / len(lengths))
        plans.append(planned(spec, dtype, length, heads, head_dim))
    cells = {f"L = {n:,}: MiB": f"{temporary / 2**20:.1f}" for n, (temporary, _) in zip(lengths, plans, strict=True)}
    cells |= {f"L = {n:,}: of q, k, v, o": f"{t / held:.2f}" for n, (t, held) in zip(lengths, plans, strict=True)}
    over = [f"{n:,}" for n, (t, held) in zip(lengths, plans, strict=True) if t > held + ALLOWANCE]
    cells["at most q, k, v, o and 8 MiB"] = f"not at {', '.join(over)}" if over else "yes"
    (before, held_before), (last, held) = plans[-2:]
    power = growth(lengths[-2:], (before, last))
    cells["each further token: of its q, k, v, o"] = f"{(last - before) / (held - held_before):.2f}"
    cells["grows as"] = f"L^{power:.2f}, {'linear' if power < LINEAR else 'NOT LINEAR'}"
    return Column(cells)


def growth(lengths: tuple[int, ...], sizes: tuple[int, ...]) -> float:
    """Return the power of the length by which sizes grow, by least squares in their logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(np.maximum(sizes, 1)), 1)[0])


def of_points(spec: str, counts: tuple[int, ...], heads: int, head_dim: int, say: Say) -> Column:
    """Return the planned bytes for numbers of points in space, beside those of an array of the bias of all pairs."""
    dims, cells = Dims(heads, head_dim, axes=3), {}
    for i, count in enumerate(counts):
        say(f"{count:,} points", i / len(counts))
        place = jax.ShapeDtypeStruct((count, dims.axes), jnp.float32)
        planned_bytes, _ = temporary_at(place, make_encoding(spec, dims), dims, "float32")
        cells[f"{count:,} points: MiB"] = f"{planned_bytes / 2**20:.1f}"
        cells[f"{count:,} points: MiB of the bias as an array"] = f"{4 * heads * count**2 / 2**20:,.0f}"
    return Column(cells)


def cases(settings: Settings) -> list[Case]:
    """Return tables of the encodings of the registry, and one of encodings of points."""
    lengths, heads, head_dim = ((16, 64), 2, 8) if settings.toy else ((512, 2048, 8192, 32768), 8, 64)
    measured = lambda *which: functools.partial(measure, *which, lengths, heads, head_dim)
    counts = (16, 64) if settings.toy else (4096, 16384)
    points = lambda spec: functools.partial(of_points, spec, counts, heads, head_dim)
    space = "Temporary memory, points in space, float32, forward and backward"
    specs = OF_POINTS[: 1 if settings.toy else None]
    return [Case(space, spec, points(spec), 15) for spec in specs] + [
        Case(f"Temporary memory, {dtype}, forward and backward", spec, measured(spec, dtype), 15)
        for dtype in (DTYPES if not settings.toy else DTYPES[:1])
        for spec in (ENCODINGS if not settings.toy else ("none", *GRID_ONLY))
    ]


PART = Part(
    "Memory of attention",
    "Temporary bytes as XLA plans them (`compile().memory_analysis()`), outputs not counted: one sequence of "
    "8 heads of 64 channels, causal, gradients of q, k, v and the encoding's parameters; rope_axial on a "
    "grid without a mask. Points in space have three coordinates, which get gradients, too. `of q, k, v, o` is the "
    "share of the bytes of these four. Growth is measured between the two longest.",
    cases,
)
