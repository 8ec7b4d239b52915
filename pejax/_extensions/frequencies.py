"""Extensions of a rotary encoding's frequencies, as one function."""

from collections.abc import Callable
from typing import Any, NamedTuple

from pejax._extensions.base import Extended, Frequencies, Length, Rotary
from pejax._record.specs import Extension


class FrequencyExtension(NamedTuple):
    """A function that extends frequencies.

    Attributes:
        extend: `(frequencies, length, step) -> (frequencies, attention factor)`; the length may be traced, or a grid,
            the step may be traced.
        varies: whether the result depends on the length or the step; where it does not, both may be None.
    """

    extend: Callable[[Frequencies, Length | None, Any], Extended]
    varies: bool


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
        return FrequencyExtension(lambda frequencies, length, step: (frequencies, 1.0), varies=False)

    def extend(frequencies: Frequencies, length: Length | None, step: Any) -> Extended:
        rotary = Rotary(base, rotary_dim, length, frequencies, step, trained_length)
        return apply_terms(extension, frequencies, rotary)

    try:
        extend(sample, 1 if sample.ndim == 1 else (1,) * len(sample), 0.0)
    except (ValueError, TypeError) as refusal:
        raise type(refusal)(f"extend={str(extension)!r}: {refusal}") from None
    return FrequencyExtension(extend, any(term.varies for term in extension.terms))


def apply_terms(extension: Extension | None, frequencies: Frequencies, rotary: Rotary) -> Extended:
    """Return the frequencies after all terms, from left to right, and the product of their attention factors.

    Args:
        extension: terms that act on frequencies. None = no terms.
        frequencies: the frequencies that the first term gets.
        rotary: the encoding that has them.
    """
    attention_factor = 1.0
    for term in () if extension is None else extension.terms:
        frequencies, factor = term.function(frequencies, rotary, **dict(term.options))
        attention_factor = attention_factor * factor
    return frequencies, attention_factor
