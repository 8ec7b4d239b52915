"""Slots of experts: our parameters hold the kernels of all experts side by side, as one matrix."""

from collections.abc import Callable

import numpy as np

from pejax.interop.layouts import SAME, Layout, Piece, whole
from pejax.models import MoEConfig

Namer = Callable[..., str]
"""Function from a part, and the number of the expert as `e`, to the name of a tensor without `.weight`."""

PieceLayout = tuple[tuple[Piece, ...], Layout]
"""The pieces of a parameter, and their layout in it."""


def expert_slot(
    experts: MoEConfig, form: str, part: str, leaf: str, named: Namer, shape: tuple[int, ...]
) -> PieceLayout:
    """Return pieces and layout of a parameter of the experts.

    Args:
        experts: config of the experts.
        form: "each", a kernel `(out, in)` per expert; or "stacked", one tensor of all experts, `(E, in, out)`, in which
            the columns of gate and up alternate, and one of all biases.
        part: "gate", "up" or "down".
        leaf: "kernel", "bias", or "down_bias".
        named: function from part and expert to the name of a tensor.
        shape: shape of the parameter.

    Raises:
        ValueError: a bias in the form "each".
    """
    if form == "stacked":
        return _stacked(experts, part, leaf, named, shape)
    if leaf != "kernel":
        raise ValueError(f"experts with one tensor each must have no bias, got one of {part}")
    count, hidden, width = experts.count, experts.mlp.hidden, shape[part == "down"]
    names = [named(part, e=number) + ".weight" for number in range(count)]
    if part == "down":
        join = lambda pieces: np.concatenate([piece.T for piece in pieces])
        split = lambda ours: [rows.T for rows in np.split(ours, count)]
        return tuple(whole(name, width, hidden) for name in names), Layout(join, split)
    join = lambda pieces: np.concatenate(pieces).T
    split = lambda ours: np.split(ours.T, count)
    return tuple(whole(name, hidden, width) for name in names), Layout(join, split)


def _stacked(experts: MoEConfig, part: str, leaf: str, named: Namer, shape: tuple[int, ...]) -> PieceLayout:
    """Return pieces and layout of a parameter of the experts, where one tensor holds all experts."""
    count, hidden = experts.count, experts.mlp.hidden
    if leaf == "down_bias":
        return (whole(named("down") + "_bias", *shape),), SAME
    if part == "down":
        rows = lambda pieces: pieces[0].reshape(shape)
        split = lambda ours: [ours.reshape(count, hidden, -1)]
        return (whole(named("down"), count, hidden, shape[1]),), Layout(rows, split)
    start = int(part == "up")
    if leaf == "bias":
        piece = Piece(named("gate_up") + "_bias", (count, 2 * hidden), 1, start, 2 * hidden, 2)
        return (piece,), Layout(lambda pieces: pieces[0].reshape(shape), lambda ours: [ours.reshape(count, hidden)])
    piece = Piece(named("gate_up"), (count, shape[0], 2 * hidden), 2, start, 2 * hidden, 2)
    join = lambda pieces: np.moveaxis(pieces[0], 0, 1).reshape(shape)
    split = lambda ours: [np.moveaxis(ours.reshape(-1, count, hidden), 1, 0)]
    return (piece,), Layout(join, split)
