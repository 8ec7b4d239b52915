"""The files of a run folder: each is written whole or stays as it was, and one run at a time writes them."""

import fcntl
import os
import socket
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file; where the disk is full or the process is killed, what was there before is still there.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def take(folder: Path) -> None:
    """Take a run folder for this process until it ends, however it does.

    Raises:
        ValueError: another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)  # stays open: to close it is to let others in
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.read(lock, 200).decode()
        os.close(lock)
        raise ValueError(
            f"one run at a time may write into {folder}, got a second one while {holder or 'another'} is at it: "
            "wait for it to end, or give another --out"
        ) from None
    except OSError:  # a file system without locks: nobody can be asked
        os.close(lock)
        return
    os.truncate(lock, 0)
    os.write(lock, f"process {os.getpid()} of {socket.gethostname()}".encode())
