"""Load models from Hugging Face folders (config.json and safetensors files) or GGUF files; save them as folders."""

import os
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from pejax._ops.checks import check_choice
from pejax._record.specs import Extension
from pejax.interop.beside import keep_files
from pejax.interop.extended_config import extended_config
from pejax.interop.fields import own_model
from pejax.interop.files import FLOATS, only_finite, write_folder
from pejax.interop.model_config import code_note
from pejax.interop.parameters import PARAMS, kept_type, on_devices, shardings, values_in
from pejax.interop.slots import empty_model
from pejax.interop.source import Source, copies_of, tables_with_skipped_rows
from pejax.interop.source_files import open_source
from pejax.interop.source_values import with_values
from pejax.interop.stacks import ModelConfig, map_stacks, stacks
from pejax.interop.vision_slots import without_row
from pejax.models import Decoder, EncoderDecoder, TransformerConfig, ViT, ViTConfig
from pejax.models.configs.model import DTYPES


def load(
    path: str | os.PathLike[str],
    *,
    extend: str | Extension | None = None,
    dtype: str = "float32",
    params: str = "float32",
    mesh: Mesh | None = None,
    config: ViTConfig | None = None,
    ignore: str | Sequence[str] = (),
    finite: bool = True,
) -> tuple[Decoder | EncoderDecoder | ViT, Source]:
    """Load a model from a Hugging Face folder or a GGUF file.

    Args:
        path: a folder with config.json and model.safetensors, or with several safetensors files and their index; or a
            GGUF file, or a folder with one.
        extend: an extension of the encodings, such as "yarn(factor=4)" or "log_n", added to the file's own. None = the
            file's own.
        dtype: type of the computation, "float32" or "bfloat16".
        params: type of the parameters: "float32"; "bfloat16"; or "file", the types of the file, and float32 where
            weights are quantized or the tensors of one parameter have different types. Parameters of encodings are
            always float32.
        mesh: mesh of the devices that hold the parameters, which are split over its axes `fsdp` and `tensor`, as in the
            trainers. Parameters are read one shard at a time. A warning names the axes whose size is not a multiple of
            the number of devices; they are not split. None = the default device.
        config: config of a vision transformer of rope-vit whose sizes are neither in config.json nor in the name of the
            model: timm saves no sizes. None = config.json or the name gives them.
        ignore: keys of config.json, or of the metadata of a GGUF file, that may be left unread, and tensors that are
            carried: a pattern in which `*` stands for any text, `"classifier.*"`, or several,
            `("rope_scaling.finetuned", "classifier.*")`. Keys and tensors that the model reads are read even so; `save`
            writes all of them back.
        finite: whether NaN and infinite weights are refused.

    Returns:
        The model, an `EncoderDecoder` where the file has an encoder and a decoder, a `ViT` where it has a vision
        transformer, else a `Decoder`; and the source that `save` needs.

    Raises:
        ValueError: an unknown architecture; a key of config.json that is missing, unread or has an unsupported
            value; a tensor that is missing, extra, misshapen, mistyped or not finite; a damaged file; a quantization
            that is not read; an extension that the encoding refuses; a mesh of other axes than
            `pejax.models.sharding.AXES`.
    """
    check_choice("dtype", dtype, DTYPES)
    check_choice("params", params, PARAMS)
    source, read = open_source(Path(path), ignore, config)
    if code := own_model(source.config_json):
        warnings.warn(code_note(source.config_json, code), stacklevel=2)
    source = with_values(source, read)
    read = only_finite(read) if finite else read
    model_config = map_stacks(source.config.extended(extend), lambda stack: replace(stack, dtype=dtype))
    graph, state = nnx.split(empty_model(model_config))
    layers = [layer for stack in stacks(model_config).values() for layer in stack.layers]
    sharding_of = {} if mesh is None else shardings(state, layers, mesh)
    slots_of = defaultdict(list)
    for slot in source.slots:
        slots_of[slot.path].append(slot)
    variables = []
    for path_in_model, variable in nnx.to_flat_state(state):
        slots, shape = slots_of[path_in_model], variable.shape
        values = partial(values_in, slots, shape, kept_type(params, slots, source.tensors), read)
        if sharding_of:
            array = on_devices(shape, sharding_of[path_in_model], values)
        else:
            array = jnp.asarray(values((slice(None),) * len(shape)))
        variables.append((path_in_model, variable.replace(array)))
    return nnx.merge(graph, nnx.from_flat_state(variables)), source


