"""Compiled programs that are kept between runs: the second run on a GPU begins without minutes of compilation."""

import hashlib
import os
import stat
from pathlib import Path

import jax

from train.devices.user_cache import cache_file

CPU_FACTS = Path("/proc/cpuinfo")
"""What Linux says of its processors."""

LEAST_SECONDS = 0.1
"""Programs for a CPU that compile faster are not kept."""


def keep_programs(where: str, *, cpu: bool = False) -> str:
    """Let JAX read and write compiled programs in a folder of the user's.

    Whoever may write there decides what this process runs, so that the folder must be the user's alone. Programs for a
    CPU are of one kind of processor, and those of a trainer compile in seconds: they are kept by request only, or in a
    folder for this kind of processor.

    Args:
        where: a folder; auto, the cache folder of the user, if this is a GPU and JAX has no such folder yet; or none.
        cpu: whether auto keeps programs for a CPU, too, if it is known which kind of processor that is.

    Returns:
        Why programs are not kept, in one line; empty where they are, or where nobody asked for it.

    Raises:
        ValueError: the folder cannot be made, or is not the user's alone, and was given by name.
    """
    on_cpu = cpu and jax.default_backend() == "cpu" and CPU_FACTS.is_file()
    if where == "none" or (where == "auto" and (jax.config.jax_compilation_cache_dir or not (_on_gpu() or on_cpu))):
        return ""
    own = f"programs-{processor()}" if on_cpu else "programs"
    folder = cache_file(own) if where == "auto" else Path(where)
    try:
        require_own(folder)
    except ValueError as refused:
        if where == "auto":
            return f"compiled programs are not kept: {refused}"
        raise
    jax.config.update("jax_compilation_cache_dir", f"{folder.absolute()}")
    if on_cpu:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    return ""


def processor() -> str:
    """Return a digest of the kind of this processor: a program for another one may end the process."""
    first = CPU_FACTS.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    lines = [line for line in first if line.startswith(("model name", "CPU part", "flags", "Features"))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def require_own(folder: Path) -> None:
    """Make a folder that nobody else may use, or check that this is one.

    Raises:
        ValueError: it cannot be made, or belongs to somebody else, or others may write into it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as refused:
        raise ValueError(f"programs must be a folder that can be made, got {folder}: {refused.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"programs must be a folder, got {folder}, which is something else")
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise ValueError(f"programs must be a folder of your own that no other user may write into, got {folder}")
