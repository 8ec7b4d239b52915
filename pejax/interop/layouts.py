"""Layouts: from the tensors of a file to a parameter and back, without arithmetic.

Linear layers of files are `(out, in)`, ours `(in, out)`. Files hold queries, keys and values in three tensors or in
one; ours are columns grouped by key head (`SelfAttention`).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pejax.models import AttentionConfig


class Piece(NamedTuple):
    """A tensor of a file, or a range of it.

    Attributes:
        tensor: name of the tensor.
        shape: shape of the whole tensor.
        axis: axis of the range.
        start: first index of the range.
        stop: end of the range, exclusive.
        step: step of the range.
    """

    tensor: str
    shape: tuple[int, ...]
    axis: int
    start: int
    stop: int
    step: int = 1

    @property
    def index(self) -> tuple[slice, ...]:
        """The range, as an index."""
        return (slice(None),) * self.axis + (slice(self.start, self.stop, self.step),)

    @property
    def before(self) -> tuple[slice, ...]:
        """The part before the range, as an index."""
        return (slice(None),) * self.axis + (slice(0, self.start),)


def whole(tensor: str, *shape: int) -> Piece:
    """Return a tensor as a piece."""
    return Piece(tensor, shape, 0, 0, shape[0])


class Layout(NamedTuple):
    """A reversible change of order.

    Attributes:
        join: function that makes our parameter from the pieces of a file.
        split: function that makes the pieces from our parameter.
    """

    join: Callable[[list[np.ndarray]], np.ndarray]
    split: Callable[[np.ndarray], list[np.ndarray]]


SAME = Layout(lambda pieces: pieces[0], lambda ours: [ours])
TRANSPOSED = Layout(lambda pieces: pieces[0].T, lambda ours: [ours.T])

STACKED = Layout(np.stack, list)
"""Of one tensor for each index of the first axis."""


def reshaped(theirs: tuple[int, ...], ours: tuple[int, ...]) -> Layout:
    """Return the layout of a parameter whose numbers have the same order in both shapes."""
    return Layout(lambda pieces: pieces[0].reshape(ours), lambda x: [x.reshape(theirs)])


def convolution(patch: int, channels: int) -> Layout:
    """Return the layout of the kernel of patches: `(out, channel, row, column)` in files, `(pixels, out)` here."""

    def split(ours: np.ndarray) -> list[np.ndarray]:
        return [ours.reshape(patch, patch, channels, -1).transpose(3, 2, 0, 1)]

    return Layout(lambda pieces: pieces[0].transpose(2, 3, 1, 0).reshape(patch * patch * channels, -1), split)


def grouped_by_key_head(
    attention: AttentionConfig, letters: str, *, ours: str = "qkv", transposed: bool, swapped: str = ""
) -> Layout:
    """Return the layout of `qkv`, whose columns are each key head's queries, its key and its value.

    Args:
        attention: config of the attention.
        letters: which of q, k and v the file has; biases of the others are 0.
        ours: which of them our parameter has.
        transposed: whether the pieces are `(out, in)`.
        swapped: which of them have the halves of every head's channels in the other order.
    """
    queries = attention.heads // attention.kv_heads if "q" in ours else 0
    heads = {"q": slice(0, queries), "k": slice(queries, queries + 1), "v": slice(queries + 1, queries + 2)}
    turn = np.transpose if transposed else np.asarray
    half = attention.head_dim // 2
    swap = lambda letter, heads: np.roll(heads, half, axis=-1) if letter in swapped else heads

    def join(pieces: list[np.ndarray]) -> np.ndarray:
        columns = {letter: turn(piece) for letter, piece in zip(letters, pieces, strict=True)}
        first = columns[letters[0]]
        shape = (*first.shape[:-1], attention.kv_heads, queries + 2, attention.head_dim)
        joined = np.zeros(shape, first.dtype)
        for letter, x in columns.items():
            joined[..., heads[letter], :] = swap(letter, x.reshape(*shape[:-2], -1, attention.head_dim))
        return joined.reshape(*first.shape[:-1], -1)

    def split(value: np.ndarray) -> list[np.ndarray]:
        by_head = value.reshape(*value.shape[:-1], attention.kv_heads, queries + 2, attention.head_dim)
        own = {letter: swap(letter, by_head[..., heads[letter], :]) for letter in letters}
        return [turn(x.reshape(*value.shape[:-1], -1)) for x in own.values()]

    return Layout(join, split)


def mixed_frequencies(name: str, shape: tuple[int, ...], layer: int, layers: int) -> tuple[tuple[Piece, ...], Layout]:
    """Return piece and layout of a layer's frequencies of RoPE-Mixed: `(axis, layer, head, pair)` in files, x first.

    All layers share one tensor; our parameter is `(head, axis, pair)`, rows first.
    """
    heads, axes, pairs = shape
    join = lambda pieces: pieces[0][::-1, 0].swapaxes(0, 1)
    split = lambda ours: [ours.swapaxes(0, 1)[::-1, None]]
    return (Piece(name, (axes, layers, heads, pairs), 1, layer, layer + 1),), Layout(join, split)
