"""An encoder-decoder transformer in which position enters through `Encoding` records and nowhere else.

    encoder   x = table[source]  ->  embed  ->  L pre-norm blocks, every token sees every other  ->  norm
    decoder   y = table[target]  ->  embed  ->  L pre-norm blocks, causal, each looks at x too  ->  norm  ->  head

Encoder, decoder and cross-attention have a record each, with parameters of their own; `pejax.models.cross_positions`
says what positions mean between two sequences. An encoding that is added to the input is so in encoder and decoder.

Reference:
    Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), section 3.1; Raffel et al. 2020, "Exploring
    the Limits of Transfer Learning" (arXiv 1910.10683), section 2.1, whose cross-attention knows no positions.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from pejax._encoding import Dims, Extent, adapt
from pejax._make import make_encoding
from pejax._ops.matmul import product
from pejax._tokens import TokenPositions
from pejax.models.attention import KeysValues, LayerCache, Memory
from pejax.models.cross_positions import CROSS, cross_encoding
from pejax.models.decoder import STYLES, hidden_channels
from pejax.models.execution import Execution
from pejax.models.layers import Style, channels_per_head, linear
from pejax.models.sharding import position_variables
from pejax.models.transformer import Cache, Embedding, Stack, sequence_tokens


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """What an `EncoderDecoder` is made from.

    Args:
        vocab: V, number of tokens, of both sides.
        source_length: trained length of sources, tokens.
        target_length: trained length of targets, tokens.
        width: C, channels of the residual stream.
        encoder_layers: L of the encoder.
        decoder_layers: L of the decoder.
        heads: H.
        kv_heads: K, key/value heads; None = H.
        hidden: channels inside the MLP; None = 4·C, or 8/3·C in whole multiples of 16 where it is gated.
        pe: the encoding, as `make_encoding` takes it.
        decoder_pe: the decoder's; "" = `pe`.
        extend: how all encodings are stretched beyond the trained lengths, as `make_encoding` takes it.
        cross: "none", "query_only", "separate" or "unified".
        cross_pe: the encoding of cross-attention; "" = the decoder's.
        style: "llama" or "gpt2".
        qk_norm: RMSNorm of each query and key head in self-attention.
        soft_cap: of the attention logits; None = none.
        tied: the head is the table of the input.
        dtype: of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, an unknown policy, style or dtype.
    """

    vocab: int = 64
    source_length: int = 32
    target_length: int = 32
    width: int = 64
    encoder_layers: int = 2
    decoder_layers: int = 2
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    pe: str = "rope"
    decoder_pe: str = ""
    extend: str = "none"
    cross: str = "none"
    cross_pe: str = ""
    style: str = "llama"
    qk_norm: bool = False
    soft_cap: float | None = None
    tied: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("vocab", "source_length", "target_length", "width", "encoder_layers", "decoder_layers", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden is not None and self.hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {self.hidden}")
        for name, known in (("cross", CROSS), ("style", tuple(STYLES)), ("dtype", ("float32", "bfloat16"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        _ = self.encoder_dims

    @property
    def encoder_dims(self) -> Dims:
        """What the encoder's encoding may know."""
        return self._dims(self.source_length)

    @property
    def decoder_dims(self) -> Dims:
        """What the decoder's encoding may know."""
        return self._dims(self.target_length, causal=True)

    @property
    def cross_dims(self) -> Dims:
        """What the encoding of cross-attention may know: no mask, and the range of positions that it meets."""
        beyond = self.target_length if self.cross == "unified" else 0
        return self._dims(self.source_length + beyond)

    def _dims(self, extent: int, *, causal: bool = False) -> Dims:
        head_dim = channels_per_head(self.width, self.heads)
        return Dims(self.heads, head_dim, kv_heads=self.kv_heads, extent=extent, causal=causal)

    @property
    def layer_style(self) -> Style:
        """Which layers the model is made of."""
        base = STYLES[self.style]
        return Style(base.norm, base.gated, base.bias, self.qk_norm, self.soft_cap)


class Encoded(NamedTuple):
    """What the decoder looks at.

    Attributes:
        states: of the encoder.
        tokens: where the source tokens are.
        extent: the length, or lengths, of the source.
    """

    states: Float[Array, "B S C"]
    tokens: TokenPositions
    extent: Extent


