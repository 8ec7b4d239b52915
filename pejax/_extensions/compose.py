"""Reads an encoding's `extend`, "yarn(factor=8)" or a sum of such terms, as one function of frequencies."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pejax._extensions.base import Extended, Frequencies, Length
from pejax._extensions.frequencies import EXTENSIONS
from pejax._spec import parse_call, split_sum

SUPPLIED = ("frequencies", "base", "rotary_dim", "length", "base_frequencies")
"""What an encoding itself tells an extension."""

FOLLOWS = ("dynamic_ntk", "longrope")
"""Extensions that depend on the length even where their factor is fixed."""


class Stretch(NamedTuple):
    """An extension of some frequencies.

    Attributes:
        extend: `(frequencies, length) -> (frequencies, attention factor)`; the length may be traced, or a grid.
        by_length: whether the length matters; where it does not, it may be None.
    """

    extend: Callable[[Frequencies, Length | None], Extended]
    by_length: bool


def read_extension(
    extend: str,
    sample: Frequencies,
    *,
    base: float,
    rotary_dim: int,
    trained_length: int | tuple[int, ...] | None,
    names: Sequence[str] = tuple(EXTENSIONS),
) -> Stretch:
    """Read an encoding's `extend`: "none", or terms of `EXTENSIONS` joined by "+", applied from left to right.

    Each term counts pairs by the frequencies as they were before any; their attention factors are multiplied.

    Args:
        extend: "none", or a sum of terms such as "ntk" and "yarn(factor=8)". Without a factor, a term takes it from the
            length at hand.
        sample: frequencies of the shape that will be extended, on which every term is tried.
        base: of the frequencies.
        rotary_dim: channels that turn; of one axis where there are more.
        trained_length: the encoding's, tokens or a grid; a term's own comes first.
        names: the extensions that the encoding takes.

    Raises:
        ValueError: an unknown extension, or what one of them refuses, beginning with the `extend` that was given.
        TypeError: an argument of another type.
    """
    if extend == "none":
        return Stretch(lambda frequencies, length: (frequencies, 1.0), by_length=False)
    table = {name: EXTENSIONS[name] for name in names}
    try:
        terms = [_read(term, table) for term in split_sum(extend, what="an extension")]
        by_length = any(name in FOLLOWS or options.get("factor") is None for name, options in terms)

        def apply(frequencies: Frequencies, length: Length | None) -> Extended:
            extended, attention_factor = frequencies, 1.0
            for name, options in terms:
                known: dict[str, Any] = {"trained_length": trained_length, **options}
                known |= {"base": base, "rotary_dim": rotary_dim, "length": length, "base_frequencies": frequencies}
                extended, sharpened = EXTENSIONS[name](extended, **known)
                attention_factor = attention_factor * sharpened
            return extended, attention_factor

        apply(sample, 1)
    except (ValueError, TypeError) as refusal:
        raise type(refusal)(f"extend={extend!r}: {refusal}") from None
    return Stretch(apply, by_length)


def _read(term: str, table: Mapping[str, Callable[..., Extended]]) -> tuple[str, dict[str, object]]:
    """Return the name and arguments of one term, with all that has no default and that no encoding knows."""
    name, options = parse_call(term, table, what="an extension", supplied=SUPPLIED)
    for argument in inspect.signature(table[name]).parameters.values():
        supplied = (*SUPPLIED, "trained_length", *options)
        if argument.default is inspect.Parameter.empty and argument.name not in supplied:
            raise ValueError(f"{name} needs {argument.name}, got {term!r}")
    return name, options
