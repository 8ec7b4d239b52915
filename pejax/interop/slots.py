"""Which tensors of a file each parameter of a model is made of."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from flax import nnx

from pejax.interop.architecture import Architecture
from pejax.interop.by_head import by_head_slot
from pejax.interop.experts import expert_slot
from pejax.interop.layouts import SAME, TRANSPOSED, Layout, Piece, grouped_by_key_head, mixed_frequencies, whole
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

PARTS = {
    "embedding.table": "table", "embedding.types": "types", "stack.position.table_0": "position",
    "stack.embed_norm": "embed_norm", "stack.norm": "norm", "head": "head", "head.dense": "dense",
    "head.norm": "dense_norm", "attention.qkv": "qkv", "attention.out": "o", "attention.norm_q": "q_norm",
    "attention.norm_k": "k_norm", "mlp.up": "up", "mlp.gate": "gate", "mlp.down": "down",
    "stack.position.heads.table": "relative", "cross.q": "cross_q", "cross.kv": "cross_kv", "cross.out": "cross_o",
    "mlp.router": "router", "attention.sinks": "sinks", "attention.position.heads.u": "u",
    "attention.position.heads.v": "v_r", "attention.position.heads.w_r": "w_r",
    "attention.position.frequencies": "frequencies",
}  # fmt: skip
"""The parts of `Architecture.names` by the paths of our modules and parameters; norms in a layer have their names."""

SUFFIXES = {"kernel": ".weight", "scale": ".weight", "bias": ".bias", "table": ".weight", "types": ".weight",
            "table_0": ".weight", "sinks": "", "down_bias": "", "u": "", "v": "", "w_r": "",
            "scale_attention": "", "scale_mlp": "", "frequencies": ""}  # fmt: skip
"""What follows the name of a module in a file, by the name of our parameter."""

UNNAMED = ("sinks", "u", "v", "w_r", "scale_attention", "scale_mlp", "frequencies")
"""Parameters that are parts themselves, not of a module that is one."""


class Slot(NamedTuple):
    """A parameter, or one layer's row of a stacked one, and the pieces that it is made of.

    Attributes:
        path: of the parameter in the model's state.
        row: of the layer; None = the parameter is not stacked.
        pieces: in the order of the layout.
        layout: how they are joined.
        added: a range of another tensor that is added to the parameter: CLS takes its row of the table of positions.
            None = nothing is.
    """

    path: tuple[Any, ...]
    row: int | None
    pieces: tuple[Piece, ...]
    layout: Layout
    added: Piece | None = None


def empty_model(config: ModelConfig) -> Decoder | EncoderDecoder | ViT:
    """Return the model of a config with shapes in place of arrays."""
    return nnx.merge(*_shapes(config))


@functools.lru_cache(maxsize=8)  # to load or save a model takes several of its config
def _shapes(config: ModelConfig) -> tuple[Any, Any]:
    if isinstance(config, ViTConfig):
        return nnx.split(nnx.eval_shape(lambda: ViT(config, rngs=nnx.Rngs(0))))
    if isinstance(config, TransformerConfig):
        return nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    return nnx.split(nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))


def model_slots(config: ModelConfig, architecture: Architecture) -> list[Slot]:
    """Return what every parameter of the model is made of.

    Raises:
        ValueError: a parameter that the architecture has no name for.
    """
    model = empty_model(config)
    flat = dict(nnx.to_flat_state(nnx.state(model)))
    only = "layers" if isinstance(config, ViTConfig) else "stack"
    sides = {side.removesuffix(".") or only: (side, stack) for side, stack in stacks(config).items()}
    slots = []
    for path, variable in flat.items():
        side, stack = sides.get(str(path[0]), ("", None))
        if stack is None or "layers" not in path[:2]:
            slots.append(_model_slot(config, architecture, side, path, variable.shape))
            continue
        after = path[path.index("layers") + 1]
        number = int(str(after).removeprefix("body_")) if after != "blocks" else 0
        own = path[path.index("blocks") + 1 :]
        layers = model.layers if isinstance(model, ViT) else getattr(model, str(path[0])).layers
        bodies = {body.number: body for body in layers.all_bodies}
        for row, layer in enumerate(bodies[number].layers):
            named = _namer(architecture, side, own, layer)
            if own[-1] == "frequencies":
                name = named("frequencies")
                pieces, layout = mixed_frequencies(name, variable.shape[1:], layer, len(stack.layers))
            else:
                pieces, layout = _in_layer(stack.layers[layer], architecture, own, named, variable.shape[1:])
            slots.append(Slot(path, row, pieces, layout))
    return slots


def expected_shapes(slots: list[Slot]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a model is made of, by name."""
    return {piece.tensor: piece.shape for slot in slots for piece in slot.pieces}


