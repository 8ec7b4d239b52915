"""Declares an extension: the function that computes it gives the function that makes its record, `yarn(factor=8)`."""

import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import AbstractArray

from pejax._calls.arguments import bind, read_arguments
from pejax._calls.kinds import shown
from pejax._record.specs import Extension, Target, Term

Options = ParamSpec("Options")
UNIONS = (types.UnionType, typing.Union)


def extension_factory(
    name: str,
    target: Target,
    function: Callable[Concatenate[Any, Any, Options], Any],
    *,
    varies: bool = False,
) -> Callable[Options, Extension]:
    """Declare an extension by the function that computes it, and return the function that makes its record.

    The record's function has the keyword arguments, defaults and documentation of `function`. A record holds those that
    differ from the defaults.

    Args:
        name: name in `pejax.extensions.EXTENSIONS`.
        target: part of the model that `function` changes (`Term`).
        function: `(frequencies, rotary, *, ...)`, or `(encoding, dims, *, ...)`.
        varies: whether the result depends on the current length, or a step, whatever its options are. Where there is a
            factor, it does so without one.
    """
    _, _, *options = inspect.signature(function).parameters.values()
    options = [parameter.replace(annotation=_without_arrays(parameter.annotation)) for parameter in options]
    signature = inspect.Signature(options, return_annotation=Extension)
    defaults = {parameter.name: parameter.default for parameter in options}

    @functools.wraps(function)
    def record(*args: Options.args, **given: Options.kwargs) -> Extension:
        bound = bind(name, signature, args, given).arguments
        _refuse_traced(name, bound)
        bound = {key: _hashable(value) for key, value in bound.items()}
        read_arguments(name, signature, bound)
        changed = tuple((key, value) for key, value in bound.items() if value is not None and value != defaults[key])
        follows = varies or ("factor" in defaults and bound.get("factor") is None)
        return Extension((Term(name, target, function, changed, follows),))

    record.__name__ = record.__qualname__ = name
    record.__doc__ = _documentation(inspect.getdoc(function) or "")
    record.__annotations__ = {parameter.name: parameter.annotation for parameter in options} | {"return": Extension}
    record.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]  # read by `inspect.signature`
    return record


def _without_arrays(annotation: Any) -> Any:
    """Return the annotation without the arrays that a function of frequencies accepts and no record can hold."""
    is_array = lambda hint: isinstance(hint, type) and issubclass(hint, jax.Array | AbstractArray)
    hints = [hint for hint in typing.get_args(annotation) if not is_array(hint)]
    return functools.reduce(operator.or_, hints) if typing.get_origin(annotation) in UNIONS else annotation


def _refuse_traced(name: str, options: dict[str, Any]) -> None:
    for key, value in options.items():
        if isinstance(value, Tracer):
            way = (
                "by_step goes between two by a traced weight, and a function given to extension has all that is traced"
            )
            raise TypeError(f"{name}: {key} must be a plain value, got {shown(value)}: {way}")


def _hashable(value: Any) -> Any:
    """Return lists and arrays as tuples."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic | jax.Array) else value
    return tuple(value) if isinstance(value, list) else value


def _documentation(text: str) -> str:
    """Return the documentation of a function of frequencies or encodings as that of its record."""
    summary, sections = text.split("\n\n", 1)
    sections = re.sub(r"(?m)^    (frequencies|rotary|encoding|dims): .*\n(        .*\n)*", "", sections)
    sections = re.sub(r"(?m)^Returns:\n(    .*\n)+\n", "", sections)
    use = "Returns the record for `extend=` of a factory, which supplies the current length L' and, if it is None, L."
    return f"{summary}\n\n{use}\n\n{sections}"
