"""LongRoPE's search for the factor of each pair: an evolution that starts from PI, NTK and YaRN."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax._calls.arguments import checked
from pejax._extensions.base import Rotary
from pejax._extensions.linear import extend_linear
from pejax._extensions.ntk import extend_ntk
from pejax._extensions.yarn import extend_yarn
from pejax._ops.phases import geometric_frequencies
from pejax._record.params import RandomKey

REACH = 1.25
"""The largest factor of a pair, as a multiple of the factor s of the whole context."""


class Found(NamedTuple):
    """The best factors of a search so far.

    Attributes:
        factors: the `long_factors` of `extend_longrope`: d/2 numbers, the fastest pair first, in nondecreasing order.
        loss: the loss of these factors.
    """

    factors: Float[Array, " n"]
    loss: Float[Array, ""]


@checked
def search_longrope(
    loss: Callable[[Float[Array, " n"]], Float[Array, ""]],
    rotary_dim: int,
    factor: float,
    *,
    key: RandomKey,
    trained_length: int,
    base: float = 10000.0,
    generations: int = 40,
    population: int = 64,
    parents: int = 32,
    mutations: int = 16,
    crossovers: int = 16,
    rate: float = 0.3,
    chunk: int = 8,
    progress: Callable[[int, Found], None] | None = None,
) -> Found:
    """Search, by evolution, for the factors with the smallest loss by which LongRoPE divides each pair's frequency.

    A member is one list of factors, nondecreasing from the fastest pair to the slowest. The first members are those of
    PI, NTK and YaRN and mutants of them. Every generation adds children of the best members and keeps the best of all,
    so the result is never worse than PI, NTK and YaRN. A mutant redraws some factors, each between its nearest
    unchanged neighbors and within 1 ... 1.25 s; a crossover takes each factor from one of two parents.

    The paper also searches for the number of first tokens that keep the original frequencies. That is left out: it
    needs two sets of frequencies within one sequence, and the published models (Phi-3) do not use it.

    Args:
        loss: the function of d/2 factors to minimize, such as the perplexity, at the longer context, of a model with
            the frequencies `extend_longrope(..., long_factors=factors)`. It is jitted, and vmapped over `chunk`
            members; NaN ranks last.
        rotary_dim: d, number of rotated channels, even.
        factor: s, at least 1.
        key: a JAX random key; equal keys give equal results.
        trained_length: L, tokens, for YaRN.
        base: base of the unscaled frequencies, for NTK and YaRN.
        generations: number of generations after the first, at least 0.
        population: number of members kept per generation, at least 3.
        parents: number of best members that children are made from.
        mutations: mutants per generation, at least 1.
        crossovers: crossovers per generation.
        rate: probability that a mutant redraws a factor.
        chunk: number of members whose losses are computed at once.
        progress: called as `progress(generation, best)` after each generation, counted from 0.

    Returns:
        The best factors and their loss.

    Raises:
        ValueError: a count that is too small, a rate outside 0 ... 1, or a value that `extend_yarn` refuses.

    Reference:
        Ding et al. 2024, "LongRoPE" (arXiv 2402.13753), section 3.2 and algorithm 1.
    """
    least = {"generations": 0, "population": 3, "parents": 1, "mutations": 1, "crossovers": 0, "chunk": 1}
    counts = dict(zip(least, (generations, population, parents, mutations, crossovers, chunk), strict=True))
    for name, count in counts.items():
        if count < least[name]:
            raise ValueError(f"{name} must be at least {least[name]}, got {count}")
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be from 0 to 1, got {rate}")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    compiled = jax.jit(jax.vmap(loss))
    published = _published(rotary_dim, factor, base, trained_length)
    start = published[np.arange(population - len(published)) % len(published)]
    members = np.concatenate([published, _mutants(rng, start, rate, REACH * factor)])
    members, losses = _ranked(members, _measured(compiled, members, chunk))
    for generation in range(generations + 1):
        if generation > 0:
            best = members[:parents]
            mutants = _mutants(rng, rng.choice(best, mutations), rate, REACH * factor)
            children = np.concatenate([mutants, _crossed(rng, *rng.choice(best, (2, crossovers)))])
            everyone = np.concatenate([members, children])
            measured = np.concatenate([losses, _measured(compiled, children, chunk)])
            members, losses = (ranked[:population] for ranked in _ranked(everyone, measured))
        result = Found(jnp.asarray(members[0]), jnp.asarray(losses[0]))
        if progress is not None:
            progress(generation, result)
    return result


def _published(rotary_dim: int, factor: float, base: float, trained_length: int) -> Float[np.ndarray, "3 n"]:
    """Return the factors of PI, NTK and YaRN, each list made nondecreasing."""
    frequencies = geometric_frequencies(rotary_dim // 2, base)
    rotary, options = Rotary(base, rotary_dim), {"trained_length": trained_length, "factor": factor}
    extended = [extend(frequencies, rotary, **options)[0] for extend in (extend_linear, extend_ntk, extend_yarn)]
    return np.maximum.accumulate(np.clip(frequencies / np.stack(extended), 1.0, None), axis=-1)


def _measured(loss: Callable[[Array], Array], members: Float[np.ndarray, "M n"], chunk: int) -> Float[np.ndarray, " M"]:
    """Return the loss of each member, computed in chunks; the last chunk is padded with copies."""
    padded = np.concatenate([members, np.repeat(members[-1:], -len(members) % chunk, axis=0)])
    losses = [np.asarray(loss(jnp.asarray(part))) for part in padded.reshape(-1, chunk, members.shape[1])]
    losses = np.concatenate(losses)[: len(members)].astype(np.float32)
    return np.where(np.isnan(losses), np.float32(np.inf), losses)


def _ranked(
    members: Float[np.ndarray, "M n"], losses: Float[np.ndarray, " M"]
) -> tuple[Float[np.ndarray, "M n"], Float[np.ndarray, " M"]]:
    """Return the members and their losses, sorted by loss."""
    order = np.argsort(losses, kind="stable")
    return members[order], losses[order]


def _mutants(
    rng: np.random.Generator, members: Float[np.ndarray, "M n"], rate: float, highest: float
) -> Float[np.ndarray, "M n"]:
    """Return the members with some factors redrawn between their nearest unchanged neighbors, nondecreasing."""
    stays = rng.random(members.shape) >= rate
    lowest = np.maximum.accumulate(np.where(stays, members, 1.0), axis=1)
    most = np.minimum.accumulate(np.where(stays, members, highest)[:, ::-1], axis=1)[:, ::-1]
    drawn = lowest + rng.random(members.shape) * (most - lowest)
    return np.sort(np.where(stays, members, drawn), axis=1).astype(np.float32)


def _crossed(
    rng: np.random.Generator, mothers: Float[np.ndarray, "M n"], fathers: Float[np.ndarray, "M n"]
) -> Float[np.ndarray, "M n"]:
    """Return children that take each factor from one of two parents, nondecreasing."""
    return np.sort(np.where(rng.random(mothers.shape) < 0.5, mothers, fathers), axis=1)
