"""The cost of a bias or a rotation: attention with every encoding of a sequence against attention with none."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from benchmarks.operands import DTYPES, Problem, direction
from benchmarks.report import Case, Column, Part, Settings, column_of
from benchmarks.timing import Call, Say, forward_and_backward, jitted, side_by_side
from pejax import attend, make_encoding, merge_params

ENCODINGS = ("none", "alibi", "t5", "kerple", "fire", "shaw", "transformer_xl", "rope")


def ours(problem: Problem, spec: str) -> Call:
    """Return attention with an encoding, compiled; its parameters get gradients too."""
    encoding = make_encoding(spec, problem.dims)
    shared, layer = jax.random.split(jax.random.key(0))
    params = merge_params(encoding.init(shared), encoding.init_layer(layer))
    q, k, v, cotangent = problem.arrays()
    positions = jnp.arange(problem.length, dtype=jnp.int32)

    def forward(params: dict, q: Array, k: Array, v: Array, positions: Array) -> Array:
        tokens = {"positions": positions, "extent": problem.length}
        return attend(encoding, q, k, v, params=params, causal=True, embedded=True, **tokens)

    def both(cotangent: Array, params: dict, q: Array, k: Array, v: Array, positions: Array) -> tuple:
        function = lambda params, q, k, v: forward(params, q, k, v, positions)
        return forward_and_backward(function)(cotangent, params, q, k, v)

    if problem.backward:
        return jitted(both, cotangent, params, q, k, v, positions)
    return jitted(forward, params, q, k, v, positions)


def measure(problem: Problem, encodings: Sequence[str], rounds: int, say: Say) -> Column:
    """Time every encoding beside none."""
    makers = {spec: functools.partial(ours, problem, spec) for spec in encodings}
    return column_of(side_by_side(makers, rounds, say))


def cases(settings: Settings) -> list[Case]:
    """Return one table for each type and direction, its columns the lengths."""
    lengths, heads, head_dim = ((16,), 2, 8) if settings.toy else ((2048, 8192), 8, 64)
    found = []
    for backward in (True,) if settings.toy else (False, True):
        for dtype in DTYPES[:1] if settings.toy else DTYPES:
            for length in lengths:
                problem = Problem(length, heads, head_dim, dtype, backward)
                rounds = settings.few if length > 4096 else settings.rounds
                title = f"Encodings, causal, {dtype}, {direction(backward)}"
                measured = functools.partial(measure, problem, ENCODINGS[:2] if settings.toy else ENCODINGS, rounds)
                found.append(Case(title, f"L = {length:,}", measured, 20 + (1 + 2 * backward) * 1e-5 * length**2))
    return found


PART = Part(
    "What an encoding costs in attention",
    "One sequence of 8 heads of 64 channels, causal, by one implementation. First row: the time without any "
    "encoding. Below: how many times that it takes with one, median of the rounds and the middle 80 % of "
    "them; 1.05 costs 5 %. Forward and backward: q, k, v and the encoding's parameters get gradients. "
    "What costs: FIRE bends a line at every pair. Transformer-XL is a product of q with vectors of the distances, "
    "three more in the backward pass, each row of them shifted by its place: a copy. Shaw is both for keys and for "
    "values, at few distances.",
    cases,
    "encoding",
)
