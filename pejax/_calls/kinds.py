"""What an annotation allows: how a value is read as it says, and the rule in words for one that is refused.

    int, float, bool     scalars of NumPy and of arrays become Python's; a float is finite and may be given as an int
    tuple                lists and arrays become tuples
    arrays               finite numbers, lists and NumPy arrays become JAX arrays, of the annotated type and axes

What is annotated `Num` are positions, what is `Int` are ids and counts: both keep their digits, by the law of `host`.
Traced arrays pass where the annotation says an array.
"""

import collections.abc
import functools
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import AbstractArray, Key, UInt32

from pejax._calls.host import DigitsLost, check_digits, check_whole, signed

WORDS = {"Float": "floats", "Int": "integers", "Bool": "booleans", "Num": "numbers", "Real": "numbers"}
"""What an array holds, by the name of its annotation."""

MADE = {
    "Dims": "pejax.Dims such as pejax.Dims(heads=8, head_dim=64)",
    "Encoding": "a pejax.Encoding such as pejax.encodings.rope(dims) or make_encoding('rope', dims)",
    "Extension": "an extension such as pejax.extensions.yarn(factor=8)",
    "EncodingSpec": "a spec such as pejax.specs.parse('rope')",
    "SumSpec": "a spec such as pejax.specs.parse('rope')",
    "Hooks": "what attention_hooks returns",
    "Part": "parts such as text(12) and image(4, 6) of pejax.placement",
    "Patches": "what pejax.patchify returns",
    "Run": "runs such as mutual(12) and causal(40) of pejax.placement",
    "Rule": "a rule such as pejax.placement.flux()",
}
"""How to get a value of a class, by its name."""

LONGEST = 80
"""Characters of a value in a message."""

REFUSALS = (TypeError, ValueError, OverflowError)
"""What a reader raises for a value that is not of its kind; ValueError if only its shape or its size is wrong."""


class Kind(NamedTuple):
    """What an annotation allows.

    Attributes:
        rule: the words for it, after "must be".
        read: returns a value as annotated, or raises one of `REFUSALS`.
        takes: whether a value is of this kind as it is, but perhaps of a wrong shape or size.
    """

    rule: str
    read: Callable[[Any], Any]
    takes: Callable[[Any], bool]


def shown(value: Any) -> str:
    """Return a value for a message: type and shape of an array, else a short `repr`, on one line."""
    if isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct) and (value.ndim or isinstance(value, Tracer)):
        return f"{'a traced ' if isinstance(value, Tracer) and not value.ndim else ''}{value.dtype} {value.shape}"
    if _is_not_finite(value):
        return f"{value}, which is not finite"
    if isinstance(value, type) or inspect.isroutine(value):
        return getattr(value, "__qualname__", "a function")
    if isinstance(value, list | tuple) and any(isinstance(item, jax.Array | np.ndarray) for item in value):
        text = f"{type(value).__name__} of {', '.join(map(shown, value))}"
    else:
        text = " ".join(repr(value).split())
    if " at 0x" in text:
        return type(value).__name__
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}..." if isinstance(value, str | list | tuple | dict) else type(value).__name__


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float | np.floating) and not math.isfinite(value)


