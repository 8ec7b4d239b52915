"""Lines that say what a program is doing while it prints nothing else, where there is no terminal."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console

EVERY_SECONDS = 8.0
"""Seconds between lines of progress if the output is not a terminal."""
SILENT_SECONDS = 9.0
"""Most seconds without any line; more than `EVERY_SECONDS`, so that a report about to come is not preceded by one."""

_under_way: list["Heartbeat"] = []
"""Heartbeats of this process, the innermost last: only that one prints."""


class Heartbeat:
    """Prints a line whenever `SILENT_SECONDS` pass without another one; nothing on a terminal, which has a live line.

    A thread does it, since the main one may be inside of a compilation.

    Attributes:
        begun: time at which the activity began, seconds of `time.perf_counter`.
    """

    def __init__(self, console: Console, line: Callable[[], str]) -> None:
        """Print nothing yet; `line` returns what is being done now, and is called in another thread."""
        self._console, self._line = console, line
        self.begun = self._last = time.perf_counter()
        self._ended = threading.Event()
        silent = console.is_terminal or console.quiet
        self._thread = None if silent else threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Heartbeat":
        self.begun = self._last = time.perf_counter()
        if self._thread:
            _under_way.append(self)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread:
            self._ended.set()
            self._thread.join()
            _under_way.remove(self)
            for other in _under_way:
                other.rest()

    def rest(self) -> None:
        """Start the time anew, since a line was printed."""
        self._last = time.perf_counter()

    def _beat(self) -> None:
        while not self._ended.wait(max(0.1, self._last + SILENT_SECONDS - time.perf_counter())):
            due = time.perf_counter() - self._last >= SILENT_SECONDS
            if due and _under_way[-1] is self:
                self._console.print(self._line())
                self.rest()


def so_far(seconds: float) -> str:
    """Return a time in words."""
    return f"{seconds:.0f} s so far"


@contextlib.contextmanager
def working(console: Console, what: str) -> Iterator[None]:
    """Show an activity while it lasts: a spinner on a terminal, elsewhere lines such as "preparing · 9 s so far"."""
    if console.is_terminal:
        with console.status(what):
            yield
        return
    heartbeat = Heartbeat(console, lambda: f"{what} · {so_far(time.perf_counter() - heartbeat.begun)}")
    with heartbeat:
        yield
