"""A decoder-only language model in which position enters through an `Encoding` record and nowhere else.

    x = table[ids]  ->  embed  ->  L pre-norm blocks, causal  ->  norm  ->  head

Llama's layers (RMSNorm, SwiGLU, no biases) by default, GPT-2's (LayerNorm, GELU, biases) by `style="gpt2"`. Model and
initialisation are the same for every encoding.

Reference:
    Touvron et al. 2023, "Llama 2" (arXiv 2307.09288), section 2.2; Radford et al. 2019, "Language Models are
    Unsupervised Multitask Learners", section 2.3.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pejax.encoding import Dims, Encoding, Extent, Params, Tokens, merge_params
from pejax.models.attention import KeysValues, LayerCache, Memory, Where
from pejax.models.block import Layers
from pejax.models.layers import LLAMA, Style, linear, make_norm
from pejax.models.sharding import named, position_variables
from pejax.positions import packed_positions
from pejax.registry import make_encoding

STYLES = {"llama": LLAMA, "gpt2": Style()}


@dataclass(frozen=True)
class DecoderConfig:
    """What a `Decoder` is made from.

    Args:
        vocab: V, number of tokens.
        length: trained context, tokens.
        width: C, channels of the residual stream.
        layers: L.
        heads: H.
        kv_heads: K, key/value heads; None = H.
        hidden: channels inside the MLP; None = 4·C, or 8/3·C in whole multiples of 16 where it is gated.
        pe: the encoding, as `make_encoding` takes it.
        extend: how the encoding is stretched beyond the trained length, as `make_encoding` takes it.
        style: "llama" or "gpt2".
        qk_norm: RMSNorm of each query and key head.
        soft_cap: of the attention logits; None = none.
        tied: the head is the table of the input.
        causal: keys after the query are not seen.
        dtype: of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, an unknown style or dtype.
    """

    vocab: int = 256
    length: int = 128
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    pe: str = "rope"
    extend: str = "none"
    style: str = "llama"
    qk_norm: bool = False
    soft_cap: float | None = None
    tied: bool = False
    causal: bool = True
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("vocab", "length", "width", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden is not None and self.hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {self.hidden}")
        if self.style not in STYLES:
            raise ValueError(f"style must be one of {', '.join(STYLES)}, got {self.style!r}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype must be 'float32' or 'bfloat16', got {self.dtype!r}")
        _ = self.dims

    @property
    def dims(self) -> Dims:
        """What the encoding may know of this model."""
        return Dims(self.width, self.heads, self.kv_heads, extent=self.length, causal=self.causal)

    @property
    def layer_style(self) -> Style:
        """Which layers the model is made of."""
        base = STYLES[self.style]
        return Style(base.norm, base.gated, base.bias, self.qk_norm, self.soft_cap)


def hidden_channels(width: int, style: Style, hidden: int | None) -> int:
    """Return the channels inside an MLP: as asked for, or 4·C, or 8/3·C in multiples of 16 where it is gated."""
    if hidden is not None:
        return hidden
    return 16 * math.ceil(width / 6) if style.gated else 4 * width


class Cache(NamedTuple):
    """What decoding remembers: slots that are filled from the left, the same ones for the whole batch.

    Attributes:
        layers: keys and values of every layer, `(L, B, S, K, D)`.
        tokens: where the token of each slot is, `(B, S)`; segment 0 = an empty slot, or padding.
        used: slots filled.
    """

    layers: LayerCache
    tokens: Tokens
    used: Int[Array, ""]


class Embedding(nnx.Module):
    """The table of token vectors, drawn from a normal distribution of standard deviation C^-½."""

    def __init__(self, vocab: int, width: int, *, rngs: nnx.Rngs) -> None:
        table = float(width) ** -0.5 * jax.random.normal(rngs.params(), (vocab, width))
        self.table = nnx.Param(table, **named("vocab", "embed"))

    def __call__(self, ids: Int[Array, "B T"], dtype: DTypeLike) -> Float[Array, "B T C"]:
        return self.table[...][ids].astype(dtype)

    def logits(self, x: Float[Array, "B T C"]) -> Float[Array, "B T V"]:
        """Return the product with every row: the head of a model whose head is tied."""
        return x.astype(jnp.float32) @ self.table[...].T


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
        tokens: Tokens,
        extent: Extent,
        *,
        cache: Cache | None = None,
        memory: Memory | None = None,
    ) -> tuple[Float[Array, "B T C"], Cache | None]:
        """Return the normed states after the last layer, and the cache with these tokens in it.

        Args:
            x: token vectors.
            tokens: where they are.
            extent: a length, or lengths `(B,)` or `(B, T)` as `encoded_attention` takes them.
            cache: of earlier tokens; their slots come before.
            memory: what cross-attention looks at.
        """
        x = self._embed(x, tokens.positions, extent)
        if cache is None:
            where = Where(nnx.as_pure(self.position), tokens, extent, memory=memory)
            return self.norm(self.layers(x, where)[0]), None
        _check_cached(cache, tokens)
        cached = _written(cache.tokens, tokens, cache.used, x.shape[0])
        where = Where(nnx.as_pure(self.position), tokens, extent, cache.used, cached, memory)
        x, layers = self.layers(x, where, cache.layers)
        return self.norm(x), Cache(layers, cached, cache.used + x.shape[1])  # pyright: ignore[reportArgumentType]

    def _embed(self, x: Array, positions: Array, extent: Extent) -> Array:
        embed, at, params = self.encoding.embed, self.encoding.at, self.embed_params()
        if embed is None:
            return x
        if at is None:
            return embed(params, x, positions)
        if isinstance(extent, tuple) or jnp.ndim(extent) == 0:
            return embed(at(params, extent), x, positions)
        token = lambda extent, x, position: embed(at(params, extent), x[None], position[None])[0]  # noqa: E731
        every = jnp.broadcast_to(jnp.asarray(extent).reshape(x.shape[0], -1), x.shape[:2])
        return jax.vmap(jax.vmap(token))(every, x, jnp.broadcast_to(positions, x.shape[:2]))

    def embed_params(self) -> Params:
        """Return what `embed` reads, before `at`: the model's parameters and the first layer's."""
        first = jax.tree.map(lambda leaf: leaf[0], nnx.as_pure(self.layers.blocks.attention.position))
        return merge_params(nnx.as_pure(self.position), first)

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """Return a cache of `slots` tokens for every example of a batch, all empty."""
        shape = (len(self.layers.rates), batch, slots, self.dims.kv_heads, self.dims.head_dim)
        empty, nowhere = jnp.zeros(shape, self.dtype), jnp.zeros((batch, slots), jnp.int32)
        tokens = Tokens(nowhere, segments=nowhere)
        return Cache(LayerCache(KeysValues(empty, empty)), tokens, jnp.zeros((), jnp.int32))


def _check_cached(cache: Cache, tokens: Tokens) -> None:
    """Raise ValueError for tokens that a cache cannot hold; how full it is can be told outside of jit alone."""
    if not jnp.issubdtype(tokens.positions.dtype, jnp.integer) or tokens.index is not None or tokens.placed is not None:
        got = (
            f"{tokens.positions.dtype} positions, index {tokens.index is not None}, placed {tokens.placed is not None}"
        )
        raise ValueError(f"a cache holds tokens at integer positions, without index or placed, got {got}")
    slots, new = cache.tokens.positions.shape[-1], tokens.positions.shape[-1]
    if not isinstance(cache.used, Tracer) and int(cache.used) + new > slots:
        raise ValueError(f"a cache of {slots} slots, {int(cache.used)} of them used, cannot take {new} more tokens")


def _written(slots: Tokens, tokens: Tokens, start: Array, batch: int) -> Tokens:
    """Return the cache's tokens with new ones from slot `start` on."""

    def write(old: Array, new: Array | None) -> Array:
        new = jnp.ones(tokens.positions.shape[-1:], old.dtype) if new is None else new
        new = jnp.broadcast_to(new.astype(old.dtype), (batch, new.shape[-1]))
        return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=1)

    return Tokens(write(slots.positions, tokens.positions), segments=write(slots.segments, tokens.segments))  # pyright: ignore[reportArgumentType]


