"""Training on a CPU: a device for each core, threads enough for them, and huge pages: asked for before JAX starts."""

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

TUNABLE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""What glibc's malloc is told: ask the kernel for transparent huge pages, so that large arrays miss the TLB less. One
arena that gives nothing back (`arena_max=1` and thresholds out of reach) would spare the kernel to clear temporaries,
but XLA's operations allocate as they run, and two devices that shared an arena took up to half as long again."""

ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel*", "vfio/[0-9]*")
"""Device files of NVIDIA and AMD GPUs and of TPUs, below /dev."""


MOST = 4
"""Cores that stand for devices at most: each keeps its own copy of the parameters and moments."""

THREADS_PER_DEVICE = 2
"""Threads that XLA:CPU needs for each device, in one pool: one computes the device's part of a program, and waits there
for the other parts where they sum; one launches the device's part of a later program, and waits there while 32 are
under way. XLA itself makes one thread per device if there are no more cores: then launches can hold all threads,
the parts that a sum waits for find none, and after a minute XLA ends the process."""


def prepare_cpu(root: Path = Path("/")) -> None:
    """Give JAX a device for each core, unless told otherwise, threads for them, and huge pages where they speed it up.

    On one device XLA spreads single operations over the cores, and all but the largest leave cores idle; on a device
    for each core, the cores share the batch. For huge pages this interpreter starts over with `TUNABLE` set, and the
    process keeps its number. To be called before the heavy imports, which would otherwise be paid for twice.

    Args:
        root: of the file system.
    """
    os.environ.update(device_settings(os.environ))
    if sys.executable and worthwhile(os.environ, root):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **TUNABLE})


def device_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what JAX and XLA are told in the environment: how many devices a CPU has, and threads enough for them.

    Args:
        environ: what they are told already; a number of devices stays, a number of threads is raised if need be.
    """
    forced = re.search(r"--xla_force_host_platform_device_count=(\d+)", environ.get("XLA_FLAGS", ""))
    told = environ.get("JAX_NUM_CPU_DEVICES") or (forced and forced[1])
    devices = int(told or min(cores(), MOST))
    settings = {} if told else {"JAX_NUM_CPU_DEVICES": str(devices)}
    threads = int(environ.get("PJRT_NPROC") or environ.get("NPROC") or cores())
    if devices > 1 and threads < THREADS_PER_DEVICE * devices:
        settings["PJRT_NPROC"] = str(THREADS_PER_DEVICE * devices)
    return settings


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