def save(model: Decoder | EncoderDecoder | ViT, directory: str | os.PathLike[str], source: Source) -> None:
    """Save a model as a Hugging Face folder, which appears whole or not at all.

    Tensors have the names, types and files of the source. An extension that the model was loaded with is written into
    config.json if the format has a form for it: `linear`, `ntk`, `dynamic_ntk`, `yarn`, `llama3` or `longrope`, with a
    factor, in a model whose own config.json has no scaling. The small files of the folder that the model was loaded
    from are copied: tokenizer, chat template, settings of generation, processors, modules of sentence-transformers. Of
    a GGUF file, its tokenizer and chat template are written. A warning names what cannot be kept.

    Args:
        model: model of the source's config, or of this config with an extension.
        directory: path of the folder, which must not exist yet or be empty.
        source: result of `load` or `source_from_config`.

    Raises:
        ValueError: a model of another config than the source's, an extension that config.json cannot hold, a value
            that does not fit into the type of the file, or a folder that is not empty.
    """
    config = _config(model, source)
    params = dict(nnx.to_flat_state(nnx.state(model)))
    slots_of = defaultdict(list)  # by tensor: its slots, and the number of its piece in each
    for slot in source.slots:
        for number, piece in enumerate(slot.pieces):
            slots_of[piece.tensor].append((slot, number))
    rows_before = {table.tensor: table.before for table in tables_with_skipped_rows(source)}
    copies = copies_of(source)

    def values(name: str) -> np.ndarray:
        tensor = source.tensors[name]
        if name not in slots_of and name not in copies:
            return source.carried[name]
        value = np.empty(tensor.shape, FLOATS[tensor.dtype])
        if name in rows_before:
            value[rows_before[name]] = source.carried[name]
        for slot, number in slots_of[copies.get(name, name)]:
            array = np.asarray(params[slot.path][...])
            piece = slot.layout.split(array if slot.row is None else array[slot.row])[number]
            if slot.added is not None:
                piece = without_row(piece, source.carried[name], source.carried[slot.added.tensor][slot.added.index])
            value[slot.pieces[number].index] = _narrowed(name, piece, value.dtype)
        return value

    notes: list[str] = []
    finish = lambda folder: notes.extend([] if source.origin is None else keep_files(source.origin, folder))
    write_folder(Path(directory), config, source.tensors, values, finish)
    for note in notes:  # where warnings are errors, the folder is there
        warnings.warn(note, stacklevel=2)


def _config(model: Decoder | EncoderDecoder | ViT, source: Source) -> Mapping[str, Any]:
    """Return the config.json of a model: as in the source, with the extension that the model was loaded with."""
    model_config, source_config = map(_storable, (model.config, source.config))
    names = [config_field.name for config_field in fields(source_config)]
    changed = [name for name in names if getattr(model_config, name, None) != getattr(source_config, name)]
    if type(model_config) is type(source_config) and not changed:
        return source.config_json
    rule = "a saved model must have the config of its source, but for extensions"
    if type(model_config) is not type(source_config):
        raise ValueError(f"{rule}, got a {type(model_config).__name__}")
    if _without_extensions(model_config) != _without_extensions(source_config):
        raise ValueError(f"{rule}, got another {' and '.join(changed)}")
    if isinstance(model_config, TransformerConfig) and isinstance(source_config, TransformerConfig):
        return extended_config(source.config_json, source_config, model_config)
    raise ValueError(f"config.json of {source.name} cannot hold an extension, got another {changed[0]}")


def _storable(config: ModelConfig) -> ModelConfig:
    """Return the config with the defaults of settings that no file stores: `dtype` and `stochastic_depth`."""
    config = map_stacks(config, lambda stack: replace(stack, dtype="float32"))
    return replace(config, stochastic_depth=0.0) if isinstance(config, ViTConfig) else config


def _without_extensions(config: ModelConfig) -> ModelConfig:
    """Return the config without the extensions of its layers."""
    plain = lambda layer: replace(layer, attention=replace(layer.attention, pe=layer.attention.pe.without_extension()))
    return map_stacks(config, lambda stack: replace(stack, layers=tuple(map(plain, stack.layers))))


def _narrowed(name: str, value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return values in the type of the file.

    Raises:
        ValueError: a finite value that becomes infinite.
    """
    with np.errstate(over="ignore"):
        narrow = value.astype(dtype)
    if dtype != value.dtype and np.any(np.isinf(narrow) & np.isfinite(value)):
        largest = np.max(np.abs(value))
        raise ValueError(f"{name} must fit into the type of the file, {dtype}, got a value of magnitude {largest:.3g}")
    return narrow
