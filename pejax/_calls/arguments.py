"""Arguments of public functions, bound and read by their annotations: plain forms are converted, all else is refused.

A refusal names the function, the argument, the rule and what was received, in one line; `kinds` knows the rules.
Sizes with one name are equal in all arguments of a call.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim
from jaxtyping import jaxtyped

from pejax._calls.host import DigitsLost, with_way_out
from pejax._calls.kinds import REFUSALS, Kind, kind_of, shown
from pejax._calls.modes import own_modes
from pejax._calls.names import NO_WAYS, unknown_argument

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)


def checked(function: Callable[Arguments, Result], **ways: str) -> Callable[Arguments, Result]:
    """Decorate a function so that its arguments are read by their annotations.

    The decorated function raises TypeError for an argument of another kind and ValueError for a shape that does not
    fit, in one line that names the argument, the rule and what was received.

    Args:
        function: any function.
        **ways: by argument, the way out, for the end of the message; also by an argument that the function lacks.
    """
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__call__").removesuffix(".__init__")

    @functools.wraps(function)
    def reading(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        bound = bind(name, signature, args, options, ways)
        with own_modes():
            read_arguments(name, signature, bound.arguments, ways)
            return function(*bound.args, **bound.kwargs)

    return reading


def named_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function that reads its arguments itself: calls with other arguments are refused as by `checked`."""
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__call__").removesuffix(".__init__")

    @functools.wraps(function)
    def reading(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        bind(name, signature, args, options)
        with own_modes():
            return function(*args, **options)

    return reading


def bind(
    caller: str,
    signature: inspect.Signature,
    args: Sequence[Any],
    options: Mapping[str, Any],
    ways: Mapping[str, str] = NO_WAYS,
) -> inspect.BoundArguments:
    """Return the arguments of a call by name.

    Args:
        caller: name of the function, for messages.
        signature: its signature.
        args: arguments by place.
        options: arguments by name.
        ways: by an argument that it lacks, the way out.

    Raises:
        TypeError: an unknown argument, with a guess; one that is missing, given twice, or has no place.
    """
    try:
        return signature.bind(*args, **options)
    except TypeError as refusal:
        message = _refused_call(caller, signature, args, options, ways) or f"{caller}: {refusal}"
    raise TypeError(message)


def _refused_call(
    caller: str,
    signature: inspect.Signature,
    args: Sequence[Any],
    options: Mapping[str, Any],
    ways: Mapping[str, str],
) -> str:
    """Return the fault of a call that does not fit a signature; empty where Python says it well."""
    parameters = {name: parameter for name, parameter in signature.parameters.items() if name != "self"}
    by_place = [name for name, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    args = args["self" in signature.parameters :]
    supplied = options.keys() | {*by_place[: len(args)]}
    for name in options:
        if name not in parameters:
            choices = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
            return unknown_argument(caller, name, choices, ways)
    if len(args) > len(by_place):
        keywords = [name for name in parameters if name not in by_place]
        by_name = f", and {', '.join(keywords)} by name" if keywords else ""
        takes = f"{', '.join(by_place) or 'nothing'} by place{by_name}"
        return f"{caller} takes {takes}; got {len(args)} arguments by place"
    for name, parameter in parameters.items():
        if (
            parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_KEYWORD
            and name not in supplied
        ):
            rule = kind_of(parameter.annotation).rule
            return f"{caller}: missing a required argument: {name!r}{'' if rule == 'anything' else f', {rule}'}"
    return ""


def checked_fields(cls: Class) -> Class:
    """Decorate a dataclass so that its fields are read by their annotations."""
    init: Any = checked(cls.__init__)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = init
    return cls


def read_arguments(
    caller: str,
    signature: inspect.Signature,
    given: dict[str, Any],
    ways: Mapping[str, str] = NO_WAYS,
) -> None:
    """Replace the arguments of a call by what their annotations make of them.

    Args:
        caller: name of the function, for messages.
        signature: its signature.
        given: the arguments by name, as `Signature.bind` returns them.
        ways: by argument, the way out.

    Raises:
        TypeError: an argument of another kind.
        ValueError: an array of another shape, a tuple of another length, or a number that is not finite.
    """
    shapes: list[str] = []
    with jaxtyped("context"):
        for name, value in given.items():
            parameter = signature.parameters[name]
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                items = enumerate(value)
                given[name] = tuple(_read(f"{caller}: {name}[{n}]", item, parameter.annotation) for n, item in items)
            else:
                given[name] = _read(f"{caller}: {name}", value, parameter.annotation, shapes, ways.get(name))
            read = given[name]
            if isinstance(read, jax.Array | np.ndarray | jax.ShapeDtypeStruct) and read.ndim:
                shapes.append(f"{name} {tuple(read.shape)}")


def _read(name: str, value: Any, hint: Any, others: Sequence[str] = (), way: str | None = None) -> Any:
    """Return one argument as annotated; `others` are the arrays before it, whose sizes it must share."""
    kind = kind_of(hint)
    try:
        value = kind.read(_sizes_as_arrays(value))
    except DigitsLost as lost:
        raise ValueError(with_way_out(name, lost)) from None
    except REFUSALS as refusal:
        beside = f" beside {', '.join(others)}" if others and _fits_alone(kind, value) else ""
        out = f": {way}" if way else ""
        error = ValueError if isinstance(refusal, ValueError) else TypeError
        raise error(f"{name} must be {kind.rule}, got {shown(value)}{beside}{out}") from None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _read_fields(name, value)
    return value


def _sizes_as_arrays(value: Any) -> Any:
    """Return sizes that `jax.export` leaves open as traced numbers, any other value as it is."""
    sizes = value if type(value) is tuple else (value,)
    return jnp.asarray(value, jnp.int32) if any(map(is_symbolic_dim, sizes)) else value


def _read_fields(name: str, record: Any) -> Any:
    """Return a named tuple with its fields read, each by itself: some are batched and some are not."""
    read = {}
    for field, hint in type(record).__annotations__.items():
        with jaxtyped("context"):
            read[field] = _read(f"{name}.{field}", getattr(record, field), hint)
    return type(record)(**read)


def _fits_alone(kind: Kind, value: Any) -> bool:
    """Return whether a value would do beside no other arguments."""
    with contextlib.suppress(*REFUSALS), jaxtyped("context"):
        kind.read(value)
        return True
    return False
