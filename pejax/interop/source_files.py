"""The source of a folder or of a GGUF file: everything is read and checked but the values of tensors."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pejax.interop.architecture import Architecture, of_encoder
from pejax.interop.config import read_json, read_names
from pejax.interop.files import FLOATS, Reader, Tensor, list_tensors, reader, require_model
from pejax.interop.gguf_models import translate
from pejax.interop.gguf_parts import part_paths, same_model
from pejax.interop.model_config import read_model
from pejax.interop.slots import expected_shapes
from pejax.interop.source import Source, carried_tensors, copies_of, prefixes_in, source_of, with_prefix
from pejax.interop.stacks import TextConfig, head_stack, with_head
from pejax.interop.vision_slots import with_heads_of_file
from pejax.models import EncoderDecoderConfig, ViTConfig

TRUNKS = r"(?<!Head)(?<!Heads)Model$|For(Sequence|Token)Classification$|ForQuestionAnswering$|ForMultipleChoice$"
"""Regular expression of the names of classes of `transformers` without a language model's head."""
HEADS = r"(^|\.)(classifier|pre_classifier|score|qa_outputs|classification_head|span_heads?)\."
"""Regular expression of the names of tensors of heads that `load` does not read."""

WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes of the names of tensors in modules that torch has wrapped."""

MATTERS = r"(^|\.)\d+\.|rope|rotary|alibi|lora|quant"
"""Regular expression of the names of tensors in a layer, and of others without which the result would differ."""


def open_source(path: Path, ignore: str | Sequence[str] = (), sizes: ViTConfig | None = None) -> tuple[Source, Reader]:
    """Return the source of a folder or a GGUF file, and the function that reads the values of its tensors.

    Everything but the values is checked; `carried` is empty. Arguments as in `read_model`.

    Raises:
        ValueError: as `load`.
    """
    ignore = read_names("ignore", ignore)
    file = find_gguf(path)
    if file is None:
        require_model(path)
        source = replace(read_folder(path, ignore, sizes), origin=path.absolute())
        return source, reader(path, source.tensors)
    if sizes is not None:
        raise ValueError(f"config must be None for a GGUF file, which has the sizes, got {sizes}"[:400])
    config, architecture, model_config, tensors, read = translate(file, ignore)
    if not isinstance(model_config, ViTConfig):
        architecture, model_config = _text_of_file(config, model_config, architecture, tensors)
    try:
        source = source_of(config, model_config, architecture, tensors, ignore)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    _check_tensors(source, file, lambda name: file, described_by="its metadata")
    return replace(source, origin=part_paths(file)[0].absolute()), read


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file of a path: the file itself, or the one in a folder without config.json. None = no such file.

    Of a model in several files, it is the first in a folder.

    Raises:
        ValueError: a folder with several models.
    """
    if not path.is_dir():
        return path if path.suffix == ".gguf" else None
    files = [] if (path / "config.json").exists() else sorted(path.glob("*.gguf"))
    if len(files) > 1 and not same_model(files):
        names = ", ".join(file.name for file in files)
        rule = f"{path} must be the path of one GGUF file, or a folder with one model"
        raise ValueError(f"{rule}, got {names}"[:400])
    return files[0] if files else None


def read_folder(directory: Path, ignore: tuple[str, ...] = (), sizes: ViTConfig | None = None) -> Source:
    """Return the source of a folder. Everything but the values of tensors is checked; `carried` is empty.

    A tied head that is in the file is taken for a copy, which `load` compares. The heads of BERT and of vision
    transformers are left out where the file has none.

    Raises:
        ValueError: as `load`.
    """
    config = read_json(directory / "config.json")
    architecture, model_config = read_model(config, ignore, sizes)
    tensors = list_tensors(directory)
    if isinstance(model_config, ViTConfig):
        model_config = with_heads_of_file(model_config, architecture, tensors)
    else:
        architecture, model_config = _text_of_file(config, model_config, architecture, tensors)
    source = source_of(config, model_config, architecture, tensors, ignore)
    _check_tensors(source, directory, lambda name: directory / tensors[name].file, described_by="config.json")
    return source


