"""Folders of sentence-transformers: which modules follow the model, and what their files say."""

import json
import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pejax._calls.names import did_you_mean
from pejax.interop.config import Config, read_json
from pejax.interop.files import FLOATS, WEIGHTS, list_tensors, only_finite, reader, require_folder
from pejax.interop.other_folders import MODULES
from pejax.interop.pooling import POOLS, Dense, Normalize, torch_activation
from pejax.interop.similarity import SIMILARITIES

FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Older keys of pooling, in the order in which their vectors are concatenated, and the modes."""

AFTER = ("Dense", "Normalize", "Dropout")
"""Modules that may follow pooling; dropout does nothing in a trained model."""

SETTINGS = "config_sentence_transformers.json"
TRANSFORMERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""What the settings of a transformer are called after, in the order in which sentence-transformers looks for them."""
OVERRULING = ("model_args", "model_kwargs", "config_args", "config_kwargs")
"""Keys of a transformer's settings with entries that overrule those of config.json."""
RUNTIME = (
    "trust_remote_code", "revision", "code_revision", "local_files_only", "attn_implementation", "device_map", "dtype",
    "torch_dtype", "low_cpu_mem_usage", "use_safetensors", "use_cache", "unpad_inputs", "add_pooling_layer",
    "use_memory_efficient_attention",
)  # fmt: skip
"""Entries of these that say how torch runs the model."""
PACKAGE = "sentence_transformers."
"""Begin of the names of modules that are not code of the folder."""
EMPTY = ("tokenizer_args", "processor_kwargs", "processing_kwargs", "query_length", "document_length",
         "query_expansion", "tokenizer_name_or_path")  # fmt: skip
"""Keys of a transformer's settings that change its inputs, and are not read."""


class Layout(NamedTuple):
    """What a folder of sentence-transformers describes.

    Attributes:
        model: folder of the model and of its tokenizer.
        modes: modes of pooling, names out of `POOLS`.
        include_prompt: whether the tokens of a prompt are pooled.
        after: what follows pooling.
        max_length: most tokens of a text. None = the file does not say.
        lower_case: whether texts are lowered.
        settings: prompts, similarity and dimension, checked.
    """

    model: Path
    modes: tuple[str, ...]
    include_prompt: bool = True
    after: tuple[Dense | Normalize, ...] = ()
    max_length: int | None = None
    lower_case: bool = False
    settings: Mapping[str, Any] = {}


def read_layout(folder: Path) -> Layout:
    """Return the layout of a folder of sentence-transformers, or of a plain model, with a warning.

    Raises:
        ValueError: a module that is not read, or a file that is damaged or says something that is not computed.
    """
    if not os.path.lexists(folder / MODULES):
        return plain_layout(folder)
    settings, modules = read_settings(folder), read_modules(folder)
    names = [name for name, _ in modules]
    where = folder / MODULES
    if names[:2] != ["Transformer", "Pooling"] or not {*names[2:]} <= {*AFTER}:
        rule = f"{where}: modules must be Transformer, Pooling, then {', '.join(AFTER)}"
        raise ValueError(f"{rule}, got {', '.join(names) or 'none'}"[:400])
    (_, model), (_, pooling), *rest = modules
    max_length, lower_case = read_transformer(model, "feature-extraction", ("last_hidden_state", "token_embeddings"))
    modes, include_prompt = read_pooling(pooling / "config.json")
    after = tuple(
        read_dense(path) if name == "Dense" else read_normalize(path) for name, path in rest if name != "Dropout"
    )
    return Layout(model, modes, include_prompt, after, max_length, lower_case, settings)


