"""A program for a child process: it computes an answer within limits of time and memory.

    python -P child.py PROGRAM SECONDS

PROGRAM is a Python file with a function `answer(content) -> str`; the content comes by the standard input, the answer
goes to the standard output, and the last line of the standard error output says what went wrong. The parent is
`pejax.interop.child_process`. This file and the programs import nothing of pejax, so that the child starts in a few
hundredths of a second.
"""

import contextlib
import os
import runpy
import sys

BYTES = 2**30
"""The most memory that the child may take."""

MEMORY_NEED = f"a need of more than {BYTES / 2**30:g} GiB of memory"


def limit(seconds: int) -> None:
    """Take the limits, as far as the system has them: Windows has neither, macOS none of memory."""
    try:
        import resource
    except ImportError:
        return
    cpu = (seconds, seconds + 1)  # SIGXCPU at the first says why, SIGKILL at the second would not
    limits = {resource.RLIMIT_CPU: cpu, resource.RLIMIT_AS: (BYTES, BYTES), resource.RLIMIT_CORE: (0, 0)}
    for kind, amounts in limits.items():
        with contextlib.suppress(ValueError, OSError):  # the process has a lower one already
            resource.setrlimit(kind, amounts)


if __name__ == "__main__":
    os.environ.update(TOKENIZERS_PARALLELISM="false", RUST_BACKTRACE="0")  # threads would reserve memory
    program, seconds = sys.argv[1:]
    limit(int(seconds))
    try:
        text = runpy.run_path(program)["answer"](sys.stdin.buffer.read().decode())
        sys.stdout.buffer.write(text.encode())
    except MemoryError:
        sys.exit(MEMORY_NEED)
