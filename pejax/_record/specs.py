"""Encodings and extensions as values, before they are made; `--pe="rope(base=500000)"` is parsed into such a value.

    EncodingSpec     rope(base=500000.0, extend='yarn(factor=8)')
    SumSpec          learned+rope, parts that one layer composes; (learned+rope)(extend='pi') with an extension of all
    LayerPattern     rope*3+none*1, an encoding per layer
    Extension        yarn(factor=8)+log_n

`str` writes a value as a string, which `pejax.specs` reads.
Numbers that JAX may trace are parameters of an encoding, never options of a spec.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from pejax._calls.arguments import checked, checked_fields
from pejax._calls.kinds import shown

Target = Literal["frequencies", "encoding", "queries", "factory"]

SCALINGS = ("linear", "ntk", "dynamic_ntk", "yarn", "longrope", "llama3", "by_step", "extension", "pi")
"""Extensions that scale positions or frequencies so that a longer input fits; two of them would do it twice."""


class Term(NamedTuple):
    """One extension and its options.

    Attributes:
        name: name in `pejax.extensions.EXTENSIONS`, or "extension", a function of the user's own.
        target: part of the model that it changes: the frequencies of a rotary encoding; any encoding; the queries of
            any encoding, after all other extensions; or a part that only an encoding's own factory can extend.
        function: function that computes it: `(frequencies, rotary, **options)`, `(encoding, dims, **options)`, or one
            that the factory calls.
        options: the options that were given, as pairs of name and value.
        varies: whether its effect depends on the length of the input, or on the step of a schedule.
    """

    name: str
    target: Target
    function: Callable[..., Any]
    options: tuple[tuple[str, Any], ...]
    varies: bool = False

    def __str__(self) -> str:
        written = [(key, str(value) if isinstance(value, Extension) else value) for key, value in self.options]
        return _call(self.name, written)


def check_scalings(terms: Sequence[Term]) -> None:
    """Refuse two terms that scale one axis: `yarn(factor=2)+pi(factor=2)` would read an input as four times as long.

    Raises:
        ValueError: naming the two.
    """
    for pair in itertools.combinations(terms, 2):
        axes = max(map(_named_axes, pair))
        one, other = (_scaled_axes(term, axes) for term in pair)
        if one & other:
            way = "give one of them the whole factor, or each of them axes of its own, factor=(2, 1) and factor=(1, 2)"
            if "extension" in (pair[0].name, pair[1].name):
                way = f"{way}; extension(function, scales=(1,)) scales axis 1, scales=() none"
            raise ValueError(f"an extension must scale an axis once, got {pair[0]} and {pair[1]}, which both do: {way}")


def _named_axes(term: Term) -> int:
    """Return the least number of axes that a term is for, as far as its options say."""
    options = dict(term.options)
    factor = options.get("factor")
    return max(len(factor) if isinstance(factor, tuple) else 1, 1 + max(options.get("scales", ()), default=0))


def _scaled_axes(term: Term, axes: int) -> set[int]:
    """Return the axes that a term scales, as far as its options say: all, or those with a factor other than 1."""
    if "scales" in dict(term.options):
        return {*dict(term.options)["scales"]}
    factor = dict(term.options).get("factor")
    factors = factor if isinstance(factor, tuple) else (factor,) * axes
    return {axis for axis, factor in enumerate(factors) if factor != 1} if term.name in SCALINGS else set()


@checked_fields
@dataclass(frozen=True, repr=False)
class Extension:
    """Ways to extend an encoding beyond the length or grid that it was trained on. `+` joins several.

    Extensions are values: they can be compared and hashed, and `str` gives the string that `make_encoding` reads.

    Attributes:
        terms: one record per extension, applied from left to right.

    Raises:
        ValueError: `+` of two that scale the same axis, such as `yarn(factor=2) + pi()`.

    Examples:
        >>> from pejax.extensions import log_n, yarn
        >>> yarn(factor=8) + log_n()
        yarn(factor=8)+log_n
    """

    terms: tuple[Term, ...]

    def __add__(self, other: "Extension") -> "Extension":
        if not isinstance(other, Extension):
            return NotImplemented
        check_scalings(self.terms + other.terms)
        return Extension(self.terms + other.terms)

    def __repr__(self) -> str:
        return "+".join(map(str, self.terms))


@dataclass(frozen=True, init=False, repr=False)
class EncodingSpec:
    """An encoding by name. Specs of equal options are equal; `make_encoding` makes the encoding.

    Args:
        name: a name in `pejax.ENCODINGS`.
        options: the keyword arguments of its factory, but for `dims` and `extend`.
        extend: the extension beyond the trained length or grid. None = no extension.

    Examples:
        >>> from pejax.extensions import yarn
        >>> EncodingSpec("rope", {"base": 5e5}).extended(yarn(factor=8))
        rope(base=500000.0, extend='yarn(factor=8)')
    """

    name: str
    options: tuple[tuple[str, Any], ...]
    extend: Extension | None

    @checked
    def __init__(
        self,
        name: str,
        options: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
        extend: Extension | None = None,
    ) -> None:
        for field, value in {"name": name, "options": tuple(sorted(dict(options).items())), "extend": extend}.items():
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        extend = () if self.extend is None else (("extend", str(self.extend)),)
        return _call(self.name, (*self.options, *extend))

    @property
    def parts(self) -> tuple["EncodingSpec", ...]:
        """The spec itself, the only part."""
        return (self,)

    @property
    def is_extended(self) -> bool:
        """Whether it has an extension."""
        return self.extend is not None

    def without_extension(self) -> "EncodingSpec":
        """Return the spec without its extension."""
        return replace(self, extend=None)

    def extended(self, extend: Extension | None) -> "EncodingSpec":
        """Return the spec with this extension after its own."""
        return replace(self, extend=_joined(self.extend, extend))


@checked_fields
@dataclass(frozen=True, repr=False)
class SumSpec:
    """Encodings that act in different places of a layer, `"learned+rope"` (`pejax.compose_encodings`).

    Args:
        parts: two or more specs.
        extend: an extension of the whole, which `make_encoding` divides among the parts. None = no such extension.
    """

    parts: tuple[EncodingSpec, ...]
    extend: Extension | None = None

    def __repr__(self) -> str:
        written = "+".join(map(str, self.parts))
        return written if self.extend is None else f"({written})(extend={str(self.extend)!r})"

    @property
    def is_extended(self) -> bool:
        """Whether it or a part has an extension."""
        return self.extend is not None or any(part.is_extended for part in self.parts)

    def without_extension(self) -> "SumSpec":
        """Return the spec without extensions, its own and those of its parts."""
        return SumSpec(tuple(part.without_extension() for part in self.parts))

    def extended(self, extend: Extension | None) -> "SumSpec":
        """Return the spec with this extension after its own."""
        return replace(self, extend=_joined(self.extend, extend))


Spec: TypeAlias = EncodingSpec | SumSpec
"""The encoding of one layer."""

NONE = EncodingSpec("none")
"""No positions."""


@checked_fields
@dataclass(frozen=True, repr=False)
class LayerPattern:
    """The encodings of layers that repeat a pattern, `"rope*3+none*1"`.

    Args:
        specs: one per layer of the pattern; one alone is the encoding of all layers.

    Examples:
        >>> pattern = LayerPattern((EncodingSpec("rope"), EncodingSpec("rope"), NONE))
        >>> pattern, pattern.layers(4)
        (rope*2+none*1, (rope, rope, none, rope))
    """

    specs: tuple[Spec, ...]

    def __repr__(self) -> str:
        if len(self.specs) == 1:
            return str(self.specs[0])
        counted = [(spec, len([*group])) for spec, group in itertools.groupby(self.specs)]
        written = lambda spec: f"({spec})" if len(spec.parts) > 1 and spec.extend is None else str(spec)
        return "+".join(f"{written(spec)}*{count}" for spec, count in counted)

    @property
    def parts(self) -> tuple[EncodingSpec, ...]:
        """The different encodings, those of sums one by one."""
        return tuple(dict.fromkeys(part for spec in self.specs for part in spec.parts))

    def layers(self, count: int) -> tuple[Spec, ...]:
        """Return one encoding per layer of a model with `count` layers.

        Raises:
            ValueError: fewer layers than the pattern has.
        """
        if len(self.specs) > count:
            raise ValueError(f"pe='{self}' is a pattern of {len(self.specs)} layers, the model has {count}")
        return tuple(self.specs[layer % len(self.specs)] for layer in range(count))


def _call(name: str, options: Iterable[tuple[str, Any]]) -> str:
    written = ", ".join(f"{key}={shown(value) if callable(value) else repr(value)}" for key, value in options)
    return f"{name}({written})" if written else name


def _joined(own: Extension | None, other: Extension | None) -> Extension | None:
    """Return the extension of a model, which it may have been trained with, and a further one: both may scale."""
    return Extension(own.terms + other.terms) if own is not None and other is not None else own or other
