"""Rotation of pairs of channels for GPUs, forward and backward in the same wide loads.

JAX would derive gradients whose channels are loaded one by one: from the slices of halves come padded sums, and a pair
of 16-bit channels that is read as one word of 32 bits has no derivative. So the rotation is a primitive, linear in x,
whose transpose turns the other way.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from pejax._ops.varying import varying_alike

rotation_p = Primitive("rotation")


def rotate_linear(
    x: Float[Array, "*B D"], cos: Float[Array, "*b F"], sin: Float[Array, "*b F"], *, pairing: str
) -> Float[Array, "*B D"]:
    """Rotate pairs of channels: `(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)`, computed in float32.

    Args:
        x: channels; those from 2F on are unchanged. Interleaved ones have 16 bits and are 2F.
        cos: float32, broadcasts to the pairs.
        sin: float32, of the same shape.
        pairing: "interleaved": channels 2i and 2i+1 are pair i; "half": channels i and F+i.
    """
    full = lambda table: table.reshape((1,) * (x.ndim - table.ndim) + table.shape)
    return rotation_p.bind(*varying_alike((x, full(cos), full(sin))), pairing=pairing)


def _rotate(x: Array, cos: Array, sin: Array, *, pairing: str) -> Array:
    """Return the rotation as XLA computes it."""
    return _rotate_words(x, cos, sin) if pairing == "interleaved" else _rotate_halves(x, cos, sin)


def _rotate_halves(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate channels i and F+i part by part, which are read and written as vectors."""
    parts = [part.astype(x.dtype) for part in _rotated(*_halves(x, cos), cos, sin)]
    return jnp.concatenate([*parts, x[..., 2 * cos.shape[-1] :]], axis=-1)


def _rotate_words(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate channels 2i and 2i+1, the lower and the upper 16 bits of a word."""
    words = jax.lax.bitcast_convert_type(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2), jnp.uint32)
    channel = lambda bits: jax.lax.bitcast_convert_type(bits.astype(jnp.uint16), x.dtype).astype(jnp.float32)
    bits = lambda channel: jax.lax.bitcast_convert_type(channel.astype(x.dtype), jnp.uint16).astype(jnp.uint32)
    first, second = _rotated(channel(words), channel(words >> 16), cos, sin)
    return jax.lax.bitcast_convert_type(bits(first) | (bits(second) << 16), x.dtype).reshape(x.shape)


def _rotated(first: Array, second: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    return first * cos - second * sin, second * cos + first * sin


def _halves(x: Array, cos: Array) -> tuple[Array, Array]:
    """Return channels 0 to F and F to 2F, in float32."""
    count = cos.shape[-1]
    return x[..., :count].astype(jnp.float32), x[..., count : 2 * count].astype(jnp.float32)


def _change_by_tables(x: Array, cos: Array, sin: Array, pairing: str) -> Array:
    """Return the change of the rotation with those of cos and sin, in a form that JAX differentiates."""
    if pairing == "interleaved":
        first, second = (x[..., start::2].astype(jnp.float32) for start in (0, 1))
        return jnp.stack(_rotated(first, second, cos, sin), -1).reshape(x.shape).astype(x.dtype)
    parts = [part.astype(x.dtype) for part in _rotated(*_halves(x, cos), cos, sin)]
    return jnp.concatenate([*parts, jnp.zeros_like(x[..., 2 * cos.shape[-1] :])], axis=-1)


def _jvp(primals: tuple[Array, ...], tangents: tuple[Any, ...], *, pairing: str) -> tuple[Array, Array]:
    """Return the rotation and its change, which is linear in x, and in cos and sin."""
    (x, *tables), (d_x, *d_tables) = primals, tangents
    change = rotation_p.bind(ad.instantiate_zeros(d_x), *tables, pairing=pairing)
    if not all(isinstance(d_table, ad.Zero) for d_table in d_tables):
        d_cos, d_sin = map(ad.instantiate_zeros, d_tables)
        change += _change_by_tables(x, d_cos, d_sin, pairing)
    return rotation_p.bind(*primals, pairing=pairing), change


def _transpose(cotangent: Any, x: Any, cos: Any, sin: Any, *, pairing: str) -> tuple[Any, Any, Any]:
    """Return the cotangent of x, turned back, or those of cos and sin, in which the change in `_jvp` is linear."""
    if isinstance(cotangent, ad.Zero):
        return cotangent, None, None
    if ad.is_undefined_primal(x):
        return rotation_p.bind(cotangent, cos, -sin, pairing=pairing), None, None
    shapes = (jax.ShapeDtypeStruct(table.aval.shape, table.aval.dtype) for table in (cos, sin))
    pull = jax.linear_transpose(lambda cos, sin: _change_by_tables(x, cos, sin, pairing), *shapes)
    pairs = zip((cos, sin), pull(cotangent), strict=True)
    d_cos, d_sin = (change if ad.is_undefined_primal(table) else None for table, change in pairs)
    return None, d_cos, d_sin


def _batch(arrays: tuple[Array, ...], axes: tuple[int | None, ...], *, pairing: str) -> tuple[Array, int]:
    """Return the rotation of a batch, with its axis in front."""
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    x, *tables = (x[None] if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True))
    return rotation_p.bind(jnp.broadcast_to(x, (size, *x.shape[1:])), *tables, pairing=pairing), 0


rotation_p.def_impl(jax.jit(_rotate, static_argnames="pairing"))
rotation_p.def_abstract_eval(lambda x, cos, sin, *, pairing: x)
ad.primitive_jvps[rotation_p] = _jvp
ad.primitive_transposes[rotation_p] = _transpose
batching.primitive_batchers[rotation_p] = _batch
mlir.register_lowering(rotation_p, mlir.lower_fun(_rotate, multiple_results=False))
