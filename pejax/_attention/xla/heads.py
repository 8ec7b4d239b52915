"""Heads in arrays as the caller has them: each is read from, and written to, where it is."""

from collections.abc import Callable
from typing import NamedTuple

from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from pejax._attention.core.operands import Operands
from pejax._ops.bfloat16 import as_kept, from_bits


class Place(NamedTuple):
    """Which query head of which batch entry."""

    batch: Int[Array, ""]
    head: Int[Array, ""]


def places(operands: Operands) -> tuple[int, Callable[[Array], Place]]:
    """Return how many heads there are over the batch, and the way from their number to their place."""
    n, _, heads, _ = operands.q.shape
    return n * heads, lambda i: Place(i // heads, i % heads)


def key_place(operands: Operands, place: Place) -> Place:
    """Return the place of the key head that a query head reads."""
    return place._replace(head=place.head // (operands.q.shape[2] // operands.k.shape[2]))


def parameters_at(operands: Operands, place: Place) -> tuple[Array, Array]:
    """Return where a head's own parameters are."""
    return divmod(place.head, operands.q.shape[2] // operands.k.shape[2])


def take_head(x: Shaped[Array, "N T H *D"], place: Place) -> Float[Array, "T *D"]:
    """Return `x[batch, :, head]`, x given `as_bits`."""
    sizes = (1, x.shape[1], 1, *x.shape[3:])
    return from_bits(lax.dynamic_slice(x, _corner(x, place), sizes).reshape(x.shape[1], *x.shape[3:]))


def put_head(x: Shaped[Array, "N T H *D"], place: Place, part: Float[Array, "T *D"]) -> Shaped[Array, "N T H *D"]:
    """Write what `take_head` reads."""
    part = as_kept(part, x).reshape(1, x.shape[1], 1, *x.shape[3:])
    return lax.dynamic_update_slice(x, part, _corner(x, place))


def _corner(x: Array, place: Place) -> tuple[Array | int, ...]:
    return (place.batch, 0, place.head, *([0] * (x.ndim - 3)))
