"""GGUF files: the header without the weights, and the values of one tensor at a time.

The header is read here and not by `gguf.GGUFReader`, which makes an object of every element of an array, believes the
lengths that a damaged file claims, and takes 4 to 9 seconds for a small model's vocabulary. Quantized weights are
converted by the package `gguf`.
"""

import functools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

MAGIC, VERSIONS = b"GGUF", (2, 3)
LARGEST_HEADER = 2**28
"""Maximum number of bytes of a header; the headers of the largest models have a tenth of that."""

SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8",
           12: "<f8"}  # fmt: skip
"""NumPy types of metadata values, by the number of the type in the file."""
STRING, ARRAY = 8, 9
"""Numbers of the other types of metadata values."""

MOST_AXES = 4
"""Maximum number of axes of a tensor."""
BLOCKS_AT_ONCE = 2**13
"""Number of quantized blocks that are converted at a time."""
LEAST_TENSOR, LEAST_KEY, LEAST_TEXT = 24, 13, 8
"""Least numbers of bytes of an entry of the header: of a tensor, of a key with its value, and of a text."""
PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": jnp.dtype("bfloat16")}
"""Types of weights that are not quantized."""


class GgufTensor(NamedTuple):
    """A tensor of a GGUF file.

    Attributes:
        path: path of the file.
        kind: name of the type in the package `gguf`, such as "Q4_1".
        shape: shape; the last axis is contiguous.
        start: offset of its first byte in the file.
        size: number of its bytes.
    """

    path: Path
    kind: str
    shape: tuple[int, ...]
    start: int
    size: int


class GgufFile(NamedTuple):
    """The header of a GGUF file, or of several that are the parts of one model.

    Attributes:
        path: path of the file, or of the first part.
        keys: metadata.
        tensors: tensors by name.
    """

    path: Path
    keys: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_header(path: Path) -> GgufFile:
    """Return the header of a GGUF file.

    Raises:
        ValueError: a file that cannot be read, is no GGUF file of version 2 or 3, or is damaged.
    """
    try:
        with path.open("rb") as file:
            return _Header(path, file).read()
    except OSError as error:
        raise ValueError(f"{path} must be a file that can be read, got {error.strerror}") from None


def read_values(file: GgufFile, name: str, rows: slice = slice(None)) -> np.ndarray:
    """Return the values of a tensor, or of a range of its first axis: in their type, or in float32 if quantized.

    Raises:
        ValueError: a file that has become shorter or cannot be read.
    """
    path, kind, shape, start, size = file.tensors[name]
    first, stop, _ = rows.indices(shape[0]) if len(shape) > 1 else (0, 1, 1)
    row_bytes = size // shape[0] if len(shape) > 1 else size  # a vector is read whole, as one row
    try:
        data = np.fromfile(path, np.uint8, (stop - first) * row_bytes, offset=start + first * row_bytes)
    except OSError as error:
        raise ValueError(f"{path} must be a file that can be read, got {error.strerror}") from None
    if data.size != (stop - first) * row_bytes:
        raise ValueError(f"{path} must hold {(stop - first) * row_bytes} bytes of {name}, got {data.size}")
    shape = (stop - first, *shape[1:]) if len(shape) > 1 else shape
    values = data.view(PLAIN[kind]) if kind in PLAIN else _dequantized(data, kind)
    values = values.reshape(shape)
    return values if len(shape) > 1 else values[rows]


def _dequantized(data: np.ndarray, kind: str) -> np.ndarray:
    """Return the values of quantized bytes in float32, a block per row; few blocks at a time, to save memory."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    quantization = GGMLQuantizationType[kind]
    block_values, block_bytes = GGML_QUANT_SIZES[quantization]
    blocks = data.reshape(-1, block_bytes)
    values = np.empty((len(blocks), block_values), np.float32)
    for start in range(0, len(blocks), BLOCKS_AT_ONCE):
        chunk = slice(start, start + BLOCKS_AT_ONCE)
        values[chunk] = dequantize(blocks[chunk].reshape(1, -1), quantization).reshape(-1, block_values)
    return values


@functools.cache
def _converts(kind: str) -> bool:
    """Whether the package `gguf` converts a type."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        _dequantized(np.zeros(GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1], np.uint8), kind)
    except NotImplementedError:
        return False
    return True


