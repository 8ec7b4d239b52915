"""Files of somebody else in the hands of a library that may panic, crash or never end on them: a child process.

The child has limits of computing time and memory (`pejax.interop.child`); whatever becomes of it is said in words.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from pejax.interop.child import MEMORY_NEED

CHILD = Path(__file__).with_name("child.py")
SECONDS = 10
"""The most computing time of a child."""

PATIENCE = 60
"""Seconds until a child is ended that does not compute, or has no limits."""


class Outcome(NamedTuple):
    """What became of a child process.

    Attributes:
        answer: the text that it computed.
        failure: a panic, a crash, a long wait, in words; "" = it was well.
    """

    answer: str = ""
    failure: str = ""


def outcome_of(program: Path, content: str, seconds: int = SECONDS) -> Outcome:
    """Run a program, a file with a function `answer(content)`, in a child process.

    Raises:
        OSError: the system starts no process.
    """
    search_path = os.pathsep.join(filter(None, sys.path))
    try:
        child = subprocess.run(
            [sys.executable, "-P", str(CHILD), str(program), str(seconds)], input=content.encode(),
            capture_output=True, env={**os.environ, "PYTHONPATH": search_path}, timeout=PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(failure=f"no answer in {PATIENCE} seconds")
    if child.returncode == 0:
        return Outcome(answer=child.stdout.decode())
    return Outcome(failure=_failure(child, seconds))


def _failure(child: subprocess.CompletedProcess[bytes], seconds: int) -> str:
    """Return the end of a child process that did not end well, in words."""
    if child.returncode > 0:
        last_line = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return last_line or f"an end with status {child.returncode}"
    if -child.returncode == getattr(signal, "SIGXCPU", None):
        return f"no answer in {seconds} second{'s' * (seconds != 1)}"
    if b"memory allocation" in child.stderr:
        return MEMORY_NEED
    return f"a crash ({signal.Signals(-child.returncode).name})"
