"""The decorator of all factories of encodings: it applies extensions, and makes records that know their model."""

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeAlias

from pejax._calls.arguments import bind, read_arguments
from pejax._calls.kinds import shown
from pejax._calls.names import NO_WAYS
from pejax._extensions.apply import extend_encoding
from pejax._extensions.linear import linear
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding
from pejax._record.specs import EncodingSpec, Extension, Term
from pejax._tokens.positions import embedding_tokens
from pejax.extensions import ANY_ENCODING

Arguments = ParamSpec("Arguments")

Presets: TypeAlias = Callable[[str | None], Mapping[str, Any]]

HINT = Extension | None
"""Annotation of the argument `extend`."""

EXTEND = "strings such as 'yarn(factor=8)' are for make_encoding, the rope_scaling of a config.json for interop.load"
"""What reads other forms of an extension."""


def _no_presets(name: str | None) -> Mapping[str, Any]:
    return {}


class EncodingFactory(Generic[Arguments]):
    """A factory `(dims, *, ..., extend=None) -> Encoding`. Equal arguments give the same object.

    The decorated function receives in `extend` only the extensions that it applies itself, or None; a function without
    this argument receives none. The others work on any encoding and are applied here. The record knows its dims and its
    spec, and its `embed` takes `TokenPositions`, too.

    Attributes:
        takes: names of the extensions that the decorated function applies itself.
        extends: whether the decorated function has the argument `extend`.
        preset_options: function of the argument `preset` that returns the options it stands for. A call may give other
            values for them.
        ways: what to do instead, by an argument that the factory lacks.
    """

    def __init__(
        self,
        make: Callable[Arguments, Encoding],
        takes: tuple[str, ...],
        name: str = "",
        preset_options: Presets = _no_presets,
        ways: Mapping[str, str] = NO_WAYS,
    ) -> None:
        functools.update_wrapper(self, make)
        self.__wrapped__, self.__name__, self.takes = make, name or make.__name__, takes
        self.preset_options, self.ways = preset_options, ways
        signature = inspect.signature(make)
        self.extends = "extend" in signature.parameters
        extend = inspect.Parameter("extend", inspect.Parameter.KEYWORD_ONLY, default=None)
        parameters = {**signature.parameters, "extend": signature.parameters.get("extend", extend)}
        hints = {"dims": Dims, "extend": HINT}  # also where an encoding of one's own has no annotations
        annotated = [
            parameter.replace(annotation=hints.get(key, parameter.annotation)) for key, parameter in parameters.items()
        ]
        self.__signature__ = signature.replace(parameters=annotated)

    def __call__(self, *args: Arguments.args, **options: Arguments.kwargs) -> Encoding:
        name, signature = self.__name__, inspect.signature(self)
        bound = bind(name, signature, args, options, self.ways)
        read_arguments(name, signature, bound.arguments, {"extend": EXTEND})
        for key, value in bound.arguments.items():
            if not isinstance(value, Hashable):
                raise TypeError(f"{name}: {key} must be a plain Python value, got {shown(value)}")
        bound.arguments = {**self.preset_options(bound.arguments.get("preset")), **bound.arguments}
        bound.apply_defaults()
        own_terms, other_terms = _split(name, self.takes, bound.arguments["extend"], bound.arguments["dims"].axes)
        return _make(self, tuple({**bound.arguments, "extend": own_terms}.items()), other_terms)


def encoding_factory(
    *takes: str, preset_options: Presets = _no_presets, ways: Mapping[str, str] = NO_WAYS
) -> Callable[[Callable[Arguments, Encoding]], EncodingFactory[Arguments]]:
    """Decorate a function as an `EncodingFactory` that applies the extensions `takes` itself."""
    return functools.partial(EncodingFactory, takes=takes, preset_options=preset_options, ways=ways)


@functools.cache
def _make(
    factory: EncodingFactory[...], arguments: tuple[tuple[str, Any], ...], other_terms: Extension | None
) -> Encoding:
    options = dict(arguments)
    spec, dims = _spec(factory, options, other_terms), options.pop("dims")
    if other_terms is not None:
        return replace(extend_encoding(_make(factory, arguments, None), dims, other_terms), spec=spec)
    if not factory.extends:
        del options["extend"]
    encoding = factory.__wrapped__(dims, **options)
    if not isinstance(encoding, Encoding):
        raise TypeError(f"{factory.__name__} must return a pejax.Encoding, got {type(encoding).__name__}")
    return replace(embedding_tokens(encoding, dims.width), dims=dims, spec=spec)


def _spec(factory: EncodingFactory[...], options: Mapping[str, Any], other_terms: Extension | None) -> EncodingSpec:
    """Return the spec from which `make_encoding` makes the encoding: the options that are not the defaults."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(factory).parameters.items()}
    defaults.update(factory.preset_options(options.get("preset")))
    changed = {key: value for key, value in options.items() if key not in ("dims", "extend") and value != defaults[key]}
    return EncodingSpec(factory.__name__, changed, options["extend"]).extended(other_terms)


def _split(
    name: str, takes: Sequence[str], extend: Extension | None, axes: int
) -> tuple[Extension | None, Extension | None]:
    """Return the extensions that the factory applies itself, and those of any encoding; None where there are none.

    On one axis, scaled positions are scaled frequencies, if the encoding has them.
    """
    own_terms: list[Term] = []
    other_terms: list[Term] = []
    for term in () if extend is None else extend.terms:
        options = dict(term.options)
        if term.name == "pi" and "linear" in takes and axes == 1 and not options.get("stretch"):
            own_terms.extend(linear(factor=options.get("factor")).terms)
        elif term.name in takes:
            _check_inner(name, takes, term)
            own_terms.append(term)
        elif term.name in ANY_ENCODING:
            other_terms.append(term)
        else:
            raise ValueError(f"{name} has no extension {term.name!r}; it takes {', '.join((*takes, *ANY_ENCODING))}")
    other_terms.sort(key=lambda term: term.target == "queries")
    return (Extension(tuple(own_terms)) if own_terms else None), (
        Extension(tuple(other_terms)) if other_terms else None
    )


def _check_inner(name: str, takes: Sequence[str], term: Term) -> None:
    """Refuse an extension inside another one that the factory does not take: `ntk` in `by_step(above=ntk())`."""
    for key, value in term.options:
        for inner in value.terms if isinstance(value, Extension) else ():
            if inner.target == "frequencies" and inner.name not in takes:
                names = ", ".join(takes)
                raise ValueError(f"{name}: {key} of {term.name} must be of {names}, got {inner.name!r}")
