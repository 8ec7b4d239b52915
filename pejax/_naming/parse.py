"""Reads specs: a name and keyword arguments as Python literals, such as "rope(base=500000)", sums and patterns of them.

    rope(base=1e4)*5 + rope(base=1e6)*1     five layers with the first, one with the second, and so on
    rope*3 + none*1                         every fourth layer without position
    (learned+rope)*1 + rope*1               parentheses around a sum that one layer composes
    (learned+rope)(extend='pi')             a sum with an extension, which is divided among its parts

In a pattern, a term without `*` counts once; a text without `*` is the encoding of all layers. The name of an
encoding of your own may say where it comes from, `my_module:my_factory(option=1)`; nothing is imported here.
"""

import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from pejax._calls.arguments import checked
from pejax._calls.names import NO_WAYS, unknown_argument, unknown_name
from pejax._record.specs import EncodingSpec, Extension, LayerPattern, Spec, SumSpec
from pejax.encodings import ENCODINGS
from pejax.extensions import EXTENSIONS

LONGEST, MOST_TERMS = 20_000, 256
"""Maximum number of characters in a spec and of terms in a sum: a spec may come from an untrusted file."""

NAME = r"[^\W\d]\w*"
"""Pattern of a name."""

OUTSIDE = rf"{NAME}(\.{NAME})*:{NAME}"
"""Pattern of the name of a function in a module, `package.module:function`."""

TEXT = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
"""Pattern of a text in quotes."""

DEEPEST = 10_000
"""Most layers of a pattern: more than any model has, and few enough to list."""


@checked
def parse(spec: str | Spec) -> Spec:
    """Read the encoding of one layer: `"name(key=literal, ...)"`, or a sum of such terms. A spec is returned as it is.

    Raises:
        ValueError: a malformed string, an unknown name or argument, a repeated argument, or a value that is no literal.
        TypeError: an argument of a type that the factory does not take, or `spec` is neither a string nor a spec.

    Examples:
        >>> parse("rope(base=1e4)"), parse("learned + rope").parts
        (rope(base=10000.0), (learned, rope))
    """
    if isinstance(spec, Spec):
        return spec
    node = expression(spec, "an encoding")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.BinOp):
        return _extended_sum(spec.strip(), node)
    parts = tuple(map(_parse_encoding, split_sum(spec, what="an encoding")))
    return parts[0] if len(parts) == 1 else SumSpec(parts)


def _extended_sum(text: str, node: ast.Call) -> Spec:
    """Read `"(a + b)(extend='...')"`, a sum with an extension of the whole."""
    extend = node.keywords[0].value if len(node.keywords) == 1 and node.keywords[0].arg == "extend" else None
    if node.args or not isinstance(extend, ast.Constant) or not isinstance(extend.value, str):
        raise ValueError(f"a sum takes one argument, extend='...', as in (learned+rope)(extend='pi'), got {text!r}")
    return parse(str(ast.get_source_segment(text, node.func))).extended(parse_extension(extend.value))


@checked
def parse_pattern(pattern: str | Spec | LayerPattern) -> LayerPattern:
    """Read the encodings of all layers, such as `"rope*3 + none*1"`. A pattern is returned as it is.

    Raises:
        ValueError: a string that `parse` refuses, a count that is not a positive integer, or more than 10,000 layers.
        TypeError: a value that `parse` refuses.

    Examples:
        >>> parse_pattern("rope(base=1e4)*2 + none*1").layers(4)
        (rope(base=10000.0), rope(base=10000.0), none, rope(base=10000.0))
    """
    if isinstance(pattern, LayerPattern):
        return pattern
    if not isinstance(pattern, str):
        return LayerPattern((parse(pattern),))
    terms = sum_terms(expression(pattern, "an encoding"), "an encoding")
    if not any(isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult) for term in terms):
        return LayerPattern((parse(pattern),))
    counted = [_counted(pattern.strip(), term) for term in terms]
    layers = sum(count for _, count in counted)
    if layers > DEEPEST:
        raise ValueError(f"a pattern must have at most {DEEPEST:,} layers, got {layers:,}")
    return LayerPattern(tuple(spec for text, count in counted for spec in (parse(text),) * count))


def _counted(pattern: str, term: ast.expr) -> tuple[str, int]:
    """Return the text of a term, and the number of its layers."""
    part, count = term, ast.Constant(1)
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        part, count = term.left, term.right
    if not isinstance(count, ast.Constant) or type(count.value) is not int or count.value < 1:
        raise ValueError(
            f"a pattern counts layers by positive integers, got {ast.get_source_segment(pattern, count)!r}"
        )
    return str(ast.get_source_segment(pattern, part)), count.value


def _parse_encoding(text: str) -> EncodingSpec:
    name, options = parse_call(text, ENCODINGS, what="an encoding", supplied=("dims",), readers=_extension_readers())
    return EncodingSpec(name, options, options.pop("extend", None))


@checked
def parse_extension(extend: str | Extension | None) -> Extension | None:
    """Read an extension: terms joined by "+", such as "yarn(factor=8)+log_n". "none" gives None.

    Raises:
        ValueError: a malformed text, an unknown extension or argument, or a missing argument.
        TypeError: an argument of a wrong type.
    """
    if not isinstance(extend, str):
        return extend
    if extend == "none":
        return None
    first, *tail = map(_parse_term, split_sum(extend, what="an extension"))
    return sum(tail, first)


def _extension_readers() -> dict[Any, Callable[[str], object]]:
    """Return the readers of arguments that are extensions."""
    return {Extension | None: parse_extension}


