"""Makes an encoding from a text such as "rope(base=500000)"."""

from typing import Any, NamedTuple

from pejax._encoding import Dims, Encoding
from pejax._extensions.extension import Extension
from pejax._spec import parse_call, split_sum
from pejax.encodings import ENCODINGS
from pejax.extensions import EXTENSIONS


class Spec(NamedTuple):
    """A text such as "rope(base=500000)", read and checked: `ENCODINGS[name](dims, **options)` makes the encoding.

    Attributes:
        name: of the encoding.
        options: the keyword arguments of its factory.
    """

    name: str
    options: dict[str, Any]


def make_encoding(spec: str, dims: Dims, extend: str | Extension | None = None) -> Encoding:
    """Make the encoding that `spec` names, extended as `extend` says: for command lines and configuration files.

    The same as the factory of `pejax.encodings`: equal arguments give the same object. Its `embed` takes
    `TokenPositions` in place of positions, too, and does not change tokens without a position. Made for a causal model,
    `attend`, `attention_fn` and modules mask keys after the query without being told.

    Args:
        spec: a name of `ENCODINGS`, with keyword arguments where wanted: `"rope"`, `"rope(base=500000)"`.
        dims: of the model.
        extend: an extension of `pejax.extensions`, as a record or as a text: "yarn(factor=8)+log_n". None or "none" =
            none. The spec may hold the text instead: `"rope(extend='yarn')"`.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument, an extension that the encoding does not
            have, `extend` given twice, or what the factory or an extension refuses.
        TypeError: an argument of another type.

    Example:
        >>> import pejax
        >>> dims = pejax.Dims(heads=8, head_dim=64, extent=2048, causal=True)
        >>> rope = pejax.make_encoding("rope(base=500000)", dims, "yarn(factor=8)")
        >>> rope is pejax.encodings.rope(dims, base=5e5, extend=pejax.extensions.yarn(factor=8))
        True
    """
    if not (isinstance(spec, str) and isinstance(dims, Dims)):
        kinds = f"{type(spec).__name__} and {type(dims).__name__}"
        raise TypeError(f"make_encoding takes a spec and then dims, a str and Dims, got {kinds}")
    name, options = parse_spec(spec)
    try:
        given = parse_extension(extend) if isinstance(extend, str) else extend
        inside = options.get("extend")
        if given is not None and inside is not None:
            raise ValueError(f"extend must be given once, got {str(inside)!r} and {str(given)!r}")
        return ENCODINGS[name](dims, **{**options, "extend": inside if given is None else given})
    except ValueError as refusal:
        raise ValueError(f"{name}: {str(refusal).removeprefix(f'{name}: ')}") from None


def parse_spec(spec: str) -> Spec:
    """Read `"name(key=literal, ...)"`, with name and arguments checked against the registry."""
    read = {Extension | None: parse_extension}
    return Spec(*parse_call(spec, ENCODINGS, what="an encoding", supplied=("dims",), readers=read))


def parse_extension(text: str) -> Extension | None:
    """Read the text of an extension: terms joined by "+", as "yarn(factor=8)+log_n". "none" is None.

    Raises:
        ValueError: a malformed text, an unknown extension or argument, or one that is missing.
        TypeError: an argument of another type.
    """
    if text == "none":
        return None
    terms = [parse_call(term, EXTENSIONS, what="an extension") for term in split_sum(text, what="an extension")]
    first, *others = (EXTENSIONS[name](**options) for name, options in terms)
    return sum(others, first)
