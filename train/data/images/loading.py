"""Data sets by name, and the one way from a spec such as "fashion(full=True)" to a data set."""

import ast
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from train.data.images.fashion import fashion
from train.data.images.folder import folder
from train.data.images.glyphs import glyphs
from train.data.images.prepared import tfds
from train.data.images.source import Dataset

Table = Mapping[str, Callable[..., object]]
"""What can be named: functions that take keywords."""

DATASETS: dict[str, Callable[..., Dataset]] = {
    "fashion": fashion,
    "glyphs": glyphs,
    "folder": folder,
    "tfds": tfds,
}
"""Every entry takes the size of the training images and keywords; "name:VALUE" gives the first of those."""


def load(spec: str, size: int = 28) -> Dataset:
    """Return the data set that `spec` names, its training images `size` by `size` pixels.

    Args:
        spec: `"fashion"`, `"glyphs"`, `"folder:PATH"`, `"tfds:NAME"`, or a name with keywords: `"fashion(full=True)"`,
            `"folder(path='photos', on_error='skip')"`.
        size: pixels.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown keyword, or what the data set refuses.
        TypeError: a keyword of another type.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    name, options = parse(spec, DATASETS)
    return DATASETS[name](size, **options)


def parse(spec: str, table: Table) -> tuple[str, dict[str, Any]]:
    """Return the name in `table` and the keywords that a spec gives.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown keyword or a missing one.
        TypeError: a keyword of another type.
    """
    name, options = _split(spec, table)
    missing = [key for key in _required(table[name]) if key not in options]
    if missing:
        raise ValueError(f"{name} needs {missing[0]}: {name}:VALUE or {name}({missing[0]}=...), got {spec!r}")
    return name, options


def _split(spec: str, table: Table) -> tuple[str, dict[str, Any]]:
    name, colon, value = spec.partition(":")
    if colon and name.isidentifier():
        keywords = _keywords(name, table)
        if not keywords or not value:
            raise ValueError(
                f"{name}:VALUE needs {'a value' if keywords else 'a data set that takes one'}, got {spec!r}"
            )
        return name, {next(iter(keywords)): value}
    try:
        node = ast.parse(spec.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name) or call.args or any(word.arg is None for word in call.keywords):
            raise ValueError
        name, options = call.func.id, {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f"data is written name, name:VALUE or name(key=literal, ...), got {spec!r}") from None
    keywords = _keywords(name, table)
    for key, value in options.items():
        if key not in keywords:
            raise ValueError(f"{name} takes {', '.join(keywords) or 'no keywords'}, got {key!r}")
        if not isinstance(value, keywords[key]):
            raise TypeError(f"{name}: {key} must be {inspect.formatannotation(keywords[key])}, got {value!r}")
    return name, options


def _keywords(name: str, table: Table) -> dict[str, Any]:
    """Return the keywords that a data set takes, each with its type."""
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1, cutoff=0.0)
        raise ValueError(f"unknown data {name!r}; did you mean {near[0]!r}? Known: {', '.join(table)}")
    signature = inspect.signature(table[name])
    return {key: one.annotation for key, one in signature.parameters.items() if one.kind is one.KEYWORD_ONLY}


def _required(entry: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(entry).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