class _Header:
    """Reader of a header; it refuses every length that the file cannot hold."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file, self.at, self.size = path, file, 0, os.fstat(file.fileno()).st_size

    def read(self) -> GgufFile:
        """Return the header, which begins at the first byte."""
        magic = self.take(4) if self.size >= 4 else self.file.read()
        if magic != MAGIC:
            raise ValueError(f"{self.path} must begin with the bytes GGUF, got {magic!r}")
        version = self.number("<u4")
        if version not in VERSIONS:
            order = ", big-endian, which is not supported" if version & 0xFFFF == 0 else ""
            raise ValueError(f"{self.path} must be of GGUF version 2 or 3, got {version}{order}")
        tensor_count, key_count = self.count(LEAST_TENSOR), self.count(LEAST_KEY)
        keys: dict[str, Any] = {}
        for _ in range(key_count):
            key = self.text()
            if key in keys:
                raise self.damaged(f"the key {key[:80]} twice")
            keys[key] = self.value(self.number("<u4"))
        tensors = self.tensors(tensor_count, keys.get("general.alignment", 32))
        return GgufFile(self.path, keys, tensors)

    def tensors(self, count: int, alignment: object) -> dict[str, GgufTensor]:
        """Return the tensors of the file; refuse bytes that are outside the file or in two tensors."""
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment = {alignment}, which is no power of 2")
        relative: dict[str, GgufTensor] = {}  # with a `start` that is counted from the end of the padded header
        for _ in range(count):
            name, axes = self.text(), self.number("<u4")
            if name in relative:
                raise self.damaged(f"the tensor {name[:80]} twice")
            if not 1 <= axes <= MOST_AXES:
                raise self.damaged(f"{axes} axes of {name[:80]}")
            shape = tuple(self.number("<u8") for _ in range(axes))[::-1]
            kind, start = self.number("<u4"), self.number("<u8")
            relative[name] = self.tensor(name[:80], kind, shape, start)
        data_start = self.at + -self.at % alignment
        absolute = {name: tensor._replace(start=data_start + tensor.start) for name, tensor in relative.items()}
        end = data_start
        for name, tensor in sorted(absolute.items(), key=lambda item: item[1].start):
            if tensor.start < end or tensor.start % alignment or tensor.start + tensor.size > self.size:
                place = f"bytes {tensor.start} to {tensor.start + tensor.size} of {self.size}"
                raise self.damaged(f"{name[:80]} in {place}: unaligned, outside the file or in another tensor")
            end = tensor.start + tensor.size
        return absolute

    def tensor(self, name: str, number: int, shape: tuple[int, ...], start: int) -> GgufTensor:
        """Return a tensor whose `start` is counted from the end of the padded header, as in the file.

        Raises:
            ValueError: a type that the package `gguf` cannot convert, or a shape that is not whole blocks of the type.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        kinds = {int(kind): kind for kind in GGMLQuantizationType}
        kind = kinds.get(number)
        if kind is None or not (kind.name in PLAIN or _converts(kind.name)):
            rule = "must have a type that the package gguf converts"
            raise ValueError(f"{self.path}: {name} {rule}, got {number if kind is None else kind.name}")
        block_values, block_bytes = GGML_QUANT_SIZES[kind]
        if 0 in shape or shape[-1] % block_values:
            raise self.damaged(f"the shape {shape} of {name} of type {kind.name}")
        return GgufTensor(self.path, kind.name, shape, start, math.prod(shape) // block_values * block_bytes)

    def value(self, kind: int) -> Any:
        """Return the next value of the metadata; `kind` is the number of its type."""
        if kind == STRING:
            return self.text()
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind != ARRAY:
            raise self.damaged(f"a value of type {kind}")
        kind = self.number("<u4")
        if kind == STRING:
            return [self.text() for _ in range(self.count(LEAST_TEXT))]
        if kind not in SCALARS:
            raise self.damaged(f"an array of type {kind}")
        dtype = np.dtype(SCALARS[kind])
        values = np.frombuffer(self.take(self.count(dtype.itemsize) * dtype.itemsize), dtype)
        return list(map(_shortest, values)) if dtype.kind == "f" else values.tolist()

    def count(self, bytes_each: int) -> int:
        """Return the next count of entries of at least `bytes_each` bytes; refuse more than fit into the file."""
        count = self.number("<u8")
        if count * bytes_each > self.size - self.at:
            raise self.damaged(f"{count} entries in the last {self.size - self.at} bytes")
        return count

    def text(self) -> str:
        """Return the next text."""
        return self.take(self.number("<u8")).decode("utf-8", errors="replace")

    def number(self, dtype: str) -> Any:
        """Return the next number, of a NumPy type."""
        scalar = np.dtype(dtype)
        data = self.take(scalar.itemsize)
        if scalar.kind == "f":
            return _shortest(np.frombuffer(data, scalar)[0])
        return bool(data[0]) if scalar.kind == "b" else int.from_bytes(data, "little", signed=scalar.kind == "i")

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        self.at += count
        if self.at > min(self.size, LARGEST_HEADER):
            most = f"the {self.size} bytes of the file" if self.size < LARGEST_HEADER else f"{LARGEST_HEADER} bytes"
            raise self.damaged(f"{self.at} bytes, more than {most}")
        data = self.file.read(count)
        if len(data) != count:
            raise self.damaged(f"{len(data)} bytes instead of {count}")
        return data

    def damaged(self, damage: str) -> ValueError:
        """Return the error for a damaged header."""
        return ValueError(f"{self.path} must have a whole GGUF header, got {damage}")


def _shortest(value: np.floating) -> float:
    """Return the number with the fewest decimals that is this float32: 1e-5, not 9.99999974738e-06."""
    return float(str(value))
