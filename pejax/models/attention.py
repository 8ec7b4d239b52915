"""Attention layers that take position from an `Encoding` record: to oneself, with a cache, and to an encoder.

Nothing here asks which encoding it is: what it rotates and adds is up to `attend`.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pejax._attention.encoded import attend, caches_rotated_keys
from pejax._encoding import Dims, Encoding, Extent, Params, merge_params, rotate_keys
from pejax._tokens import TokenPositions, rotary_positions
from pejax.models.execution import Execution
from pejax.models.layers import RMSNorm, Style, linear
from pejax.models.sharding import position_variables


class Memory(NamedTuple):
    """What cross-attention looks at.

    Attributes:
        states: `(B, S, C)` of the encoder; None where keys and values are cached.
        shared: the parameters that all cross-attention layers share.
        positions: where the queries are, in the cross-attention's own numbering.
        k_positions: where the states are.
        extent: what the encoding adapts to.
    """

    states: Float[Array, "B S C"] | None
    shared: Params
    positions: TokenPositions
    k_positions: TokenPositions
    extent: Extent


class Where(NamedTuple):
    """What all layers know of the positions.

    Attributes:
        shared: the model's own parameters of the encoding.
        tokens: of the queries, and of the keys where there is no cache.
        extent: the length or grid, or lengths as `attend` takes them.
        start: the slot of the cache that the first of these tokens is written to.
        cached: what the slots of the cache hold, these tokens included.
        memory: what cross-attention looks at.
        execution: over which devices the layers are computed, and what twice.
    """

    shared: Params
    tokens: TokenPositions
    extent: Extent
    start: Int[Array, ""] | None = None
    cached: TokenPositions | None = None
    memory: Memory | None = None
    execution: Execution = Execution()


def batch_axes(where: Where, axes: int) -> Any:
    """Return which axis of each array is the batch's, -1 = all examples share it, as a prefix of the tree.

    Args:
        where: without a cache.
        axes: A, of the positions; those of cross-attention have one.
    """
    memory = where.memory
    if memory is not None:
        sides = [_token_axes(tokens, 1) for tokens in (memory.positions, memory.k_positions)]
        memory = memory._replace(states=0, shared=-1, positions=sides[0], k_positions=sides[1])
        memory = memory._replace(extent=_extent_axis(memory.extent))
    tokens = _token_axes(where.tokens, axes)
    return Where(-1, tokens, _extent_axis(where.extent), memory=memory, execution=-1)  # pyright: ignore[reportArgumentType]


def _token_axes(tokens: TokenPositions, axes: int) -> Any:
    ranks = (1 + (axes > 1), 1, 1, 1)
    known = (None if x is None else 0 if x.ndim > rank else -1 for x, rank in zip(tokens, ranks, strict=True))
    return TokenPositions(*known)  # pyright: ignore[reportArgumentType]


def _extent_axis(extent: Extent) -> int:
    return -1 if isinstance(extent, tuple) or jnp.ndim(extent) == 0 else 0


class KeysValues(NamedTuple):
    """Keys and values, of one layer or, with a leading L, of all."""

    k: Float[Array, "*L B S K D"]
    v: Float[Array, "*L B S K D"]


class LayerCache(NamedTuple):
    """What a layer keeps between the steps of decoding."""

    own: KeysValues
    cross: KeysValues | None = None


class SelfAttention(nnx.Module):
    """Multi-head self-attention, keys and values shared by H/K query heads, position from an `Encoding`.

    The columns of `qkv` are grouped by key head: for each, its H/K queries, its key and its value, D columns each. One
    product makes all three, and splitting the columns over devices keeps whole groups together.

    Args:
        dims: C, H, K, D and the scale of the logits.
        encoding: made for these dims.
        style: bias, QK-norm and soft cap.
        dtype: of the computation; parameters are float32.
        rngs: draws the parameters, positions included.
    """

    def __init__(
        self, dims: Dims, encoding: Encoding, *, style: Style = Style(), dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.dims, self.encoding, self.soft_cap = dims, encoding, style.soft_cap
        inner = dims.heads * dims.head_dim
        columns = inner + 2 * dims.kv_heads * dims.head_dim
        self.qkv = linear(dims.width, columns, ("embed", "heads"), dtype=dtype, rngs=rngs, bias=style.bias)
        self.out = linear(inner, dims.width, ("heads", "embed"), dtype=dtype, rngs=rngs, bias=style.bias)
        self.norm_q = RMSNorm(dims.head_dim, None) if style.qk_norm else None
        self.norm_k = RMSNorm(dims.head_dim, None) if style.qk_norm else None
        self.position = nnx.data(position_variables(encoding.init_layer(rngs.params())))

    def __call__(
        self, x: Float[Array, "B T C"], where: Where, cache: KeysValues | None = None
    ) -> tuple[Float[Array, "B T C"], KeysValues | None]:
        """Return the output, and the cache with these tokens written to it where there is one."""
        dims, encoding = self.dims, self.encoding
        params = merge_params(where.shared, nnx.as_pure(self.position))
        q, k, v = self._heads(x)
        q = q if self.norm_q is None else self.norm_q(q)
        k = k if self.norm_k is None else self.norm_k(k)
        rotated = cache is not None and caches_rotated_keys(encoding)
        if rotated:
            k = rotate_keys(encoding, params, k, rotary_positions(where.tokens, k.shape[:-2]))
        if cache is not None and where.start is not None:
            write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=where.start, axis=1)
            cache = KeysValues(write(cache.k, k.astype(cache.k.dtype)), write(cache.v, v.astype(cache.v.dtype)))
            k, v = cache
        mixed = attend(
            encoding,
            q,
            k,
            v,
            params=params,
            positions=where.tokens,
            k_positions=where.tokens if cache is None else where.cached,
            extent=where.extent,
            axes=dims.axes,
            keys_are_rotated=rotated,
            embedded=True,
            attention=where.execution.attention,
            causal=dims.causal,
            scale=dims.scale,
            soft_cap=self.soft_cap,
        )
        return self.out(mixed.reshape(*x.shape[:2], -1)), cache

    def _heads(self, x: Array) -> tuple[Array, Array, Array]:
        """Return q `(B, T, H, D)` and k, v `(B, T, K, D)`."""
        dims, (batch, tokens, _) = self.dims, x.shape
        grouped = self.qkv(x).reshape(batch, tokens, dims.kv_heads, dims.heads // dims.kv_heads + 2, dims.head_dim)
        q = grouped[..., :-2, :].reshape(batch, tokens, dims.heads, dims.head_dim)
        k, v = grouped[..., -2, :], grouped[..., -1, :]
        chex.assert_shape([k, v], (batch, tokens, dims.kv_heads, dims.head_dim))
        return q, k, v


class CrossAttention(nnx.Module):
    """Multi-head attention from a sequence to the states of an encoder, position from an `Encoding` of its own.

    Args:
        dims: C, H, K, D and the scale of the logits.
        encoding: made for these dims.
        style: bias and soft cap.
        dtype: of the computation; parameters are float32.
        rngs: draws the parameters, positions included.
    """

    def __init__(
        self, dims: Dims, encoding: Encoding, *, style: Style = Style(), dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.dims, self.encoding, self.soft_cap = dims, encoding, style.soft_cap
        inner = dims.heads * dims.head_dim
        columns = 2 * dims.kv_heads * dims.head_dim
        self.q = linear(dims.width, inner, ("embed", "heads"), dtype=dtype, rngs=rngs, bias=style.bias)
        self.kv = linear(dims.width, columns, ("embed", "heads"), dtype=dtype, rngs=rngs, bias=style.bias)
        self.out = linear(inner, dims.width, ("heads", "embed"), dtype=dtype, rngs=rngs, bias=style.bias)
        self.position = nnx.data(position_variables(encoding.init_layer(rngs.params())))

    def keys_values(self, states: Float[Array, "B S C"]) -> KeysValues:
        """Return the keys and values of the encoder's states: the same for every step of decoding."""
        dims = self.dims
        pairs = self.kv(states).reshape(*states.shape[:2], dims.kv_heads, 2, dims.head_dim)
        return KeysValues(pairs[..., 0, :], pairs[..., 1, :])

    def __call__(
        self, x: Float[Array, "B T C"], memory: Memory, seen: KeysValues, execution: Execution = Execution()
    ) -> Float[Array, "B T C"]:
        """Return the output of attention from x to what `keys_values` made."""
        dims = self.dims
        mixed = attend(
            self.encoding,
            self.q(x).reshape(*x.shape[:2], dims.heads, dims.head_dim),
            *seen,
            params=merge_params(memory.shared, nnx.as_pure(self.position)),
            positions=memory.positions,
            k_positions=memory.k_positions,
            extent=memory.extent,
            axes=dims.axes,
            embedded=True,
            attention=execution.attention,
            scale=dims.scale,
            soft_cap=self.soft_cap,
        )
        return self.out(mixed.reshape(*x.shape[:2], -1))
