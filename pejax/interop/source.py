"""The source of a loaded model: config, tensor names and types. It is checked before any weights are read."""

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pejax._ops.checks import check_choice
from pejax.interop.architecture import Architecture, of_encoder
from pejax.interop.architectures import architecture_of
from pejax.interop.config import Config, matches, read_json, read_names
from pejax.interop.files import FLOATS, WEIGHTS, Reader, Tensor, list_tensors, reader, require_model
from pejax.interop.gguf_models import translate
from pejax.interop.layouts import Piece
from pejax.interop.slots import Slot, expected_shapes, model_slots
from pejax.interop.stacks import ModelConfig, TextConfig, head_stack, with_head
from pejax.interop.towers import TOWERS
from pejax.interop.vision_slots import with_heads_of_file
from pejax.models import EncoderDecoderConfig, TransformerConfig, ViTConfig

TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Types of tensors by name, and their names in safetensors files."""
OLD_SUFFIXES = {".weight": ".gamma", ".bias": ".beta"}
"""Suffixes of the tensors of norms -> their suffixes in older files of BERT."""
TRUNKS = r"(?<!Head)(?<!Heads)Model$|For(Sequence|Token)Classification$|ForQuestionAnswering$|ForMultipleChoice$"
"""Regular expression of the names of classes of `transformers` without a language model's head."""
HEADS = r"(^|\.)(classifier|pre_classifier|score|qa_outputs|classification_head|span_heads?)\."
"""Regular expression of the names of tensors of heads that are not read yet."""


@dataclass(frozen=True)
class Source:
    """The source of a model: everything that `save` needs in addition to the parameters.

    Attributes:
        config_json: content of config.json.
        config: config of the model, without extensions of `load`; its head is tied if the file's is.
        tensors: file, type and shape of every tensor, by name.
        carried: values that are saved again, but not used: buffers, and rows of tables before the first position; in
            vision transformers, also the tokens to which such rows are added.
        head_copy: name of a head that repeats the table of token vectors. None = no such head.
        copies: other tensors that are in the file twice: name of the copy -> name of the original.
        ignored: patterns of other tensors that are carried.
    """

    config_json: Mapping[str, Any]
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    carried: Mapping[str, np.ndarray]
    head_copy: str | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @property
    def architecture(self) -> Architecture:
        """The architecture of the file; if it has only the encoder of an encoder-decoder, that of the encoder."""
        architecture = architecture_of(self.config_json)
        is_encoder = isinstance(self.config, TransformerConfig) and "encoder.norm" in architecture.names
        return of_encoder(architecture) if is_encoder else architecture

    @property
    def name(self) -> str:
        """The name of the architecture in config.json."""
        return name_of(self.config_json)

    @functools.cached_property
    def slots(self) -> list[Slot]:
        """The slots of all parameters, with the names of the file."""
        prefixes = prefixes_in(self.architecture, self.tensors)

        def with_file_name(piece: Piece) -> Piece:
            name = with_prefix(piece.tensor, prefixes)
            old_names = [name.removesuffix(new) + old for new, old in OLD_SUFFIXES.items() if name.endswith(new)]
            return piece._replace(tensor=old_names[0] if old_names and old_names[0] in self.tensors else name)

        renamed = []
        for slot in model_slots(self.config, self.architecture):
            added = None if slot.added is None else with_file_name(slot.added)
            renamed.append(slot._replace(pieces=tuple(map(with_file_name, slot.pieces)), added=added))
        return renamed


def name_of(config: Mapping[str, Any]) -> str:
    """Return the name of the architecture in a config.json."""
    return config.get("model_type", config.get("architecture"))


