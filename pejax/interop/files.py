"""Folders of safetensors files: reading their headers, reading values, and writing."""

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pejax.interop.config import read_json
from pejax.interop.other_folders import other_content, other_weights

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
A_MODEL = "a folder with config.json and safetensors files, or a GGUF file"
FLOATS = {"F32": np.dtype("float32"), "F16": np.dtype("float16"), "BF16": jnp.dtype("bfloat16")}
"""The types of weights in safetensors files, and in NumPy."""


class Tensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        file: name of its file in the folder.
        dtype: type, a name of safetensors.
        shape: shape.
        kind: type in a GGUF file. "" = read from a safetensors file.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = ""


Reader = Callable[[str, tuple[slice, ...]], np.ndarray]
"""Function `(name, index)` that reads the values of a tensor in a range; `()` = all values."""


def list_tensors(directory: Path) -> dict[str, Tensor]:
    """Return the tensors in a folder, by name, from the headers of its files.

    Raises:
        ValueError: no weights, a file that is damaged or cannot be read, or an index that does not fit the files.
    """
    index = directory / INDEX
    if not os.path.lexists(index):
        if not os.path.lexists(directory / WEIGHTS):
            raise ValueError(f"{directory} must hold {WEIGHTS} or {INDEX}, got {other_weights(directory)}")
        return _list_file(directory, WEIGHTS)
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ValueError(f"{index}: weight_map must be an object with entries, got {placed!r}")
    for name, file in placed.items():
        if not isinstance(file, str) or file != Path(file).name or file in ("", ".", ".."):
            raise ValueError(f"{index}: weight_map.{name} must be the name of a file in this folder, got {file!r}")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(placed.values())):
        tensors |= _list_file(directory, file)
    actual = {name: tensor.file for name, tensor in tensors.items()}
    for name in sorted(name for name in {*placed, *tensors} if placed.get(name) != actual.get(name)):
        where = actual.get(name, "no file")
        raise ValueError(f"{index}: weight_map must say where {name} is, in {where}, got {placed.get(name)}")
    return tensors


def require_model(path: Path) -> None:
    """Raise ValueError for a path where nothing is, or something else than a model, with the way to one."""
    if os.path.lexists(path):
        if content := other_content(path):
            raise ValueError(f"{path} must be {A_MODEL}, got {content}")
        return
    is_name = len(path.parts) == 2 and not path.is_absolute() and path.parts[0] not in (".", "..")
    name = path.as_posix() if is_name else f"OWNER/{path.name}"
    way = f"pejax downloads none: `hf download {name} --local-dir {path}` does"
    raise ValueError(f"{path} must be {A_MODEL}, got nothing there; {way}")


def require_folder(path: Path) -> None:
    """Raise ValueError for a path where no folder of a model is, a GGUF file included."""
    if path.is_file():
        raise ValueError(f"{path} must be a folder with config.json and safetensors files, got a file")
    require_model(path)


def has_weights(directory: Path) -> bool:
    """Whether a folder has weights that `list_tensors` lists."""
    return any(os.path.lexists(directory / name) for name in (WEIGHTS, INDEX))


def _list_file(directory: Path, file: str) -> dict[str, Tensor]:
    """Return the tensors of one file."""
    with whole_file(directory / file), safe_open(directory / file, framework="numpy") as weights:
        slices = {name: weights.get_slice(name) for name in sorted(weights.keys())}
        return {name: Tensor(file, part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}


@contextmanager
def whole_file(path: Path) -> Iterator[None]:
    """Raise ValueError for a safetensors file that is damaged or cannot be read."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} must be a whole safetensors file, got {reason}") from None


def only_finite(read: Reader) -> Reader:
    """Return the reader that refuses NaN and infinite values."""

    def checked(name: str, index: tuple[slice, ...]) -> np.ndarray:
        values = read(name, index)
        if not _is_finite(values):
            wide = values.astype(np.float32)
            counts = f"{np.isnan(wide).sum()} NaN and {np.isinf(wide).sum()} infinite"
            rule = f"{name} must hold finite numbers, or load(..., finite=False) allow others"
            raise ValueError(f"{rule}, got {counts} of {wide.size}")
        return values

    return checked


def _is_finite(values: np.ndarray) -> bool:
    """Whether all values are finite; their bits are compared with those of infinity, part by part."""
    unsigned = np.dtype(f"u{values.dtype.itemsize}")
    infinity = np.asarray(np.inf, values.dtype).view(unsigned)
    bits, part = np.ravel(values, order="K").view(unsigned), 1 << 20
    magnitudes = (bits[start : start + part] & (np.iinfo(unsigned).max >> 1) for start in range(0, bits.size, part))
    return all(np.max(magnitude) < infinity for magnitude in magnitudes)


def reader(directory: Path, tensors: Mapping[str, Tensor]) -> Reader:
    """Return the function to the values of the tensors of a folder."""
    weights = functools.cache(lambda file: safe_open(directory / file, framework="numpy"))  # a header is read once

    def read(name: str, index: tuple[slice, ...]) -> np.ndarray:
        file = tensors[name].file
        with whole_file(directory / file):
            return weights(file).get_slice(name)[index] if tensors[name].shape else weights(file).get_tensor(name)

    return read


def write_folder(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    values: Callable[[str], np.ndarray],
    finish: Callable[[Path], None],
) -> None:
    """Write config.json and the files of the tensors, in a temporary folder that is then renamed.

    Args:
        directory: must not exist, or be empty.
        config: the content of config.json.
        tensors: file, type and shape of every tensor, by name.
        values: function that returns the values of a tensor by its name; called once per tensor.
        finish: function that adds other files to the folder.

    Raises:
        ValueError: a folder that is not empty, or a path where no folder can be created.
    """
    if os.path.lexists(directory) and not (directory.is_dir() and not any(directory.iterdir())):
        raise ValueError(f"{directory} must be an empty folder or not exist, got a file or a folder with content")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise ValueError(f"{directory} must be a folder that can be made, got {error.strerror}") from None
    try:
        files = sorted({tensor.file for tensor in tensors.values()})
        size = 0
        for file in files:
            arrays = {name: values(name) for name, tensor in tensors.items() if tensor.file == file}
            size += sum(array.nbytes for array in arrays.values())
            save_file(arrays, partial / file, metadata={"format": "pt"})
        if files != [WEIGHTS]:
            placed = {name: tensor.file for name, tensor in sorted(tensors.items())}
            _write_json(partial / INDEX, {"metadata": {"total_size": size}, "weight_map": placed})
        _write_json(partial / "config.json", config)
        finish(partial)
        partial.chmod(0o755)
        partial.replace(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
