"""The layers of an encoder or decoder with their encoding (`Stack`), the embedding table and the KV cache."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pejax._dims import Dims
from pejax._encoding import Encoding, Extent, Params, adapt, merge_params
from pejax._positions import TokenPositions, segment_positions
from pejax.models.attention import CrossContext, KeysValues, LayerCache, LayerContext
from pejax.models.block import Layers
from pejax.models.execution import Execution
from pejax.models.layers import Style, make_norm
from pejax.models.sharding import named, position_variables


class Cache(NamedTuple):
    """The KV cache of decoding: S slots that are filled from the left, in step for the whole batch.

    Attributes:
        layers: keys and values of every layer, `(L, B, S, K, D)`.
        tokens: position of the token in each slot, `(B, S)`; segment 0 = an empty slot, or padding.
        used: number of filled slots.
    """

    layers: LayerCache
    tokens: TokenPositions
    used: Int[Array, ""]


class Embedding(nnx.Module):
    """The table of token vectors, initialized from a normal distribution of standard deviation C^-½.

    Args:
        vocab: V, number of tokens.
        width: C, channels.
        rngs: draws the table.
    """

    def __init__(self, vocab: int, width: int, *, rngs: nnx.Rngs) -> None:
        table = float(width) ** -0.5 * jax.random.normal(rngs.params(), (vocab, width))
        self.table = nnx.Param(table, **named("vocab", "embed"))

    def __call__(
        self, ids: Int[Array, "B T"], dtype: DTypeLike, execution: Execution = Execution()
    ) -> Float[Array, "B T C"]:
        return execution.replicate(self.table[...])[ids].astype(dtype)


class Stack(nnx.Module):
    """An encoding's `embed`, L blocks and a final norm: an encoder, or a decoder without its head.

    Args:
        dims: of the model.
        encoding: made for these dims.
        layers: L.
        hidden: channels inside the MLP.
        style: the kind of layers.
        cross: dims and encoding of cross-attention; None = no cross-attention.
        dtype: of the computation; parameters are float32.
        rngs: draws the parameters.

    Attributes:
        dims: of the model.
        encoding: the record.
        position: the encoding's parameters that all layers share.
    """

    def __init__(
        self,
        dims: Dims,
        encoding: Encoding,
        *,
        layers: int,
        hidden: int,
        style: Style,
        cross: tuple[Dims, Encoding] | None = None,
        dtype: str,
        rngs: nnx.Rngs,
    ) -> None:
        self.dims, self.dtype, self.encoding = dims, dtype, encoding
        self.position = nnx.data(position_variables(encoding.init(rngs.params())))
        self.layers = Layers(
            layers, dims=dims, encoding=encoding, hidden=hidden, style=style, cross=cross, dtype=dtype, rngs=rngs
        )  # fmt: skip
        self.norm = make_norm(style, dims.width)
        self.embed_params()  # raises now, not at the first call, if init and init_layer share a parameter name

    def __call__(
        self,
        x: Float[Array, "B T C"],
        tokens: TokenPositions,
        extent: Extent,
        *,
        cache: Cache | None = None,
        cross_context: CrossContext | None = None,
        execution: Execution = Execution(),
    ) -> tuple[Float[Array, "B T C"], Cache | None]:
        """Return the normalized states after the last layer, and the cache with these tokens added.

        Args:
            x: token vectors.
            tokens: their positions.
            extent: the length that the encoding adapts to, or lengths `(B,)` or `(B, T)` as in `attend`.
            cache: of earlier tokens, in the slots before; None = no cache.
            cross_context: the inputs of cross-attention; None = there is none.
            execution: device mesh, sharding and rematerialization.
        """
        x = self._embed(execution.shard_states(x), tokens.positions, extent)
        context = LayerContext(
            nnx.as_pure(self.position), tokens, extent, cross_context=cross_context, execution=execution
        )
        if cache is None:
            return self.norm(self.layers(x, context)[0]), None
        _check_cacheable(cache, tokens)
        cache_tokens = _with_new_tokens(cache.tokens, tokens, cache.used, x.shape[0])
        context = context._replace(cache_start=cache.used, cache_tokens=cache_tokens)
        x, layers = self.layers(x, context, cache.layers)
        return self.norm(x), Cache(layers, cache_tokens, cache.used + x.shape[1])  # pyright: ignore[reportArgumentType]

    def _embed(self, x: Array, positions: Array, extent: Extent) -> Array:
        """Return token vectors after `encoding.embed`, adapted to the extent, which may differ from token to token."""
        embed, params = self.encoding.embed, self.embed_params()
        adapted = functools.partial(adapt, self.encoding)
        if embed is None:
            return x
        if self.encoding.adapt is None:
            return embed(adapted(params), x, positions)
        if isinstance(extent, tuple) or jnp.ndim(extent) == 0:
            return embed(adapted(params, extent), x, positions)
        token = lambda extent, x, position: embed(adapted(params, extent), x[None], position[None])[0]
        extents = jnp.broadcast_to(jnp.asarray(extent).reshape(x.shape[0], -1), x.shape[:2])
        return jax.vmap(jax.vmap(token))(extents, x, jnp.broadcast_to(positions, x.shape[:2]))

    def embed_params(self) -> Params:
        """Return the parameters that `embed` reads, before `adapt`: those of the model and of the first layer."""
        first = jax.tree.map(lambda leaf: leaf[0], nnx.as_pure(self.layers.blocks.attention.position))
        return merge_params(nnx.as_pure(self.position), first)

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """Return an empty cache with `slots` slots for each of `batch` examples."""
        shape = (len(self.layers.rates), batch, slots, self.dims.kv_heads, self.dims.head_dim)
        empty, zeros = jnp.zeros(shape, self.dtype), jnp.zeros((batch, slots), jnp.int32)
        tokens = TokenPositions(zeros, segment_ids=zeros)
        return Cache(LayerCache(KeysValues(empty, empty)), tokens, jnp.zeros((), jnp.int32))


def _check_cacheable(cache: Cache, tokens: TokenPositions) -> None:
    """Raise ValueError for tokens that a cache cannot hold. Outside of jit, also if it has too few empty slots."""
    if (
        not jnp.issubdtype(tokens.positions.dtype, jnp.integer)
        or tokens.order is not None
        or tokens.has_position is not None
    ):
        given = [name for name in ("order", "has_position") if getattr(tokens, name) is not None]
        got = f"{tokens.positions.dtype} positions, and {', '.join(given) or 'neither'}"
        raise ValueError(f"a cache holds tokens at integer positions, without order or has_position, got {got}")
    slots, new = cache.tokens.positions.shape[-1], tokens.positions.shape[-1]
    if not isinstance(cache.used, Tracer) and int(cache.used) + new > slots:
        raise ValueError(f"a cache of {slots} slots, {int(cache.used)} of them used, cannot take {new} more tokens")


def _with_new_tokens(slots: TokenPositions, tokens: TokenPositions, start: Array, batch: int) -> TokenPositions:
    """Return the positions in the slots of a cache, with those of new tokens written from slot `start` on."""

    def write(old: Array, new: Array | None) -> Array:
        new = jnp.ones(tokens.positions.shape[-1:], old.dtype) if new is None else new
        new = jnp.broadcast_to(new.astype(old.dtype), (batch, new.shape[-1]))
        return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=1)

    segment_ids = write(slots.segment_ids, tokens.segment_ids)  # pyright: ignore[reportArgumentType]
    return TokenPositions(write(slots.positions, tokens.positions), segment_ids=segment_ids)


def sequence_tokens(ids: Int[Array, "B T"], segments: Int[Array, "B T"] | None) -> TokenPositions:
    """Return the positions of tokens `(B, T)`: 0 ... T-1, or restarting at 0 in each segment; padding is at 0."""
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"tokens must be (B, T), both at least 1, got {ids.shape}")
    if segments is None:
        return TokenPositions(jnp.arange(ids.shape[1], dtype=jnp.int32))
    if segments.shape != ids.shape:
        raise ValueError(f"segments must have the shape of ids, {ids.shape}, got {segments.shape}")
    positions = jnp.where(segments != 0, segment_positions(segments), 0)  # padding may be longer than a learned table
    return TokenPositions(positions.astype(jnp.int32), segment_ids=segments)
