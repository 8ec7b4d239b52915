"""The rotary code of transformers, run on unit vectors: a model's rotation as a matrix, to compare with ours.

The matrix at position p is the product of the rotated unit vectors at p, as queries, with those at position 0, as keys:
it does not change with an order of channels that queries and keys share, which no logit depends on either.
"""

import functools
import importlib
import inspect
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pejax import Dims, adapt, init_params, make_encoding
from pejax._record.specs import EncodingSpec

APPLY = re.compile(r"\b(_?apply_(?:multimodal_|multidimensional_)?ro\w*|vision_apply_rotary_emb)\(")


COLUMNS_FIRST = ("gemma4_vision", "muse_glimmer_vision", "muse_spark_vision", "sam3_vit_model")
"""Model types whose code counts positions as (column, row); all others count (row, column), as we do."""


class Case(NamedTuple):
    """A default configuration with rotary parameters.

    Attributes:
        name: folder and class, "llama/LlamaConfig".
        config: the configuration.
        keys: content of its config.json.
    """

    name: str
    config: Any
    keys: dict[str, Any]


def default_configurations() -> Iterator[Case]:
    """Yield every configuration of transformers that has `rope_parameters` by default."""
    root = Path(str(importlib.import_module("transformers").__file__)).parent / "models"
    for path in sorted(root.glob("*/configuration_*.py")):
        if "rope_parameters" not in path.read_text(encoding="utf-8"):
            continue
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for name, item in inspect.getmembers(module, inspect.isclass):
            if name.endswith("Config") and item.__module__ == module.__name__:
                config: Any = item()
                keys = config.to_dict()
                if keys.get("rope_parameters"):
                    yield Case(f"{path.parent.name}/{name}", config, keys)


def layer_types(config: Any) -> list[str | None]:
    """Return the layer types that have rotary parameters of their own, or [None]."""
    nested = config.nested_rope_parameter_keys(config.rope_parameters)
    return [*nested] or [None]