def _text_of_file(
    config: Mapping[str, Any],
    model_config: TextConfig,
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
) -> tuple[Architecture, TextConfig]:
    """Return a text model's architecture and config, without what the file lacks: decoder of a pair of stacks, or head.

    Args:
        config: content of config.json.
        model_config: config of the whole model, as config.json describes it.
        architecture: architecture of the whole model.
        tensors: file, type and shape of every tensor, by name.
    """
    if isinstance(model_config, EncoderDecoderConfig) and not any("decoder." in name for name in tensors):
        model_config, architecture = model_config.encoder, of_encoder(architecture)
    prefixes = prefixes_in(architecture, tensors)
    weight_name = lambda part: with_prefix(architecture.names.get(part, ""), prefixes) + ".weight"
    lacks_prefix = prefixes == {architecture.prefix: ""}  # a trunk that was saved alone, without the class around it
    head = head_stack(model_config).head
    if head is not None and weight_name("head") not in tensors:
        is_trunk = _names_trunk(config) or (lacks_prefix and not head.tied and "dense" not in architecture.names)
        # A head that the file lacks is tied, unless the file is a trunk's. A config.json that states tying decides.
        states_tying = "tie_word_embeddings" in config
        head = None if is_trunk else head if states_tying else replace(head, tied=True)
    if "dense" in architecture.names and weight_name("dense") not in tensors:
        head = None
    return architecture, with_head(model_config, head)


def _names_trunk(config: Mapping[str, Any]) -> bool:
    """Whether config.json names a class of `transformers` without a language model's head."""
    names = config.get("architectures")
    return isinstance(names, list) and any(re.search(TRUNKS, str(name)) for name in names)


def _check_tensors(source: Source, path: Path, file_of: Callable[[str], Path], *, described_by: str) -> None:
    """Raise ValueError for a missing, extra, misshapen or mistyped tensor.

    Args:
        source: source to check.
        path: folder or file, named in the error for a missing tensor.
        file_of: function from the name of a tensor to its file, named in the other errors.
        described_by: name of the config or metadata that determines the shapes, named in errors.
    """
    expected, tensors = expected_shapes(source.slots), source.tensors
    expected |= {copy: expected[original] for copy, original in copies_of(source).items()}
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise ValueError(f"{path} must hold the tensor {missing[0]}, got none{_more(missing)}{_wrapped(tensors)}")
    carried = {*carried_tensors(source)}
    extra = [name for name in tensors if name not in expected and name not in carried]
    patterns = {name: name[: match.end()] + "*" for name in extra if (match := re.search(HEADS, name))}
    if patterns and not isinstance(source.config, ViTConfig):
        name, ignored = next(iter(patterns)), tuple(dict.fromkeys(patterns.values()))
        rule = f"load_classifier reads those of classifiers, ignore={ignored} loads the model without it"
        raise ValueError(f"{file_of(name)} has a head that load does not read, {name}{_more([*patterns])}: {rule}")
    inside = [name for name in extra if re.search(MATTERS, name.lower())]
    if inside:
        raise ValueError(f"{file_of(inside[0])} has a tensor without a part in the model: {inside[0]}{_more(inside)}")
    if extra:
        way_out = f"ignore={tuple(dict.fromkeys(map(_pattern, extra)))} carries such tensors unused"
        raise ValueError(f"{file_of(extra[0])} has an unknown tensor: {extra[0]}{_more(extra)}; {way_out}")
    for name, shape in expected.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise ValueError(f"{file_of(name)}: {name} must have shape {shape} per {described_by}, got {tensor.shape}")
        if tensor.dtype not in FLOATS:
            raise ValueError(f"{file_of(name)}: {name} must have the type {' or '.join(FLOATS)}, got {tensor.dtype}")


def _wrapped(names: Iterable[str]) -> str:
    """Return the end of an error where all names begin as in a module that torch has wrapped."""
    first = next((prefix for prefix in WRAPPERS if all(name.startswith(prefix) for name in names)), "")
    way = "torch's DataParallel or compile has wrapped the model that was saved: save the module within"
    return f"; every name in it begins with {first!r}: {way}" if first else ""


def _pattern(name: str) -> str:
    """Return the pattern of a tensor and of those beside it."""
    return name.rpartition(".")[0] + ".*" if "." in name else name


def _more(names: Sequence[str]) -> str:
    """Return how many names there are besides the first, for an error that gives the first."""
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
