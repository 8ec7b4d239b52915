"""Every image in files is decoded once before anything is trained, so that none that is corrupt stops a run half-way.

If that took long, what was intact is remembered in the cache folder of the user, by the name, the size and the last
change of its file: the next program decodes only what is new.
"""

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import PIL
from jaxtyping import UInt64

from train.data.bad import require_readable, say
from train.data.images.source import CorruptImage, Source
from train.devices.user_cache import cache_file, keep, read_kept

VERSION = 1
"""Counted up where `decode` refuses more: what earlier versions found intact is decoded again."""

AT_ONCE = 512
"""Images that are given to the threads at once."""

KEPT_SECONDS = 1.0
"""Seconds of decoding from which on the outcome is kept."""

EVERY_SECONDS = 8.0
"""Seconds between lines of progress."""


class Marked(Source, Protocol):
    """A source of stored images, each with a mark."""

    def mark(self, index: int) -> str:
        """Return a text that changes whenever the stored image may have changed.

        Raises:
            CorruptImage: there is no such file.
        """
        ...


def intact(source: Marked, place: Path, what: str, on_error: str) -> Sequence[int]:
    """Return the indices of the images that can be decoded.

    Args:
        source: the images.
        place: the folder that they are in.
        what: names them in messages.
        on_error: action at corrupt images: `stop` or `skip`.

    Raises:
        BadData: there are corrupt images, and `on_error` is `stop`.
        ValueError: all are corrupt, or another `on_error`.
    """
    faults = corrupt(source, place)
    bad = [f"{fault.name}: {fault.reason}" for fault in faults.values()]
    require_readable(bad, len(source), what, on_error)
    return [index for index in range(len(source)) if index not in faults]


def corrupt(source: Marked, place: Path) -> dict[int, CorruptImage]:
    """Return by index why images cannot be decoded; what was intact before and has not changed is not decoded again."""
    faults: dict[int, CorruptImage] = {}
    marks = np.asarray([_digest(source, index, faults) for index in range(len(source))], np.uint64)
    cache = _cache_file(place)
    todo = np.flatnonzero(~np.isin(marks, _read(cache)))
    todo = todo[~np.isin(todo, list(faults))]
    sound = np.ones(len(marks), bool)
    sound[[*faults, *todo]] = False
    begun = time.perf_counter()
    try:
        _decode(source, todo, faults, sound)
    finally:  # after Ctrl-C, too
        if time.perf_counter() - begun > KEPT_SECONDS:
            keep(cache, marks[sound].tobytes())
    return dict(sorted(faults.items()))


def _decode(source: Marked, todo: np.ndarray, faults: dict[int, CorruptImage], sound: np.ndarray) -> None:
    """Decode images, and enter each into `faults` or `sound`."""

    def fault(index: int) -> CorruptImage | None:
        try:
            source[index]
        except CorruptImage as broken:
            return broken
        return None

    begun = said = time.perf_counter()
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        for begin in range(0, len(todo), AT_ONCE):
            part = todo[begin : begin + AT_ONCE].tolist()
            for index, broken in zip(part, threads.map(fault, part), strict=True):
                sound[index] = broken is None
                if broken is not None:
                    faults[index] = broken
            now, done = time.perf_counter(), begin + len(part)
            if now - said > EVERY_SECONDS and done < len(todo):
                remaining_seconds = (now - begun) * (len(todo) / done - 1)
                say(f"preparing · looked at {done:,} of {len(todo):,} images · {remaining_seconds:.0f} s left")
                said = now


def file_mark(path: Path) -> str:
    """Return a mark of a file.

    Raises:
        CorruptImage: it is a link to nothing, or a pipe or a device, whose reading may never end.
    """
    try:
        status = path.stat()
    except OSError as refused:
        raise CorruptImage(f"{path}", "a link to nothing" if path.is_symlink() else refused.strerror) from None
    if not stat.S_ISREG(status.st_mode):
        raise CorruptImage(f"{path}", "a pipe or a device")
    return f"{path.absolute()} {status.st_size} {status.st_ctime_ns}"


def _digest(source: Marked, index: int, faults: dict[int, CorruptImage]) -> int:
    try:
        mark = source.mark(index)
    except CorruptImage as broken:
        faults[index] = broken
        return 0
    content = f"{VERSION} {PIL.__version__} {mark}".encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _cache_file(place: Path) -> Path:
    """Return the file in the user's cache with the digests of what was intact in a folder."""
    return cache_file(f"intact-{hashlib.sha256(os.fsencode(place.absolute())).hexdigest()[:16]}")


def _read(cache: Path) -> UInt64[np.ndarray, " N"]:
    """Return the digests in a cache file; none where there is no such file."""
    content = read_kept(cache)
    return np.frombuffer(content[: len(content) // 8 * 8], np.uint64)
