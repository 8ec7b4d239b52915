"""The files of a run folder: safe reads, atomic writes, and a lock so that only one run at a time writes to it.

A folder may come from somebody else, who may have put links where a run writes. New files are therefore created
(O_EXCL) and never opened through a link (O_NOFOLLOW), relative to a folder that was opened once. Windows has none of
this, nor `fcntl` for the lock: `train` is for Linux and macOS.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

LARGEST = 64 * 2**20
"""Most bytes of a file that is read as text and has no limit of its own in `FILES`."""


class Kind(NamedTuple):
    """What a file of a run folder is.

    Attributes:
        group: "settings" are there before training; "training" and "results" are written by it and by evaluations.
        most: most bytes that are read.
    """

    group: str
    most: int = LARGEST


FILES = {
    "config.json": Kind("settings", 2**20),
    "environment.json": Kind("settings", 2**16),
    "outcome.json": Kind("settings", 2**20),
    "metrics.jsonl": Kind("training", 2**30),
    "probe.json": Kind("training", 2**22),
    r"longrope-\d+\.txt": Kind("training"),
    r"samples(-.+)?\.png": Kind("training"),
    r"results(-.+)?\.(json|png)": Kind("results"),
}
"""The files of a run in its folder, as patterns."""

DEEPEST = 40
"""Most levels of nesting in a JSON file of a run folder."""

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file is created."""

END = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How a file is opened to append to it."""

NOT_FILES = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def kind_of(name: str) -> Kind | None:
    """Return the kind of a file of this name in a run folder; None = it is not a run's."""
    return next((kind for pattern, kind in FILES.items() if re.fullmatch(pattern, name)), None)


def read_text(path: Path, most: int | None = None) -> str:
    """Read a UTF-8 text file of a run folder, which may come from somebody else.

    Args:
        path: path of the file.
        most: most bytes of it; None = the limit that `FILES` has for its name.

    Links are refused, so that nothing outside of the folder is read; so are pipes and devices, which may never end.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no regular file, larger than `most` bytes, or not UTF-8. The message quotes nothing of it.
    """
    most = most or (kind_of(path.name) or Kind("")).most
    _require_kind(path)
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(opened, "rb") as file:
        content = file.read(min(most, os.fstat(opened).st_size) + 1)  # `read` reserves what it is asked for
    if len(content) > most:
        raise ValueError(f"{path} must have at most {most:,} bytes, got {os.stat(path).st_size:,}")
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as wrong:
        raise ValueError(f"{path} must be UTF-8, got another byte at {wrong.start}") from None


def require_regular(folder: Path) -> None:
    """Check that a folder is no link, and holds regular files and folders alone, at any depth.

    Raises:
        ValueError: naming another entry: a link may lead anywhere, and a pipe is never read to its end.
    """
    for place, below, files in [(folder.parent, (), (folder.name,)), *os.walk(folder)]:
        for path in (Path(place) / name for name in (*below, *files)):
            try:
                kind = stat.S_IFMT(os.lstat(path).st_mode)
            except FileNotFoundError:  # a run that goes on has deleted it
                continue
            if kind not in (stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{path} must be a regular file, got {NOT_FILES.get(kind, 'a device')}")


def parse_object(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object that may come from somebody else: numbers of at most 64 bits, and plain Unicode texts.

    Args:
        text: the JSON.
        what: names it in the message.

    Raises:
        ValueError: it is no such object. The message quotes nothing of it.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"{what} must be nested at most {DEEPEST} deep") from None
    except ValueError as broken:
        raise ValueError(f"{what} must be JSON: {broken}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} must hold an object, got a {type(value).__name__}")
    _require_plain(value, what)
    return value


def _require_plain(value: Any, what: str, depth: int = 0) -> None:
    """Check the numbers, texts and nesting of parsed JSON."""
    if depth > DEEPEST:
        raise ValueError(f"{what} must be nested at most {DEEPEST} deep")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{what} must hold integers of at most 64 bits, got a larger one")
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"{what} must hold Unicode texts, got half of a surrogate pair")
    children = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        _require_plain(child, what, depth + 1)


def read_object(path: Path, most: int | None = None) -> dict[str, Any]:
    """Read a JSON object from a file of a run folder, of at most as many bytes as `read_text` reads.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: raised by `read_text` or `parse_object`.
    """
    return parse_object(read_text(path, most), f"{path}")


