"""Slots of attention whose linear layers are `(in, heads, channels)` in files, as in XLNet."""

from collections.abc import Callable

import numpy as np

from pejax.interop.layouts import SAME, Layout, Piece, grouped_by_key_head, whole
from pejax.models import AttentionConfig


def by_head_slot(
    attention: AttentionConfig, part: str, named: Callable[[str], str], shape: tuple[int, ...]
) -> tuple[tuple[Piece, ...], Layout]:
    """Return pieces and layout of a parameter of attention.

    Args:
        attention: config of the attention.
        part: "qkv", "o", or a parameter of Transformer-XL's encoding: "u", "v_r" or "w_r".
        named: function from a part to the name of its tensor.
        shape: shape of the parameter.
    """
    per_head = attention.heads, attention.head_dim
    if part == "qkv":
        grouped = grouped_by_key_head(attention, "qkv", transposed=False)
        join = lambda pieces: grouped.join([piece.reshape(len(piece), -1) for piece in pieces])
        split = lambda ours: [piece.reshape(len(piece), *per_head) for piece in grouped.split(ours)]
        return tuple(whole(named(letter), shape[0], *per_head) for letter in "qkv"), Layout(join, split)
    if part == "o":
        join = lambda pieces: pieces[0].reshape(len(pieces[0]), -1).T
        split = lambda ours: [ours.T.reshape(-1, *per_head)]
        return (whole(named(part), shape[1], *per_head),), Layout(join, split)
    if part == "w_r":
        turned = lambda array: np.moveaxis(array, 1, 0)
        layout = Layout(lambda pieces: turned(pieces[0]), lambda ours: [turned(ours)])
        return (whole(named(part), shape[1], *per_head),), layout
    return (whole(named(part), *shape),), SAME