@functools.cache
def kind_of(hint: Any) -> Kind:
    """Return the kind of value that an annotation allows."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        # a list becomes a NumPy array where that is allowed, in float64
        numpy_first = sorted(inner, key=lambda option: getattr(option, "array_type", option) is not np.ndarray)
        if any(getattr(option, "array_type", None) is jax.Array for option in inner):  # JAX computes with NumPy's, too
            return _one_of(
                [_array(option, _law(option)) if _is_array(option) else kind_of(option) for option in numpy_first]
            )
        return _one_of([kind_of(option) for option in numpy_first])
    if origin is typing.Literal:
        return Kind(f"one of {', '.join(map(repr, inner))}", _choice(inner), lambda value: value in inner)
    if origin is tuple or origin is collections.abc.Sequence:
        return _tuple_of(origin, inner)
    if origin in (collections.abc.Callable, collections.abc.Mapping, dict, collections.abc.Iterable):
        kind = collections.abc.Mapping if origin is dict else origin
        return _instance(kind, {collections.abc.Callable: "a function", Mapping: "a dict"}.get(kind, "iterable"))
    if _is_array(hint):
        return _array(hint, _law(hint) if hint.array_type is jax.Array else _no_law)
    if hint in LEAVES:
        return LEAVES[hint]
    if isinstance(hint, type) and hint not in (object, Any, inspect.Parameter.empty):
        article = "an" if hint.__name__[0] in "AEIO" else "a"
        return _instance(hint, MADE.get(hint.__name__, f"{article} {hint.__name__}"))
    return Kind("anything", lambda value: value, lambda value: True)


def _instance(kind: Any, rule: str) -> Kind:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return Kind(rule, read, lambda value: isinstance(value, kind))


def _one_of(kinds: list[Kind]) -> Kind:
    """Return the kind of a union: what is of a kind as it is, is not converted to another one."""

    def read(value: Any) -> Any:
        refusal: Exception = TypeError()
        for candidate in [kind for kind in kinds if kind.takes(value)] or kinds:
            try:
                return candidate.read(value)
            except DigitsLost:
                raise
            except REFUSALS as found:
                refusal = refusal if isinstance(refusal, ValueError) else found  # one kind fits but for the shape
        raise refusal

    *rules, last = dict.fromkeys(kind.rule for kind in kinds)
    rule = f"{', '.join(rules)} or {last}" if rules else last
    return Kind(rule, read, lambda value: any(kind.takes(value) for kind in kinds))


def _choice(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, str | int) or value not in choices:
            raise ValueError
        return value

    return read


def _tuple_of(origin: Any, inner: tuple[Any, ...]) -> Kind:
    """Return the kind of a tuple, or of a sequence, whose items are read one by one."""
    many = origin is not tuple or inner[-1] is Ellipsis
    items = [kind_of(part) for part in inner if part is not Ellipsis]

    def read(value: Any) -> Any:
        if isinstance(value, np.ndarray | jax.Array) and value.ndim == 1:
            value = np.asarray(value)
        elif not isinstance(value, list | tuple | range):
            raise TypeError
        if not many and len(value) != len(items):
            raise ValueError
        kinds = items * len(value) if many else items
        return tuple(kind.read(item) for kind, item in zip(kinds, value, strict=True))

    plural = items[0].rule.removeprefix("an ").removeprefix("a ").replace("array of", "arrays of")
    listed = (
        f"({', '.join(item.rule for item in items)})" if not many else f"{plural}s" if " " not in plural else plural
    )
    return Kind(f"a tuple of {listed}" if many else f"a tuple {listed}", read, lambda value: isinstance(value, tuple))


def _is_array(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)


def _no_law(values: np.ndarray) -> None:
    del values


def _law(hint: Any) -> Callable[[np.ndarray], None]:
    """Return the check of the digits of an array that JAX computes with: positions, whole numbers, or other values."""
    return {"Num": check_digits, "Int": check_whole}.get(hint.dtype.__name__, _no_law)


def _array(hint: Any, law: Callable[[np.ndarray], None] = _no_law) -> Kind:
    """Return the kind of an array of one type and shape, whose digits a law keeps."""
    held, dims = WORDS.get(hint.dtype.__name__, hint.dtype.__name__), hint.dim_str
    if hint.dtype in (Key, UInt32):
        return LEAVES[Key]
    any_shape, convert = hint.dtype[hint.array_type, "..."], _converter(hint.array_type, law)
    shape = f" ({', '.join(dims.replace('#', '').split())})" if dims != "..." else ""
    rule = f"{'an array of ' if dims else 'a scalar array of '}{held}{shape if dims else ''}"

    def read(value: Any) -> Any:
        array = convert(value)
        if not isinstance(array, hint):
            raise (ValueError if isinstance(array, any_shape) else TypeError)
        return array

    return Kind(rule, read, lambda value: isinstance(value, hint.array_type))


def _converter(array_type: Any, law: Callable[[np.ndarray], None] = _no_law) -> Callable[[Any], Any]:
    """Return the function that makes an array of a NumPy array, of a list or of a number."""
    if array_type not in (jax.Array, np.ndarray):
        return lambda value: value
    module = np if array_type is np.ndarray else jnp

    def convert(value: Any) -> Any:
        if isinstance(value, jax.Array) and array_type is jax.Array:
            return value
        if not isinstance(value, np.ndarray | np.generic | list | tuple | range | int | float) or isinstance(
            value, bool
        ):
            raise TypeError
        if _is_not_finite(value):
            raise ValueError
        if law is not _no_law:
            try:
                law(_on_host(value))
            except TypeError:  # a list with traced numbers, which cannot be seen
                for leaf in jax.tree.leaves(value):
                    law(np.zeros(()) if isinstance(leaf, Tracer) else _on_host(leaf))
            value = signed(value)
        if isinstance(value, array_type):
            return value
        array = module.asarray(value)
        if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
            raise TypeError
        return array

    return convert


def _on_host(value: Any) -> np.ndarray:
    """Return a value as an array of NumPy; raise TypeError for a list of no one shape."""
    try:
        return np.asarray(value)
    except ValueError:
        raise TypeError from None


def _any_array(array_type: Any) -> Kind:
    law = check_whole if array_type is jax.Array else _no_law
    return Kind("an array", _converter(array_type, law), lambda value: isinstance(value, array_type))


def _scalar(value: Any, kinds: str) -> Any:
    """Return a known number as it is; raise TypeError for anything but a number of these kinds of NumPy's types."""
    is_number = isinstance(value, int | float | np.generic | np.ndarray | jax.Array) and not isinstance(value, Tracer)
    if not is_number or np.ndim(value) or np.asarray(value).dtype.kind not in kinds:
        raise TypeError
    return value


def _int(value: Any) -> int:
    return operator.index(_scalar(value, "iu"))


def _float(value: Any) -> float:
    number = float(_scalar(value, "iuf"))
    if not math.isfinite(number):
        raise ValueError
    return number


def _bool(value: Any) -> bool:
    return bool(_scalar(value, "b"))


def _key(value: Any) -> Any:
    """Return a key of JAX, typed or as an array of 32-bit words."""
    if not isinstance(value, jax.Array):
        raise TypeError
    if not jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and (value.dtype != jnp.uint32 or value.ndim != 1):
        raise TypeError
    return value


LEAVES: dict[Any, Kind] = {
    int: Kind("an int", _int, lambda value: type(value) is int),
    float: Kind("a finite number", _float, lambda value: type(value) is float),
    bool: Kind("True or False", _bool, lambda value: type(value) is bool),
    str: _instance(str, "a string"),
    type(None): _instance(type(None), "None"),
    jax.Array: _any_array(jax.Array),
    np.ndarray: _any_array(np.ndarray),
    Key: Kind("a random key such as jax.random.key(0)", _key, lambda value: False),
}
"""The kinds of annotations without parts."""
