"""Single heads of operands with heads after tokens, q `(N, T, H, D)` and k, v `(N, S, K, D)`: reading and writing."""

from collections.abc import Callable
from typing import NamedTuple

from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from pejax._attention.core.operands import Operands
from pejax._ops.bfloat16 import as_bits, as_stored, from_bits
from pejax._ops.pytrees import Floats
from pejax._tokens.positions import TokenPositions


class HeadIndex(NamedTuple):
    """A query head of an example."""

    batch: Int[Array, ""]
    head: Int[Array, ""]


def head_indices(operands: Operands) -> tuple[int, Callable[[Array], HeadIndex]]:
    """Return N·H, the number of heads in all examples, and the function from 0 ... N·H - 1 to their `HeadIndex`."""
    n, _, heads, _ = operands.q.shape
    return n * heads, lambda i: HeadIndex(i // heads, i % heads)


def key_head(operands: Operands, index: HeadIndex) -> HeadIndex:
    """Return the index of the key head that a query head attends to."""
    return index._replace(head=index.head // (operands.q.shape[2] // operands.k.shape[2]))


def param_index(operands: Operands, index: HeadIndex) -> tuple[Array, Array]:
    """Return the index `(key head, query head in its group)` of a head in arrays of parameters `(K, G, ...)`."""
    return divmod(index.head, operands.q.shape[2] // operands.k.shape[2])


def operands_as_bits(operands: Operands) -> Operands:
    """Return the operands with q, k and v in the storage type that `take_head` reads (`as_bits`)."""
    return operands._replace(q=as_bits(operands.q), k=as_bits(operands.k), v=as_bits(operands.v))


def take_head(x: Shaped[Array, "N T H *D"], index: HeadIndex) -> Float[Array, "T *D"]:
    """Return `x[batch, :, head]` of an array in its storage type (`as_bits`)."""
    sizes = (1, x.shape[1], 1, *x.shape[3:])
    return from_bits(lax.dynamic_slice(x, _corner(x, index), sizes).reshape(x.shape[1], *x.shape[3:]))


def put_head(x: Shaped[Array, "N T H *D"], index: HeadIndex, part: Float[Array, "T *D"]) -> Shaped[Array, "N T H *D"]:
    """Return x with `x[batch, :, head]` replaced by `part`, in the storage type of x."""
    part = as_stored(part, x).reshape(1, x.shape[1], 1, *x.shape[3:])
    return lax.dynamic_update_slice(x, part, _corner(x, index))


def _corner(x: Array, index: HeadIndex) -> tuple[Array | int, ...]:
    """Return the start indices of `x[batch, :, head]`."""
    return (index.batch, 0, index.head, *([0] * (x.ndim - 3)))


def add_positions(totals: Floats, parts: Floats, axes: TokenPositions, index: HeadIndex) -> Floats:
    """Add one head's gradients of the float positions to those of its example, or of all examples if they share them.

    The positions are the only fields of tokens that may be floats.
    """
    add = lambda x, y: x + y if axes.positions is None else x.at[index.batch].add(y)
    return [add(*pair) for pair in zip(totals, parts, strict=True)]
