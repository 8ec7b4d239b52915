"""Models in GGUF files, read as the Hugging Face folders that they were made from.

The metadata of a GGUF file holds the same information as config.json under other keys, and the same tensors have other
names, and sometimes another order of rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pejax.interop.architecture import Architecture
from pejax.interop.architectures import ARCHITECTURES as FOLDERS
from pejax.interop.files import Reader, Tensor
from pejax.interop.gguf_architectures import ARCHITECTURES, GgufArchitecture, config_of
from pejax.interop.gguf_file import GgufFile
from pejax.interop.gguf_keys import Keys
from pejax.interop.gguf_parts import read_gguf
from pejax.interop.gguf_tensors import origins, reader_of, tensors_of
from pejax.interop.model_config import read_model
from pejax.interop.stacks import ModelConfig


class Translated(NamedTuple):
    """A GGUF file as a Hugging Face folder.

    Attributes:
        config: content of its config.json.
        architecture: names and layouts of its tensors.
        model_config: config of the model.
        tensors: tensors by the names of Hugging Face; quantized types become F32.
        read: function that reads the values of the tensors.
    """

    config: dict[str, Any]
    architecture: Architecture
    model_config: ModelConfig
    tensors: dict[str, Tensor]
    read: Reader


def translate(path: Path, ignore: Sequence[str] = ()) -> Translated:
    """Return a GGUF file as a Hugging Face folder; of a model in several files, `path` may be any of them.

    Raises:
        ValueError: a damaged file, an architecture that is not known, or metadata that is missing or unread.
    """
    file = read_gguf(path)
    if file.keys.get("general.type", "model") != "model":
        raise ValueError(f"{path}: general.type must be 'model', got {str(file.keys['general.type'])[:80]!r}")
    entry = _entry(file)
    k = Keys(file)
    config = config_of(k, entry)
    k.config.close(ignore=ignore)
    try:
        architecture, model_config = read_model(config)
    except ValueError as error:
        raise ValueError(f"{path}, of a {entry.model_type}: {error}") from None
    origin_of = origins(file, entry.changes, entry.modules, architecture, model_config, k.factors)
    return Translated(config, architecture, model_config, tensors_of(file, origin_of), reader_of(file, origin_of))


def _entry(file: GgufFile) -> GgufArchitecture:
    """Return the entry of the architecture of a file.

    Raises:
        ValueError: one that is not known, or of a family that is not read.
    """
    family = file.keys.get("general.architecture")
    known = {name: entry for name, entry in ARCHITECTURES.items() if entry.model_type in FOLDERS}
    if not isinstance(family, str) or family not in known:
        rule = f"general.architecture must be one of {', '.join(sorted(known))}; others are not read yet"
        raise ValueError(f"{file.path}: {rule}, got {family!r}"[:800])
    return known[family]
