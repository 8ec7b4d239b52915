"""The files of a run folder: atomic writes, and a lock so that only one run at a time writes to it."""

import fcntl
import os
import socket
from pathlib import Path


def write_atomic(path: Path, text: str) -> None:
    """Write a text file; if the disk is full or the process is killed, the old file remains.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def lock_folder(folder: Path) -> None:
    """Lock a run folder for this process until the process ends.

    Raises:
        ValueError: another process has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)  # stays open: closing it releases the lock
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.read(lock, 200).decode()
        os.close(lock)
        raise ValueError(
            f"only one run at a time may write to {folder}, got a second one while {holder or 'another'} is running: "
            "wait for it to end, or give another --out"
        ) from None
    except OSError:  # a file system without locks
        os.close(lock)
        return
    os.truncate(lock, 0)
    os.write(lock, f"process {os.getpid()} of {socket.gethostname()}".encode())