def read_config(
    config: Mapping[str, Any], ignore: str | Sequence[str] = (), sizes: ViTConfig | None = None
) -> ModelConfig:
    """Return the model config that a config.json describes.

    Args:
        config: content of config.json.
        ignore: patterns of paths of keys that may be left unread (`rope_scaling.finetuned`, `quant*`).
        sizes: config of a timm model whose config.json does not give its sizes. None = config.json gives them, or the
            name of the model in it does.

    Raises:
        ValueError: an unknown architecture, a key that is missing or unread, an unsupported value, or `sizes` for a
            config.json that has its own.
    """
    architecture = architecture_of(config)
    if sizes is not None:
        if "model_type" in config:
            raise ValueError(f"config must be None where config.json has the sizes, got {sizes}")
        return sizes
    c = Config(config)
    model_config = architecture.read(c)
    if not isinstance(model_config, TransformerConfig | EncoderDecoderConfig | ViTConfig):
        rule = f"the reader of {config.get('model_type')!r} must return a TransformerConfig, an EncoderDecoderConfig"
        raise ValueError(f"{rule} or a ViTConfig, got a {type(model_config).__name__}")
    c.close(architecture.inert, ignore, architecture.neutral)
    return model_config


def source_from_config(config: Mapping[str, Any], *, dtype: str = "float32") -> Source:
    """Return the source of a new model, which `save` then writes for others to read.

    Args:
        config: content of its config.json: `model_type` and the sizes.
        dtype: type of the tensors in the file: "float32", "bfloat16" or "float16".

    Raises:
        ValueError: a config that `load` would refuse, a multimodal model, or an unknown type.

    Examples:
        >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        >>> config = {"model_type": "llama", "vocab_size": 97, "max_position_embeddings": 64, **sizes}
        >>> source_from_config(config).config.layers[0].attention.pe
        rope(base=10000.0, pairing='half')
    """
    check_choice("dtype", dtype, tuple(TYPES))
    if "vision_config" in config or config.get("model_type") in TOWERS:
        rule = "names a model of several towers: only a loaded one can be saved, with the tensors of the other towers"
        raise ValueError(f"model_type {config.get('model_type')!r} {rule}")
    source = Source(dict(config), read_config(config), {}, {})
    shapes = expected_shapes(source.slots)
    source = replace(source, tensors={name: Tensor(WEIGHTS, TYPES[dtype], shape) for name, shape in shapes.items()})
    zeros = lambda shape: np.zeros(shape, FLOATS[TYPES[dtype]])
    shape_before = lambda table: (*table.shape[: table.axis], table.start, table.shape[-1])
    carried = {table.tensor: zeros(shape_before(table)) for table in tables_with_skipped_rows(source)}
    carried |= {token.tensor: zeros(token.shape) for token in tokens_with_rows(source)}
    return replace(source, carried=carried)


def open_source(path: Path, ignore: str | Sequence[str] = (), sizes: ViTConfig | None = None) -> tuple[Source, Reader]:
    """Return the source of a folder or a GGUF file, and the function that reads the values of its tensors.

    Everything but the values is checked; `carried` is empty. Arguments as in `read_config`.

    Raises:
        ValueError: as `load`.
    """
    ignore = read_names("ignore", ignore)
    file = find_gguf(path)
    if file is None:
        require_model(path)
        source = read_folder(path, ignore, sizes)
        return source, reader(path, source.tensors)
    config, tensors, read = translate(file, ignore)
    source = Source(config, read_config(config, (), sizes), tensors, {}, ignored=ignore)
    _check_tensors(source, file, lambda name: file, described_by="its metadata")
    return source, read


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file of a path: the file itself, or the one in a folder without config.json. None = no such file.

    Raises:
        ValueError: a folder with several of them.
    """
    if not path.is_dir():
        return path if path.suffix == ".gguf" else None
    files = [] if (path / "config.json").exists() else sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        rule = f"{path} must be the path of one GGUF file, or a folder with one: several files are not read yet"
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
    model_config, architecture = read_config(config, ignore, sizes), architecture_of(config)
    tensors = list_tensors(directory)
    if isinstance(model_config, ViTConfig):
        source = Source(config, with_heads_of_file(model_config, architecture, tensors), tensors, {})
    else:
        source = _text_source(config, model_config, architecture, tensors)
    source = replace(source, ignored=ignore)
    _check_tensors(source, directory, lambda name: directory / tensors[name].file, described_by="config.json")
    return source


def _text_source(
    config: Mapping[str, Any],
    model_config: TextConfig,
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
) -> Source:
    """Return the source of a text model, without what the file lacks: the decoder of an encoder-decoder, or the head.

    Args:
        config: content of config.json.
        model_config: config of the whole model, as config.json describes it.
        architecture: architecture of the whole model.
        tensors: file, type and shape of every tensor, by name.
    """
    if isinstance(model_config, EncoderDecoderConfig) and not any(name.startswith("decoder.") for name in tensors):
        model_config = model_config.encoder
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
    head_is_copy = weight_name("head") in tensors and head is not None and head.tied
    head_copy = weight_name("head") if head_is_copy else None
    copies = {copy: original for copy, original in architecture.copies.items() if copy in tensors}
    return Source(config, with_head(model_config, head), tensors, {}, head_copy, copies)


def _names_trunk(config: Mapping[str, Any]) -> bool:
    """Whether config.json names a class of `transformers` without a language model's head."""
    names = config.get("architectures")
    return isinstance(names, list) and any(re.search(TRUNKS, str(name)) for name in names)


