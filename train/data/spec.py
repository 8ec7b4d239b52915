"""Data by name: reads "fashion", "folder:PATH" or "fashion(full=True)" against a table of functions."""

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pejax._make import expression, parse_call

Table = Mapping[str, Callable[..., Any]]
"""The names that a spec may use, and the functions they call."""

NO_PATHS = ("key", "on_error", "separator", "test")
"""Arguments of data whose texts name no file."""

TOKENIZERS = r"bytes|bpe\(.*\)"
"""Tokenizers that are no file."""

FORMS = "apart from name:VALUE, data"
"""Opens the message about a malformed spec."""


def parse_data(spec: str, table: Table, supplied: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return the name in `table` and the keyword arguments that a spec gives.

    Args:
        spec: `name`, `name:VALUE`, which gives the first argument, or `name(key=literal, ...)`.
        table: functions with keyword arguments.
        supplied: arguments that the caller passes itself, and a spec may not.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument or a missing one.
        TypeError: an argument of another type.
    """
    name, colon, value = spec.partition(":")
    short = colon and name.isidentifier()
    name, options = parse_call(name if short else spec, table, what=FORMS, supplied=supplied)
    arguments = [one for one in inspect.signature(table[name]).parameters.values() if one.name not in supplied]
    if short:
        if not arguments or not value:
            wanted = "a value" if arguments else "a data set that takes one"
            raise ValueError(f"{name}:VALUE needs {wanted}, got {spec!r}")
        options = {arguments[0].name: value}
    for one in arguments:
        if one.default is one.empty and one.name not in options:
            raise ValueError(f"{name} needs {one.name}: {name}:VALUE or {name}({one.name}=...), got {spec!r}")
    return name, options


def named_paths(spec: str) -> tuple[str, ...]:
    """Return what a spec names outside of this package: files, folders and prepared data; none if it is embedded.

    A text that is not known to be something else counts as a path: a spec may come from the run of somebody else.

    Examples:
        >>> named_paths("fashion(full=True)"), named_paths("copy,reverse")
        ((), ())
        >>> named_paths("jsonl:notes.jsonl"), named_paths("shakespeare(tokenizer='a.json')")
        (('notes.jsonl',), ('a.json',))
    """
    if re.fullmatch(r"\s*\w+(\s*,\s*\w+)*\s*", spec):  # names without arguments; of tasks, several
        return ()
    name, colon, value = spec.partition(":")
    if colon and name.isidentifier():
        return (value,)
    try:
        call = expression(spec, FORMS)
    except ValueError:
        return (spec,)
    if not isinstance(call, ast.Call) or call.args:
        return (spec,)
    return tuple(path for word in call.keywords for path in _paths(word))


def _paths(word: ast.keyword) -> list[str]:
    """Return the paths that one argument of a spec names."""
    texts = [one.value for one in ast.walk(word.value) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if word.arg in NO_PATHS:
        return []
    return [text for text in texts if word.arg != "tokenizer" or not re.fullmatch(TOKENIZERS, text)]
