"""Makes an encoding from a string such as "rope(base=500000)": a name, and keyword arguments as Python literals."""

import ast
import difflib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pejax._compose import compose_encodings
from pejax._dims import Dims
from pejax._encoding import Encoding
from pejax._extensions.extension import Extension, Term
from pejax.encodings import ENCODINGS
from pejax.extensions import ANY_ENCODING, EXTENSIONS

LONGEST, MOST_TERMS = 20_000, 256
"""Most characters of a spec, and most terms of a sum: a spec may come from a file of somebody else."""


class Spec(NamedTuple):
    """A string such as "rope(base=500000)", parsed and checked: `ENCODINGS[name](dims, **options)` makes the encoding.

    Attributes:
        name: of the encoding.
        options: the keyword arguments of its factory.
    """

    name: str
    options: dict[str, Any]


def make_encoding(spec: str, dims: Dims, extend: str | Extension | None = None) -> Encoding:
    """Make the encoding that `spec` names, extended as `extend` says: for command lines and configuration files.

    The result is that of the factory in `pejax.encodings`: equal arguments give the same object. Its `embed` accepts
    positions or `TokenPositions`, and leaves tokens without a position unchanged. If `dims.causal` is True, `attend`,
    `attention_fn` and `attention_module` mask keys after the query by default.

    A sum, `"learned+rope"`, composes encodings that act in different places (`compose_encodings`). Its extension goes
    to the parts: `pi` to all of them; one that the factory of a part applies itself (`yarn`, `slopes`, `resize`) to
    that part; any other to the part that rotates, or else to the last.

    Args:
        spec: a name in `ENCODINGS`, with or without keyword arguments: `"rope"`, `"rope(base=500000)"`; or a sum.
        dims: the sizes of the model.
        extend: an extension of `pejax.extensions`, as a record or as a string: "yarn(factor=8)+log_n". None or "none" =
            no extension. The spec may contain the string instead: `"rope(extend='yarn')"`.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument, an extension that the encoding does not
            support, `extend` given twice, or a value that the factory or an extension refuses.
        TypeError: an argument of a wrong type.

    Examples:
        >>> import pejax
        >>> dims = pejax.Dims(heads=8, head_dim=64, extent=2048, causal=True)
        >>> rope = pejax.make_encoding("rope(base=500000)", dims, "yarn(factor=8)")
        >>> rope is pejax.encodings.rope(dims, base=5e5, extend=pejax.extensions.yarn(factor=8))
        True
    """
    if not (isinstance(spec, str) and isinstance(dims, Dims)):
        kinds = f"{type(spec).__name__} and {type(dims).__name__}"
        raise TypeError(f"make_encoding takes a spec and then dims, a str and Dims, got {kinds}")
    terms = split_sum(spec, what="an encoding")
    if len(terms) == 1:
        return _make_one(parse_spec(spec), dims, extend)
    parts = [parse_spec(term) for term in terms]
    return compose_encodings(*map(_make_one, parts, [dims] * len(parts), _divided(parts, dims, extend)))


def _make_one(spec: Spec, dims: Dims, extend: str | Extension | None) -> Encoding:
    """Make the encoding of one term, extended by `extend` or by what the term itself says."""
    name, options = spec
    try:
        given = parse_extension(extend) if isinstance(extend, str) else extend
        inside = options.get("extend")
        if given is not None and inside is not None:
            raise ValueError(f"extend must be given once, got {str(inside)!r} and {str(given)!r}")
        return ENCODINGS[name](dims, **{**options, "extend": inside if given is None else given})
    except ValueError as refusal:
        known = str(refusal).startswith((f"{name}: ", f"{name} "))
        raise ValueError(str(refusal) if known else f"{name}: {refusal}") from None


def _divided(parts: Sequence[Spec], dims: Dims, extend: str | Extension | None) -> list[Extension | None]:
    """Return the extension of each part of a sum, as `make_encoding` says."""
    extend = parse_extension(extend) if isinstance(extend, str) else extend
    rotating = [n for n, part in enumerate(parts) if _make_one(part, dims, None).rotate is not None]
    own: list[list[Term]] = [[] for _ in parts]
    for term in () if extend is None else extend.terms:
        takers = [n for n, part in enumerate(parts) if term.name in getattr(ENCODINGS[part.name], "takes", ())]
        if term.name == "pi":
            takers = list(range(len(parts)))
        elif not takers and term.name in ANY_ENCODING:
            takers = (rotating or [len(parts) - 1])[:1]
        if not takers:
            names = "+".join(part.name for part in parts)
            raise ValueError(f"{names} has no part with the extension {term.name!r}, got extend={str(extend)!r}")
        for n in takers:
            own[n].append(term)
    return [Extension(tuple(terms)) if terms else None for terms in own]


def parse_spec(spec: str) -> Spec:
    """Read `"name(key=literal, ...)"`, with name and arguments checked against the registry."""
    read = {Extension | None: parse_extension}
    return Spec(*parse_call(spec, ENCODINGS, what="an encoding", supplied=("dims",), readers=read))


def parse_extension(text: str) -> Extension | None:
    """Parse the string of an extension: terms joined by "+", such as "yarn(factor=8)+log_n". "none" gives None.

    Raises:
        ValueError: a malformed string, an unknown extension or argument, or a missing argument.
        TypeError: an argument of a wrong type.
    """
    if text == "none":
        return None
    first, *others = map(_parse_term, split_sum(text, what="an extension"))
    return sum(others, first)


def _parse_term(text: str) -> Extension:
    name, options = parse_call(text, EXTENSIONS, what="an extension")
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
) -> tuple[str, dict[str, object]]:
    """Split `"name(key=literal, ...)"` into the name and its keyword arguments, both checked against the table.

    Args:
        spec: as a user writes it.
        table: what may be named; the signatures say which arguments there are, the annotations of which type.
        what: the noun of the messages with its article, "an encoding".
        supplied: arguments that the program gives itself, and a spec may not.
        readers: how to read a string given for an argument of such an annotation.

    Raises:
        ValueError: a malformed spec, an unknown name or argument, one given twice, or a value that is no literal.
        TypeError: a value of another type than the annotation says.
    """
    node = expression(spec, what)
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or call.args or any(word.arg is None for word in call.keywords):
        raise ValueError(f"{what} is written name or name(key=value, ...), got {spec!r}")
    name = call.func.id
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1, cutoff=0.0)
        noun = what.rpartition(" ")[2]
        raise ValueError(f"unknown {noun} {name!r}; did you mean {near[0]!r}? Known: {', '.join(table)}")
    known = [key for key in inspect.signature(table[name]).parameters if key not in supplied]
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
    return name, options


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