def plain_layout(folder: Path) -> Layout:
    """Return the layout that sentence-transformers gives a folder without modules.json: mean, or the last token.

    Raises:
        ValueError: no folder of a model.
    """
    require_folder(folder)
    config = read_json(folder / "config.json")
    names = config.get("architectures")
    is_causal = config.get("is_causal", True) is not False
    generates = isinstance(names, list) and bool(names) and str(names[0]).endswith("ForCausalLM") and is_causal
    mode = "lasttoken" if generates else "mean"
    words = "the last token's state is" if generates else "the mean of the states is"
    warnings.warn(f"{folder} has no {MODULES}: {words} the vector of a text, as in sentence-transformers", stacklevel=4)
    return Layout(folder, (mode,))


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the class, without its modules of Python, and the folder of each module of modules.json.

    Raises:
        ValueError: no list of modules, a class that is not of sentence-transformers, or a path out of the folder.
    """
    where = folder / MODULES
    try:
        entries = json.loads(where.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} must be JSON, got {' '.join(str(error).split())}"[:400]) from None
    if not isinstance(entries, list):
        raise ValueError(f"{where} must be a list of modules, got a {type(entries).__name__}")
    modules = []
    for entry in entries:
        kind, path = (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ValueError(f"{where} must be a list of modules with type and path, got {str(entry)[:80]}")
        if not kind.startswith(PACKAGE):
            raise ValueError(f"{where}: the type of a module must begin with {PACKAGE}, got {kind!r}"[:400])
        if path and (PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts):
            raise ValueError(f"{where}: the path of a module must be within the folder, got {path!r}"[:400])
        modules.append((kind.rpartition(".")[2], folder / path))
    return modules


def read_transformer(folder: Path, task: str, outputs: tuple[str, str]) -> tuple[int | None, bool]:
    """Return the longest length and whether texts are lowered, from the settings beside the model.

    Args:
        folder: folder of the model.
        task: what the model must be for.
        outputs: what it must return, in the words of transformers and of sentence-transformers.

    Raises:
        ValueError: a setting that changes the inputs and is not read.
    """
    paths = [folder / f"sentence_{name}_config.json" for name in TRANSFORMERS]
    path = next((path for path in paths if path.exists()), paths[0])
    c = _strict(path)
    c.must("transformer_task", task)
    c.must("module_output_name", outputs[1])
    text = c.object("modality_config").get("text")
    expected = {"method": "forward", "method_output_name": outputs[0]}
    if text is not None and text != expected:
        raise ValueError(f"{path}: modality_config.text must be {expected}, got {str(text)[:80]}")
    for key in EMPTY:
        if value := c(key, None):
            raise ValueError(f"{path}: {key} must be absent, because it is not read, got {str(value)[:80]}")
    for key in OVERRULING:
        _require_runtime(c.object(key), folder, f"{path}: {key}")
    c.keys_read.add("unpad_inputs")
    max_length, lower_case = c.count("max_seq_length", None), c.flag("do_lower_case", False)
    _require_read(c)
    return max_length, lower_case


def _require_runtime(entries: Mapping[str, Any], folder: Path, where: str) -> None:
    """Raise ValueError for entries that change what the model computes: config.json says something else."""
    config = read_json(folder / "config.json") if entries else {}
    for key, value in entries.items():
        if key not in RUNTIME and (key not in config or config[key] != value):
            own = str(config.get(key, "absent"))[:80]
            raise ValueError(f"{where}: {key} must be as in config.json, {own}, got {str(value)[:80]}"[:400])


def read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return the modes of pooling, and whether the tokens of a prompt are pooled.

    Raises:
        ValueError: no mode, or an unknown one.
    """
    c = _strict(path, needed=True)
    flags = [mode for key, mode in FLAGS.items() if c.flag(key, False)]
    value = c("pooling_mode", flags)
    modes = [value] if isinstance(value, str) else value
    if not isinstance(modes, list) or not modes or not all(isinstance(mode, str) and mode in POOLS for mode in modes):
        raise ValueError(
            f"{path}: the modes of pooling must be out of {', '.join(POOLS)}, got {value or 'none'!r}"[:400]
        )
    c.keys_read.update(("word_embedding_dimension", "embedding_dimension"))
    include_prompt = c.flag("include_prompt", True)
    _require_read(c)
    return tuple(modes), include_prompt


