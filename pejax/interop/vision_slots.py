"""Slots of a vision transformer outside its layers."""

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import numpy as np

from pejax.interop.architecture import Architecture
from pejax.interop.layouts import SAME, TRANSPOSED, Layout, Piece, convolution, reshaped, whole
from pejax.models import ViTConfig

SUFFIXES = {"kernel": ".weight", "scale": ".weight", "bias": ".bias"}
"""Suffixes of tensor names by the name of our parameter."""


def vision_pieces(
    config: ViTConfig,
    architecture: Architecture,
    path: tuple[Any, ...],
    shape: tuple[int, ...],
    named: Callable[..., str],
) -> tuple[Piece, Layout, Piece | None]:
    """Return the piece of a parameter, its layout, and the piece that is added to it (None = no such piece).

    Args:
        config: config of the model.
        architecture: names and forms of the tensors.
        path: path of the parameter in the model's state.
        shape: shape of the parameter.
        named: function `(part, suffix)` that returns the name of a tensor.
    """
    leaf, part = str(path[-1]), str(path[0])
    if leaf == "table_0":
        table = _table(config, architecture, named)
        return table, reshaped(_file_shape(architecture, table.stop - table.start, config.width), shape), None
    if part in ("cls", "registers"):
        return _token(config, architecture, part, shape, named)
    part = "cls_head" if part == "head" and config.distilled else part
    name = named(part, SUFFIXES[leaf])
    if leaf != "kernel":
        return whole(name, *shape), SAME, None
    if part != "patch" or architecture.flat_patches:
        return whole(name, *shape[::-1]), TRANSPOSED, None
    theirs = (config.width, config.channels, config.patch, config.patch)
    return whole(name, *theirs), convolution(config.patch, config.channels), None


def with_heads_of_file(config: ViTConfig, architecture: Architecture, tensors: Container[str]) -> ViTConfig:
    """Return the config with the heads of the file: none, one, or one for CLS and one for the first register."""
    holds = lambda part: architecture.names.get(part, "") + ".weight" in tensors
    if not config.classes or not (holds("head") or holds("distilled_head")):
        return replace(config, classes=0, distilled=False)
    return replace(config, distilled=holds("distilled_head"))


def with_row(token: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return the sum of a token and its row of the table of positions, in float32."""
    return token.astype(np.float32) + row.astype(np.float32).reshape(token.shape)


def without_row(ours: np.ndarray, token: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return our token minus its row of the table, or the file's exact values where ours are unchanged since loading.

    Args:
        ours: the token of the model, which includes the row.
        token: the token in the file, without the row.
        row: the row of the table of positions.
    """
    wide, unchanged = ours.astype(np.float32), ours == with_row(token, row).astype(ours.dtype)
    return np.where(unchanged, token.astype(np.float32), wide - row.astype(np.float32).reshape(ours.shape))


def _token(
    config: ViTConfig, architecture: Architecture, part: str, shape: tuple[int, ...], named: Callable[..., str]
) -> tuple[Piece, Layout, Piece | None]:
    """Return piece and layout of CLS or the registers, and the piece of their rows of the position table, or None."""
    theirs = _file_shape(architecture, *shape) if architecture.batched else (config.width,)
    first = config.cls if part == "registers" else 0
    rows = architecture.skipped_rows
    added = None
    if first < rows:
        table = _table(config, architecture, named)
        added = table._replace(start=first, stop=first + shape[0])
    return whole(named(part), *theirs), reshaped(theirs, shape), added


def _table(config: ViTConfig, architecture: Architecture, named: Callable[..., str]) -> Piece:
    """Return the piece with the patches' rows of the table of positions."""
    start = architecture.skipped_rows
    stop = start + config.grid[0] * config.grid[1]
    return Piece(
        named("position"), _file_shape(architecture, stop, config.width), int(architecture.batched), start, stop
    )


def _file_shape(architecture: Architecture, *shape: int) -> tuple[int, ...]:
    """Return the shape of tokens or of a table in the file: with a leading axis of length 1 if it has one."""
    return (1, *shape) if architecture.batched else shape
