"""The source of a model: its config, its architecture, and what the tensors of its file are for."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pejax._ops.checks import check_choice
from pejax.interop.architecture import Architecture
from pejax.interop.config import matches
from pejax.interop.files import FLOATS, WEIGHTS, Tensor
from pejax.interop.layouts import Piece
from pejax.interop.model_config import name_of, read_model
from pejax.interop.slots import Slot, expected_shapes, model_slots
from pejax.interop.stacks import ModelConfig, head_stack
from pejax.interop.towers import TOWERS
from pejax.models import ViTConfig

TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Types of tensors by name, and their names in safetensors files."""
OLD_SUFFIXES = {".weight": ".gamma", ".bias": ".beta"}
"""Suffixes of the tensors of norms -> their suffixes in older files of BERT."""


@dataclass(frozen=True)
class Source:
    """The source of a model: everything that `save` needs in addition to the parameters.

    Attributes:
        config_json: content of config.json.
        config: config of the model, without extensions of `load`; its head is tied if the file's is.
        tensors: file, type and shape of every tensor, by name.
        carried: values that are saved again, but not used: buffers, and rows of tables before the first position; in
            vision transformers, also the tokens to which such rows are added.
        architecture: names and layouts of the tensors; where the file has only the encoder of an encoder-decoder, those
            of the encoder.
        slots: slots of all parameters, with the names of the file.
        head_copy: name of a head that repeats the table of token vectors. None = no such head.
        copies: other tensors that are in the file twice: name of the copy -> name of the original.
        ignored: patterns of other tensors that are carried.
        origin: folder or GGUF file that the model was loaded from, whose small files `save` copies. None = a new model.
    """

    config_json: Mapping[str, Any]
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    carried: Mapping[str, np.ndarray]
    architecture: Architecture = field(repr=False, compare=False)
    slots: Sequence[Slot] = field(repr=False, compare=False)
    head_copy: str | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    origin: Path | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name of the architecture in config.json."""
        return name_of(self.config_json)


def source_of(
    config_json: Mapping[str, Any],
    config: ModelConfig,
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    ignored: tuple[str, ...] = (),
) -> Source:
    """Return the source of these tensors, without carried values; arguments are its attributes."""
    prefixes = prefixes_in(architecture, tensors)

    def with_file_name(piece: Piece) -> Piece:
        name = with_prefix(piece.tensor, prefixes)
        old_names = [name.removesuffix(new) + old for new, old in OLD_SUFFIXES.items() if name.endswith(new)]
        return piece._replace(tensor=old_names[0] if old_names and old_names[0] in tensors else name)

    slots = []
    for slot in model_slots(config, architecture):
        added = None if slot.added is None else with_file_name(slot.added)
        slots.append(slot._replace(pieces=tuple(map(with_file_name, slot.pieces)), added=added))
    head = None if isinstance(config, ViTConfig) else head_stack(config).head
    head_name = with_prefix(architecture.names.get("head", ""), prefixes) + ".weight"
    head_copy = head_name if head is not None and head.tied and head_name in tensors else None
    copies = {copy: original for copy, original in architecture.copies.items() if copy in tensors}
    return Source(config_json, config, tensors, {}, architecture, slots, head_copy, copies, ignored)


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
    architecture, model_config = read_model(config)
    source = source_of(dict(config), model_config, architecture, {})
    shapes = expected_shapes(source.slots)
    source = replace(source, tensors={name: Tensor(WEIGHTS, TYPES[dtype], shape) for name, shape in shapes.items()})
    zeros = lambda shape: np.zeros(shape, FLOATS[TYPES[dtype]])
    shape_before = lambda table: (*table.shape[: table.axis], table.start, table.shape[-1])
    carried = {table.tensor: zeros(shape_before(table)) for table in tables_with_skipped_rows(source)}
    carried |= {token.tensor: zeros(token.shape) for token in tokens_with_rows(source)}
    return replace(source, carried=carried)


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
