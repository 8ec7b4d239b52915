"""Slots: the tensors of a file that a parameter consists of."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

from flax import nnx

from pejax.interop.architecture import PARTS, Architecture
from pejax.interop.by_head import by_head_slot
from pejax.interop.experts import expert_slot
from pejax.interop.layouts import (
    SAME,
    STACKED,
    TRANSPOSED,
    Layout,
    Piece,
    grouped_by_key_head,
    mixed_frequencies,
    whole,
)
from pejax.interop.stacks import ModelConfig, stacks
from pejax.interop.vision_slots import vision_pieces
from pejax.models import (
    AttentionConfig,
    Decoder,
    EncoderDecoder,
    LayerConfig,
    MoEConfig,
    TransformerConfig,
    ViT,
    ViTConfig,
)

PATHS = {part.path: name for name, part in reversed(PARTS.items())} | {"attention.qkv": "qkv", "cross.kv": "cross_kv"}
"""Names of parts by the paths of our modules and parameters. Of parts with the same path, the first counts."""

SUFFIXES = {"bias": ".bias", **dict.fromkeys(("sinks", "down_bias", "u", "v", "w_r", "frequencies"), ""),
            **dict.fromkeys(("scale_attention", "scale_mlp"), "")}  # fmt: skip
"""Suffixes of tensor names by the name of our parameter; all others have ".weight"."""


class Slot(NamedTuple):
    """A parameter, or one layer's row of a stacked parameter, and its pieces in the file.

    Attributes:
        path: path of the parameter in the model's state.
        row: index of the layer in a stacked parameter; None = the parameter is not stacked.
        pieces: tensors, or ranges of them, in the order in which `layout` joins them.
        layout: the change of order between the values of the pieces and those of the parameter.
        added: piece that is added to the parameter (CLS takes its row of the table of positions). None = no piece.
    """

    path: tuple[Any, ...]
    row: int | None
    pieces: tuple[Piece, ...]
    layout: Layout
    added: Piece | None = None


def empty_model(config: ModelConfig) -> Decoder | EncoderDecoder | ViT:
    """Return the model of a config, with shapes in place of arrays."""
    return nnx.merge(*_shapes(config))


@lru_cache(maxsize=8)  # loading or saving one model asks for its shapes several times
def _shapes(config: ModelConfig) -> tuple[Any, Any]:
    if isinstance(config, ViTConfig):
        return nnx.split(nnx.eval_shape(lambda: ViT(config, rngs=nnx.Rngs(0))))
    if isinstance(config, TransformerConfig):
        return nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    return nnx.split(nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))


def model_slots(config: ModelConfig, architecture: Architecture) -> list[Slot]:
    """Return the slots of all parameters of a model.

    Raises:
        ValueError: a parameter that the architecture has no name for.
    """
    model = empty_model(config)
    single_stack = "layers" if isinstance(config, ViTConfig) else "stack"
    # The first name in a parameter's path tells the stack that it is in, and the prefix of that stack's parts.
    stack_of = {prefix.removesuffix(".") or single_stack: (prefix, stack) for prefix, stack in stacks(config).items()}
    names_of = {  # by the prefix of a stack: the names of each of its layers
        prefix: [_layer_names(architecture, prefix, layer, number) for number, layer in enumerate(stack.layers)]
        for prefix, stack in stacks(config).items()
    }
    slots = []
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        stack_prefix, stack = stack_of.get(str(path[0]), ("", None))
        if stack is None or "layers" not in path[:2]:
            slots.append(_model_slot(config, architecture, stack_prefix, path, variable.shape))
            continue
        # The layers of the first body are in `layers.blocks`, those of body n in `layers.body_n.blocks`.
        body_name, path_in_layer = str(path[path.index("layers") + 1]), path[path.index("blocks") + 1 :]
        layers = model.layers if isinstance(model, ViT) else getattr(model, str(path[0])).layers
        body = layers.bodies[0 if body_name == "blocks" else int(body_name.removeprefix("body_"))]
        for row, layer in enumerate(body.layers):
            names = names_of[stack_prefix][layer]
            if path_in_layer[-1] == "frequencies":  # RoPE-Mixed: one tensor of the file holds those of all layers
                name = _name(names, "frequencies")
                pieces, layout = mixed_frequencies(name, variable.shape[1:], layer, len(stack.layers))
            else:
                shape = variable.shape[1:]
                pieces, layout = _layer_pieces(stack.layers[layer], architecture, path_in_layer, names, shape)
            slots.append(Slot(path, row, pieces, layout))
    return slots


def expected_shapes(slots: Sequence[Slot]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a model, by name."""
    return {piece.tensor: piece.shape for slot in slots for piece in slot.pieces}


