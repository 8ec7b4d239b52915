"""How far a text is, and how long its tokens took."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
from rich.console import Console

from train.engine.heartbeat import working


@dataclasses.dataclass
class Progress:
    """The count of tokens made so far, and their times.

    Attributes:
        asked: when the first of them was asked for.
        times: when each step was done, which makes one token of every text.
        tokens: their number, those that end a text included.
        texts: number of texts.
        compiled: seconds of compilation before the first token.
    """

    asked: float = 0.0
    times: list[float] = dataclasses.field(default_factory=list)
    tokens: int = 0
    texts: int = 1
    compiled: float = 0.0

    def count(self, tokens: int) -> None:
        """Count the tokens of a step."""
        self.times.append(time.perf_counter())
        self.tokens, self.texts = self.tokens + tokens, max(self.texts, tokens)

    def note(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        """Count the seconds of a compilation, as `jax.monitoring` tells them."""
        del kwargs
        if self.asked and not self.times and event.endswith("backend_compile_duration"):
            self.compiled += duration_secs

    def __str__(self) -> str:
        words = [f"{self.tokens} token{'s' * (self.tokens != 1)}"]
        if self.times:
            words.append(
                f"the first after {self.times[0] - self.asked:.2f} s, {self.compiled:.2f} s of them to compile"
            )
        if len(self.times) > 2:  # the second one waits for a program, too: the median leaves such steps out
            step = statistics.median(after - before for before, after in itertools.pairwise(self.times))
            words.append(f"then {self.texts / step:.1f} tokens per second")
        return " · ".join(words)


def timed(steps: Iterator[Any], progress: Progress, console: Console) -> Iterator[Any]:
    """Yield the same steps, while the progress notes when the first is asked for, and a line says that it comes."""
    jax.monitoring.register_event_duration_secs_listener(progress.note)
    progress.asked = time.perf_counter()
    with working(console, "reading the prompt"):
        first = jax.block_until_ready(next(steps))
    yield from itertools.chain([first], steps)
