"""Rotation of queries and keys against every peer that does it, in both pairings."""

import functools

import jax.numpy as jnp
from jaxtyping import Array

from benchmarks import peers_rope
from benchmarks.operands import DTYPES, direction
from benchmarks.peers_rope import Turning
from benchmarks.report import Case, Column, Part, Settings, column_of
from benchmarks.timing import Call, Say, forward_and_backward, jitted, side_by_side
from pejax import rope_apply, rope_frequencies
from pejax._ops.phases import exact_cos_sin
from pejax._ops.rotary import PAIRINGS, rotate_pairs

OURS = "pejax"


def ours(turning: Turning) -> Call:
    """Return our rotation of q and k, compiled; positions or tables are arguments."""
    q, k, *cotangents = (jnp.asarray(x).astype(turning.dtype) for x in turning.drawn())
    positions = jnp.arange(turning.shape[1], dtype=jnp.int32)
    frequencies = jnp.asarray(rope_frequencies(turning.shape[-1]))
    if turning.tables_given:
        cos, sin = (table[:, None] for table in exact_cos_sin(positions, frequencies))
        given = (cos, sin)
        turn = functools.partial(rotate_pairs, pairing=turning.pairing)
    else:
        given = (positions, frequencies)
        turn = functools.partial(rope_apply, pairing=turning.pairing)
    return jax_way(turn, turning, given, q, k, cotangents)


def plain(turning: Turning) -> Call:
    """Return the rotation of most JAX code: float32 angles, cos and sin in the same region, halves or strided pairs."""
    q, k, *cotangents = (jnp.asarray(x).astype(turning.dtype) for x in turning.drawn())
    positions = jnp.arange(turning.shape[1], dtype=jnp.float32)
    angles = positions[:, None] * jnp.asarray(rope_frequencies(turning.shape[-1]))
    given = (jnp.cos(angles), jnp.sin(angles)) if turning.tables_given else (angles,)

    def turn(x: Array, *given: Array) -> Array:
        cos, sin = (table[:, None] for table in (given if turning.tables_given else (jnp.cos(*given), jnp.sin(*given))))
        wide, half = x.astype(jnp.float32), x.shape[-1] // 2
        if turning.pairing == "half":
            first, second = wide[..., :half], wide[..., half:]
            return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1).astype(x.dtype)
        first, second = wide[..., ::2], wide[..., 1::2]
        out = jnp.stack([first * cos - second * sin, first * sin + second * cos], -1)
        return out.reshape(x.shape).astype(x.dtype)

    return jax_way(turn, turning, given, q, k, cotangents)


def jax_way(turn, turning: Turning, given: tuple, q: Array, k: Array, cotangents: list[Array]) -> Call:
    """Return the way that turns q and k, with gradients where wanted."""

    def forward(q: Array, k: Array, *given: Array) -> tuple[Array, Array]:
        return turn(q, *given), turn(k, *given)

    def both(cotangents: tuple[Array, Array], q: Array, k: Array, *given: Array) -> tuple:
        return forward_and_backward(lambda q, k: forward(q, k, *given))(cotangents, q, k)

    return jitted(both, tuple(cotangents), q, k, *given) if turning.backward else jitted(forward, q, k, *given)


def measure(turning: Turning, rounds: int, peers: bool, say: Say) -> Column:
    """Time ours, and the peers beside it."""
    makers = {OURS: functools.partial(ours, turning), "jnp, plain": functools.partial(plain, turning)}
    if peers:
        makers |= peers_rope.peers(turning)
    return column_of(side_by_side(makers, rounds, say))


def cases(settings: Settings) -> list[Case]:
    """Return one table for each type and direction, its columns pairing and who makes the tables."""
    shape = (2, 16, 2, 8) if settings.toy else (4, 2048, 8, 64)
    found = []
    for backward in (True,) if settings.toy else (False, True):
        for dtype in DTYPES[:1] if settings.toy else DTYPES:
            for pairing in PAIRINGS:
                for given in (False, True):
                    turning = Turning(shape, dtype, pairing, given, backward)
                    title = f"Rotation of q and k, {dtype}, {direction(backward)}"
                    column = f"{pairing}, tables {'given' if given else 'made in the call'}"
                    measured = functools.partial(measure, turning, settings.rounds, not settings.toy)
                    found.append(Case(title, column, measured, 30))
    return found


PART = Part(
    "Rotary embedding against its peers",
    "q and k, 4 sequences of 2,048 tokens, 8 heads of 64 channels each. First row: our time. Below: how many "
    "times that a peer takes, median of the rounds and the middle 80 % of them; above 1 we are faster. cos "
    "and sin are made in the call, as in the first layer of a model, or before the clock starts, as in all "
    "others; rotary-embedding-torch keeps angles and makes cos and sin anew in every call. Our angles are "
    "exact at every position, the others' are float32. In bfloat16, XLA:CPU turns interleaved pairs in two loops over "
    "the whole array, one for each channel of a pair.",
    cases,
    "way",
)
