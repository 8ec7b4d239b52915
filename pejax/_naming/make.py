"""Makes an encoding from its spec."""

import functools
from collections.abc import Sequence

from pejax._calls.arguments import checked
from pejax._naming.parse import check_name, parse, parse_extension
from pejax._record.compose import compose_encodings
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding
from pejax._record.specs import EncodingSpec, Extension, Spec, Term
from pejax.encodings import ENCODINGS
from pejax.extensions import ANY_ENCODING


@functools.partial(checked, spec="the spec comes first, then dims")
def make_encoding(spec: str | Spec, dims: Dims, extend: str | Extension | None = None) -> Encoding:
    """Make the encoding that `spec` names, extended as `extend` says: for command lines and configuration files.

    The result is that of the factory in `pejax.encodings`: equal arguments give the same object. Its `embed` accepts
    positions or `TokenPositions`, and leaves tokens without a position unchanged. If `dims.causal` is True, `attend`,
    `attention_fn` and `attention_module` mask keys after the query by default.

    A sum, `"learned+rope"`, composes encodings that act in different places (`compose_encodings`). Its extension goes
    to the parts: `pi` to all of them; one that the factory of a part applies itself (`yarn`, `slopes`, `resize`) to
    that part; any other to the part that rotates, or else to the last.

    Args:
        spec: a name in `ENCODINGS`, with or without keyword arguments: `"rope"`, `"rope(base=500000)"`; or a sum; or a
            value of `pejax.specs`.
        dims: the sizes of the model.
        extend: an extension of `pejax.extensions`, as a record or as a string: "yarn(factor=8)+log_n". None or "none" =
            no extension. The spec may contain the string instead: `"rope(extend='yarn')"`.

    Raises:
        ValueError: an unknown name, a malformed spec, an unknown argument, an extension that the encoding does not
            support, `extend` given twice, or a value that the factory or an extension refuses.
        TypeError: an argument of a wrong type.

    Examples:
        >>> import pejax
        >>> dims = pejax.Dims(heads=8, head_dim=64, extent=2048, causal=True)
        >>> rope = pejax.make_encoding("rope(base=500000)", dims, "yarn(factor=8)")
        >>> rope is pejax.encodings.rope(dims, base=5e5, extend=pejax.extensions.yarn(factor=8))
        True
    """
    spec = extended_once(parse(spec), extend)
    if isinstance(spec, EncodingSpec):
        return _make(spec, dims)
    divided = zip(spec.parts, _divided(spec.parts, dims, spec.extend), strict=True)
    return compose_encodings(*(make_encoding(part, dims, extension) for part, extension in divided))


def extended_once(spec: Spec, extend: str | Extension | None) -> Spec:
    """Return a spec with an extension.

    Raises:
        ValueError: it has one already.
    """
    extension = parse_extension(extend)
    if extension is not None and spec.extend is not None:
        name = spec.parts[0].name
        raise ValueError(f"{name}: extend must be given once, got {str(spec.extend)!r} and {str(extension)!r}")
    return spec.extended(extension)


def _make(spec: EncodingSpec, dims: Dims) -> Encoding:
    """Make an encoding that is no sum; an error starts with its name."""
    check_name(spec.name, ENCODINGS, "an encoding")
    try:
        return ENCODINGS[spec.name](dims, **dict(spec.options), extend=spec.extend)
    except ValueError as refusal:
        is_named = str(refusal).startswith((f"{spec.name}: ", f"{spec.name} "))
        raise ValueError(str(refusal) if is_named else f"{spec.name}: {refusal}") from None


def _divided(parts: Sequence[EncodingSpec], dims: Dims, extend: Extension | None) -> list[Extension | None]:
    """Return the extension of each part of a sum, as `make_encoding` says."""
    rotating = [n for n, part in enumerate(parts) if _make(part, dims).rotate is not None]
    terms: list[list[Term]] = [[] for _ in parts]
    for term in () if extend is None else extend.terms:
        takers = [n for n, part in enumerate(parts) if term.name in ENCODINGS[part.name].takes]
        if term.name == "pi":
            takers = list(range(len(parts)))
        elif not takers and term.name in ANY_ENCODING:
            takers = (rotating or [len(parts) - 1])[:1]
        if not takers:
            names = "+".join(part.name for part in parts)
            raise ValueError(f"{names} has no part with the extension {term.name!r}, got extend={str(extend)!r}")
        for n in takers:
            terms[n].append(term)
    return [Extension(tuple(terms)) if terms else None for terms in terms]