def read_dense(folder: Path) -> Dense:
    """Return a linear layer, from its config and weights.

    Raises:
        ValueError: an activation that is not known, or weights of other shapes.
    """
    path = folder / "config.json"
    c = _strict(path, needed=True)
    inputs, outputs, has_bias = c.count("in_features"), c.count("out_features"), c.flag("bias", True)
    name = c.keys.get("activation_function", "torch.nn.Tanh")  # null is no activation of torch
    c.keys_read.add("activation_function")
    activation = torch_activation(name, f"{path}: activation_function")
    c.must("use_residual", False)
    _require_vectors(c)
    tensors = list_tensors(folder)
    expected = {"linear.weight": (outputs, inputs)} | ({"linear.bias": (outputs,)} if has_bias else {})
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != expected:
        raise ValueError(f"{folder / WEIGHTS} must hold {expected} per config.json, got {shapes}"[:400])
    read = read_float32(folder, tensors)
    bias = jnp.asarray(read("linear.bias")) if has_bias else None
    return Dense(jnp.asarray(read("linear.weight").T), bias, activation)


def read_normalize(folder: Path) -> Normalize:
    """Return the step that makes vectors of length 1; its folder may be missing, because Git keeps no empty one.

    Raises:
        ValueError: a module that normalizes another thing than vectors of texts.
    """
    _require_vectors(_strict(folder / "config.json"))
    return Normalize()


def read_float32(folder: Path, tensors: Mapping[str, Any]) -> Any:
    """Return the function from the name of a tensor to its finite values in float32.

    Raises:
        ValueError: tensors of other types than floats.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"{folder / tensor.file}: {name} must have the type {' or '.join(FLOATS)}, got {tensor.dtype}"
            )
    read = only_finite(reader(folder, tensors))
    return lambda name: read(name, ()).astype(np.float32)


def read_settings(folder: Path, model_type: str = "SentenceTransformer") -> dict[str, Any]:
    """Return prompts, default prompt, similarity and dimension of config_sentence_transformers.json, checked.

    Raises:
        ValueError: settings of another kind of model, or values out of range.
    """
    path = folder / SETTINGS
    c = Config(read_json(path) if path.exists() else {}, str(path))
    c.must("model_type", model_type)
    prompts = c.object("prompts")
    prompts = {name: "" if text is None else text for name, text in prompts.items()}
    if not all(isinstance(text, str) for text in prompts.values()):
        raise ValueError(f"{path}: prompts must map names to texts, got {str(prompts)[:80]}")
    default = c("default_prompt_name", None)
    if default is not None and default not in prompts:
        raise ValueError(f"{path}: default_prompt_name must be one of {', '.join(prompts)}, got {default!r}"[:400])
    similarity = c("similarity_fn_name", "cosine")
    if similarity not in SIMILARITIES:
        raise ValueError(
            f"{path}: similarity_fn_name must be one of {', '.join(SIMILARITIES)}, got {similarity!r}"[:400]
        )
    return {
        "prompts": prompts,
        "default_prompt": default,
        "similarity_name": similarity,
        "truncate_dim": c.count("truncate_dim", None),
    }


def require_prompt(name: object, prompts: Collection[str]) -> None:
    """Raise ValueError for the name of a prompt that is not there."""
    if not isinstance(name, str) or name not in prompts:
        hint = did_you_mean(str(name), prompts)
        rule = f"prompt must be the name of a prompt, out of {', '.join(prompts) or 'none'}"
        raise ValueError(f"{rule}, got {name!r}{hint}"[:400])


def _require_vectors(c: Config) -> None:
    """Raise ValueError for a module that reads or writes another thing than vectors of texts, or has another key."""
    c.must("module_input_name", "sentence_embedding")
    c.must("module_output_name", "sentence_embedding")
    _require_read(c)


def _strict(path: Path, *, needed: bool = False) -> Config:
    """Return the config of a module, empty where there is no file and it is not needed."""
    return Config(read_json(path) if needed or path.exists() else {}, str(path))


def _require_read(c: Config) -> None:
    """Raise ValueError for a key of a module's config that nobody read."""
    unread = {key: value for key, value in c.keys.items() if key not in c.keys_read and value is not None}
    if unread:
        entries = ", ".join(f"{key} = {str(value)[:40]}" for key, value in sorted(unread.items()))
        raise ValueError(f"{c.where}: every key must be known, got {entries}"[:400])
