"""Training on a CPU: a device for each core, and huge pages, which a process must ask for before it starts."""

import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

TUNABLE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""What glibc's malloc is told: ask the kernel for transparent huge pages, so that large arrays miss the TLB less. One
arena that gives nothing back (`arena_max=1` and thresholds out of reach) would spare the kernel to clear temporaries,
but XLA's operations allocate as they run, and two devices that shared an arena took up to half as long again."""

ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel*", "vfio/[0-9]*")
"""Device files of NVIDIA and AMD GPUs and of TPUs, below /dev."""


MOST = 4
"""Cores that stand for devices at most: each keeps its own copy of the parameters and moments."""


def prepare_cpu(root: Path = Path("/")) -> None:
    """Give JAX a device for each core, unless told otherwise, and huge pages where they speed it up.

    On one device XLA spreads single operations over the cores, and all but the largest leave cores idle; on a device
    for each core, the cores share the batch. For huge pages this interpreter starts over with `TUNABLE` set, and the
    process keeps its number. To be called before the heavy imports, which would otherwise be paid for twice; Ctrl-C
    during these ends with one line.

    Args:
        root: of the file system.
    """
    sys.excepthook, sys.unraisablehook = _report, _unraisable
    stop_at_once()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(cores(), MOST)))
    if sys.executable and worthwhile(os.environ, root):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **TUNABLE})


def finish(command: Callable[[], int]) -> NoReturn:
    """Run a command and end the process with its status, at once where that is not 0.

    Python waits for threads at its end, and those of a checkpoint that could not be written wait for minutes.
    """
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = command()
    except SystemExit as ended:
        status = ended.code
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)
    raise SystemExit(0)


def stop_at_once() -> None:
    """Have Ctrl-C end the process at once with one line: an extension that is being imported makes an error of it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    os.write(2, b"stopped\n")
    os._exit(128 + number)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
    else:
        sys.__excepthook__(kind, error, trace)


def _unraisable(told: "sys.UnraisableHookArgs") -> None:
    """Report what cannot be raised, but for what the writers of a failed checkpoint say: its error is raised once.

    Each calls the event loop that waited for all of them, and ended with the first that failed.
    """
    if str(told.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(told)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worthwhile(environ: Mapping[str, str], root: Path) -> bool:
    """Return whether JAX will run on the CPU of a Linux with glibc where huge pages are given to those who ask."""
    if environ.keys() & TUNABLE or platform.libc_ver()[0] != "glibc":
        return False
    mode = root / "sys/kernel/mm/transparent_hugepage/enabled"
    if not mode.is_file() or "[madvise]" not in mode.read_text():
        return False
    platforms = environ.get("JAX_PLATFORMS", "")
    found = any(path for pattern in ACCELERATORS for path in (root / "dev").glob(pattern))
    return platforms == "cpu" or (not platforms and not found)
