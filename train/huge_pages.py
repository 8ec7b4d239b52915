"""Huge pages for training on a CPU: the C library gives them to a process that asks for them before it starts."""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

TUNABLE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""glibc's malloc asks the kernel for transparent huge pages: arrays of many megabytes then miss the TLB less."""

ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel*", "vfio/[0-9]*")
"""Device files of NVIDIA and AMD GPUs and of TPUs, below /dev."""


def use_huge_pages(root: Path = Path("/")) -> None:
    """Start this interpreter over with `TUNABLE` set, where that speeds JAX up; the process keeps its number.

    To be called before the heavy imports, which would otherwise be paid for twice.

    Args:
        root: of the file system.
    """
    if sys.executable and worthwhile(os.environ, root):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **TUNABLE})


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