class Decoder(nnx.Module):
    """A decoder-only transformer.

    Attributes:
        config: what it was made from.
        stack: its layers; `stack.encoding` is the record, `stack.dims` what it knows of the model.

    Args:
        config: what to make.
        encoding: one's own, made for `config.dims`, in place of the one that `config.pe` names.
        rngs: draws the parameters from its `params` stream.

    Raises:
        ValueError: what the encoding refuses.
    """

    def __init__(self, config: DecoderConfig, encoding: Encoding | None = None, *, rngs: nnx.Rngs) -> None:
        self.config, style = config, config.layer_style
        self.embedding = Embedding(config.vocab, config.width, rngs=rngs)
        self.stack = Stack(
            config.dims,
            make_encoding(config.pe, config.dims, config.extend) if encoding is None else encoding,
            layers=config.layers,
            hidden=hidden_channels(config.width, style, config.hidden),
            style=style,
            dtype=config.dtype,
            rngs=rngs,
        )
        zeros = nnx.initializers.zeros_init()
        self.head = None if config.tied else linear(
            config.width, config.vocab, ("embed", "vocab"), dtype=jnp.float32, rngs=rngs, bias=False, kernel_init=zeros
        )  # fmt: skip

    def __call__(
        self,
        ids: Int[Array, "B T"],
        *,
        segments: Int[Array, "B T"] | None = None,
        tokens: Tokens | None = None,
        extent: Extent | None = None,
    ) -> Float[Array, "B T V"]:
        """Return the logits of the token after each.

        Args:
            ids: tokens, from 0 to V-1.
            segments: documents packed one after the other; positions restart in each; 0 = padding.
            tokens: where the tokens are, in place of `segments`; None = 0 ... T-1, or as the segments say.
            extent: the length that the encoding adapts to; None = T.

        Raises:
            ValueError: both `segments` and `tokens`, or an encoding that cannot serve this length.
        """
        if tokens is None:
            tokens = sequence_tokens(ids, segments)
        elif segments is not None:
            raise ValueError("segments and tokens must not both be given: tokens hold their own segments")
        extent = ids.shape[1] if extent is None else extent
        x, _ = self.stack(self.embedding(ids, self.config.dtype), tokens, extent)
        return self.logits(x)

    def cached(
        self, ids: Int[Array, "B T"], cache: Cache, *, tokens: Tokens, extent: Extent
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Return the logits of the token after each, and the cache with these tokens in it.

        Args:
            ids: tokens that follow those in the cache.
            cache: from `stack.empty_cache`, or from here.
            tokens: where these tokens are, with segments where the cache holds several or padding.
            extent: as in `encoded_attention`.
        """
        x, cache = self.stack(self.embedding(ids, self.config.dtype), tokens, extent, cache=cache)  # pyright: ignore[reportAssignmentType]
        return self.logits(x), cache

    def logits(self, x: Float[Array, "B T C"]) -> Float[Array, "B T V"]:
        """Return the logits of normed states, in float32."""
        found = self.embedding.logits(x) if self.head is None else self.head(x.astype(jnp.float32))
        chex.assert_shape(found, (*x.shape[:2], self.config.vocab))
        return found


def sequence_tokens(ids: Int[Array, "B T"], segments: Int[Array, "B T"] | None) -> Tokens:
    """Return where the tokens of sequences are: 0 ... T-1, or restarting in each segment, padding at 0."""
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"tokens must be (B, T), both at least 1, got {ids.shape}")
    if segments is None:
        return Tokens(jnp.arange(ids.shape[1], dtype=jnp.int32))
    if segments.shape != ids.shape:
        raise ValueError(f"segments must have the shape of ids, {ids.shape}, got {segments.shape}")
    positions = jnp.where(segments != 0, packed_positions(segments), 0)  # padding, which may be longer than a table
    return Tokens(positions.astype(jnp.int32), segments=segments)
