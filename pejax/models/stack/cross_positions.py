"""Position policies of cross-attention: how positions in the target relate to positions in the source.

    none         cross-attention has no positions
    query_only   queries are rotated by their position in the target, keys are not rotated
    separate     both sequences count from 0: target token t has the same position as source token t
    unified      the target continues the source: target token t is at position t + n, with n the length of its source

An encoding's `embed` is not part of cross-attention: encoder and decoder have applied their own to their inputs.
"""

import dataclasses

from jaxtyping import Array, Float

from pejax._naming.make import make_encoding
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._record.specs import Spec
from pejax.models.configs.model import CROSS


def cross_encoding(policy: str, spec: str | Spec, dims: Dims) -> Encoding:
    """Return the encoding of cross-attention under a policy: the one of the spec, without the hooks that do not apply.

    "separate" and "unified" have the same encoding; they differ in the positions that the decoder passes.

    Args:
        policy: one of `CROSS`.
        spec: spec of the encoding, as in `make_encoding`.
        dims: dims of cross-attention.

    Raises:
        ValueError: an unknown policy, "query_only" for an encoding that does anything but rotate, or options that
            `make_encoding` refuses.
    """
    if policy not in CROSS:
        raise ValueError(f"cross must be one of {', '.join(CROSS)}, got {policy!r}")
    if policy == "none":
        return Encoding(shift_invariant=True)
    encoding = make_encoding(spec, dims)
    pairwise = encoding.bias or encoding.distance_bias or encoding.relative_values or encoding.bands
    if policy == "query_only":
        if encoding.rotate is None or pairwise:
            raise ValueError(f"cross='query_only' needs an encoding that rotates and does nothing else, got '{spec}'")
        return dataclasses.replace(encoding, embed=None, rotate_keys=unrotated, shift_invariant=False)
    if encoding.rotate is None and not pairwise:
        return Encoding(shift_invariant=True)
    return dataclasses.replace(encoding, embed=None)


def unrotated(params: Params, x: Float[Array, "*B S K D"], positions: Array) -> Float[Array, "*B S K D"]:
    """Return the keys unchanged: a `rotate_keys` hook that does nothing."""
    del params, positions
    return x
