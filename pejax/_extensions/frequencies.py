"""Extensions of a rotary encoding's frequencies, as one function."""

from collections.abc import Callable
from typing import NamedTuple

from pejax._extensions.base import Extended, Frequencies, Length, Rotary
from pejax._specs import Extension


class FrequencyExtension(NamedTuple):
    """A function that extends frequencies.

    Attributes:
        extend: `(frequencies, length) -> (frequencies, attention factor)`; the length may be traced, or a grid.
        by_length: whether the result depends on the length; where it does not, the length may be None.
    """

    extend: Callable[[Frequencies, Length | None], Extended]
    by_length: bool


def extend_frequencies(
    extension: Extension | None,
    sample: Frequencies,
    *,
    base: float | tuple[float, ...],
    rotary_dim: int | tuple[int, ...],
    trained_length: int | tuple[int, ...] | None,
) -> FrequencyExtension:
    """Return the terms of an extension as one function of frequencies. It applies them from left to right.

    Each term counts pairs by the frequencies before any extension; the attention factors are multiplied.

    Args:
        extension: terms that act on frequencies. None = the frequencies stay as they are. A term without a factor takes
            it from the current length.
        sample: frequencies of the shape that will be extended, on which every term is tried.
        base: base of the frequencies, one number or one per axis.
        rotary_dim: number of channels that rotate with an axis, one number or one per axis.
        trained_length: length in tokens, or grid, of a term that gives none itself.

    Raises:
        ValueError: a value that a term refuses; the message begins with the extension's text.
    """
    if extension is None:
        return FrequencyExtension(lambda frequencies, length: (frequencies, 1.0), by_length=False)

    def extend(frequencies: Frequencies, length: Length | None) -> Extended:
        rotary = Rotary(base, rotary_dim, length, base_frequencies=frequencies)
        extended, attention_factor = frequencies, 1.0
        for term in extension.terms:
            options = {"trained_length": trained_length, **dict(term.options)}
            extended, factor = term.function(extended, rotary, **options)
            attention_factor = attention_factor * factor
        return extended, attention_factor

    try:
        extend(sample, 1)
    except (ValueError, TypeError) as refusal:
        raise type(refusal)(f"extend={str(extension)!r}: {refusal}") from None
    by_length = any(term.by_length or "factor" not in dict(term.options) for term in extension.terms)
    return FrequencyExtension(extend, by_length)