def _part(path: tuple[Any, ...]) -> str:
    """Return the name in `PARTS` of the part that a parameter belongs to."""
    parameter, module = ".".join(map(str, path)), ".".join(map(str, path[:-1]))
    return PATHS.get(parameter, PATHS.get(module, parameter))


def _model_slot(
    config: ModelConfig, architecture: Architecture, stack_prefix: str, path: tuple[Any, ...], shape: tuple[int, ...]
) -> Slot:
    """Return the slot of a parameter outside the layers.

    Args:
        config: config of the model.
        architecture: architecture of the file.
        stack_prefix: prefix of the parts of its stack: "", "encoder." or "decoder.".
        path: path of the parameter in the model's state.
        shape: shape of the parameter.
    """
    leaf = str(path[-1])
    if isinstance(config, ViTConfig):
        tensor_name = lambda part, suffix="": _name(architecture.names, part) + suffix
        piece, layout, added = vision_pieces(config, architecture, path, shape, tensor_name)
        return Slot(path, None, (piece,), layout, added)
    part = _part(("stack", *path[1:]) if stack_prefix else path)
    if part == "head_bias" and part not in architecture.names:
        part = "head"
    name = _name(architecture.names, stack_prefix + part) + SUFFIXES.get(leaf, ".weight")
    if leaf == "kernel" or part == "relative":
        return Slot(path, None, (_matrix(name, shape, in_out=False),), TRANSPOSED)
    if part == "position":
        skipped = architecture.skipped_rows
        piece = Piece(name, (skipped + shape[0], shape[1]), 0, skipped, skipped + shape[0])
        return Slot(path, None, (piece,), SAME)
    return Slot(path, None, (whole(name, *shape),), SAME)


Names: TypeAlias = Mapping[str, str]
"""The names of one layer's tensors by part, without suffixes; `{e}` is the number of an expert."""


def _layer_names(architecture: Architecture, stack_prefix: str, layer: LayerConfig, number: int) -> Names:
    """Return the names of a layer's tensors: its number filled in, the prefix of its stack left out of the parts."""
    names = {**architecture.names, **architecture.by_layer(layer)}
    fill = lambda name: name.replace("{n}", str(number))
    of_stack = {part: name for part, name in names.items() if part.startswith(stack_prefix)}
    return {part.removeprefix(stack_prefix): fill(name) for part, name in of_stack.items()}


