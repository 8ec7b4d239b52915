"""Position policies of cross-attention, where queries and keys come from two sequences.

Somebody has to say what positions in the one have to do with positions in the other:

    none         nothing: content alone
    query_only   queries turn by their position in the target, keys not at all
    separate     both sequences count from 0: target token t stands where source token t does
    unified      the target goes on where the source ends: t + n, n the length of that example's own source

What an encoding adds to the input it has added in the encoder and in the decoder, and not here again.
"""

from jaxtyping import Array, Float

from pejax._encoding import Dims, Encoding, Params
from pejax._extensions.extension import Extension
from pejax._make import make_encoding

CROSS = ("none", "query_only", "separate", "unified")
"""The policies."""


def cross_encoding(policy: str, spec: str, dims: Dims, extend: str | Extension = "none") -> Encoding:
    """Return the record of cross-attention: what is left of an encoding under a policy.

    Args:
        policy: one of `CROSS`.
        spec: as `make_encoding` takes it.
        dims: of cross-attention.
        extend: as `make_encoding` takes it.

    Raises:
        ValueError: an unknown policy, "query_only" for an encoding that does not rotate or does more than that, or
            what the encoding refuses.
    """
    if policy not in CROSS:
        raise ValueError(f"cross must be one of {', '.join(CROSS)}, got {policy!r}")
    if policy == "none":
        return Encoding(shift_invariant=True)
    encoding = make_encoding(spec, dims, extend)
    pairwise = encoding.bias or encoding.distance_bias or encoding.relative_values or encoding.bands
    if policy == "query_only":
        if encoding.rotate is None or pairwise:
            raise ValueError(f"cross='query_only' needs an encoding that rotates and does nothing else, got {spec!r}")
        return encoding._replace(embed=None, rotate_keys=as_they_are, shift_invariant=False)
    if encoding.rotate is None and not pairwise:
        return Encoding(shift_invariant=True)
    return encoding._replace(embed=None)


def as_they_are(params: Params, x: Float[Array, "*B S K D"], positions: Array) -> Float[Array, "*B S K D"]:
    """Return keys that are not rotated."""
    del params, positions
    return x
