"""Files in the cache folder of the user, `$XDG_CACHE_HOME/pejax` or `~/.cache/pejax`; it may be deleted at any time."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def cache_file(name: str) -> Path:
    """Return the path of a file in the cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "pejax" / name


def read_kept(path: Path) -> bytes:
    """Return the content of a file in the cache; empty where there is no such file."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its other end
        with open(opened, "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(opened).st_mode) else b""
    except OSError:
        return b""


def keep(path: Path, content: bytes) -> str:
    """Write a file into the cache; return why it cannot be kept, empty where it is: no program ends because of that."""
    beside = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            beside = file.name
            file.write(content)
        os.replace(beside, path)
    except OSError as refused:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        return f"{path}: {refused.strerror}"
    return ""
