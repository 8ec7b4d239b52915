"""A stack of blocks with its encoding: an encoder, or a decoder without its head; and the cache of decoding."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pejax._encoding import Dims, Encoding, Extent, Params, adapt, merge_params
from pejax._positions import segment_positions
from pejax._tokens import TokenPositions
from pejax.models.attention import KeysValues, LayerCache, Memory, Where
from pejax.models.block import Layers
from pejax.models.execution import Execution
from pejax.models.layers import Style, make_norm
from pejax.models.sharding import named, position_variables


class Cache(NamedTuple):
    """What decoding remembers: slots that are filled from the left, the same ones for the whole batch.

    Attributes:
        layers: keys and values of every layer, `(L, B, S, K, D)`.
        tokens: where the token of each slot is, `(B, S)`; segment 0 = an empty slot, or padding.
        used: slots filled.
    """

    layers: LayerCache
    tokens: TokenPositions
    used: Int[Array, ""]


class Embedding(nnx.Module):
    """The table of token vectors, drawn from a normal distribution of standard deviation C^-½."""

    def __init__(self, vocab: int, width: int, *, rngs: nnx.Rngs) -> None:
        table = float(width) ** -0.5 * jax.random.normal(rngs.params(), (vocab, width))
        self.table = nnx.Param(table, **named("vocab", "embed"))

    def __call__(
        self, ids: Int[Array, "B T"], dtype: DTypeLike, execution: Execution = Execution()
    ) -> Float[Array, "B T C"]:
        return execution.gathered(self.table[...])[ids].astype(dtype)


class Stack(nnx.Module):
    """Token vectors, an encoding and L blocks: all of a decoder but its head, and an encoder as it is.

    Args:
        dims: of the model.
        encoding: made for these dims.
        layers: L.
        hidden: channels inside the MLP.
        style: which layers.
        cross: dims and encoding of cross-attention; None = none.
        dtype: of the computation.
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
        self.embed_params()  # a name that init and init_layer both use is an error now, not at the first call

    def __call__(
        self,
        x: Float[Array, "B T C"],
        tokens: TokenPositions,
        extent: Extent,
        *,
        cache: Cache | None = None,
        memory: Memory | None = None,
        execution: Execution = Execution(),
    ) -> tuple[Float[Array, "B T C"], Cache | None]:
        """Return the normed states after the last layer, and the cache with these tokens in it.

        Args:
            x: token vectors.
            tokens: where they are.
            extent: a length, or lengths `(B,)` or `(B, T)` as `attend` takes them.
            cache: of earlier tokens; their slots come before.
            memory: what cross-attention looks at.
            execution: over which devices this is computed, and what twice.
        """
        x = self._embed(execution.place(x), tokens.positions, extent)
        if cache is None:
            where = Where(nnx.as_pure(self.position), tokens, extent, memory=memory, execution=execution)
            return self.norm(self.layers(x, where)[0]), None
        _check_cached(cache, tokens)
        cached = _written(cache.tokens, tokens, cache.used, x.shape[0])
        where = Where(nnx.as_pure(self.position), tokens, extent, cache.used, cached, memory, execution)
        x, layers = self.layers(x, where, cache.layers)
        return self.norm(x), Cache(layers, cached, cache.used + x.shape[1])  # pyright: ignore[reportArgumentType]

    def _embed(self, x: Array, positions: Array, extent: Extent) -> Array:
        embed, params = self.encoding.embed, self.embed_params()
        at = functools.partial(adapt, self.encoding)
        if embed is None:
            return x
        if self.encoding.adapt is None:
            return embed(at(params), x, positions)
        if isinstance(extent, tuple) or jnp.ndim(extent) == 0:
            return embed(at(params, extent), x, positions)
        token = lambda extent, x, position: embed(at(params, extent), x[None], position[None])[0]
        every = jnp.broadcast_to(jnp.asarray(extent).reshape(x.shape[0], -1), x.shape[:2])
        return jax.vmap(jax.vmap(token))(every, x, jnp.broadcast_to(positions, x.shape[:2]))

    def embed_params(self) -> Params:
        """Return what `embed` reads, before `adapt`: the model's parameters and the first layer's."""
        first = jax.tree.map(lambda leaf: leaf[0], nnx.as_pure(self.layers.blocks.attention.position))
        return merge_params(nnx.as_pure(self.position), first)

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """Return a cache of `slots` tokens for every example of a batch, all empty."""
        shape = (len(self.layers.rates), batch, slots, self.dims.kv_heads, self.dims.head_dim)
        empty, nowhere = jnp.zeros(shape, self.dtype), jnp.zeros((batch, slots), jnp.int32)
        tokens = TokenPositions(nowhere, segment_ids=nowhere)
        return Cache(LayerCache(KeysValues(empty, empty)), tokens, jnp.zeros((), jnp.int32))


def _check_cached(cache: Cache, tokens: TokenPositions) -> None:
    """Raise ValueError for tokens that a cache cannot hold; how full it is can be told outside of jit alone."""
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


def _written(slots: TokenPositions, tokens: TokenPositions, start: Array, batch: int) -> TokenPositions:
    """Return the cache's tokens with new ones from slot `start` on."""

    def write(old: Array, new: Array | None) -> Array:
        new = jnp.ones(tokens.positions.shape[-1:], old.dtype) if new is None else new
        new = jnp.broadcast_to(new.astype(old.dtype), (batch, new.shape[-1]))
        return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=1)

    segment_ids = write(slots.segment_ids, tokens.segment_ids)  # pyright: ignore[reportArgumentType]
    return TokenPositions(write(slots.positions, tokens.positions), segment_ids=segment_ids)


def sequence_tokens(ids: Int[Array, "B T"], segments: Int[Array, "B T"] | None) -> TokenPositions:
    """Return where the tokens of sequences are: 0 ... T-1, or restarting in each segment, padding at 0."""
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"tokens must be (B, T), both at least 1, got {ids.shape}")
    if segments is None:
        return TokenPositions(jnp.arange(ids.shape[1], dtype=jnp.int32))
    if segments.shape != ids.shape:
        raise ValueError(f"segments must have the shape of ids, {ids.shape}, got {segments.shape}")
    positions = jnp.where(segments != 0, segment_positions(segments), 0)  # padding, which may be longer than a table
    return TokenPositions(positions.astype(jnp.int32), segment_ids=segments)
