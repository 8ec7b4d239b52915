"""Folders that TensorFlow Datasets has prepared, opened without TensorFlow; no code of a data set is imported.

TFDS imports the module of every class that features.json names, so that a folder of somebody else could run code. Here
they are read first, and only TFDS's own classes are let through.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FEATURES = "features.json"
"""Names the classes of a data set's features."""

LARGEST = 16 * 2**20
"""Most bytes of that file."""

CLASS_KEYS = ("pythonclassname", "type")
"""Entries that name a class, in today's form and in that of TFDS before 4.6, in lower case without `_`."""

OWN_CLASS = re.compile(r"tensorflow_datasets\.core\.features(\.[A-Za-z]\w*)+", re.ASCII)
"""A class whose import runs nothing but TFDS."""


def open_prepared(name: str) -> Any:
    """Return the TFDS builder of a prepared data set, without downloading and without running code of the data set.

    Raises:
        ValueError: it is not prepared as array_record, its description is broken, or it names a class or a file that is
            not TFDS's or its own.
    """
    folder = find(name)
    if folder is None:
        raise ValueError(
            f"tfds data must be prepared before (tfds build {name} --file_format=array_record), "
            f"got {name!r} without array_record files in {_data_dir()}"
        )
    require_own_classes(folder / FEATURES)
    import tensorflow_datasets

    try:
        builder = tensorflow_datasets.builder_from_directory(folder)
        shards = [Path(shard) for split in builder.info.splits.values() for shard in split.filepaths]
    except Exception as broken:  # of JSON, protobuf, TFDS and NumPy: their messages quote files, over many lines
        raise ValueError(
            f"tfds data must have the dataset_info.json and {FEATURES} that TFDS wrote, got {folder}, whose cannot be "
            f"read ({type(broken).__name__})"
        ) from None
    for shard in shards:
        if shard.parent != folder:
            raise ValueError(f"tfds data must be in files of its folder, got {shard} for {folder}")
    return builder


def open_split(builder: Any, split: str, **options: Any) -> Any:
    """Return the records of a split, with random access; the options are those of the builder's `as_data_source`.

    Raises:
        ValueError: its files are missing or broken.
    """
    try:
        records = builder.as_data_source(split=split, **options)
    except Exception as broken:  # the readers' own errors, of several libraries
        name = f"{builder.info.full_name} {split}"
        raise ValueError(f"tfds data must be readable as array_record, got {name}: {_first_words(broken)}") from None
    read_record(records, len(records) - 1, f"{builder.info.full_name} {split}")  # as many as the description says
    return records


def read_record(records: Any, index: int, split: str) -> dict[str, Any]:
    """Return one record of an open split.

    Raises:
        ValueError: it is broken.
    """
    try:
        return records[index]
    except Exception as broken:  # the readers' own errors, of several libraries
        raise ValueError(f"a record must be readable, got {split} {index}: {_first_words(broken)}") from None


def _first_words(error: Exception) -> str:
    """Return the beginning of an error's message, which may go on over many lines."""
    return " ".join(str(error).split())[:100] or type(error).__name__


def find(name: str) -> Path | None:
    """Return the folder of the newest prepared version with random access, or None.

    Args:
        name: `NAME` or `NAME/CONFIG`, with or without a version, or a folder.
    """
    roots = [root for base in (Path(name).expanduser(), _data_dir() / name) for root in (base, *base.glob("*"))]
    folders = [root for root in roots if (root / "dataset_info.json").is_file() and any(root.glob("*.array_record*"))]
    return max(folders, key=lambda root: [int(part) for part in re.findall(r"\d+", root.name)], default=None)


def require_own_classes(path: Path) -> None:
    """Check that a features.json names classes of `tensorflow_datasets.core.features` alone, at any depth.

    Raises:
        ValueError: it names another one, or is no such file.
    """
    classes = []
    if path.is_file() and path.stat().st_size <= LARGEST:
        with contextlib.suppress(ValueError, RecursionError):  # no JSON
            classes = [*_classes(json.loads(path.read_bytes()))]
    if not classes:
        raise ValueError(f"tfds data must have a {FEATURES} that TFDS wrote, got {path}, which names no class")
    for name in classes:
        if not OWN_CLASS.fullmatch(name):
            text = name if re.fullmatch(r"[\w.]{1,100}", name) else "another text"
            raise ValueError(
                f"tfds data must have features of tensorflow_datasets.core.features alone, since the import of others "
                f"runs code, got {text} in {path}"
            )


def _classes(value: Any) -> Iterator[str]:
    """Yield what a features.json has in the place of classes; texts may hold JSON in turn."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(entry, str) and key.replace("_", "").lower() in CLASS_KEYS:
                yield entry
            yield from _classes(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _classes(entry)
    elif isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"'):
        try:
            inner = json.loads(value)
        except ValueError:  # a description that begins with a bracket
            return
        yield from _classes(inner)


def _data_dir() -> Path:
    return Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser()
