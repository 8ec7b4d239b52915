"""Applies extensions to any encoding."""

import dataclasses

from pejax._calls.arguments import checked
from pejax._extensions.interpolation import is_interpolated
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, own_dims
from pejax._record.specs import Extension, check_scalings
from pejax._tokens.positions import embedding_tokens


@checked
def extend_encoding(encoding: Encoding, dims: Dims | None, extend: Extension) -> Encoding:
    """Return the encoding, for example one of your own, extended beyond its trained length or grid.

    The terms are applied from left to right, except that terms that multiply queries (`log_n`, `llama4`) come last:
    they count tokens, not interpolated or grouped positions. The factories of `pejax.encodings` call this function for
    their argument `extend`.

    Args:
        encoding: any record. One without dims gets `dims`.
        dims: the dims that the encoding was made for; their extent is the trained length or grid. None =
            its own.
        extend: `pi()`, `self_extend()`, `rerope()`, `log_n()` or `llama4()` of `pejax.extensions`, or a sum of them.

    Raises:
        ValueError: an extension of frequencies, slopes or tables, which only the factory of an encoding can apply, or
            an encoding or dims that an extension refuses, among them one whose positions are scaled already.

    Examples:
        >>> import jax.numpy as jnp, pejax
        >>> dims = pejax.Dims(heads=4, head_dim=16, extent=128)
        >>> mine = pejax.Encoding(distance_bias=lambda params, relative: -0.1 * jnp.abs(relative), shift_invariant=True)
        >>> longer = pejax.extend_encoding(mine, dims, pejax.extensions.pi())
    """
    for spec in () if encoding.spec is None else (encoding.spec, *encoding.spec.parts):
        check_scalings((*(spec.extend.terms if spec.extend else ()), *extend.terms))
    dims = own_dims(encoding, dims)
    encoding = dataclasses.replace(encoding, dims=dims) if encoding.dims is None else encoding
    for term in sorted(extend.terms, key=lambda term: term.target == "queries"):
        if term.target not in ("encoding", "queries"):
            raise ValueError(
                f"{term.name} cannot extend a record: pass it to a factory of pejax.encodings as its extend"
            )
        if term.target == "encoding" and encoding.periods and None not in encoding.periods:
            raise ValueError(f"{term.name} must extend an axis that is not periodic, got periods={encoding.periods}")
        if term.name == "pi" and is_interpolated(encoding):  # a record of your own has no spec that says so
            raise ValueError("pi must extend an encoding once, got one with scaled positions: give the whole factor")
        extended = term.function(encoding, dims, **dict(term.options))
        encoding = extended if extended.embed is encoding.embed else embedding_tokens(extended)
    return encoding if encoding.spec is None else dataclasses.replace(encoding, spec=encoding.spec.extended(extend))
