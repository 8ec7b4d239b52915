"""Processes of a comparison: several at a time, stopped together, and never left behind."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from train.engine.files import appended_file

Item = TypeVar("Item")
Result = TypeVar("Result")

GRACE = 60.0
"""Seconds that a run of an earlier, killed comparison has to save and end."""


class Children:
    """The processes that run now; `stop` ends them all and refuses new ones."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._stopped = threading.Lock(), False

    def launch(self, arguments: Sequence[str], log: Path) -> tuple[int, str]:
        """Run Python with these arguments, its output added to a log; return its status and last line of errors."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with appended_file(log) as output:
            with self._lock:
                if self._stopped:
                    return -signal.SIGTERM, "stopped"
                child = subprocess.Popen(
                    [sys.executable, "-m", "train.compare.guarded", *arguments],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, start_new_session=True,
                    encoding="utf-8", errors="replace", env={**os.environ, "PYTHONIOENCODING": "utf-8"},
                )  # fmt: skip
                self._running.add(child)
            errors = child.communicate()[1]
            output.write(errors.encode())
        with self._lock:
            self._running.discard(child)
        lines = errors.strip().splitlines()
        return child.returncode, lines[-1].removeprefix("error: ") if lines else ""

    def stop(self) -> None:
        """Ask all processes to save and end, and launch no more."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped


def wait_until_free(folder: Path) -> None:
    """Wait until no process holds the lock of a run folder.

    Raises:
        ValueError: one still does after a minute.
    """
    path, until = folder / ".lock", time.monotonic() + GRACE
    while path.is_file() and not path.is_symlink() and _is_locked(path):
        if time.monotonic() > until:
            raise ValueError(f"only one run at a time may write to {folder}, got one that is still running")
        time.sleep(0.2)


def _is_locked(path: Path) -> bool:
    lock = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(lock)
    return False


def in_parallel(
    items: Iterable[Item], work: Callable[[Item], Result], jobs: int, meanwhile: Callable[[], None]
) -> Iterator[tuple[Item, Result]]:
    """Yield `(item, work(item))` as they finish, at most `jobs` at a time, started in order.

    Args:
        items: arguments of `work`; the next one is taken when a thread is free.
        work: runs in a thread; an exception in it is raised here.
        jobs: threads.
        meanwhile: called about every half second, in the thread of the caller.
    """
    with ThreadPoolExecutor(jobs) as pool:
        futures: dict[Future[Result], Item] = {}
        queue = iter(items)
        while True:
            while len(futures) < jobs and (item := next(queue, None)) is not None:
                futures[pool.submit(work, item)] = item
            if not futures:
                return
            done, _ = wait(futures, timeout=0.5, return_when=FIRST_COMPLETED)  # wakes up for signals
            meanwhile()
            for future in done:
                yield futures.pop(future), future.result()
