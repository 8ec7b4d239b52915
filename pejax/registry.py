"""The encodings by name, and the one way from a spec such as "rope(base=500000)" to a record."""

import ast
import difflib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence

from pejax.encoding import Dims, Encoding
from pejax.encodings.alibi import alibi
from pejax.encodings.fire import fire
from pejax.encodings.kerple import kerple
from pejax.encodings.learned import learned
from pejax.encodings.none import none
from pejax.encodings.rope import rope
from pejax.encodings.rope_axial import rope_axial
from pejax.encodings.rope_mixed import rope_mixed
from pejax.encodings.shaw import shaw
from pejax.encodings.sinusoidal import sinusoidal
from pejax.encodings.t5 import t5
from pejax.encodings.transformer_xl import transformer_xl

ENCODINGS: dict[str, Callable[..., Encoding]] = {
    "alibi": alibi,
    "fire": fire,
    "kerple": kerple,
    "learned": learned,
    "none": none,
    "rope": rope,
    "rope_axial": rope_axial,
    "rope_mixed": rope_mixed,
    "shaw": shaw,
    "sinusoidal": sinusoidal,
    "t5": t5,
    "transformer_xl": transformer_xl,
}


def make_encoding(spec: str, dims: Dims) -> Encoding:
    """Make the encoding that `spec` names, for `dims`. Equal specs and dims give the same object.

    Args:
        spec: a name of `ENCODINGS`, with keyword arguments where wanted: `"rope"`, `"rope(base=500000)"`.
        dims: of the model.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument, or what the factory refuses.
    """
    name, options = parse_spec(spec)
    return _make(name, tuple(sorted(options.items())), dims)


@functools.lru_cache(maxsize=None, typed=True)
def _make(name: str, options: tuple[tuple[str, object], ...], dims: Dims) -> Encoding:
    try:
        return ENCODINGS[name](dims, **dict(options))
    except ValueError as refusal:
        raise ValueError(f"{name}: {refusal}") from None


def parse_spec(spec: str) -> tuple[str, dict[str, object]]:
    """Split `"name(key=literal, ...)"` into the name and its keyword arguments, both checked against the registry."""
    try:
        node = ast.parse(spec.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"an encoding is written name or name(key=value, ...), got {spec!r}") from None
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or call.args or any(word.arg is None for word in call.keywords):
        raise ValueError(f"an encoding is written name or name(key=value, ...), got {spec!r}")
    name = call.func.id
    if name not in ENCODINGS:
        near = difflib.get_close_matches(name, ENCODINGS, n=1, cutoff=0.0)
        raise ValueError(f"unknown encoding {name!r}; did you mean {near[0]!r}? Known: {', '.join(ENCODINGS)}")
    known = [arg for arg in inspect.signature(ENCODINGS[name]).parameters if arg != "dims"]
    hints = typing.get_type_hints(ENCODINGS[name])
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
        try:
            options[word.arg] = _fit(value, hints[word.arg])
        except TypeError:
            wanted = inspect.formatannotation(hints[word.arg]).removeprefix("typing.")
            raise TypeError(f"{name}: {word.arg} must be {wanted}, got {value!r}") from None
    return name, options


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