def read_sealed(path: Path, most: int | None = None) -> dict[str, Any]:
    """Read a JSON object that was written with its digest, which is left out; files of 0.3.0 may have none.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: raised by `read_object`, or it has changed since.
    """
    content = read_object(path, most)
    if "digest" in content and with_digest(content) != content:
        raise ValueError(f"{path.name} has changed since it was written")
    content.pop("digest", None)
    return content


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file with a digest of its other entries added, by which a change is noticed."""
    entries = {name: value for name, value in content.items() if name != "digest"}
    return {**entries, "digest": hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()}


def write_atomic(path: Path, text: str) -> None:
    """Write a text file; if the disk is full or the process is killed, the old file remains.

    Raises:
        OSError: it cannot be written.
    """
    with replaced_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file beside `path` to write to, then move it there.

    A link in its place, symbolic or hard, is replaced, and nothing is written to where it leads. Links cannot be laid
    out ahead for the new file, because its name is random and nothing may have that name yet.

    Raises:
        OSError: it cannot be written; it names `path`.
    """
    draft = f".{path.name}.{secrets.randbelow(10**12)}"
    with _open_folder(path.parent) as folder:
        opened = _open_in(folder, path, NEW, draft)
        try:
            with opened as file:
                yield file
            with _naming(path):
                os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)


@contextlib.contextmanager
def appended_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to append to, which is made if there is none.

    Raises:
        ValueError: it is no regular file, or it has another name, too, as a hard link has.
        OSError: it cannot be written; it names `path`.
    """
    if os.path.lexists(path):
        _require_kind(path)
    with _open_folder(path.parent) as folder, _open_in(folder, path, END) as file:
        _require_one_name(path, file.fileno())
        yield file


@contextlib.contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    """Yield the descriptor of a folder, relative to which its files are opened: it stays the same if it is renamed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_in(folder: int, path: Path, flags: int, name: str = "") -> BinaryIO:
    """Open a file of a folder for writing.

    Args:
        folder: its descriptor.
        path: path of the file, which errors name.
        flags: `NEW` or `END`.
        name: name of the file in the folder; empty = that of the path.
    """
    with _naming(path):
        return os.fdopen(os.open(name or path.name, flags, 0o666, dir_fd=folder), "wb")


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of the operating system name `path`."""
    try:
        yield
    except OSError as refused:
        raise OSError(refused.errno, refused.strerror, f"{path}") from None


def _require_kind(path: Path) -> None:
    """Check that there is a regular file, without opening it.

    Raises:
        ValueError: there is something else.
    """
    kind = stat.S_IFMT(os.lstat(path).st_mode)
    if kind != stat.S_IFREG:
        raise ValueError(f"{path} must be a regular file, got {NOT_FILES.get(kind, 'a device')}")


def _require_one_name(path: Path, descriptor: int) -> None:
    """Check that a file has no second name: what is written to it would be written to that one.

    Raises:
        ValueError: it is a hard link.
    """
    if os.fstat(descriptor).st_nlink > 1:
        raise ValueError(f"{path} must be a file of this folder alone, got a hard link")


def lock_folder(folder: Path) -> None:
    """Lock a run folder for this process until the process ends.

    Raises:
        ValueError: another process has locked it, its lock file is somebody else's, or its path has a backslash or
            bytes that are no text, and checkpoints in it could not be read again.
    """
    text = str(folder.absolute())
    if "\\" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        encoding = sys.getfilesystemencoding()
        raise ValueError(f"out must be a path in this locale's encoding, {encoding}, without a backslash, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    path, holder = folder / ".lock", ""
    if os.path.lexists(path):
        holder = read_text(path, most=200)
        if holder and not holder.startswith("process "):
            raise ValueError(f"{path} must be the lock of a run, got a file of somebody else: give another --out")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)  # stays open: closing it releases the lock
    try:
        _require_one_name(path, lock)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(lock)
        raise ValueError(
            f"only one run at a time may write to {folder}, got a second one while {holder or 'another'} is running: "
            "wait for it to end, or give another --out"
        ) from None
    except OSError:  # a file system without locks
        os.close(lock)
        return
    except ValueError:
        os.close(lock)
        raise
    os.truncate(lock, 0)
    os.write(lock, f"process {os.getpid()} of {socket.gethostname()}".encode())
