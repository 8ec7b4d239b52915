"""Causal ALiBi attention against every peer that can do it, and against the fastest that has no bias."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from benchmarks import peers_jax, peers_torch
from benchmarks.operands import DTYPES, Problem, direction
from benchmarks.report import Case, Column, Part, Settings, column_of
from benchmarks.timing import Call, Say, forward_and_backward, jitted, side_by_side
from pejax import Sharding, adapt, attention_hooks, dot_product_attention, make_encoding

OURS, UNSPLIT = "pejax", "pejax, one device"


def ours(problem: Problem, encoding: str = "alibi", devices: int = 1) -> Call:
    """Return our attention with the bias of an encoding, compiled; positions and slopes are arguments.

    Args:
        problem: what is computed.
        encoding: whose bias it is.
        devices: number of devices that share the heads.
    """
    made = make_encoding(encoding, problem.dims)
    hooks = attention_hooks(made, adapt(made, {}, problem.length))
    q, k, v, cotangent = problem.arrays()
    positions = jnp.arange(problem.length, dtype=jnp.int32)
    attend: Any = functools.partial(dot_product_attention, causal=True)
    if devices > 1:
        mesh = jax.make_mesh((devices,), ("heads",), devices=jax.devices()[:devices])
        split = NamedSharding(mesh, PartitionSpec(None, None, "heads"))
        q, k, v, cotangent = (jax.device_put(x, split) for x in (q, k, v, cotangent))
        attend = functools.partial(attend, sharding=Sharding(mesh, heads="heads"))

    def forward(q: Array, k: Array, v: Array, positions: Array, hooks: dict) -> Array:
        return attend(q, k, v, positions=positions, hooks=hooks)

    def both(cotangent: Array, q: Array, k: Array, v: Array, positions: Array, hooks: dict) -> tuple:
        return forward_and_backward(lambda q, k, v: forward(q, k, v, positions, hooks))(cotangent, q, k, v)

    if problem.backward:
        return jitted(both, cotangent, q, k, v, positions, hooks)
    return jitted(forward, q, k, v, positions, hooks)


def measure(problem: Problem, rounds: int, peers: bool, say: Say) -> Column:
    """Time ours, and the peers beside it."""
    devices = math.gcd(problem.heads, jax.device_count())
    makers = {OURS: functools.partial(ours, problem, devices=devices)}
    if devices > 1:
        makers[UNSPLIT] = functools.partial(ours, problem)
    if peers:
        makers |= peers_torch.attention(problem) | peers_jax.attention(problem)
    return column_of(side_by_side(makers, rounds, say))


def cases(settings: Settings) -> list[Case]:
    """Return one table for each type and direction, its columns the lengths."""
    lengths, heads, head_dim = ((16,), 2, 8) if settings.toy else ((512, 2048, 8192), 8, 64)
    found = []
    for backward in (False, True):
        for dtype in DTYPES[:1] if settings.toy else DTYPES:
            for length in lengths:
                problem = Problem(length, heads, head_dim, dtype, backward)
                rounds = settings.few if length > 4096 else settings.rounds
                measured = functools.partial(measure, problem, rounds, not settings.toy)
                title = f"ALiBi, causal, {dtype}, {direction(backward)}"
                found.append(Case(title, f"L = {length:,}", measured, 30 + (1 + 2 * backward) * 2e-5 * length**2))
    return found


PART = Part(
    "Attention against its peers",
    "One sequence of 8 heads of 64 channels, causal, ALiBi. First row: our time. Below: how many times that a "
    "peer takes, median of the rounds and the middle 80 % of them; above 1 we are faster. Peers get mask and "
    "bias as one array in the type of q, made before the clock starts; ours computes both from positions. "
    "Forward and backward: q, k and v get gradients. Ours has the heads split over a device for "
    "each core; on one device XLA shares out the cores operation by operation, and while a tile is small, one waits. "
    "Peers on JAX have one device, torch uses all cores. What limits us: the products of a tile, its exponential and "
    "its conversion to bfloat16 are operations of their own, and the tile is written and read between them.",
    cases,
    "way",
)
