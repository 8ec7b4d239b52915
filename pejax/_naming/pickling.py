"""Pickling of encodings: by spec and dims, from which `make_encoding` makes the same object again."""

import copyreg
from collections.abc import Callable

from pejax._naming.make import make_encoding
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding
from pejax._record.specs import Spec


def _reduce(encoding: Encoding) -> tuple[Callable[..., Encoding], tuple[Spec, Dims]]:
    """Return the function that makes the encoding, and its arguments, as `pickle` asks for them.

    Raises:
        TypeError: a record made or changed by hand, whose hooks no name gives back.
    """
    spec, dims = encoding.spec, encoding.dims
    way = "pejax.register_encoding gives a factory a name"
    if spec is None or dims is None:
        raise TypeError(f"only an encoding that make_encoding makes can be pickled, got a record made by hand: {way}")
    try:
        is_made = make_encoding(spec, dims) == encoding
    except ValueError:
        is_made = False
    if not is_made:
        raise TypeError(f"only an encoding that make_encoding makes can be pickled, got {spec} changed by hand: {way}")
    return make_encoding, (spec, dims)


copyreg.pickle(Encoding, _reduce)
