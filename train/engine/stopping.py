"""The end of a command: one-line error messages, and signals."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import TypeVar

from jax.errors import JaxRuntimeError

from pejax._process.text import complain, printable
from train.devices.cpu import Stopped
from train.devices.hosts import is_process_loss

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C. After SIGTERM, as on preemptible machines, it is 0, because everything is saved."""

REPEATED = 0.1
"""Seconds after which a stop that nothing handles is raised again."""

Result = TypeVar("Result")


@contextlib.contextmanager
def report_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Print errors of these classes in one line, `error: ...`, and exit with status 2; after Ctrl-C with status 130.

    So are errors of too little memory. A closed pipe is left to `finish`.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except (*kinds, MemoryError, JaxRuntimeError) as wrong:
        if is_process_loss(wrong):  # then `hosts.end_together` reports it
            raise
        if not isinstance(wrong, (*kinds, MemoryError)) and "RESOURCE_EXHAUSTED" not in str(wrong):
            raise
        text = printable(" ".join(str(wrong).split())) or type(wrong).__name__
        sys.stderr.write(f"error: {text}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(INTERRUPTED) from None


@contextlib.contextmanager
def stop_on_signals(hint: Callable[[], str]) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the process, with a line that says how to go on; a second one ends it at once.

    Python drops what a signal raises while C calls back, as at the end of a garbage collection, so a stop is raised
    again until something handles it. During training, `loop.Stop` handles the signals instead. Threads that compile or
    read are not waited for.

    Args:
        hint: returns a text on the saved step and the command that goes on.
    """
    asked = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        del frame
        asked = number
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, REPEATED, REPEATED)
        raise Stopped(number)

    def repeat(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not _stopping():
            raise Stopped(asked)

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGALRM: repeat}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except BaseException:  # a Stopped, or what others made of it
        if not asked:
            raise
        line = f"stopped; {hint()}"
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        complain(line)
        os._exit(INTERRUPTED if asked == signal.SIGINT else 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopping() -> bool:
    """Return whether a stop is on its way: a `finally` or an `except` that it reached has not ended yet."""
    error = sys.exception()
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None


def run_in_thread(work: Callable[[], Result]) -> Result:
    """Return the result of work that a thread does, so that a signal is heard while a program of minutes runs."""
    pool = ThreadPoolExecutor(1)
    result = pool.submit(work).result()
    pool.shutdown()
    return result
