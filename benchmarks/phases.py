"""Exact rotary phases against those of the plain float32 product and of Flax's `nnx.RoPE`: time, and error."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.report import Case, Column, Part, Settings, column_of
from benchmarks.timing import Say, jitted, side_by_side
from pejax import rope_frequencies, rope_mixed_frequencies
from pejax._ops.phases import exact_cos_sin

Tables = tuple[jax.Array, jax.Array]


def plain_cos_sin(positions: jax.Array, frequencies: jax.Array) -> Tables:
    """Return cos and sin of the float32 product, summed over axes in float32."""
    positions = positions.astype(jnp.float32)
    if frequencies.ndim == 1:
        angles = positions[:, None] * frequencies
    else:
        angles = jnp.sum(positions[:, None, :, None] * frequencies, axis=-2)
    return jnp.cos(angles), jnp.sin(angles)


def flax_cos_sin(positions: jax.Array, frequencies: jax.Array) -> Tables:
    """Return cos and sin of Flax's `nnx.RoPE`, which has RoPE's frequencies of base 10,000, as `frequencies` are."""
    count = frequencies.shape[-1]
    first = jnp.concatenate([jnp.ones((len(positions), count)), jnp.zeros((len(positions), count))], axis=-1)
    cos, sin = jnp.split(nnx.RoPE()(first, positions), 2, axis=-1)  # the channels (1, 0), rotated
    return cos, sin


WAYS: dict[str, Callable[..., Tables]] = {
    "plain": plain_cos_sin,
    "flax nnx.RoPE": flax_cos_sin,
    "exact": exact_cos_sin,
}
"""Ways to make the tables."""


def loss(tables: Callable[..., Tables]) -> Callable[..., jax.Array]:
    """Return a loss of the tables, so that a training step of learned frequencies can be timed."""
    return lambda positions, frequencies: jnp.sum(jnp.square(jnp.stack(tables(positions, frequencies)) + 1))


def timed() -> dict[str, tuple[Callable[[Callable[..., Tables]], Callable], tuple[jax.Array, jax.Array]]]:
    """Return by name how to wrap a way of making tables, and its arguments."""
    sequence, fixed = jnp.arange(2048, dtype=jnp.int32), jnp.asarray(rope_frequencies(64))
    grid = jnp.stack(jnp.divmod(jnp.arange(576, dtype=jnp.int32), 24), axis=-1)
    mixed = rope_mixed_frequencies(jax.random.key(0), 6, 64)
    same = lambda tables: tables
    learn = lambda tables: jax.value_and_grad(loss(tables), argnums=1)
    return {
        "rope, integers": (same, (sequence, fixed)),
        "rope, fractions": (same, (sequence.astype(jnp.float32) * 0.37, fixed)),
        "mixed, learned": (same, (grid, mixed)),
        "mixed, fractions": (same, (grid.astype(jnp.float32) * 0.583, mixed)),
        "mixed, forward and backward": (learn, (grid, mixed)),
    }


def largest_error(tables: Callable[..., Tables], positions: np.ndarray, frequencies: np.ndarray) -> float:
    """Return the largest error of cos and sin against float64."""
    angles = positions.astype(np.float64)[:, None] * frequencies.astype(np.float64)
    ours = jax.jit(tables)(positions, frequencies)
    return max(
        float(np.max(np.abs(np.asarray(t, np.float64) - f(angles))))
        for t, f in zip(ours, (np.cos, np.sin), strict=True)
    )


def measure(name: str, rounds: int, say: Say) -> Column:
    """Time both ways of one case."""
    wrap, arguments = timed()[name]
    makers = {way: functools.partial(jitted, wrap(WAYS[way]), *arguments) for way in ("plain", "exact")}
    return column_of(side_by_side(makers, rounds, say))


def errors(way: str, every: int, say: Say) -> Column:
    """Return the largest errors of one way, by where the positions end."""
    if way == "flax nnx.RoPE" and not hasattr(nnx, "RoPE"):
        return Column({}, [f"{way}: left out, flax 0.12.12 has it, and needs Python 3.12"])
    frequencies, cells = rope_frequencies(64), {}
    for end in (2**11, 10**5, 10**6, 10**7, 2**24, 2**31 - 1):
        positions = np.arange(end - 2047, end + 1, dtype=np.int64).astype(np.int32)
        cells[f"{end:,}"] = f"{largest_error(WAYS[way], positions, frequencies):.1e}"
    worst = 0.0
    step = min(every, 2**16)
    for first in range(0, every, step):
        say(f"every position, {first:,}", first / every)
        worst = max(worst, largest_error(WAYS[way], np.arange(first, first + step, dtype=np.int32), frequencies))
    return Column({**cells, f"every integer below {every:,}": f"{worst:.1e}"})


def cases(settings: Settings) -> list[Case]:
    """Return the tables of times and of errors."""
    every = 2**11 if settings.toy else 2**24
    names = list(timed())[: 1 if settings.toy else None]
    times = [Case("Time of the tables", name, functools.partial(measure, name, settings.rounds), 5) for name in names]
    table = "Largest error of cos and sin against float64, by last position"
    return times + [Case(table, way, functools.partial(errors, way, every), 60) for way in WAYS]


PART = Part(
    "Exact phases",
    "cos and sin of RoPE's angles, exact, against those of the plain float32 product and of Flax's own RoPE: rope is "
    "(2048, 32), mixed (576, 6 heads, 2 axes, 32). The first row is the plain time, the second how many times that the "
    "exact takes, median of the rounds and the middle 80 % of them; below 1 the exact is faster. Errors are against "
    "float64 cos and sin of float64(position · the float32 frequency), over the 2,048 positions that end where the row "
    "says.",
    cases,
)
