"""Ways of doing one thing, timed in turn within each round: the result is the ratio of a way to the first, by round.

A machine that others use drifts by a factor of two between minutes; ratios of neighbours in time drift far less.
"""

import contextlib
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import jax
import numpy as np

Call = Callable[[], Any]
"""One way: runs once, waits for the result and returns it."""

Maker = Callable[[], Call]
"""Lays out the operands of a way and returns it; raises where the way is not installed or cannot."""

Say = Callable[[str, float], None]
"""`(what goes on, share of this case done)`."""

SAMPLE = 0.05
"""Seconds that one sample takes at least: a shorter call is repeated."""

REST = 0.005
"""Seconds between ways, in which the idle threads of the one before stop spinning."""


class Timed(NamedTuple):
    """The result of a measurement.

    Attributes:
        seconds: per call, by way, one number a round.
        first: seconds of the first call, compilation included.
        left_out: why a way has no numbers.
    """

    seconds: dict[str, list[float]]
    first: dict[str, float]
    left_out: dict[str, str]


class Ratio(NamedTuple):
    """Median of the rounds' ratios, and the range that holds the middle 80 % of them."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(way: Sequence[float], base: Sequence[float]) -> Ratio:
    """Return how many times the base's time a way takes, from seconds of the same rounds."""
    each = np.asarray(way, np.float64) / np.asarray(base, np.float64)
    low, median, high = np.quantile(each, [0.1, 0.5, 0.9])
    return Ratio(float(median), float(low), float(high))


def side_by_side(makers: Mapping[str, Maker], rounds: int, say: Say, more: int = 0, before: int = 0) -> Timed:
    """Time every way once a round, in turn; who comes first changes from round to round.

    Args:
        makers: by name; the first is the base, which must run; another that fails is left out.
        rounds: number of rounds, at least 1.
        say: told what goes on.
        more: calls before the first round, beside the two that every way has.
        before: calls of a way right before each of its timed ones, which find memory as these leave it.
    """
    calls: dict[str, Call] = {}
    first, repeats, left_out = {}, {}, {}
    base = next(iter(makers))
    for i, (name, make) in enumerate(makers.items()):
        say(f"warming {name}", 0.3 * i / len(makers))
        try:
            call = make()
            first[name] = seconds_of(call)
            repeats[name] = max(1, math.ceil(SAMPLE / max(seconds_of(call), 1e-6)))
            for _ in range(more):
                call()
        except Exception as failure:  # a peer may raise anything: without it the others still count
            if name == base:
                raise
            left_out[name] = reason(failure)
        else:
            calls[name] = call
        give_back()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for done in range(rounds):
        say(f"round {done + 1}/{rounds}", 0.3 + 0.7 * done / rounds)
        for name in order[done % len(order) :] + order[: done % len(order)]:
            time.sleep(REST)
            for _ in range(before):
                calls[name]()
            seconds[name].append(seconds_of(calls[name], repeats[name]))
    return Timed(seconds, first, left_out)


def seconds_of(call: Call, repeats: int = 1) -> float:
    """Return the seconds that a call takes, the mean of `repeats` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def give_back() -> None:
    """Give the kernel the memory that malloc keeps: arrays of L x L scores, one peer after the other, would fill it."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def reason(failure: Exception) -> str:
    """Return a failure in one line."""
    if isinstance(failure, ModuleNotFoundError):
        return f"{failure.name} is not installed"
    text = " ".join(str(failure).split()) or type(failure).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."


def jitted(function: Callable, *operands: Any) -> Call:
    """Return the way that runs a function compiled by `jax.jit` on operands that are its arguments."""
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*operands))


def forward_and_backward(function: Callable) -> Callable:
    """Return `(cotangent, *operands) -> (output, gradients of the operands)`."""

    def both(cotangent: Any, *operands: Any) -> tuple[Any, tuple]:
        output, back = jax.vjp(function, *operands)
        return output, back(cotangent)

    return both


def duration(seconds: float) -> str:
    """Write seconds with three digits, in the unit that suits."""
    unit, size = next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= size), ("µs", 1e-6))
    value = seconds / size
    return f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 1))))}f} {unit}"


class Progress:
    """The progress of a run of many cases and the time left: one line that is rewritten, or a line now and then.

    Args:
        weights: cost of each case relative to the others.
        stream: output that the user sees.
        clock: seconds.
    """

    every_seconds = 15.0

    def __init__(
        self, weights: Sequence[float], stream: TextIO = sys.stderr, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.count, self.ahead = len(weights), sum(weights)
        self.stream, self.clock = stream, clock
        self.case, self.done = 1, 0.0
        self.begun, self.printed = clock(), -math.inf

    def finish(self, weight: float) -> None:
        """Count a case that was measured."""
        self.case += 1
        self.ahead -= weight
        self.done += weight

    def say(self, what: str, share: float, weight: float) -> None:
        """Print the current work in a case of this weight, a share of which is done."""
        now, done = self.clock(), self.done + share * weight
        ahead = self.ahead - share * weight
        left = f" · about {(now - self.begun) * ahead / done / 60:.0f} min left" if done > 0 else ""
        line = f"[{self.case}/{self.count}] {what}{left}"
        if self.stream.isatty():
            self.stream.write(f"\r\033[K{line}")
        elif now - self.printed >= self.every_seconds:
            self.stream.write(f"{line}\n")
            self.printed = now
        self.stream.flush()

    def clear(self) -> None:
        """Leave a clean line for the next output."""
        if self.stream.isatty():
            self.stream.write("\r\033[K")
            self.stream.flush()


def require_memory(needed: float) -> None:
    """Refuse a need of more than nine tenths of the memory that is free, or can be made so.

    Raises:
        MemoryError: naming both sizes.
    """
    free = free_memory()
    if needed > 0.9 * free:
        needed, free = needed / 2**30, free / 2**30
        raise MemoryError(f"needs about {needed:.1f} GiB, over nine tenths of the {free:.1f} that are free")


def free_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes that a process can still take: Linux's estimate, elsewhere all of the machine's memory."""
    if meminfo.is_file():
        return 1024 * int(meminfo.read_text(encoding="utf-8").split("MemAvailable:")[1].split()[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
