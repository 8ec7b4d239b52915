"""How a command ends: errors in one line, and signals."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from train.devices.hosts import lost

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C. After SIGTERM, which ends machines that may be taken away, it is 0: all is saved."""


@contextlib.contextmanager
def friendly(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into one line, `error: ...`, and exit status 2; Ctrl-C into status 130."""
    try:
        yield
    except kinds as wrong:
        if lost(wrong):  # the word is then with `hosts.together`
            raise
        sys.stderr.write(f"error: {' '.join(str(wrong).split())}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(INTERRUPTED) from None


class Stopped(BaseException):
    """A signal to stop, by its number."""


@contextlib.contextmanager
def stoppable(onward: Callable[[], str]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM end the process soon, with a line that says how to go on; a second one ends it at once.

    While it trains, `loop.Stop` listens in place of this. Threads that compile or read are not waited for.

    Args:
        onward: tells what is saved and how to go on.
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
