"""An architecture as data: how to read its config.json, and what its tensors are called."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from pejax.interop.config import Config
from pejax.interop.stacks import ModelConfig


class Architecture(NamedTuple):
    """A model of transformers as data.

    Attributes:
        read: its config.json to the config of the model.
        names: the parts of our model, and the names of the file without `.weight` and `.bias`; `{n}` is the number of
            the layer. The parts are

            - `table`, `position`, `types`, `embed_norm`, `norm`, `head`, of BERT's head `dense` and `dense_norm`, and
              `relative`, T5's table of biases;
            - in a layer `norm_attention`, `norm_mlp`, and those with `_after` and `_sum` of other orders, `q_norm`,
              `k_norm`, `q`, `k`, `v` or `qkv`, one tensor of all three, `o`, `up`, `down`, and `gate`, or `gate_up` in
              place of both; `gated_up` and `gated_down` where `up` and `down` have other names beside a gate; the
              factors `scale_attention` and `scale_mlp`; of cross-attention `norm_cross`,
              `cross_q`, `cross_k`, `cross_v`, `cross_o`; of experts `router`, and `{e}` in the others is the number
              of the expert; `sinks`, without a suffix.

            - of a vision transformer `patch`, `embed_norm`, `norm`, `head`, and, as whole names, `cls`, `registers` and
              `position`; `cls_head` and `distilled_head` where CLS and the first register have a head each.

            In a model of two stacks, those of the encoder begin with `encoder.`, those of the decoder with `decoder.`.
        prefix: of names, which a file may have or not. "" = there is none.
        inert: keys of its config.json that change nothing, beside those of `pejax.interop.config.INERT`.
        ignored: a regular expression of tensors that are carried and not computed with. "" = there are none.
        in_out: whether linear layers are `(in, out)`, as GPT-2's.
        qkv_by_head: whether the rows of `qkv` are grouped by key head, as ours; else all queries come first.
        skipped_rows: rows before the first position in the table of positions; in vision transformers, the rows that
            are added to CLS and the registers.
        batched: whether tokens and tables of positions of a vision transformer have a first axis of length 1.
        flat_patches: whether the kernel of the patches is that of a linear layer, not of a convolution.
        by_head: whether linear layers of attention are `(in, heads, channels)`, without `.weight`, as XLNet's; the
            parameters of Transformer-XL's encoding are the parts `u`, `v_r` and `w_r`.
        experts: the form of the tensors of experts, as in `pejax.interop.experts.expert_slot`.
        copies: further names of the table of token vectors, which a file may have.
        fixed: carried tensors, each a regular expression and the values that it must have.
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
    experts: str = "each"
    copies: tuple[str, ...] = ()
    fixed: tuple[tuple[str, Callable[[ModelConfig], np.ndarray]], ...] = ()


def in_layer(prefix: str, **names: str) -> dict[str, str]:
    """Return the names of what a layer has, each after the prefix of the layer."""
    return {part: prefix + name for part, name in names.items()}
