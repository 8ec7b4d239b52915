"""The tensors of a GGUF file as those of the Hugging Face folder that it was made from: names, shapes and values.

The converter of llama.cpp changes some: it orders rows of queries and keys so that channels that are rotated together
are neighbors, adds 1 to the weights of norms that are offsets from 1, puts queries, keys and values of all heads one
after the other, and stacks experts. The changes are undone while values are read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from pejax.interop.architecture import Architecture
from pejax.interop.files import WEIGHTS, Reader, Tensor
from pejax.interop.gguf_file import PLAIN, GgufFile, read_values
from pejax.interop.stacks import ModelConfig, head_stack
from pejax.models import AttentionConfig, LayerConfig, MoEConfig, ViTConfig

MODULES = {
    "table": "token_embd", "position": "position_embd", "types": "token_types", "embed_norm": "token_embd_norm",
    "norm": "output_norm", "head": "output",
    **{part: "blk.{n}." + name for part, name in {
        "norm_attention": "attn_norm", "norm_attention_after": "post_attention_norm", "norm_mlp": "ffn_norm",
        "norm_attention_sum": "attn_output_norm", "norm_mlp_sum": "layer_output_norm",
        "norm_mlp_after": "post_ffw_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "qkv": "attn_qkv",
        "o": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "sinks": "attn_sinks",
        "gate": "ffn_gate", "up": "ffn_up", "gate_up": "ffn_up", "down": "ffn_down", "router": "ffn_gate_inp",
    }.items()},
}  # fmt: skip
"""The parts of `Architecture.names`, and the names of GGUF files."""
EXPERTS = ("gate", "up", "down")
"""Parts that every expert has; in GGUF files, one tensor holds those of all experts."""
JOINED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
"""Parts of one tensor; where an architecture has one, its parts are not read one by one."""

Change: TypeAlias = Callable[[np.ndarray, AttentionConfig], np.ndarray]
"""Function from the values in a GGUF file, and the attention of the layer, to those of Hugging Face."""


def neighbors(heads: str) -> Change:
    """Return the change of rows in which channels c and c + D/2 of a head are neighbors; back to halves.

    Args:
        heads: field of the config of the attention with the number of heads.
    """

    def halves(values: np.ndarray, attention: AttentionConfig) -> np.ndarray:
        pairs = values.reshape(getattr(attention, heads), -1, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)

    return halves


def by_key_head(values: np.ndarray, attention: AttentionConfig) -> np.ndarray:
    """Return rows grouped by key head, of rows of all queries, then all keys, then all values."""
    heads, kv_heads, channels = attention.heads, attention.kv_heads, attention.head_dim
    parts = np.split(values, [heads * channels, (heads + kv_heads) * channels])
    groups = [part.reshape(kv_heads, -1, channels, *values.shape[1:]) for part in parts]
    return np.concatenate(groups, axis=1).reshape(values.shape)


def minus_one(values: np.ndarray, _: AttentionConfig) -> np.ndarray:
    """Return the offsets from 1 of the weights of a norm."""
    return values.astype(np.float32) - np.float32(1)


def transposed(values: np.ndarray, _: AttentionConfig) -> np.ndarray:
    """Return the kernel of a linear layer whose file of Hugging Face holds it as `(in, out)`."""
    return values.T


class Origin(NamedTuple):
    """Where a tensor of Hugging Face is in a GGUF file.

    Attributes:
        sources: names of the tensors that it consists of.
        shape: its shape.
        rows: rows of the source that it consists of.
        is_row: whether it is one row, without the first axis.
        change: function of the values of all sources. None = they are those of Hugging Face.
        exact: whether the values keep their type; if not, they are in float32.
    """

    sources: tuple[str, ...]
    shape: tuple[int, ...]
    rows: slice = slice(None)
    is_row: bool = False
    change: Callable[..., np.ndarray] | None = None
    exact: bool = True


def origins(
    file: GgufFile,
    changes: Mapping[str, Change],
    modules: Callable[[LayerConfig], Mapping[str, str]],
    architecture: Architecture,
    config: ModelConfig,
    settings: set[str],
) -> dict[str, Origin]:
    """Map the name of every tensor of Hugging Face to its origin; what has no part in the model keeps its name.

    Args:
        file: the file.
        changes: changes of the tensors, by part.
        modules: function from the config of a layer to names of the file by part that are not those of `MODULES`.
        architecture: names of Hugging Face.
        config: config of the model.
        settings: names of tensors that were read as settings of the encoding.
    """
    if isinstance(config, ViTConfig):
        raise ValueError(f"{file.path} must hold a model of text, got one of images")
    layers, result = head_stack(config).layers, dict[str, Origin]()
    for name in file.tensors:
        if name in settings:
            continue
        number = re.match(r"blk\.(\d+)\.", name)
        # A layer that the metadata do not count is named as those before it, and refused as an extra tensor.
        layer = layers[min(int(number[1]), len(layers) - 1) if number else 0]
        names = {**architecture.names, **architecture.by_layer(layer)}
        tensor = _Tensor(
            file, name, number[1] if number else "", layer, _modules(names, modules(layer), layer), changes
        )
        result |= dict(tensor.origins(names, architecture.experts == "stacked"))
    return result


def _modules(names: Mapping[str, str], own: Mapping[str, str], layer: LayerConfig) -> dict[str, str]:
    """Return the part of each name in the GGUF file."""
    absent = {part for joined, parts in JOINED.items() if joined in names for part in parts}
    has_experts = isinstance(layer.mlp, MoEConfig)
    if has_experts:
        absent = absent - {*EXPERTS} | {"gate_up"}
    suffix = lambda part: "_exps" if has_experts and part in EXPERTS else ""
    parts = {part: name + suffix(part) for part, name in {**MODULES, **own}.items() if part not in absent}
    is_named = lambda part: part in names or (has_experts and part in EXPERTS)
    return {name: part for part, name in parts.items() if is_named(part)}


class _Tensor(NamedTuple):
    """A tensor of a GGUF file, and what is known of its layer."""

    file: GgufFile
    name: str
    number: str
    layer: LayerConfig
    parts: Mapping[str, str]
    changes: Mapping[str, Change]

    def origins(self, names: Mapping[str, str], stacked: bool) -> Iterator[tuple[str, Origin]]:
        """Yield the tensors of Hugging Face that it is, or is a part of."""
        module, _, leaf = self.name.rpartition(".")
        part = self.parts.get(module.replace(f"blk.{self.number}.", "blk.{n}.", 1) if self.number else module)
        shape = self.file.tensors[self.name].shape
        if stacked and part in EXPERTS and isinstance(self.layer.mlp, MoEConfig):
            yield from self._stacked(names, part, leaf)
            return
        if part is None and module.endswith(".attn_qkv"):
            yield from self._split(names, leaf)
            return
        theirs = names.get(part or "", "").replace("{n}", self.number)
        if not theirs:
            yield self.name, Origin((self.name,), shape)
        elif "{e}" in theirs or "{h}" in theirs:
            yield from self._rows(theirs, leaf)
        else:
            full = theirs if part == "sinks" else f"{theirs}.{leaf}"
            yield full, self._changed(part or "", Origin((self.name,), shape), leaf)

    def _changed(self, part: str, origin: Origin, leaf: str = "weight") -> Origin:
        """Return the origin with the change of its part."""
        change = self.changes.get(part)
        if change is None or (leaf == "bias" and change in (minus_one, transposed)):
            return origin
        shape = origin.shape[::-1] if change is transposed else origin.shape
        attention = self.layer.attention
        return origin._replace(
            shape=shape, change=lambda values: change(values, attention), exact=change is not minus_one
        )

    def _rows(self, theirs: str, leaf: str) -> Iterator[tuple[str, Origin]]:
        """Yield the tensors of all experts, or of all heads, which are rows of this one."""
        shape, letter = self.file.tensors[self.name].shape, "e" if "{e}" in theirs else "h"
        attention, mlp = self.layer.attention, self.layer.mlp
        heads = attention.kv_heads if "attn_k" in self.name else attention.heads
        count = mlp.count if letter == "e" and isinstance(mlp, MoEConfig) else heads
        if shape[0] != count or len(shape) < 2:
            rule = f"must have {count} {'experts' if letter == 'e' else 'heads'} on its first axis"
            raise ValueError(f"{self.file.path}: {self.name} {rule}, got the shape {shape}")
        for row in range(count):
            name = theirs.replace(f"{{{letter}}}", str(row))
            yield f"{name}.{leaf}", Origin((self.name,), shape[1:], slice(row, row + 1), is_row=True)

    def _split(self, names: Mapping[str, str], leaf: str) -> Iterator[tuple[str, Origin]]:
        """Yield queries, keys and values of one tensor, where Hugging Face has three."""
        attention, (rows, *rest) = self.layer.attention, self.file.tensors[self.name].shape
        heads_of = {"q": attention.heads, "k": attention.kv_heads, "v": attention.kv_heads}
        if rows != sum(heads_of.values()) * attention.head_dim:
            rule = f"must have the rows of {sum(heads_of.values())} heads of {attention.head_dim} channels"
            raise ValueError(f"{self.file.path}: {self.name} {rule}, got {rows}")
        start = 0
        for part, heads in heads_of.items():
            stop = start + heads * attention.head_dim
            origin = Origin((self.name,), (stop - start, *rest), slice(start, stop))
            theirs = names.get(part, self.name).replace("{n}", self.number)
            yield f"{theirs}.{leaf}", self._changed(part, origin)
            start = stop

    def _stacked(self, names: Mapping[str, str], part: str, leaf: str) -> Iterator[tuple[str, Origin]]:
        """Yield the tensor of all experts, whose kernels are `(in, out)`; the columns of gate and up alternate."""
        shape, suffix = self.file.tensors[self.name].shape, "_bias" if leaf == "bias" else ""
        swapped = (lambda values: values) if suffix else (lambda values: values.swapaxes(-1, -2))
        turned = lambda shape: shape if suffix else (shape[0], shape[2], shape[1])
        if len(shape) != (2 if suffix else 3):
            raise ValueError(f"{self.file.path}: {self.name} must have {2 if suffix else 3} axes, got {shape}")
        if part == "down":
            theirs = names["down"].replace("{n}", self.number) + suffix
            yield theirs, Origin((self.name,), turned(shape), change=swapped)
            return
        other = self.name.replace("_gate_" if part == "gate" else "_up_", "_up_" if part == "gate" else "_gate_")
        if other not in self.file.tensors or self.file.tensors[other].shape != shape:
            raise ValueError(f"{self.file.path} must hold {other} of the shape {shape} of {self.name}, got another")
        if part == "gate":
            join = lambda gate, up: swapped(np.stack([gate, up], axis=2).reshape(shape[0], -1, *shape[2:]))
            joined = turned((shape[0], 2 * shape[1], *shape[2:]))
            theirs = names["gate_up"].replace("{n}", self.number) + suffix
            yield theirs, Origin((self.name, other), joined, change=join)


def tensors_of(file: GgufFile, origin_of: Mapping[str, Origin]) -> dict[str, Tensor]:
    """Return types and shapes of the tensors of Hugging Face; quantized types become F32."""
    kind_of = {name: file.tensors[origin.sources[0]].kind for name, origin in origin_of.items()}
    kept = lambda name: kind_of[name] in PLAIN and origin_of[name].exact
    return {
        name: Tensor(WEIGHTS, kind_of[name] if kept(name) else "F32", origin.shape, kind_of[name])
        for name, origin in origin_of.items()
    }


def reader_of(file: GgufFile, origin_of: Mapping[str, Origin]) -> Reader:
    """Return the function to the values of the tensors of Hugging Face."""

    def read(name: str, index: tuple[slice, ...]) -> np.ndarray:
        origin = origin_of[name]
        if origin.change is None and not origin.is_row and origin.rows == slice(None):
            rows, *columns = index or (slice(None),)
            return read_values(file, origin.sources[0], rows)[(slice(None), *columns)]
        values = [_values(file, source, origin) for source in origin.sources]
        return (values[0] if origin.change is None else origin.change(*values))[index]

    return read


def _values(file: GgufFile, source: str, origin: Origin) -> np.ndarray:
    """Return the values of one of the tensors of an origin."""
    values = read_values(file, source, origin.rows)
    return values[0] if origin.is_row else values
