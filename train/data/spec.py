"""Data by name: reads "fashion", "folder:PATH" or "fashion(full=True)" against a table of functions."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pejax.specs import parse_call
from train.data.path_check import require_no_path

Table = Mapping[str, Callable[..., Any]]
"""The names that a spec may use, and the functions they call."""

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
    if spec.isidentifier() and "tfds" in table and not difflib.get_close_matches(spec, table, n=1):
        message = f"unknown data {spec!r}; known: {', '.join(table)}"
        raise ValueError(f"{message}. A data set of tensorflow_datasets that is prepared is 'tfds:{spec}'")
    require_no_path(spec, table)
    name, options = parse_call(name if short else spec, table, what=FORMS, supplied=supplied)
    arguments = [
        argument for argument in inspect.signature(table[name]).parameters.values() if argument.name not in supplied
    ]
    if short:
        if not arguments or not value:
            need = "a value" if arguments else "a data set that takes one"
            raise ValueError(f"{name}:VALUE needs {need}, got {spec!r}")
        options = {arguments[0].name: value}
    for argument in arguments:
        if argument.default is argument.empty and argument.name not in options:
            raise ValueError(f"{name} needs {argument.name}: {name}:VALUE or {name}({argument.name}=...), got {spec!r}")
    return name, options