def _parse_term(text: str) -> Extension:
    if re.match(r"extension\b", text):
        raise ValueError(f"extension takes a function, which a string cannot name: pass the record, got {text!r}")
    name, options = parse_call(text, EXTENSIONS, what="an extension", readers=_extension_readers())
    for key, argument in inspect.signature(EXTENSIONS[name]).parameters.items():
        if argument.default is argument.empty and key not in options:
            raise ValueError(f"{name} needs {key}, got {text!r}")
    return EXTENSIONS[name](**options)


def parse_call(
    spec: str,
    table: Mapping[str, Callable[..., Any]],
    *,
    what: str,
    supplied: Sequence[str] = (),
    readers: Mapping[Any, Callable[[str], object]] = types.MappingProxyType({}),
) -> tuple[str, dict[str, Any]]:
    """Split `"name(key=literal, ...)"` into the name and its keyword arguments, both checked against the table.

    Args:
        spec: text, as a user writes it.
        table: functions by name. Their signatures determine the arguments, their annotations the types.
        what: noun of the messages with its article, "an encoding".
        supplied: arguments that the caller adds later; a spec may not give them.
        readers: functions that read a string, by the annotation of its argument.

    Raises:
        ValueError: a malformed spec, an unknown name or argument, one given twice, or a value that is no literal.
        TypeError: a value that does not fit the annotation.
    """
    node = expression(spec, what)
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = call.func.id if isinstance(call.func, ast.Name) else str(ast.get_source_segment(spec.strip(), call.func))
    named = isinstance(call.func, ast.Name) or re.fullmatch(OUTSIDE, name)
    if not named or call.args or any(word.arg is None for word in call.keywords):
        raise ValueError(f"{what} is written name or name(key=value, ...), got {spec!r}")
    check_name(name, table, what)
    names = [key for key in inspect.signature(table[name]).parameters if key not in supplied]
    hints = typing.get_type_hints(table[name])
    options = dict[str, Any]()
    for word in call.keywords:
        if word.arg not in names:
            raise ValueError(unknown_argument(name, str(word.arg), names, getattr(table[name], "ways", NO_WAYS)))
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
            expected = "a plain value" if hint is Any else inspect.formatannotation(hint).removeprefix("typing.")
            raise TypeError(f"{name}: {word.arg} must be {expected}, got {value!r}") from None
    return name, options


def check_name(name: str, table: Iterable[str], what: str) -> None:
    """Raise ValueError for a name that is not in the table; `what` is the noun with its article."""
    if name not in table and ":" in name:
        raise ValueError(f"unknown {what.rpartition(' ')[2]} {name!r}: call pejax.register_encoding({name!r}, factory)")
    if name not in table:
        raise ValueError(unknown_name(what.rpartition(" ")[2], name, table))


def outside_names(text: str) -> tuple[str, ...]:
    """Return the places of factories, `my_module:mine`, that a spec or a list of specs names outside of its texts.

    Examples:
        >>> outside_names("(a.b:mine(x='c:d')+rope)*2, a.b:mine, e:mine")
        ('a.b:mine', 'e:mine')
    """
    places = (match["place"] for match in re.finditer(rf"{TEXT}|(?P<place>{OUTSIDE})", text))
    return tuple(dict.fromkeys(filter(None, places)))


def split_sum(spec: str, *, what: str) -> list[str]:
    """Split `"a(...) + b + c(...)"` into its terms, as they are written.

    Raises:
        ValueError: no expression, or more terms than any model needs.
    """
    segment = lambda term: str(ast.get_source_segment(spec.strip(), term))
    return [segment(term) for term in sum_terms(expression(spec, what), what)]


def sum_terms(node: ast.expr, what: str) -> list[ast.expr]:
    """Return the terms of a parsed sum.

    Raises:
        ValueError: more than `MOST_TERMS`.
    """
    terms = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        terms.append(node.right)
        node = node.left
    if len(terms) >= MOST_TERMS:
        raise ValueError(f"{what} must be a sum of at most {MOST_TERMS} terms, got {len(terms) + 1}")
    return [node, *reversed(terms)]


def expression(spec: str, what: str) -> ast.expr:
    """Parse a spec.

    Raises:
        ValueError: no expression, or one that is too long.
    """
    if len(spec) > LONGEST:
        raise ValueError(f"{what} must be written in at most {LONGEST:,} characters, got {len(spec):,}")
    try:
        return ast.parse(_dotted(spec.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{what} is written name or name(key=value, ...), got {spec!r}") from None


def _dotted(spec: str) -> str:
    """Return a spec in which `module:function` is a Python expression of the same length, `module.function`."""
    return re.sub(rf"({TEXT})|(?<=\w):(?=[^\W\d])", lambda match: match[1] or ".", spec)


def _fit(value: object, hint: object) -> object:
    """Convert a literal to the annotated type: integers to floats, and lists to tuples, where the type requires it.

    Raises:
        TypeError: a literal of another type, or a number that is not finite.
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
        kinds = inner[:1] * len(value) if origin is Sequence or inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            return tuple(_fit(item, kind) for item, kind in zip(value, kinds, strict=True))
    elif hint is Any and isinstance(value, tuple | list):
        return tuple(_fit(item, Any) for item in value)
    elif hint is Any and isinstance(value, Hashable) and value == value:  # not NaN
        return value
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:
            return float(value)
    elif hint in (int, bool, str, type(None)) and type(value) is hint:
        return value
    raise TypeError