def _layer_pieces(
    layer: LayerConfig, architecture: Architecture, path: tuple[Any, ...], names: Names, shape: tuple[int, ...]
) -> tuple[tuple[Piece, ...], Layout]:
    """Return pieces and layout of a parameter of one layer.

    Args:
        layer: config of the layer.
        architecture: architecture of the file.
        path: path of the parameter in the layer.
        names: names of the layer's tensors.
        shape: shape of the parameter in one layer, not stacked.
    """
    leaf, part = str(path[-1]), _part(path)
    tensor_name = lambda part: _name(names, part) + SUFFIXES.get(leaf, ".weight")
    if isinstance(layer.mlp, MoEConfig) and path[0] == "mlp" and part != "router":
        return expert_slot(layer.mlp, architecture.experts, part, leaf, partial(_name, names), shape)
    if architecture.by_head and path[0] == "attention":
        return by_head_slot(layer.attention, part, partial(_name, names), shape)
    if part == "qkv":
        return _qkv(layer.attention, architecture, "qkv" in names, tensor_name, shape)
    if part == "cross_kv" and layer.cross is not None:
        cross_name = lambda letter: tensor_name(f"cross_{letter}")
        return _qkv(layer.cross, architecture, False, cross_name, shape, ours="kv")
    joint = next(filter(names.__contains__, ("gate_up", "up_gate")), "")  # one tensor of both, in this order
    if part in ("gate", "up") and layer.mlp.gated and joint:
        *inputs, hidden = shape  # of a kernel (C, hidden), or of a bias (hidden,)
        start = hidden * joint.split("_").index(part)
        piece = Piece(tensor_name(joint), (2 * hidden, *inputs), 0, start, start + hidden)
        return (piece,), TRANSPOSED if inputs else SAME
    name = tensor_name(part)
    if part == "layer_relative":
        return (_matrix(name, shape, in_out=False),), TRANSPOSED
    if "{h}" in name:
        return tuple(whole(name.format(h=head), *shape[1:]) for head in range(shape[0])), STACKED
    if leaf != "kernel":
        return (whole(name, *shape),), SAME
    return (_matrix(name, shape, architecture.in_out),), SAME if architecture.in_out else TRANSPOSED


def _name(names: Names, part: str, e: int = 0) -> str:
    """Return the name of a part in the file, of the expert of number `e` where experts have tensors of their own."""
    if part not in names:
        raise ValueError(f"names must have an entry for {part}, got none")
    return names[part].replace("{e}", str(e))


def _matrix(name: str, shape: tuple[int, ...], in_out: bool) -> Piece:
    """Return the piece that is a whole kernel. Our `shape` is `(in, out)`; the file has `(out, in)` unless `in_out`."""
    return whole(name, *(shape if in_out else shape[::-1]))


def _qkv(
    attention: AttentionConfig,
    architecture: Architecture,
    joined: bool,
    tensor_name: Callable[[str], str],
    shape: tuple[int, ...],
    ours: str = "qkv",
) -> tuple[tuple[Piece, ...], Layout]:
    """Return pieces and layout of our joint kernel or bias of queries, keys and values.

    Args:
        attention: config of the attention.
        architecture: architecture of the file.
        joined: whether queries, keys and values are one tensor in the file, too, and not one each.
        tensor_name: function from "q", "k" or "v", or from "qkv" if they are joined, to the name of the tensor.
        shape: shape of our parameter.
        ours: what our parameter joins: "qkv", or "kv" in cross-attention.
    """
    is_kernel = len(shape) == 2
    letters = "".join(letter for letter in ours if is_kernel or letter in attention.bias)
    transposed = is_kernel and not architecture.in_out
    if joined and architecture.qkv_by_head:
        return (_matrix(tensor_name("qkv"), shape, not transposed),), TRANSPOSED if transposed else SAME
    swapped = "qk" if architecture.turns_back else ""
    layout = grouped_by_key_head(attention, letters, ours=ours, transposed=transposed, swapped=swapped)
    rows = {"q": attention.heads * attention.head_dim, **dict.fromkeys("kv", attention.kv_heads * attention.head_dim)}
    tensor_shape = lambda count: (count,) if not is_kernel else (count, shape[0]) if transposed else (shape[0], count)
    if not joined:
        return tuple(whole(tensor_name(letter), *tensor_shape(rows[letter])) for letter in letters), layout
    ends = dict(zip("qkv", itertools.accumulate(rows[letter] for letter in "qkv"), strict=True))
    joint_shape, axis = tensor_shape(ends["v"]), int(is_kernel and not transposed)
    piece_of = lambda letter: Piece(tensor_name("qkv"), joint_shape, axis, ends[letter] - rows[letter], ends[letter])
    return tuple(map(piece_of, letters)), layout
