"""Makes an encoding from a text such as "rope(base=500000)"."""

import functools
from collections.abc import Callable

from pejax._encoding import Dims, Encoding
from pejax._extensions.frequencies import EXTENSIONS
from pejax._extensions.interpolation import interpolate_encoding
from pejax._extensions.self_extend import rerope, self_extend
from pejax._extensions.temperature import TEMPERATURES, read_temperature, scale_queries
from pejax._spec import parse_call, split_sum
from pejax._tokens import embedding_tokens
from pejax.encodings import ENCODINGS

STRETCHED: dict[str, tuple[str, ...]] = {
    "alibi": ("slopes",),
    "learned": ("resize",),
    "rope": tuple(EXTENSIONS),
    "rope_axial": tuple(EXTENSIONS),
    "rope_mixed": ("linear",),
}
"""What the keyword `extend` of these encodings takes."""

RECAST: dict[str, Callable[..., Encoding]] = {"pi": interpolate_encoding, "rerope": rerope, "self_extend": self_extend}
"""What is made of an encoding from outside, `(encoding, dims, **options) -> encoding`."""

OUTSIDE = (*RECAST, *TEMPERATURES)
"""Extensions that no encoding makes itself."""


def make_encoding(spec: str, dims: Dims, extend: str = "none") -> Encoding:
    """Make the encoding that `spec` names, stretched as `extend` says. Equal arguments give the same object.

    Its `embed` takes `TokenPositions` in place of positions, too, and leaves tokens without a position alone. Made for
    a causal model, `attend`, `attention_fn` and modules mask keys after the query without being told.

    Args:
        spec: a name of `ENCODINGS`, with keyword arguments where wanted: `"rope"`, `"rope(base=500000)"`.
        dims: of the model.
        extend: "none", or terms joined by "+", as "yarn(factor=8)+log_n": extensions that the encoding's own keyword
            `extend` takes; "pi", position interpolation, which is "linear" to a rotary encoding and squeezes the
            positions of any other; "self_extend" and "rerope" for encodings that rotate; the temperatures "log_n" and
            "llama4" for any encoding of a sequence. The keyword in `spec` takes all of it too.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument, an extension that the encoding does not
            have, `extend` given twice, or what the factory or an extension refuses.
        TypeError: an argument of another type.
    """
    if not (isinstance(spec, str) and isinstance(dims, Dims)):
        kinds = f"{type(spec).__name__} and {type(dims).__name__}"
        raise TypeError(f"make_encoding takes a spec and then dims, a str and Dims, got {kinds}")
    name, options = parse_spec(spec)
    terms = _terms(name, options, extend)
    own = "+".join("linear" if term == "pi" else term for term in terms if _name(term) in _taken(name))
    outside = [term for term in terms if _name(term) not in _taken(name)]
    outside.sort(key=lambda term: _name(term) in TEMPERATURES)  # which count tokens, not squeezed or grouped positions
    options = {**options, "extend": own} if own else {key: options[key] for key in options if key != "extend"}
    return _make(name, tuple(sorted(options.items())), tuple(outside), dims)


@functools.lru_cache(maxsize=None, typed=True)
def _make(name: str, options: tuple[tuple[str, object], ...], outside: tuple[str, ...], dims: Dims) -> Encoding:
    inner = _make(name, options, outside[:-1], dims) if outside else None
    try:
        made = ENCODINGS[name](dims, **dict(options)) if inner is None else _recast(inner, outside[-1], dims)
    except ValueError as refusal:
        raise ValueError(f"{name}: {refusal}") from None
    return made if inner is None or made.embed is inner.embed else embedding_tokens(made)


def _recast(encoding: Encoding, term: str, dims: Dims) -> Encoding:
    """Return the encoding as one term of `OUTSIDE` has it."""
    if _name(term) in TEMPERATURES:
        return scale_queries(encoding, read_temperature(term, dims))
    name, options = parse_call(term, RECAST, what="an extension", supplied=("encoding", "dims"))
    return RECAST[name](encoding, dims, **options)


def parse_spec(spec: str) -> tuple[str, dict[str, object]]:
    """Split `"name(key=literal, ...)"` into the name and its keyword arguments, both checked against the registry."""
    return parse_call(spec, ENCODINGS, what="an encoding", supplied=("dims",))


def _terms(name: str, options: dict[str, object], extend: str) -> list[str]:
    """Return the extensions asked for, by the spec's own keyword or by the argument, all of them known."""
    inside = str(options.get("extend", "none"))
    if "none" not in (inside, extend):
        raise ValueError(f"{name}: extend must be given once, got {inside!r} and {extend!r}")
    wanted = extend if inside == "none" else inside
    if wanted == "none":
        return []
    known = tuple(dict.fromkeys((*STRETCHED.get(name, ()), *OUTSIDE)))
    try:
        terms = split_sum(wanted, what="an extension")
    except ValueError as refusal:
        raise ValueError(f"{name}: extend: {refusal}") from None
    for term in terms:
        if _name(term) not in known:
            raise ValueError(f"{name} has no extension {_name(term)!r}; it takes {', '.join(known)}")
    if any(_name(term) == "pi" != term for term in terms):
        raise ValueError(f"{name}: extend: pi takes no arguments, got {wanted!r}")
    return terms


def _name(term: str) -> str:
    """Return what stands before the arguments."""
    return term.partition("(")[0].strip()


def _taken(name: str) -> tuple[str, ...]:
    """Return the extensions that the encoding itself makes, "pi" among them where it has frequencies."""
    own = STRETCHED.get(name, ())
    return (*own, "pi") if "linear" in own else own