class EncoderDecoder(nnx.Module):
    """An encoder-decoder transformer, one table of token vectors for both sides.

    Attributes:
        config: what it was made from.
        encoder: its layers; `encoder.encoding` is the record, `encoder.dims` what it knows of the model.
        decoder: likewise.
        cross: the record of cross-attention.
        position: its parameters that all layers share.

    Args:
        config: what to make.
        rngs: draws the parameters from its `params` stream.

    Raises:
        ValueError: what the encodings refuse.
    """

    def __init__(self, config: EncoderDecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config, style = config, config.layer_style
        spec = config.decoder_pe or config.pe
        self.cross = cross_encoding(config.cross, config.cross_pe or spec, config.cross_dims, config.extend)
        self.embedding = Embedding(config.vocab, config.width, rngs=rngs)
        layers = {
            "hidden": hidden_channels(config.width, style, config.hidden),
            "style": style,
            "dtype": config.dtype,
            "rngs": rngs,
        }
        self.encoder = Stack(
            config.encoder_dims,
            make_encoding(config.pe, config.encoder_dims, config.extend),
            layers=config.encoder_layers,
            **layers,
        )
        self.decoder = Stack(
            config.decoder_dims,
            make_encoding(spec, config.decoder_dims, config.extend),
            layers=config.decoder_layers,
            cross=(config.cross_dims, self.cross),
            **layers,
        )
        self.position = nnx.data(position_variables(self.cross.init(rngs.params())))
        zeros = nnx.initializers.zeros_init()
        self.head = None if config.tied else linear(
            config.width, config.vocab, ("embed", "vocab"), dtype=jnp.float32, rngs=rngs, bias=False, kernel_init=zeros
        )  # fmt: skip

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        *,
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        source_extent: Extent | None = None,
        target_extent: Extent | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B T V"]:
        """Return the logits of the target token after each.

        Args:
            source: tokens, from 0 to V-1.
            target: tokens, the first of which starts the answer.
            source_segments: examples packed one after the other, with the same numbers in the target; 0 = padding.
            target_segments: likewise.
            source_extent: the length, or lengths `(B,)`, that encodings adapt to; None = the tokens of each source that
                are no padding.
            target_extent: likewise, of the target.
            execution: over which devices this is computed, and what twice.

        Raises:
            ValueError: segments of another shape, or an encoding that cannot serve a length, padding included.
        """
        encoded = self.encode(source, source_segments, extent=source_extent, execution=execution)
        tokens = sequence_tokens(target, target_segments)
        extent = self._own_extent(self.decoder, tokens, target.shape[1]) if target_extent is None else target_extent
        x = self.embedding(target, self.config.dtype, execution)
        memory = self.memory(encoded, tokens, extent)
        x, _ = self.decoder(x, tokens, extent, memory=memory, execution=execution)
        return self.logits(x)

    def encode(
        self,
        source: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"] | None = None,
        *,
        extent: Extent | None = None,
        execution: Execution = Execution(),
    ) -> Encoded:
        """Return what the decoder looks at; the arguments are those of the call."""
        tokens = sequence_tokens(source, segment_ids)
        extent = self._own_extent(self.encoder, tokens, source.shape[1]) if extent is None else extent
        x = self.embedding(source, self.config.dtype, execution)
        states, _ = self.encoder(x, tokens, extent, execution=execution)
        return Encoded(states, tokens, extent)

    def _own_extent(self, stack: Stack, tokens: TokenPositions, length: int) -> Extent:
        """Return the length that encodings adapt to: of each example without its padding, where there may be any."""
        if tokens.segment_ids is None or not any(one.adapt for one in (stack.encoding, self.cross)):
            return length
        adapted = lambda params: adapt(stack.encoding, params, length)
        jax.eval_shape(adapted, stack.embed_params())  # refuses what it cannot serve
        return jnp.maximum(jnp.sum((tokens.segment_ids != 0).astype(jnp.int32), axis=1), 1)

    def memory(self, encoded: Encoded, tokens: TokenPositions, extent: Extent) -> Memory:
        """Return what cross-attention looks at, in the numbering of the policy.

        Args:
            encoded: the source.
            tokens: of the target.
            extent: of the target.
        """
        queries, reach = tokens, encoded.extent
        if self.config.cross == "unified":
            queries = tokens._replace(positions=tokens.positions + source_lengths(encoded, tokens))
            reach = reach + extent  # pyright: ignore[reportOperatorIssue]  # lengths, of sequences
        return Memory(encoded.states, nnx.as_pure(self.position), queries, encoded.tokens, reach)

    def empty_cache(self, encoded: Encoded, slots: int) -> Cache:
        """Return the decoder's cache: the keys and values of the source, and `slots` empty places for the target."""
        cache = self.decoder.empty_cache(encoded.states.shape[0], slots)
        static, params = nnx.split(self.decoder.layers.blocks)

        def seen(params: Any) -> KeysValues:
            return nnx.merge(static, params).cross.keys_values(encoded.states)  # pyright: ignore[reportOptionalMemberAccess]

        return cache._replace(layers=LayerCache(cache.layers.own, jax.vmap(seen)(params)))

    def cached(
        self, ids: Int[Array, "B T"], cache: Cache, encoded: Encoded, *, tokens: TokenPositions, extent: Extent
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Return the logits of the target token after each, and the cache with these tokens in it.

        Args:
            ids: target tokens that follow those in the cache.
            cache: from `empty_cache`, or from here.
            encoded: the source.
            tokens: where these tokens are.
            extent: the length, or lengths `(B,)`, of the whole target: the same for every step.
        """
        memory = self.memory(encoded, tokens, extent)._replace(states=None)
        x, cache = self.decoder(self.embedding(ids, self.config.dtype), tokens, extent, cache=cache, memory=memory)  # pyright: ignore[reportAssignmentType]
        return self.logits(x), cache

    def logits(self, x: Float[Array, "B T C"]) -> Float[Array, "B T V"]:
        """Return the logits of the decoder's normed states, in float32."""
        kernel = self.embedding.table[...].T if self.head is None else self.head.kernel[...]
        found = product(x, kernel)
        chex.assert_shape(found, (*x.shape[:2], self.config.vocab))
        return found


def source_lengths(encoded: Encoded, tokens: TokenPositions) -> int | Int[Array, "B T"]:
    """Return how many source tokens there are in the segment of each target token."""
    sources, targets = encoded.tokens.segment_ids, tokens.segment_ids
    if sources is None and targets is None:
        return encoded.states.shape[1]
    sources = jnp.ones(encoded.states.shape[:2], jnp.int32) if sources is None else sources
    targets = jnp.ones((len(sources), 1), jnp.int32) if targets is None else targets
    return jax.vmap(lambda own, all: jnp.sum((own[:, None] == all).astype(jnp.int32), axis=1))(targets, sources)
