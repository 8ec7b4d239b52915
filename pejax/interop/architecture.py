"""An architecture as data: the reader of its config.json, and the names of its tensors."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pejax.interop.config import Config
from pejax.interop.stacks import ModelConfig
from pejax.models import LayerConfig


class Part(NamedTuple):
    """A part of a model; an architecture gives its name in the file.

    Attributes:
        path: path of our module or parameter, such as "attention.qkv"; for a part of a layer, from the layer on.
        shape: shape of the tensor in the file, in the letters of `PARTS`. A bias has the first axis alone.
        in_layer: whether every layer has one; its name then holds `{n}`.
    """

    path: str
    shape: str
    in_layer: bool = False


ENDS = {
    "table": ("embedding.table", "V C"), "source_table": ("source_embedding.table", "V C"),
    "types": ("embedding.types", "types C"), "position": ("stack.position.table_0", "L C"),
    "relative": ("stack.position.heads.table", "buckets H"), "embed_norm": ("stack.embed_norm", "C"),
    "norm": ("stack.norm", "C"), "head": ("head", "V C"), "head_bias": ("head.bias", "V"),
    "dense": ("head.dense", "C C"), "dense_norm": ("head.norm", "C"),
}  # fmt: skip
"""Paths and shapes of the parts of a text model outside its layers."""

LAYER = {
    # attention and cross-attention; Transformer-XL's has u, v_r and w_r, too, and UMT5's a table of its own
    "q": ("attention.qkv", "H·D C"), "k": ("attention.qkv", "K·D C"), "v": ("attention.qkv", "K·D C"),
    "qkv": ("attention.qkv", "(H+2K)·D C"), "o": ("attention.out", "C H·D"), "q_norm": ("attention.norm_q", "D"),
    "k_norm": ("attention.norm_k", "D"), "sinks": ("attention.sinks", "H"), "u": ("attention.position.heads.u", "H D"),
    "v_r": ("attention.position.heads.v", "H D"), "w_r": ("attention.position.heads.w_r", "C H D"),
    "layer_relative": ("attention.position.heads.table", "buckets H"),
    "cross_q": ("cross.q", "H·D C"), "cross_k": ("cross.kv", "K·D C"), "cross_v": ("cross.kv", "K·D C"),
    "cross_o": ("cross.out", "C H·D"),
    # MLP of M inner channels, router of E experts, factors of branches, norms
    "up": ("mlp.up", "M C"), "gate": ("mlp.gate", "M C"), "gate_up": ("mlp.gate", "2M C"),
    "up_gate": ("mlp.gate", "2M C"), "down": ("mlp.down", "C M"),
    "router": ("mlp.router", "E C"), "scale_attention": ("scale_attention", "C"), "scale_mlp": ("scale_mlp", "C"),
    **{name: (name, "C") for branch in ("attention", "cross", "mlp")
       for name in (f"norm_{branch}", f"norm_{branch}_after", f"norm_{branch}_sum")},
}  # fmt: skip
"""Paths and shapes of the parts of a layer."""

VISION = {
    "patch": ("patch", "C channels patch patch"), "patch_norm": ("patch_norm", "C"), "cls": ("cls", "1 C"),
    "registers": ("registers", "R C"), "cls_head": ("head", "classes C"),
    "distilled_head": ("distilled_head", "classes C"),
    "frequencies": ("attention.position.frequencies", "2 layers H D/2"),
}  # fmt: skip
"""Paths and shapes of the parts that only a vision transformer has; its layers are those of `LAYER`."""

PARTS = {
    **{name: Part(*part) for name, part in ENDS.items()},
    **{name: Part(*part, in_layer=True) for name, part in LAYER.items()},
    **{name: Part(*part) for name, part in VISION.items()},
}
"""The parts of a model by name.

