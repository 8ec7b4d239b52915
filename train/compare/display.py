"""The progress of a comparison: a live table on a terminal, else lines now and then."""

import math
import threading
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from train.compare.runs import Run, outcome
from train.engine.heartbeat import EVERY_SECONDS
from train.engine.progress import Progressed, last_progress

TAIL = 8192
"""Bytes at the end of a log in which its last line of progress is looked for."""


class Display:
    """Shows the runs under way, the time left, and the tables so far.

    Attributes:
        tables: shown below the lines; to be replaced when a run has ended.

    Args:
        runs: runs, ended ones included.
        what: word for them in the line of the total, such as "runs".
        later: number of runs that follow these.
        jobs: runs at a time.
    """

    def __init__(self, console: Console, runs: Sequence[Run], what: str, later: int, jobs: int) -> None:
        self.tables: Sequence[Table] = ()
        self._console, self._runs, self._what, self._later, self._jobs = console, runs, what, later, jobs
        self._began: dict[Run, tuple[float, int]] = {}  # time, and length of the log then, of each run under way
        self._seconds: list[float] = []  # of the runs that have ended
        self._ended, self._lock, self._printed = 0, threading.Lock(), time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Display":
        self._count()
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def begin(self, run: Run) -> None:
        """Show a run as under way, and no more what an earlier process of it said; may be called in any thread."""
        length = run.log.stat().st_size if run.log.is_file() else 0
        with self._lock:
            since, _ = self._began.get(run, (time.monotonic(), 0))
            self._began[run] = since, length

    def end(self, run: Run) -> None:
        """Show a run no more, and count it."""
        with self._lock:
            self._began.pop(run, None)
        self._count()

    def _count(self) -> None:
        """Count the runs that have ended, and their times."""
        outcomes = [result for run in self._runs if (result := outcome(run)) is not None and result.status != "stopped"]
        self._ended, self._seconds = len(outcomes), [result.seconds for result in outcomes if result.status == "done"]

    def refresh(self) -> None:
        """Show how far the runs are: at once on a terminal, else every few seconds."""
        if self._live:
            lines = [Text(line) for line in (*self._lines(), self.total())]
            self._live.update(Group(*lines, *self.tables), refresh=True)
        elif time.monotonic() - self._printed > EVERY_SECONDS:
            self._printed = time.monotonic()
            for line in self._lines():
                self._console.print(f"{line} · {self.total()}")

    def total(self) -> str:
        """Return the number of ended runs and the time left for all others, where that is known."""
        count = f"{self._ended} of {len(self._runs)} {self._what}"
        under_way, remaining = self._under_way(), []
        usual = sum(self._seconds) / len(self._seconds) if self._seconds else None
        durations = [usual] if usual else []
        for _, spent, progress in under_way:
            report = [] if progress is None or math.isnan(progress.seconds) else [progress.seconds]
            remaining += [max(0.0, *report, usual - spent)] if usual else report
            durations += [] if usual else [spent + seconds for seconds in report]
        waiting = len(self._runs) - self._ended - len(under_way) + self._later
        if not durations and (waiting or under_way):
            return count
        work = sum(remaining) + max(0, waiting) * (sum(durations) / len(durations) if durations else 0.0)
        return f"{count} · {time_left(work / self._jobs)}" if waiting or under_way else f"{count} · done"

    def _lines(self) -> Iterator[str]:
        for run, spent, progress in self._under_way():
            yield f"{run.label} · {progress.short if progress else f'starting, {spent:.0f} s so far'}"

    def _under_way(self) -> list[tuple[Run, float, Progressed | None]]:
        """Return the runs under way, their seconds so far, and how far they say that they are."""
        with self._lock:
            began = dict(self._began)
        now = time.monotonic()
        return [(run, now - since, last_progress(_tail(run, length))) for run, (since, length) in began.items()]


def _tail(run: Run, length: int) -> str:
    """Return the end of the log of a run, without what was in it when the log had this length."""
    if not run.log.is_file():
        return ""
    with run.log.open("rb") as log:
        log.seek(max(length, run.log.stat().st_size - TAIL))
        return log.read().decode("utf-8", errors="replace")


def time_left(seconds: float) -> str:
    """Return a time in words."""
    return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"
