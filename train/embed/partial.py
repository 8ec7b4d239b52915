"""The result of a command that may be stopped: a folder beside it with what is finished, and the file at the end."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train.engine.files import lock_folder, read_object, require_regular, write_atomic

SETTINGS, DONE, VECTORS = "settings.json", "done.json", "vectors.npy"


class Partial:
    """The vectors that are finished, in the folder `OUT.partial`, until all are.

    Attributes:
        done: number of batches that are finished.
        vectors: `(N, C)`, float32, a file of NumPy.

    Args:
        out: file of the result; beside it, `OUT.json` says later what it was made of.
        settings: what the vectors depend on.
        shape: `(N, C)`.
        batches: number of batches in all.

    Raises:
        ValueError: the folder has vectors of other settings, or is in use.
        OSError: the disk is too small.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], shape: tuple[int, int], batches: int) -> None:
        self.out, self.folder, self.settings = out, partial_folder(out), dict(settings)
        lock_folder(self.folder)
        require_regular(self.folder)
        path, done = self.folder / VECTORS, self.folder / DONE
        is_whole = all(file.exists() for file in (path, done, self.folder / SETTINGS))
        self.done = read_object(done).get("batches", 0) if is_whole else 0
        if self.done:
            require_same(read_object(self.folder / SETTINGS), self.settings, self.folder)
        if type(self.done) is not int or not 0 <= self.done <= batches:
            raise ValueError(f"{done} must have a number of batches from 0 to {batches}, got {self.done!r}"[:400])
        if not self.done:
            done.unlink(missing_ok=True)  # before the vectors that it would be believed of
            _reserve(path, shape)
            write_atomic(self.folder / SETTINGS, json.dumps(self.settings))
        size = path.stat().st_size  # a file that was cut off would be filled with zeros
        self.vectors: np.memmap = np.lib.format.open_memmap(path, mode="r+")
        if self.vectors.shape != shape or self.vectors.dtype != np.float32:
            raise ValueError(f"{path} must hold float32 {shape}, got {self.vectors.dtype} {self.vectors.shape}")
        if size != self.vectors.offset + self.vectors.nbytes:
            raise ValueError(f"{path} must have {self.vectors.offset + self.vectors.nbytes} bytes, got {size}")

    def keep(self, batches: int) -> None:
        """Write what is finished to the disk, so that it is there after a stop; `batches` is their number."""
        self.vectors.flush()
        write_atomic(self.folder / DONE, json.dumps({"batches": batches}))

    def finish(self) -> None:
        """Move the vectors, which are all there, to their place, and delete the folder."""
        self.vectors.flush()
        write_atomic(made_of(self.out), json.dumps(self.settings, indent=2))
        (self.folder / DONE).unlink(missing_ok=True)
        os.replace(self.folder / VECTORS, self.out)
        shutil.rmtree(self.folder)


def partial_folder(out: Path) -> Path:
    """Return the folder with what is finished of a file."""
    return out.with_name(f"{out.name}.partial")


def made_of(out: Path) -> Path:
    """Return the file that says what the vectors of a file were made of."""
    return out.with_name(f"{out.name}.json")


def is_finished(out: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the file is there already, with vectors of these settings.

    Raises:
        ValueError: it is there with others, or with none that are known.
    """
    if not os.path.lexists(out):
        return False
    if not made_of(out).exists():
        raise ValueError(f"out must not exist, got {out}, which this program has not written: give another --out")
    require_same(read_object(made_of(out)), settings, out)
    return True


def require_same(stored: Mapping[str, Any], settings: Mapping[str, Any], where: Path) -> None:
    """Raise ValueError for stored settings that differ."""
    differ = [name for name, value in settings.items() if stored.get(name) != value]
    if differ:
        name = differ[0]
        rule = f"{where} has vectors of another {' and '.join(differ)}: give another --out, or delete it"
        raise ValueError(f"{rule}; {name} was {stored.get(name)!r} and is {settings[name]!r}"[:400])


def _reserve(path: Path, shape: tuple[int, int]) -> None:
    """Make the file of the vectors in its full size, since a disk that fills up later would end the process.

    Raises:
        OSError: the disk is too small.
    """
    path.unlink(missing_ok=True)
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
