"""Temporary memory of attention with every encoding, forward and backward, as XLA plans it: linear in the length."""

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
    place = jax.ShapeDtypeStruct(positions.shape, positions.dtype)
    params = jax.eval_shape(lambda key: merge_params(encoding.init(key), encoding.init_layer(key)), jax.random.key(0))
    operand = jax.ShapeDtypeStruct((1, math.prod(grid), dims.heads, dims.head_dim), jnp.dtype(dtype))

    @jax.jit
    def both(cotangent: Array, params: dict, q: Array, k: Array, v: Array, positions: Array) -> tuple:
        def forward(params: dict, q: Array, k: Array, v: Array) -> Array:
            options = {"positions": positions, "extent": dims.extent, "axes": dims.axes, "causal": dims.causal}
            return attend(encoding, q, k, v, params=params, embedded=True, **options)

        return forward_and_backward(forward)(cotangent, params, q, k, v)

    compiled = both.lower(operand, params, operand, operand, operand, place).compile()
    plan: Any = compiled.memory_analysis()
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


def cases(settings: Settings) -> list[Case]:
    """Return one table, its columns the encodings of the registry."""
    lengths, heads, head_dim = ((16, 64), 2, 8) if settings.toy else ((512, 2048, 8192, 32768), 8, 64)
    measured = lambda *which: functools.partial(measure, *which, lengths, heads, head_dim)
    return [
        Case(f"Temporary memory, {dtype}, forward and backward", spec, measured(spec, dtype), 15)
        for dtype in (DTYPES if not settings.toy else DTYPES[:1])
        for spec in (ENCODINGS if not settings.toy else ("none", *GRID_ONLY))
    ]


PART = Part(
    "Memory of attention",
    "Temporary bytes as XLA plans them (`compile().memory_analysis()`), outputs not counted: one sequence of "
    "8 heads of 64 channels, causal, gradients of q, k, v and the encoding's parameters; rope_axial on a "
    "grid without a mask. `of q, k, v, o` is the share of the bytes of these four. Growth is measured between the "
    "two longest.",
    cases,
)
