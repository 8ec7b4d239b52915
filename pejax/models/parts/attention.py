"""Self-attention, with a cache for decoding, and cross-attention, with position from an `Encoding` record.

The layers are the same for every encoding: `attend` applies the encoding.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pejax._attention.core.merge import merge_attention
from pejax._attention.core.options import narrower
from pejax._attention.core.sink import with_sink
from pejax._attention.encoded import attend, caches_rotated_keys
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Extent, Params, adapt, layer_params, merge_params, rotate_keys
from pejax._tokens.positions import TokenPositions, rotary_positions
from pejax.models.configs.layer import AttentionConfig
from pejax.models.execution import Execution
from pejax.models.parts.layers import LayerNorm, RMSNorm, linear
from pejax.models.parts.rolling import Part, RollingStep, keys_of, write_slots
from pejax.models.sharding import named, position_variables


class CrossContext(NamedTuple):
    """The inputs of cross-attention that are the same in all layers.

    Attributes:
        states: the encoder's output `(B, S, C)`; None where the keys and values are cached.
        shared: the encoding's parameters that all cross-attention layers share.
        positions: positions of the queries, counted as `EncoderDecoderConfig.cross` says.
        k_positions: positions of the states.
        extent: the length, or one length per example, that the encoding adapts to.
    """

    states: Float[Array, "B S C"] | None
    shared: Params
    positions: TokenPositions
    k_positions: TokenPositions
    extent: Extent


class LayerContext(NamedTuple):
    """The inputs of a layer that are the same in all layers.

    Attributes:
        shared: the parameters of the layer's encoding that all layers share.
        tokens: positions of the queries, and of the keys where there is no cache; None = 0 ... T-1, without a cache.
        extent: the length, the length per example or the grid that the encoding adapts to, as in `attend`.
        cache_start: the slot of the cache that the first of `tokens` is written to; None = no cache, or a rolling one.
        cache_tokens: positions of the tokens in the slots of the cache, `tokens` included; None likewise.
        rolling: the step of a rolling cache, in place of `cache_start` and `cache_tokens`; None = it is not rolling.
        cross_context: the inputs of cross-attention; None = there is none.
        condition: a vector per example, which adaptive norms read; None = there is none.
        execution: device mesh, sharding and rematerialization.
        settled: whether encodings keep the parameters of this extent, one length, for as long as the cache is used.
    """

    shared: Params
    tokens: TokenPositions | None
    extent: Extent
    cache_start: Int[Array, ""] | None = None
    cache_tokens: TokenPositions | None = None
    rolling: RollingStep | None = None
    cross_context: CrossContext | None = None
    condition: Float[Array, "B C"] | None = None
    execution: Execution = Execution()
    settled: bool = False


def batch_axes(context: LayerContext, axes: int) -> Any:
    """Return the batch axis of each array in a context, as a pytree prefix of it; -1 = all examples share it.

    Args:
        context: the context whose arrays are looked up; it has no cache.
        axes: A, number of position axes; in cross-attention it is 1.
    """
    cross = context.cross_context
    if cross is not None:
        q_axes, k_axes = (_token_axes(tokens, 1) for tokens in (cross.positions, cross.k_positions))
        cross = cross._replace(states=0, shared=-1, positions=q_axes, k_positions=k_axes)
        cross = cross._replace(extent=_extent_axis(cross.extent))
    tokens = None if context.tokens is None else _token_axes(context.tokens, axes)
    condition = None if context.condition is None else 0
    extent = _extent_axis(context.extent)
    return LayerContext(-1, tokens, extent, cross_context=cross, condition=condition, execution=-1, settled=-1)  # pyright: ignore[reportArgumentType]


def _token_axes(tokens: TokenPositions, axes: int) -> Any:
    """Return the batch axis of each field of `TokenPositions`; -1 = it has no batch axis, None = no such field."""
    ranks = (1 + (axes > 1), 1, 1, 1)  # of positions, order, has_position and segment_ids without a batch axis
    by_field = (None if x is None else 0 if x.ndim > rank else -1 for x, rank in zip(tokens, ranks, strict=True))
    return TokenPositions(*by_field)  # pyright: ignore[reportArgumentType]


def _extent_axis(extent: Extent) -> int:
    """Return the batch axis of an extent: 0 for one length or grid per example, else -1."""
    return -1 if isinstance(extent, tuple) or jnp.ndim(extent) == 0 else 0


class KeysValues(NamedTuple):
    """Keys and values of one layer, or of all layers with a leading axis L."""

    k: Float[Array, "*L B _ _ D"]
    v: Float[Array, "*L B _ _ D"]


def heads_first(keys_values: KeysValues) -> KeysValues:
    """Return keys and values `(B, K, S, D)` from those with tokens before heads, `(B, S, K, D)`, or back."""
    return KeysValues(*(jnp.swapaxes(x, 1, 2) for x in keys_values))


class LayerCache(NamedTuple):
    """The keys and values that a layer stores between the steps of decoding.

    Attributes:
        self_attention: keys and values of self-attention, in the slots of the cache, heads before slots `(B, K, S, D)`:
            in this order attention reads them, and writes one token without a copy.
        cross: keys and values of cross-attention, which do not change; None = no cross-attention.
    """

    self_attention: KeysValues
    cross: KeysValues | None = None


class SelfAttention(nnx.Module):
    """Multi-head self-attention with position from an `Encoding`; H/K query heads share each key head (GQA).

    The columns of `qkv` are grouped by key head: its H/K query heads, its key and its value, D columns each. One
    matmul computes all three, and a tensor-parallel split of the columns does not cut through a group.

    Args:
        attention: config of the attention.
        dims: dims of the encoding.
        encoding: encoding made for these dims.
        dtype: type of the computation; parameters are float32.
        rngs: random streams that parameters, the encoding's included, are drawn from.
    """

    def __init__(
        self, attention: AttentionConfig, dims: Dims, encoding: Encoding, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.config, self.dims, self.encoding = attention, dims, encoding
        q_columns, group_columns = dims.heads * dims.head_dim, dims.heads // dims.kv_heads * dims.head_dim
        columns = q_columns + 2 * dims.kv_heads * dims.head_dim
        # A group of columns: the queries of one key head, then its key and its value.
        group_sizes = ((group_columns, "q"), (dims.head_dim, "k"), (dims.head_dim, "v"))
        biased = tuple((size, name in attention.bias) for size, name in group_sizes)
        self.qkv = linear(dims.width, columns, ("embed", "heads"), dtype=dtype, rngs=rngs, **_biases(biased))
        self.out = linear(q_columns, dims.width, ("heads", "embed"), dtype=dtype, rngs=rngs, bias="o" in attention.bias)
        self.norm_q, self.norm_k = (_qk_norm(attention, heads) for heads in (dims.heads, dims.kv_heads))
        self.sinks = nnx.Param(jnp.zeros((dims.heads,), jnp.float32), **named("heads")) if attention.sinks else None
        self.position = nnx.data(position_variables(layer_params(encoding, rngs.params())))

    def __call__(
        self, x: Float[Array, "B T C"], context: LayerContext, cache: KeysValues | None = None
    ) -> tuple[Float[Array, "B T C"], KeysValues | None]:
        """Return the output, and the cache with these tokens written to it, or None without a cache."""
        dims, encoding = self.dims, self.encoding
        params = merge_params(context.shared, nnx.as_pure(self.position))
        q, k, v = self._heads(x)
        q, k = self._normed(self.norm_q, q), self._normed(self.norm_k, k)
        if context.settled:
            encoding, params = _without_adapt(encoding), adapt(encoding, params, context.extent)
        step = context.rolling
        # A cached key may be rotated once and for all, unless later steps give it another position.
        keys_are_rotated = cache is not None and caches_rotated_keys(encoding) and not (step and step.rolling.renumber)
        if keys_are_rotated:
            assert context.tokens is not None  # as with every cache
            k = rotate_keys(encoding, params, k, rotary_positions(context.tokens, k.shape[:-2]))
        run = functools.partial(
            attend,
            encoding,
            params=params,
            extent=context.extent,
            axes=dims.axes,
            keys_are_rotated=keys_are_rotated,
            embedded=True,
            attention=context.execution.attention,
            sharding=context.execution.sharding,
            causal=dims.causal,
            scale=dims.scale,
            soft_cap=self.config.soft_cap,
        )
        if cache is not None and step is not None:
            output, cache = self._attend_rolling(run, step, q, KeysValues(k, v), cache)
            return self.out(output.reshape(*x.shape[:2], -1)), cache
        if cache is not None and context.cache_start is not None:
            write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=context.cache_start, axis=2)
            turned = heads_first(KeysValues(k, v))
            written = [write(old, new.astype(old.dtype)) for old, new in zip(cache, turned, strict=True)]
            cache = KeysValues(*jax.lax.optimization_barrier(written))  # or XLA writes, and first copies, it twice
            k, v = heads_first(cache)
        output = run(
            q,
            k,
            v,
            positions=context.tokens,
            k_positions=context.tokens if cache is None else context.cache_tokens,
            window=self.config.window,
            sink=self._sink,
        )
        return self.out(output.reshape(*x.shape[:2], -1)), cache

    @property
    def _sink(self) -> Float[Array, " H"] | None:
        """The logits of the attention sinks."""
        return None if self.sinks is None else self.sinks[...]

    def _attend_rolling(
        self, run: Callable[..., Any], step: RollingStep, q: Array, new: KeysValues, cache: KeysValues
    ) -> tuple[Float[Array, "B T H D"], KeysValues]:
        """Return attention over a rolling cache, part by part, and the cache with the new keys and values.

        Args:
            run: `attend` with everything bound but queries, keys, values, positions, window and sink.
            step: the parts of attention, and the slots that are written.
            q: queries of the new tokens, `(B, T, H, D)`.
            new: keys and values of the new tokens.
            cache: keys and values in the slots before this step.
        """
        cache = heads_first(cache)
        k, v = (write_slots(slots, rows, step.written) for slots, rows in zip(cache, new, strict=True))
        new_cache = KeysValues(k, v)

        def attend_to(part: Part, **options: Any) -> Any:
            window = narrower(part.window, self.config.window)
            positions = {"positions": part.tokens, "k_positions": part.k_tokens}
            sources = zip(cache, new, new_cache, strict=True)  # of keys, then of values
            keys_values = (keys_of(part, step.rolling.first, *arrays) for arrays in sources)
            return run(q, *keys_values, **positions, window=window, **options)

        if len(step.parts) == 1:
            return attend_to(step.parts[0], sink=self._sink), heads_first(new_cache)
        outputs = [attend_to(part, return_lse=True) for part in step.parts]
        output = with_sink(*merge_attention(outputs), self._sink)[0]  # the sink counts once for all parts
        return output, heads_first(new_cache)

    def _heads(self, x: Array) -> tuple[Array, Array, Array]:
        """Return q `(B, T, H, D)` and k, v `(B, T, K, D)`."""
        dims, (batch, tokens, _) = self.dims, x.shape
        grouped = self.qkv(x).reshape(batch, tokens, dims.kv_heads, dims.heads // dims.kv_heads + 2, dims.head_dim)
        q = grouped[..., :-2, :].reshape(batch, tokens, dims.heads, dims.head_dim)
        k, v = grouped[..., -2, :], grouped[..., -1, :]
        chex.assert_shape([k, v], (batch, tokens, dims.kv_heads, dims.head_dim))
        return q, k, v

    def _normed(self, norm: RMSNorm | LayerNorm | None, x: Float[Array, "B T H D"]) -> Float[Array, "B T H D"]:
        """Return queries or keys after their norm."""
        if norm is None:
            return x
        return norm(x.reshape(*x.shape[:2], -1)).reshape(x.shape) if self.config.qk_norm_over == "all" else norm(x)


def _biases(biased: tuple[tuple[int, bool], ...]) -> dict[str, Any]:
    """Return the arguments of `linear` for a kernel with a bias in some columns, given as in `Linear.biased`."""
    have_bias = [has_bias for _, has_bias in biased]
    return {"bias": any(have_bias), "biased": () if all(have_bias) else biased}


def _qk_norm(attention: AttentionConfig, heads: int) -> RMSNorm | LayerNorm | None:
    """Make the norm of queries or keys; None = no norm."""
    norm, dim = attention.qk_norm, attention.head_dim
    if norm is None:
        return None
    make = LayerNorm if norm.kind == "layer" else RMSNorm
    shape, axes = {
        "head": ((dim,), (None,)), "heads": ((heads, dim), ("heads", None)), "all": ((heads * dim,), ("heads",)),
    }[attention.qk_norm_over]  # fmt: skip
    return make(norm, *shape, axes=axes)


@functools.cache
def _without_adapt(encoding: Encoding) -> Encoding:
    """Return the encoding of parameters that are adapted already."""
    return dataclasses.replace(encoding, adapt=None)


class CrossAttention(nnx.Module):
    """Multi-head attention from a sequence to the states of an encoder, with an `Encoding` of its own.

    Args:
        attention: config of the attention, without a window, QK norm or sinks.
        dims: dims of the encoding.
        encoding: encoding made for these dims.
        dtype: type of the computation; parameters are float32.
        rngs: random streams that parameters, the encoding's included, are drawn from.

    Raises:
        ValueError: a config with a window, a QK norm or sinks.
    """

    def __init__(
        self, attention: AttentionConfig, dims: Dims, encoding: Encoding, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        if attention.window is not None or attention.qk_norm is not None or attention.sinks:
            raise ValueError(f"cross-attention must have no window, qk_norm or sinks, got {attention}")
        self.config, self.dims, self.encoding = attention, dims, encoding
        q_columns = dims.heads * dims.head_dim
        columns = 2 * dims.kv_heads * dims.head_dim
        biased = tuple((dims.head_dim, name in attention.bias) for name in "kv")  # in the columns of one key head
        self.q = linear(dims.width, q_columns, ("embed", "heads"), dtype=dtype, rngs=rngs, bias="q" in attention.bias)
        self.kv = linear(dims.width, columns, ("embed", "heads"), dtype=dtype, rngs=rngs, **_biases(biased))
        self.out = linear(q_columns, dims.width, ("heads", "embed"), dtype=dtype, rngs=rngs, bias="o" in attention.bias)
        self.position = nnx.data(position_variables(layer_params(encoding, rngs.params())))

    def keys_values(self, states: Float[Array, "B S C"]) -> KeysValues:
        """Return the keys and values of the encoder's states, which are the same for every step of decoding."""
        dims = self.dims
        grouped = self.kv(states).reshape(*states.shape[:2], dims.kv_heads, 2, dims.head_dim)
        return KeysValues(grouped[..., 0, :], grouped[..., 1, :])

    def __call__(
        self,
        x: Float[Array, "B T C"],
        context: CrossContext,
        keys_values: KeysValues,
        execution: Execution = Execution(),
    ) -> Float[Array, "B T C"]:
        """Return the output of attention from x to the keys and values that `keys_values` returned."""
        dims = self.dims
        output = attend(
            self.encoding,
            self.q(x).reshape(*x.shape[:2], dims.heads, dims.head_dim),
            *keys_values,
            params=merge_params(context.shared, nnx.as_pure(self.position)),
            positions=context.positions,
            k_positions=context.k_positions,
            extent=context.extent,
            axes=dims.axes,
            embedded=True,
            attention=execution.attention,
            sharding=execution.sharding,
            causal=dims.causal,
            scale=dims.scale,
            soft_cap=self.config.soft_cap,
        )
        return self.out(output.reshape(*x.shape[:2], -1))
