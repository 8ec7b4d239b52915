"""How a command ends: one-line error messages, and signals."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from train.devices.hosts import lost

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C. After SIGTERM, as on preemptible machines, it is 0, because everything is saved."""


@contextlib.contextmanager
def friendly(*kinds: type[Exception]) -> Iterator[None]:
    """Print errors of these classes in one line, `error: ...`, and exit with status 2; after Ctrl-C with status 130."""
    try:
        yield
    except kinds as wrong:
        if lost(wrong):  # then `hosts.together` reports it
            raise
        sys.stderr.write(f"error: {' '.join(str(wrong).split())}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(INTERRUPTED) from None


class Stopped(BaseException):
    """Raised by a signal to stop, with its number."""


@contextlib.contextmanager
def stoppable(onward: Callable[[], str]) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the process, with a line that says how to go on; a second one ends it at once.

    During training, `loop.Stop` handles the signals instead. Threads that compile or read are not waited for.

    Args:
        onward: returns a text that says what is saved and how to go on.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        for again in before:
            signal.signal(again, signal.SIG_DFL)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Stopped as stopped:
        sys.stdout.flush()
        os.write(2, f"stopped; {onward()}\n".encode())
        os._exit(INTERRUPTED if stopped.args[0] == signal.SIGINT else 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
