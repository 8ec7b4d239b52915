"""Parameters of encodings: their types, and functions that merge and check them."""

from typing import Any, TypeAlias

from jaxtyping import Array, Int, Key, UInt32

from pejax._calls.arguments import checked

Params: TypeAlias = dict[str, Any]
"""A dict of arrays by name, or of dicts of them.

Attention's hooks read two entries: `heads`, whose leaves all have the leading axis H, and `all`, which the heads share.
Any other entry is read by `embed`, `rotate` and `adapt` alone.
"""

RandomKey: TypeAlias = Key[Array, ""] | UInt32[Array, " words"]
"""A JAX random key, typed or raw."""

Extent: TypeAlias = int | Int[Array, "..."] | tuple[int, ...]
"""The length of a sequence, or the grid (rows, columns, ...) of an image, in tokens; arrays may be traced.

A grid is a tuple or an array `(A,)`. Attention and models also take one extent per example: lengths `(B,)`, or on
A > 1 axes grids `(B, A)`.
"""


def no_params(key: Array) -> Params:
    """Return no parameters: the default `init` and `init_layer` of an encoding."""
    del key
    return {}


@checked
def merge_params(shared: Params, layer: Params) -> Params:
    """Merge the model's and one layer's parameters: `{**shared, **layer}`, their `heads` and `all` merged too.

    Args:
        shared: parameters from `Encoding.init`.
        layer: parameters from `Encoding.init_layer`.

    Raises:
        ValueError: a name that both have.
    """
    merged = dict(shared)
    for name, value in layer.items():
        if name not in merged:
            merged[name] = value
        elif name in ("heads", "all"):
            merged[name] = merge_params(merged[name], value)
        else:
            raise ValueError(f"init and init_layer must not share a parameter name, both have {name!r}")
    return merged
