"""Compiled programs that are kept between runs: the second run on a GPU begins without minutes of compilation."""

import os
import stat
from pathlib import Path

import jax

from train.devices.user_cache import cache_file


def keep_programs(where: str) -> str:
    """Let JAX read and write compiled programs in a folder of the user's.

    Whoever may write there decides what this process runs, so that the folder must be the user's alone. Programs for a
    CPU are of one kind of processor, and those of pejax compile in seconds: they are kept by request only.

    Args:
        where: a folder; auto, the cache folder of the user, if this is a GPU and JAX has no such folder yet; or none.

    Returns:
        Why programs are not kept, in one line; empty where they are, or where nobody asked for it.

    Raises:
        ValueError: the folder cannot be made, or is not the user's alone, and was given by name.
    """
    if where == "none" or (where == "auto" and (jax.config.jax_compilation_cache_dir or not _on_gpu())):
        return ""
    folder = cache_file("programs") if where == "auto" else Path(where)
    try:
        require_own(folder)
    except ValueError as refused:
        if where == "auto":
            return f"compiled programs are not kept: {refused}"
        raise
    jax.config.update("jax_compilation_cache_dir", f"{folder.absolute()}")
    return ""


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