def modeling(config: Any) -> types.ModuleType:
    """Return the module of a configuration's model, which may be that of another model."""
    name = type(config).__module__.replace("configuration_", "modeling_")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        auto = importlib.import_module("transformers.models.auto.modeling_auto")
        mappings = (auto.MODEL_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
        owner = next(names[config.model_type] for names in mappings if config.model_type in names)
        return importlib.import_module(getattr(importlib.import_module("transformers"), owner).__module__)


def _classes(module: types.ModuleType) -> list[type]:
    return [item for item in vars(module).values() if inspect.isclass(item) and item.__module__ == module.__name__]


@functools.cache
def _texts(path: str) -> dict[str, str]:
    """Return the source of each class and function of a module by name; `inspect` parses the whole module for each."""
    parts = re.split(r"^(?=(?:class|def) (\w+))", Path(path).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def source(item: Any) -> str:
    """Return the source of a class or function of transformers."""
    module = importlib.import_module(item.__module__)
    return _texts(str(module.__file__))[item.__name__]


def _config_name(item: type) -> str:
    """Return the name of the configuration class that a module's `__init__` is annotated with."""
    annotation = inspect.signature(item.__init__).parameters.get("config")
    return "" if annotation is None else getattr(annotation.annotation, "__name__", str(annotation.annotation))


def _kind(name: str) -> str:
    """Return the part of a model that the name of a class says: a tower, or the rest."""
    return next((kind for kind in ("Vision", "ViT", "Audio", "DiT", "Video", "Encoder") if kind in name), "")


def _of_config(config: Any, candidates: list[type]) -> list[type]:
    """Return the classes that are made for this configuration, as far as their annotations and names say."""
    own = type(config).__name__
    exact = [item for item in candidates if _config_name(item) == own]
    kind = [item for item in candidates if _kind(item.__name__) == _kind(own)]
    return exact or kind or candidates


def rotary_class(config: Any) -> type:
    """Return the class of transformers that computes the cosines and sines."""
    module, own = modeling(config), type(config).__name__
    users = [source(item) for item in _classes(module) if _config_name(item) == own]
    made = [name for text in users for name in re.findall(r"= (\w*(?:Rotary|RoPE|Rope)\w*Embedding\w*)\(", text)]
    if made:
        return getattr(module, made[0])
    named = [item for item in _classes(module) if re.search(r"Rotary|RoPE|Rope", item.__name__)]
    return _of_config(config, [item for item in named if "Attention" not in item.__name__])[0]


def rotation_function(config: Any) -> Callable:
    """Return the function of transformers that rotates queries and keys by cosines and sines."""
    module = modeling(config)
    users = {item: APPLY.findall(source(item)) for item in _classes(module)}
    users = {item: names for item, names in users.items() if names and re.search("Attention|MLA", item.__name__)}
    names = [name for item in _of_config(config, [*users]) for name in users[item]]
    if len({*names}) > 1 and hasattr(config, "rope_interleave"):
        names = [name for name in names if ("interleave" in name) == config.rope_interleave]
    return getattr(module, names[0])


def own_config(config: Any, layer_type: str | None) -> Any:
    """Return the configuration of layers of this type, whose heads may have another width."""
    try:
        return config if layer_type is None or not config.is_heterogeneous else config.per_layer_config[layer_type]
    except ValueError:  # other values than the heads' differ between the layers of this type
        return config


def head_channels(config: Any, layer_type: str | None) -> int:
    """Return the channels of a head of such layers."""
    config = own_config(config, layer_type)
    width = lambda: getattr(config, "embed_dim", None) or config.hidden_size
    return getattr(config, "head_dim", None) or width() // config.num_attention_heads


class Rotation:
    """A model's rotation of queries and keys at positions on one axis or more.

    Args:
        config: the configuration.
        layer_type: the type of its layers. None = all are alike.

    Raises:
        Exception: whatever the model's code raises that cannot be run on a configuration alone.
    """

    def __init__(self, config: Any, layer_type: str | None = None) -> None:
        self.config, self.layer_type = config, layer_type
        self.parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        self.rotary, self.function = rotary_class(config)(config).eval(), rotation_function(config)
        self.sections = getattr(self.rotary, "mrope_section", None)
        self.learned = [name for name, _ in self.rotary.named_parameters()]
        self.axes = self._axes()
        width = self._tables(np.zeros((2, self.axes)))[0].shape[-1]
        for channels in (head_channels(config, layer_type), width, 2 * width):
            try:
                self.channels = channels
                self.matrix(np.zeros(self.axes))
                return
            except RuntimeError:
                continue
        raise RuntimeError(f"{self.function.__name__} takes no tables of {width} channels")

    def _axes(self) -> int:
        """Return the number of axes of positions."""
        if self.parameters.get("rope_type") == "axial":
            return 3 if "THW" in source(type(self.rotary)) else 2
        return len(self.sections) if self.sections else 2 if "expand(2," in source(type(self.rotary)) else 1

    def _tables(self, positions: np.ndarray) -> tuple[Any, ...]:
        """Return the cosines and sines `(T, R)`, or the complex numbers, at positions `(T, A)`."""
        torch = importlib.import_module("torch")
        if self.config.model_type in COLUMNS_FIRST:
            positions = positions[:, ::-1].copy()
        ids, options = torch.tensor(positions), {} if self.layer_type is None else {"layer_type": self.layer_type}
        if self.parameters.get("rope_type") == "axial":
            shaped = ids if "freq[:, :, 0]" not in source(type(self.rotary)) else ids[None]
        else:
            shaped = ids[None, :, 0] if self.axes == 1 else ids.T[:, None]
        with torch.no_grad():
            result = self.rotary(torch.ones(1, 1, 1), shaped, **options)
        tables = result if isinstance(result, tuple) else (result,)
        return tuple(table.reshape(len(positions), table.shape[-1]) for table in tables)

    def _rotated(self, position: np.ndarray) -> np.ndarray:
        """Return the unit vectors `(D, D)` as queries at a position, rotated."""
        torch = importlib.import_module("torch")
        values, names = self._tables(position[None]), [*inspect.signature(self.function).parameters]
        basis = torch.eye(self.channels)[None, :, None]  # one head per channel, one token
        if "position_ids" in names and "multidimensional" in self.function.__name__:
            ids = torch.tensor(position)[None, None]  # for their number alone
            return self.function(basis.swapaxes(1, 2), *(table[None] for table in values), ids)[0, 0].numpy()
        if len(values) == 1:
            frequencies = values[0][None] if "xq" in names and self.config.model_type == "llama4_text" else values[0]
            heads_last = basis.swapaxes(1, 2)
            if "freqs_cis[:, :, None, :]" in source(self.function):
                return self.function(heads_last, heads_last, frequencies.reshape(1, 1, -1))[0][0, 0].numpy()
            return self.function(basis, basis, frequencies.reshape(1, 1, -1))[0][0, :, 0].numpy()
        if names[1] == "cos":
            return self.function(basis, *(table[None] for table in values))[0, :, 0].numpy()
        if "vision" in self.function.__name__:
            return self.function(basis[0].swapaxes(0, 1), basis[0].swapaxes(0, 1), *values)[0][0].numpy()
        return self.function(basis, basis, *(table[None] for table in values))[0][0, :, 0].numpy()

    def matrix(self, position: np.ndarray) -> np.ndarray:
        """Return the product `(D, D)` of queries at a position with keys at position 0."""
        beta = self.parameters.get("llama_4_scaling_beta")
        temperature = 1.0
        if beta:
            torch, length = importlib.import_module("torch"), self.parameters["original_max_position_embeddings"]
            scale = modeling(self.config).get_llama_4_attn_scale
            temperature = float(scale(torch.tensor(position[None, :1]), beta, length).squeeze())
        return temperature * self._rotated(position) @ self._rotated(np.zeros_like(position)).T


def our_matrix(spec: EncodingSpec, channels: int, position: np.ndarray, trained: int | None) -> np.ndarray:
    """Return the product `(D, D)` of our queries at a position with keys at position 0."""
    axes = len(position)
    dims = Dims(heads=1, head_dim=channels, axes=axes, extent=trained if axes == 1 else None)
    encoding = make_encoding(spec, dims)
    extent = int(position.max()) + 1
    params = adapt(encoding, init_params(encoding, jax.random.key(0)), extent if axes == 1 else (extent,) * axes)
    turn = lambda function, at: function(
        params, jnp.eye(channels)[:, None, None], jnp.broadcast_to(jnp.asarray(at), (channels, 1, axes))[..., 0]
        if axes == 1 else jnp.broadcast_to(jnp.asarray(at), (channels, 1, axes)),
    )[:, 0, 0]  # fmt: skip
    assert encoding.rotate is not None
    keys = turn(encoding.rotate_keys or encoding.rotate, np.zeros_like(position))
    return np.asarray(turn(encoding.rotate, position), np.float64) @ np.asarray(keys, np.float64).T


def difference(theirs: Rotation, spec: EncodingSpec, positions: list[np.ndarray]) -> float:
    """Return the largest difference of both rotations, in units of what float32 angles may be off.

    An angle in float32 is off by 3e-7 of it, a few times its rounding; beside that, 1e-5 is allowed. Where a model
    rotates a part of the head that it cuts out itself, ours must leave the other channels as they are.
    """
    trained = getattr(theirs.config, "max_position_embeddings", None)
    full = max(head_channels(theirs.config, theirs.layer_type), theirs.channels)
    cut = bool(getattr(theirs.config, "qk_rope_head_dim", None))
    channels = theirs.channels if cut else full
    one = our_matrix(spec, channels, np.minimum(1, np.maximum(positions[0], 0)).astype(positions[0].dtype), trained)
    speed = np.linalg.norm(one - np.diag(np.diag(one)), axis=1)
    worst = 0.0
    for position in positions:
        expected = np.eye(channels)
        expected[: theirs.channels, : theirs.channels] = theirs.matrix(position)
        allowed = 1e-5 + 3e-7 * position.max() * np.maximum(speed, 1e-9)
        worst = max(worst, float((np.abs(our_matrix(spec, channels, position, trained) - expected)
                                  / allowed[:, None]).max()))  # fmt: skip
    return worst
