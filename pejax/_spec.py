"""Specs such as "rope(base=500000)": a name of a table of callables, and keyword arguments that are Python literals."""

import ast
import difflib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def parse_call(
    spec: str,
    table: Mapping[str, Callable[..., Any]],
    *,
    what: str,
    supplied: Sequence[str] = (),
    readers: Mapping[Any, Callable[[str], object]] = types.MappingProxyType({}),
) -> tuple[str, dict[str, object]]:
    """Split `"name(key=literal, ...)"` into the name and its keyword arguments, both checked against the table.

    Args:
        spec: as a user writes it.
        table: what may be named; the signatures say which arguments there are, the annotations of which type.
        what: the noun of the messages with its article, "an encoding".
        supplied: arguments that the program gives itself, and a spec may not.
        readers: how to read a string given for an argument of such an annotation.

    Raises:
        ValueError: a malformed spec, an unknown name or argument, one given twice or missing, or a value that is no
            literal.
        TypeError: a value of another type than the annotation says.
    """
    node = _expression(spec, what)
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or call.args or any(word.arg is None for word in call.keywords):
        raise ValueError(f"{what} is written name or name(key=value, ...), got {spec!r}")
    name = call.func.id
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1, cutoff=0.0)
        noun = what.rpartition(" ")[2]
        raise ValueError(f"unknown {noun} {name!r}; did you mean {near[0]!r}? Known: {', '.join(table)}")
    known = {key: arg for key, arg in inspect.signature(table[name]).parameters.items() if key not in supplied}
    hints = typing.get_type_hints(table[name])
    options = {}
    for word in call.keywords:
        if word.arg not in known:
            raise ValueError(f"{name} takes {', '.join(known) or 'no arguments'}; got {word.arg!r}")
        if word.arg in options:
            raise ValueError(f"{name}: {word.arg} is given twice, got {spec!r}")
        try:
            value = ast.literal_eval(word.value)
        except (ValueError, TypeError, RecursionError):
            written = ast.get_source_segment(spec.strip(), word.value)
            raise ValueError(f"{name}: {word.arg} must be a Python literal, got {written!r}") from None
        hint = hints[word.arg]
        if hint in readers and isinstance(value, str):
            try:
                options[word.arg] = readers[hint](value)
            except (ValueError, TypeError) as refusal:
                raise type(refusal)(f"{name}: {word.arg}: {refusal}") from None
            continue
        try:
            options[word.arg] = _fit(value, hint)
        except TypeError:
            wanted = inspect.formatannotation(hint).removeprefix("typing.")
            raise TypeError(f"{name}: {word.arg} must be {wanted}, got {value!r}") from None
    for key, argument in known.items():
        if argument.default is argument.empty and key not in options:
            raise ValueError(f"{name} needs {key}, got {spec!r}")
    return name, options


def split_sum(spec: str, *, what: str) -> list[str]:
    """Split `"a(...) + b + c(...)"` into its terms, as they are written.

    Raises:
        ValueError: no expression.
    """
    node, terms = _expression(spec, what), []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        terms.append(node.right)
        node = node.left
    return [str(ast.get_source_segment(spec.strip(), term)) for term in (node, *reversed(terms))]


def _expression(spec: str, what: str) -> ast.expr:
    try:
        return ast.parse(spec.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{what} is written name or name(key=value, ...), got {spec!r}") from None


def _fit(value: object, hint: object) -> object:
    """Return the literal as the annotation has it: integers as floats, lists as tuples, where those are asked for.

    Raises:
        TypeError: it is of another type, or not finite.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        for option in inner:
            try:
                return _fit(value, option)
            except TypeError:
                continue
    elif origin is typing.Literal:
        if value in inner:
            return value
    elif origin in (tuple, Sequence) and isinstance(value, tuple | list):
        each = inner[:1] * len(value) if origin is Sequence or inner[-1] is Ellipsis else inner
        if len(each) == len(value):
            return tuple(_fit(one, kind) for one, kind in zip(value, each, strict=True))
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:
            return float(value)
    elif hint in (int, bool, str, type(None)) and type(value) is hint:
        return value
    raise TypeError