def _model_slot(
    config: ModelConfig, architecture: Architecture, side: str, path: tuple[Any, ...], shape: tuple[int, ...]
) -> Slot:
    """Return the slot of a parameter outside the layers."""
    leaf = str(path[-1])
    if isinstance(config, ViTConfig):
        named = lambda part, suffix="": _name(architecture, side, part, path) + suffix
        piece, layout, added = vision_pieces(config, architecture, path, shape, named)
        return Slot(path, None, (piece,), layout, added)
    module = path if leaf in ("table", "types", "table_0") else path[:-1]
    part = PARTS.get(".".join(map(str, ("stack", *module[1:]) if side else module)))
    name = _name(architecture, side, part, path) + SUFFIXES[leaf]
    if leaf == "kernel" or part == "relative":
        return Slot(path, None, (_matrix(name, shape, in_out=False),), TRANSPOSED)
    if leaf == "table_0":
        rows = architecture.skipped_rows
        piece = Piece(name, (rows + shape[0], shape[1]), 0, rows, rows + shape[0])
        return Slot(path, None, (piece,), SAME)
    return Slot(path, None, (whole(name, *shape),), SAME)


Namer: TypeAlias = Callable[..., str]
"""The part of a layer to the name of its tensor without what follows it; `e` is the number of an expert."""


def _namer(architecture: Architecture, side: str, own: tuple[Any, ...], layer: int) -> Namer:
    """Return the names in one layer."""
    return lambda part, **expert: _name(architecture, side, part, own).format(n=layer, **expert)


def _in_layer(
    layer: LayerConfig, architecture: Architecture, own: tuple[Any, ...], names: Namer, shape: tuple[int, ...]
) -> tuple[tuple[Piece, ...], Layout]:
    """Return pieces and layout of a parameter of one layer; `own` is its path in the layer, `shape` its shape there."""
    leaf = str(own[-1])
    dotted = ".".join(map(str, own if leaf in UNNAMED else own[:-1]))
    part = PARTS.get(dotted, dotted)
    named = lambda part: names(part) + SUFFIXES[leaf]
    if isinstance(layer.mlp, MoEConfig) and own[0] == "mlp" and part != "router":
        return expert_slot(layer.mlp, architecture.experts, part, leaf, names, shape)
    if architecture.by_head and own[0] == "attention":
        return by_head_slot(layer.attention, part, names, shape)
    if part == "qkv":
        return _qkv(layer.attention, architecture, named, shape)
    if part == "cross_kv" and layer.cross is not None:
        return _qkv(layer.cross, architecture, lambda letter: named(f"cross_{letter}"), shape, ours="kv")
    if part == "up" and layer.mlp.gated and any(name.endswith("gated_up") for name in architecture.names):
        part = "gated_up"
    if part == "down" and layer.mlp.gated and "gated_down" in architecture.names:
        part = "gated_down"
    if part in ("gate", "up") and layer.mlp.gated and "gate_up" in architecture.names:
        *inputs, hidden = shape
        start = hidden * (part == "up")
        piece = Piece(named("gate_up"), (2 * hidden, *inputs), 0, start, start + hidden)
        return (piece,), TRANSPOSED if inputs else SAME
    if leaf != "kernel":
        return (whole(named(part), *shape),), SAME
    return (_matrix(named(part), shape, architecture.in_out),), SAME if architecture.in_out else TRANSPOSED


def _name(architecture: Architecture, side: str, part: str | None, path: tuple[Any, ...]) -> str:
    """Return the name of a part in the file."""
    if part is None or side + part not in architecture.names:
        raise ValueError(f"names must have an entry for {side}{part or '.'.join(map(str, path))}, got none")
    return architecture.names[side + part]


def _matrix(name: str, shape: tuple[int, ...], in_out: bool) -> Piece:
    return whole(name, *(shape if in_out else shape[::-1]))


def _qkv(
    attention: AttentionConfig, architecture: Architecture, named: Namer, shape: tuple[int, ...], ours: str = "qkv"
) -> tuple[tuple[Piece, ...], Layout]:
    """Return pieces and layout of the kernel or the bias of queries, keys and values, or of `ours` of these."""
    is_kernel = len(shape) == 2
    letters = "".join(letter for letter in ours if is_kernel or letter in attention.bias)
    transposed = is_kernel and not architecture.in_out
    if "qkv" in architecture.names and architecture.qkv_by_head:
        return (_matrix(named("qkv"), shape, not transposed),), TRANSPOSED if transposed else SAME
    layout = grouped_by_key_head(attention, letters, ours=ours, transposed=transposed)
    sizes = {"q": attention.heads * attention.head_dim, **dict.fromkeys("kv", attention.kv_heads * attention.head_dim)}
    of = lambda size: (size,) if not is_kernel else (size, shape[0]) if transposed else (shape[0], size)
    if "qkv" not in architecture.names:
        return tuple(whole(named(letter), *of(sizes[letter])) for letter in letters), layout
    ends, axis = _ends([sizes[letter] for letter in "qkv"]), int(is_kernel and not transposed)
    both = dict(zip("qkv", ends, strict=True))
    total = of(sum(sizes.values()))
    return tuple(Piece(named("qkv"), total, axis, *both[letter]) for letter in letters), layout


def _ends(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Return the start and the end of consecutive ranges of these sizes."""
    start = 0
    for size in sizes:
        yield start, start + size
        start += size