def prefixes_in(architecture: Architecture, tensors: Collection[str]) -> Mapping[str, str]:
    """Return the map from prefixes of `Architecture.names` to those in a file: the first that fits one of its names."""
    maps = architecture.inside or ({}, {architecture.prefix: ""})
    fits = lambda prefixes: any(name.startswith(with_prefix(architecture.prefix, prefixes)) for name in tensors)
    return next(filter(fits, maps), {})


def with_prefix(name: str, prefixes: Mapping[str, str]) -> str:
    """Return a name of `Architecture.names` with the prefix that it has in a file."""
    ours, theirs = next(((ours, theirs) for ours, theirs in prefixes.items() if name.startswith(ours)), ("", ""))
    return theirs + name.removeprefix(ours)


def carried_tensors(source: Source) -> list[str]:
    """Return the names of the tensors that are carried whole."""
    pattern, ignored = source.architecture.ignored, matches(source.ignored)
    used = {*expected_shapes(source.slots), *source.copies, source.head_copy}
    unused = [name for name in source.tensors if name not in used]
    return [name for name in unused if (pattern and re.search(pattern, name)) or ignored(name)]


def tables_with_skipped_rows(source: Source) -> list[Piece]:
    """Return the pieces of tables of positions whose rows before the start of the piece are carried."""
    pieces = [slot.pieces[0] for slot in source.slots if slot.path[-1] == "table_0"]
    return [piece for piece in pieces if piece.start]


def tokens_with_rows(source: Source) -> list[Piece]:
    """Return the pieces of tokens to which rows of the table of positions are added."""
    return [slot.pieces[0] for slot in source.slots if slot.added is not None]


def table_name(source: Source) -> str:
    """Return the name of the table of token vectors in the file."""
    return next(slot.pieces[0].tensor for slot in source.slots if slot.path == ("embedding", "table"))


def copies_of(source: Source) -> dict[str, str]:
    """Return all tensors that repeat another one, the head included: name of the copy -> name of the original."""
    head = {} if source.head_copy is None else {source.head_copy: table_name(source)}
    return {**source.copies, **head}


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
        raise ValueError(f"{path} must hold the tensor {missing[0]}, got none{_more(missing)}")
    carried = {*carried_tensors(source)}
    extra = [name for name in tensors if name not in expected and name not in carried]
    heads = {name: match for name in extra if (match := re.search(HEADS, name))}
    if heads and not isinstance(source.config, ViTConfig):
        name, match = next(iter(heads.items()))
        rule = f"ignore=({name[: match.end()] + '*'!r},) loads the model without it"
        raise ValueError(f"{file_of(name)} has a head that is not read yet, {name}{_more([*heads])}: {rule}")
    if extra:
        way_out = f"ignore={(extra[0].rpartition('.')[0] + '.*',)} carries such tensors unused"
        raise ValueError(f"{file_of(extra[0])} has an unknown tensor: {extra[0]}{_more(extra)}; {way_out}")
    for name, shape in expected.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise ValueError(f"{file_of(name)}: {name} must have shape {shape} per {described_by}, got {tensor.shape}")
        if tensor.dtype not in FLOATS:
            raise ValueError(f"{file_of(name)}: {name} must have the type {' or '.join(FLOATS)}, got {tensor.dtype}")


def _more(names: Sequence[str]) -> str:
    """Return how many names there are besides the first, for an error that gives the first."""
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
