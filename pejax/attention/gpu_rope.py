"""Rotation of queries and keys on a GPU in one pass: every channel is read once and written once."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

ELEMENTS = 4096
"""Channels of a tile at most: 32 for each of 128 threads."""


class _Side(NamedTuple):
    """How queries, or keys, are cut into tiles.

    Attributes:
        tokens: of a tile.
        heads: of a tile, which share a row of cos and sin.
        blocks: tiles that all heads of a token take.
        sharing: heads that share a row of cos and sin.
    """

    tokens: int
    heads: int
    blocks: int
    sharing: int


def rotate_queries_keys(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B T K D"],
    cos: Float[Array, "*b T G F"],
    sin: Float[Array, "*b T G F"],
    *,
    pairing: str,
    interpret: bool = False,
) -> tuple[Float[Array, "*B T H D"], Float[Array, "*B T K D"]]:
    """Rotate pairs of channels of q and k: `(x1, x2) -> (x1 cos - x2 sin, x1 sin + x2 cos)`.

    The gradients of q and k are the rotation back; those of cos and sin cost a pass of their own, where they are asked
    for.

    Args:
        q: queries; head h takes row h // (H/G) of cos and sin.
        k: keys of the same tokens, with as many heads or fewer; head h takes row h // (K/G).
        cos: G divides H and K, 1 where all heads share it; `(T, G, F)` is shared by the batch. 2F = D.
        sin: likewise.
        pairing: "interleaved": channels 2i and 2i+1 are pair i; "half": channels i and F+i.
        interpret: run in Pallas's interpreter, which any platform has.

    Returns:
        The rotated arrays in their own types, computed in float32.

    Raises:
        ValueError: an unknown pairing, q and k of other tokens, or G that does not divide their heads.
        NotImplementedError: pairs that are no power of two or not all of the channels.
    """
    if pairing not in ("interleaved", "half"):
        raise ValueError(f"pairing must be one of interleaved, half, got {pairing!r}")
    count, dim = cos.shape[-1], q.shape[-1]
    if 2 * count != dim or count & (count - 1):
        raise NotImplementedError(
            f"pairs must be a power of two and make up all channels, got {count} pairs of D={dim}"
        )
    if q.shape[:-2] != k.shape[:-2] or any(x.shape[-2] % cos.shape[-2] for x in (q, k)):
        raise NotImplementedError(f"q {q.shape} and k {k.shape} must be of the same tokens, and take rows {cos.shape}")
    *batch, length, _, _ = q.shape
    n = math.prod(batch)
    if cos.ndim > 3:
        cos, sin = (jnp.broadcast_to(x, (*batch, *x.shape[-3:])) for x in (cos, sin))
    flat = (x.reshape(-1, length, *x.shape[-2:]) for x in (q, k, cos, sin))
    if 0 in (n, length):
        return q, k
    turned_q, turned_k = _rotate(pairing, interpret, *flat)  # pyright: ignore[reportGeneralTypeIssues]
    return turned_q.reshape(q.shape), turned_k.reshape(k.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rotate(pairing: str, interpret: bool, q: Array, k: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    n, length = q.shape[:2]
    q_side, k_side = (_side(x, cos) for x in (q, k))

    def kernel(q_ref: Any, k_ref: Any, cos_ref: Any, sin_ref: Any, q_out: Any, k_out: Any) -> None:
        block, part, at = (pl.program_id(axis) for axis in range(3))
        tables = cos_ref, sin_ref

        @pl.when(part < q_side.blocks)
        def _() -> None:
            _rotate_tile(pairing, q_side, q_ref, q_out, tables, at, block, part)

        @pl.when(part >= q_side.blocks)
        def _() -> None:
            _rotate_tile(pairing, k_side, k_ref, k_out, tables, at, block, part - q_side.blocks)

    return pl.pallas_call(
        kernel,
        grid=(length // q_side.tokens, q_side.blocks + k_side.blocks, n),
        out_shape=(jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(k.shape, k.dtype)),
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=4),
        name="pejax_rotate",
    )(q, k, cos.astype(jnp.float32), sin.astype(jnp.float32))


def _side(x: Array, cos: Array) -> _Side:
    """Return the tiles of one array; both arrays have as many tokens in a tile."""
    _, length, heads, dim = x.shape
    sharing = heads // cos.shape[2]
    together = min(sharing & -sharing, 8)
    tokens = min(length & -length, max(1, ELEMENTS // (8 * dim)))
    return _Side(tokens, together, heads // together, sharing)


def _rotate_tile(
    pairing: str, side: _Side, x_ref: Any, out_ref: Any, tables: tuple[Any, Any], at: Array, block: Array, part: Array
) -> None:
    """Rotate one tile `(tokens, heads, D)`."""
    count = tables[0].shape[-1]
    tokens, heads = pl.ds(block * side.tokens, side.tokens), pl.ds(part * side.heads, side.heads)
    row = lax.div(part * side.heads, side.sharing)
    cos, sin = (ref[at if ref.shape[0] > 1 else 0, tokens, row][:, None, :] for ref in tables)
    if pairing == "half":
        first, second = (x_ref[at, tokens, heads, pl.ds(i * count, count)].astype(jnp.float32) for i in range(2))
    else:
        pairs = x_ref[at, tokens, heads].reshape(side.tokens, side.heads, count, 2)
        first, second = (x.astype(jnp.float32) for x in jnp.unstack(pairs, axis=-1))
    turned = (x.astype(out_ref.dtype) for x in (first * cos - second * sin, first * sin + second * cos))
    if pairing == "half":
        for i, x in enumerate(turned):
            out_ref[at, tokens, heads, pl.ds(i * count, count)] = x
    else:
        out_ref[at, tokens, heads] = jnp.stack([*turned], axis=-1).reshape(side.tokens, side.heads, 2 * count)


def _rotate_forward(pairing: str, interpret: bool, *operands: CustomVJPPrimal) -> tuple[tuple[Array, Array], tuple]:
    q, k, cos, sin = (operand.value for operand in operands)
    learned = any(operand.perturbed for operand in operands[2:])
    return _rotate(pairing, interpret, q, k, cos, sin), (cos, sin, (q, k) if learned else None)


def _rotate_backward(pairing: str, interpret: bool, saved: tuple, cotangents: tuple[Any, Any]) -> tuple[Array, ...]:
    cos, sin, tokens = saved
    zeros = lambda d: jnp.zeros(d.shape, d.dtype) if isinstance(d, SymbolicZero) else d  # pyright: ignore # noqa: E731
    d_q, d_k = map(zeros, cotangents)
    turned: tuple[Array, Array] = _rotate(pairing, interpret, d_q, d_k, cos, -sin)  # pyright: ignore
    if tokens is None:
        return *turned, jnp.zeros_like(cos), jnp.zeros_like(sin)
    of_q, of_k = (_table_gradients(pairing, x, d, cos) for x, d in zip(tokens, (d_q, d_k), strict=True))
    return *turned, of_q[0] + of_k[0], of_q[1] + of_k[1]


_rotate.defvjp(_rotate_forward, _rotate_backward, symbolic_zeros=True)


def _table_gradients(pairing: str, x: Array, d: Array, table: Array) -> tuple[Array, Array]:
    """Return what x and the gradient of its rotation say of cos and sin, in the shape of the table."""
    n, _, groups, count = table.shape
    shape, axis = ((count, 2), -1) if pairing == "interleaved" else ((2, count), -2)

    def split(x: Array) -> tuple[Array, Array]:
        pairs = x.astype(jnp.float32).reshape(*x.shape[:2], groups, -1, *shape)
        first, second = (lax.index_in_dim(pairs, i, axis, keepdims=False) for i in range(2))
        return first, second

    (x1, x2), (d1, d2) = split(x), split(d)
    sums = (jnp.sum(part, axis=3) for part in (d1 * x1 + d2 * x2, d2 * x1 - d1 * x2))
    d_cos, d_sin = (part if n > 1 else jnp.sum(part, axis=0, keepdims=True) for part in sums)
    return d_cos.astype(table.dtype), d_sin.astype(table.dtype)
