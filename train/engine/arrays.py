"""Arrays in an archive of `np.savez` that may come from somebody else: its headers are checked before they are read."""

import io
import math
import os
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from train.engine.files import NOT_FILES

ENCRYPTED = 1
"""Flag of a member of a zip archive."""

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of the header of an array, by the version of its format."""


def read_arrays(path: Path, most: int) -> dict[str, np.ndarray]:
    """Return the arrays in an archive of `np.savez`, by name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no regular file, larger than `most` bytes, or no such archive.
    """
    kind = stat.S_IFMT(os.lstat(path).st_mode)
    if kind != stat.S_IFREG:
        raise ValueError(f"{path} must be a regular file, got {NOT_FILES.get(kind, 'a device')}")
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path} must have at most {most:,} bytes, got {size:,}")
        try:
            return _arrays(file, size)
        except Exception as broken:  # zipfile and NumPy raise a dozen types
            raise ValueError(f"{path} must be an archive of np.savez, got {' '.join(str(broken).split())}") from None


def _arrays(file: BinaryIO, size: int) -> dict[str, np.ndarray]:
    """Return the arrays in an archive of so many bytes."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        for member in members:
            if member.flag_bits & ENCRYPTED:
                raise ValueError(f"{member.filename!r}, which is encrypted")
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{member.filename!r}, which is compressed by method {member.compress_type}")
        if sum(member.file_size for member in members) > size:
            raise ValueError("members that are larger than the archive")
        return {member.filename.removesuffix(".npy"): _array(archive.read(member)) for member in members}


def _array(content: bytes) -> np.ndarray:
    """Return the array that the bytes of a .npy file hold."""
    file = io.BytesIO(content)
    shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    if dtype.hasobject or not dtype.itemsize or math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"an array of {dtype} with shape {shape} in {len(content) - file.tell():,} bytes")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)
