"""The record of an extension, such as `yarn(factor=8)`, or of several, `yarn(factor=8) + log_n()`."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Target = Literal["frequencies", "encoding", "queries", "factory"]


class Term(NamedTuple):
    """One extension and its options.

    Attributes:
        name: its name in `pejax.extensions.EXTENSIONS`.
        target: what it changes: the frequencies of a rotary encoding; any encoding; the queries of any encoding, after
            all other extensions; or what one encoding's own factory knows how to extend.
        function: what computes it: `(frequencies, **options)`, `(encoding, dims, **options)`, or a function that the
            factory calls.
        options: the options that were given, as pairs of name and value.
        by_length: whether it depends on the length even where its factor is fixed.
    """

    name: str
    target: Target
    function: Callable[..., Any]
    options: tuple[tuple[str, Any], ...]
    by_length: bool = False

    def __str__(self) -> str:
        written = ", ".join(f"{key}={value!r}" for key, value in self.options)
        return f"{self.name}({written})" if written else self.name


@dataclasses.dataclass(frozen=True, repr=False)
class Extension:
    """Ways to extend an encoding beyond the length or grid that it was trained on. `+` joins several.

    Extensions are values: they can be compared and hashed, and `str` gives the string that `make_encoding` reads.

    Attributes:
        terms: one record per extension, applied from left to right.

    Examples:
        >>> from pejax.extensions import log_n, yarn
        >>> yarn(factor=8) + log_n()
        yarn(factor=8)+log_n
    """

    terms: tuple[Term, ...]

    def __add__(self, other: "Extension") -> "Extension":
        return Extension(self.terms + other.terms) if isinstance(other, Extension) else NotImplemented

    def __repr__(self) -> str:
        return "+".join(map(str, self.terms))


def extension(
    name: str, target: Target, function: Callable[..., Any], options: Mapping[str, Any], *, by_length: bool = False
) -> Extension:
    """Return an extension of one term, with the options that are not None and differ from the function's defaults."""
    defaults = inspect.signature(function).parameters
    given = tuple((key, one) for key, one in options.items() if one is not None and one != defaults[key].default)
    return Extension((Term(name, target, function, given, by_length),))