In shapes V is the vocabulary, C the width, L the trained length, R the number of registers, M the inner channels of an
MLP, E the number of experts; H and K are the numbers of heads and key heads, D is the number of their channels.
"""


class Architecture(NamedTuple):
    """An architecture of the library `transformers`, as data.

    Attributes:
        read: function from config.json to the config of the model.
        names: the names of the file by part (`PARTS`), without `.weight` and `.bias`. `{n}` is the number of the layer,
            `{e}` of the expert, `{h}` of the head where every head has a norm of its own. In a model of two stacks the
            parts of a stack begin with `encoder.` or `decoder.`.
        prefix: prefix of all tensor names (`model.`), which some files leave out. "" = no prefix.
        inside: where the names may lie in a file of several towers, such as a vision tower beside the text model. Each
            entry maps prefixes of `names` to those in the file; the first that fits a tensor is used. () = `names` as
            they are, or without `prefix`.
        inert: keys of config.json that change nothing at any value, in addition to `pejax.interop.config.INERT`.
        neutral: keys of config.json that the architecture does not read, and the value at which they change nothing; at
            any other value they are refused. In addition to `pejax.interop.config.NEUTRAL`.
        ignored: regular expression that matches tensors that are saved again, but not used. "" = no such tensors.
        in_out: whether the kernels of linear layers are `(in, out)` in the file, as in GPT-2.
        qkv_by_head: whether the rows of `qkv` are grouped by key head, as in `SelfAttention`; if not, all queries come
            first, then all keys, then all values.
        skipped_rows: number of rows before the first position in the table of positions; in vision transformers, they
            are added to CLS and the registers.
        padding: default of `pad_token_id` in architectures whose first position is in the row after that of this id, as
            in RoBERTa. None = the first position is in the row after the `skipped_rows`.
        batched: whether CLS, registers and tables of positions of a vision transformer have a first axis of length 1 in
            the file.
        flat_patches: whether the kernel of the patches in the file is that of a linear layer, not of a convolution.
        by_head: whether linear layers of attention are `(in, heads, channels)`, without `.weight`, as XLNet's.
        turns_back: whether channels are rotated in the other direction, as in nanochat: the halves of the heads of
            queries and keys change places.
        experts: "each" = every expert has tensors of its own; "stacked" = one tensor holds all experts (gpt-oss).
        copies: tensors that repeat another one, in files that have such copies: name of the copy -> of the original.
        fixed: tensors that are not used and must have certain values: for each, a regular expression that matches its
            name, and a function that returns the values.
        stored_rotation: regular expression of the names of tensors with the radians per token of all pairs of channels,
            which are obeyed where they are not those of config.json (rounded ones in ESM-2). They must be `ignored`,
            too. "" = no such tensors.
        by_layer: function from the config of a layer to names that replace those of `names` in it.
    """

    read: Callable[[Config], ModelConfig]
    names: Mapping[str, str]
    prefix: str = ""
    inert: tuple[str, ...] = ()
    ignored: str = ""
    in_out: bool = False
    qkv_by_head: bool = False
    skipped_rows: int = 0
    batched: bool = False
    flat_patches: bool = False
    by_head: bool = False
    turns_back: bool = False
    experts: str = "each"
    copies: Mapping[str, str] = {}
    fixed: tuple[tuple[str, Callable[[ModelConfig], np.ndarray]], ...] = ()
    stored_rotation: str = ""
    inside: tuple[Mapping[str, str], ...] = ()
    by_layer: Callable[[LayerConfig], Mapping[str, str]] = lambda layer: {}
    neutral: Mapping[str, Any] = {}
    padding: int | None = None


def of_encoder(architecture: Architecture) -> Architecture:
    """Return the architecture of an encoder-decoder's encoder alone."""
    without_stack = lambda names: {part.removeprefix("encoder."): name for part, name in names.items()}
    by_layer = lambda layer: without_stack(architecture.by_layer(layer))
    names = without_stack(architecture.names)
    return architecture._replace(names={**names, "table": names.get("source_table", names["table"])}, by_layer=by_layer)


def if_gated(names: Mapping[str, str]) -> Callable[[LayerConfig], Mapping[str, str]]:
    """Return the function from the config of a layer to these names if its MLP is gated, else to no names."""
    return lambda layer: names if layer.mlp.gated else {}


def prefixed(prefix: str, **names: str) -> dict[str, str]:
    """Return the names of parts, each after the prefix that they share, such as that of a layer."""
    return {part: prefix + name for part, name in names.items()}
