"""Exact rotary phases against `jnp.cos` and `jnp.sin` of the plain float32 product: time, side by side, and error.

    python -m benchmarks.phases [--rounds 15]

Every round times each way in turn; what counts is the median of the rounds' ratios to the plain way. Errors are against
float64 cos and sin of float64(position · the float32 frequency), the positions of each row ending where it says.
"""

import argparse
import importlib.metadata
import os
import pathlib
import platform
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pejax import rope_frequencies, rope_mixed_frequencies
from pejax.phases import exact_cos_sin

Tables = tuple[jax.Array, jax.Array]


def plain_cos_sin(positions: jax.Array, frequencies: jax.Array) -> Tables:
    """Return cos and sin of the float32 product, summed over axes in float32."""
    positions = positions.astype(jnp.float32)
    if frequencies.ndim == 1:
        angles = positions[:, None] * frequencies
    else:
        angles = jnp.sum(positions[:, None, :, None] * frequencies, axis=-2)
    return jnp.cos(angles), jnp.sin(angles)


def loss(tables: Callable[..., Tables]) -> Callable[..., jax.Array]:
    """Return a loss of the tables, so that a training step of learned frequencies can be timed."""
    return lambda positions, frequencies: sum(
        jnp.sum(jnp.square(table + 1)) for table in tables(positions, frequencies)
    )


def cases() -> dict[str, tuple[Callable[[Callable[..., Tables]], Callable], tuple[jax.Array, jax.Array]]]:
    """Return by name how to wrap a way of making tables, and its arguments."""
    sequence, fixed = jnp.arange(2048, dtype=jnp.int32), jnp.asarray(rope_frequencies(64))
    grid = jnp.stack(jnp.divmod(jnp.arange(576, dtype=jnp.int32), 24), axis=-1)
    mixed = rope_mixed_frequencies(jax.random.key(0), 6, 64)
    same = lambda tables: tables  # noqa: E731
    learn = lambda tables: jax.value_and_grad(loss(tables), argnums=1)  # noqa: E731
    return {
        "rope (2048, 32), integers": (same, (sequence, fixed)),
        "rope (2048, 32), fractions": (same, (sequence.astype(jnp.float32) * 0.37, fixed)),
        "mixed (576, 6 heads, 2 axes, 32), learned": (same, (grid, mixed)),
        "mixed, fractions (resized grid)": (same, (grid.astype(jnp.float32) * 0.583, mixed)),
        "mixed, forward and backward": (learn, (grid, mixed)),
    }


def ratios(ways: list[Callable], arguments: tuple, rounds: int) -> np.ndarray:
    """Return seconds per call, `(rounds, ways)`, the ways alternating within each round."""
    compiled = [jax.jit(way) for way in ways]
    for way in compiled:
        jax.block_until_ready(way(*arguments))
    seconds = np.empty((rounds, len(ways)))
    for row in seconds:
        for i, way in enumerate(compiled):
            start = time.perf_counter()
            for _ in range(20):
                out = way(*arguments)
            jax.block_until_ready(out)
            row[i] = (time.perf_counter() - start) / 20
    return seconds


def largest_error(tables: Callable[..., Tables], positions: np.ndarray, frequencies: np.ndarray) -> float:
    """Return the largest error of cos and sin against float64."""
    angles = positions.astype(np.float64)[:, None] * frequencies.astype(np.float64)
    ours = jax.jit(tables)(positions, frequencies)
    return max(
        np.max(np.abs(np.asarray(t, np.float64) - f(angles))) for t, f in zip(ours, (np.cos, np.sin), strict=True)
    )


def machine() -> str:
    """Return versions and hardware in one line."""
    info = pathlib.Path("/proc/cpuinfo")
    fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line) if info.exists() else {}
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    model = fields.get("model name", platform.processor())
    host = f"{os.cpu_count()} x {model} (family {fields.get('cpu family')}, model {fields.get('model')})"
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "numpy"))
    return f"{versions}, Python {platform.python_version()}; {jax.devices()[0].device_kind}, {host}"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(machine())
    print(f"\n{'case':44} {'plain':>9} {'exact':>9} {'ratio':>6}  spread of {rounds} rounds")
    for name, (wrap, arguments) in cases().items():
        seconds = ratios([wrap(plain_cos_sin), wrap(exact_cos_sin)], arguments, rounds)
        ratio = seconds[:, 1] / seconds[:, 0]
        plain, exact = np.median(seconds, axis=0) * 1e6
        low, high = np.quantile(ratio, [0.1, 0.9])
        print(f"{name:44} {plain:6.0f} µs {exact:6.0f} µs {np.median(ratio):6.2f}  {low:.2f} to {high:.2f}")
    print(f"\n{'largest error of cos and sin, last position':44} {'plain':>9} {'exact':>9}")
    frequencies = rope_frequencies(64)
    for end in (2**11, 2**17, 10**6, 2**24, 2**31 - 1):
        positions = np.arange(end - 2047, end + 1, dtype=np.int64).astype(np.int32)
        plain, exact = (largest_error(way, positions, frequencies) for way in (plain_cos_sin, exact_cos_sin))
        print(f"{end:<44} {plain:9.1e} {exact:9.1e}")
    every = [np.arange(first, first + 2**16, dtype=np.int32) for first in range(0, 2**24, 2**16)]
    exact = max(largest_error(exact_cos_sin, positions, frequencies) for positions in every)
    print(f"{'every integer position below 2^24':44} {'':9} {exact:9.1e}")


if __name__ == "__main__":
    main()
