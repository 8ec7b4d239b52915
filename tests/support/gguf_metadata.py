"""GGUF files of metadata alone: tokenizers and settings, without a model."""

from pathlib import Path
from typing import Any

from gguf import GGUFValueType, GGUFWriter


def write_metadata(path: Path, **keys: Any) -> Path:
    """Write a GGUF file with these keys, with `__` in place of a dot, and return its path."""
    writer = GGUFWriter(path, "llama")
    for name, value in keys.items():
        writer.add_key_value(name.replace("__", "."), value, GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
