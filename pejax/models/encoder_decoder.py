"""An encoder-decoder transformer whose positions enter through `Encoding` records and nowhere else.

    encoder   x = table[source]  ->  embed  ->  L pre-norm blocks, bidirectional  ->  norm
    decoder   y = table[target]  ->  embed  ->  L pre-norm blocks, causal, with cross-attention to x  ->  norm  ->  head

Encoder, decoder and cross-attention each have their own encoding; `pejax.models.cross_positions` relates positions in
the target to those in the source. An encoding that embeds is applied to the inputs of both encoder and decoder.

Reference:
    Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), section 3.1; Raffel et al. 2020, "Exploring
    the Limits of Transfer Learning" (arXiv 1910.10683), section 2.1, whose cross-attention has no positions.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from pejax._dims import Dims
from pejax._encoding import Extent, adapt
from pejax._extensions.extension import Extension
from pejax._make import make_encoding
from pejax._ops.matmul import product
from pejax._positions import TokenPositions
from pejax.models.attention import CrossContext, KeysValues, LayerCache
from pejax.models.cross_positions import CROSS, cross_encoding
from pejax.models.decoder import STYLES, hidden_channels
from pejax.models.execution import Execution
from pejax.models.layers import Style, channels_per_head, linear
from pejax.models.sharding import position_variables
from pejax.models.transformer import Cache, Embedding, Stack, sequence_tokens


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """The settings of an `EncoderDecoder`.

    Args:
        vocab: V, size of the vocabulary that source and target share.
        source_length: trained length of sources, tokens.
        target_length: trained length of targets, tokens.
        width: C, channels of the residual stream.
        encoder_layers: L of the encoder.
        decoder_layers: L of the decoder.
        heads: H.
        kv_heads: K, key/value heads; None = H.
        hidden: channels inside the MLP; None = 4·C, or 8/3·C rounded up to a multiple of 16 if the MLP is gated.
        pe: spec of the encoder's encoding, as in `make_encoding`.
        decoder_pe: spec of the decoder's encoding; "" = `pe`.
        extend: extension of all encodings beyond the trained lengths, a record of `pejax.extensions` or its string.
        cross: position policy of cross-attention: "none", "query_only", "separate" or "unified".
        cross_pe: spec of the encoding of cross-attention; "" = that of the decoder.
        style: "llama" (RMSNorm, SwiGLU, no biases) or "gpt2" (LayerNorm, GELU, biases).
        qk_norm: whether each query and key head is normalized (RMSNorm) in self-attention.
        soft_cap: cap c of the attention logits, `c · tanh(logits / c)`; None = no cap.
        tied: whether the head is the embedding table.
        dtype: of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, or an unknown policy, style or dtype.
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
    extend: str | Extension = "none"
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
        """The sizes that the encoder's encoding may depend on."""
        return self._dims(self.source_length)

    @property
    def decoder_dims(self) -> Dims:
        """The sizes that the decoder's encoding may depend on."""
        return self._dims(self.target_length, causal=True)

    @property
    def cross_dims(self) -> Dims:
        """The sizes that the encoding of cross-attention may depend on; its extent covers all positions that occur."""
        continued = self.target_length if self.cross == "unified" else 0
        return self._dims(self.source_length + continued)

    def _dims(self, extent: int, *, causal: bool = False) -> Dims:
        """Return the dims of one of the model's three encodings."""
        head_dim = channels_per_head(self.width, self.heads)
        return Dims(self.heads, head_dim, kv_heads=self.kv_heads, extent=extent, causal=causal)

    @property
    def layer_style(self) -> Style:
        """The kind of layers the model is made of."""
        base = STYLES[self.style]
        return Style(base.norm, base.gated, base.bias, self.qk_norm, self.soft_cap)


class EncoderOutput(NamedTuple):
    """The output of the encoder.

    Attributes:
        states: normalized states after its last layer.
        tokens: positions of the source tokens.
        extent: the length of the source, or one length per example.
    """

    states: Float[Array, "B S C"]
    tokens: TokenPositions
    extent: Extent


class EncoderDecoder(nnx.Module):
    """An encoder-decoder transformer; encoder and decoder share one embedding table.

    Attributes:
        config: its settings.
        encoder: its layers; `encoder.encoding` is the encoding, `encoder.dims` the dims it was made for.
        decoder: likewise.
        cross: the encoding of cross-attention.
        position: the parameters of `cross` that all layers share.

    Args:
        config: the settings.
        rngs: draws the parameters from its `params` stream.

    Raises:
        ValueError: settings that the encodings refuse.
    """

    def __init__(self, config: EncoderDecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config, style = config, config.layer_style
        spec = config.decoder_pe or config.pe
        self.cross = cross_encoding(config.cross, config.cross_pe or spec, config.cross_dims, config.extend)
        self.embedding = Embedding(config.vocab, config.width, rngs=rngs)
        hidden = hidden_channels(config.width, style, config.hidden)
        layers = {"hidden": hidden, "style": style, "dtype": config.dtype, "rngs": rngs}
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
        """Return, for every target token, the logits of the token after it.

        Args:
            source: token ids, from 0 to V-1.
            target: token ids; the first is the start token.
            source_segments: the example that each token belongs to, for examples packed one after the other; the target
                uses the same numbers; 0 = padding.
            target_segments: likewise.
            source_extent: the length, or lengths `(B,)`, that encodings adapt to; None = the number of tokens of each
                source, without padding.
            target_extent: likewise, of the target.
            execution: device mesh, sharding and rematerialization.

        Raises:
            ValueError: segments of another shape, or an encoding that does not support the length with its padding.
        """
        encoded = self.encode(source, source_segments, extent=source_extent, execution=execution)
        tokens = sequence_tokens(target, target_segments)
        extent = self._own_extent(self.decoder, tokens, target.shape[1]) if target_extent is None else target_extent
        x = self.embedding(target, self.config.dtype, execution)
        cross = self.cross_context(encoded, tokens, extent)
        x, _ = self.decoder(x, tokens, extent, cross_context=cross, execution=execution)
        return self.logits(x)

    def encode(
        self,
        source: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"] | None = None,
        *,
        extent: Extent | None = None,
        execution: Execution = Execution(),
    ) -> EncoderOutput:
        """Return the output of the encoder; arguments as those of the source in `__call__`."""
        tokens = sequence_tokens(source, segment_ids)
        extent = self._own_extent(self.encoder, tokens, source.shape[1]) if extent is None else extent
        x = self.embedding(source, self.config.dtype, execution)
        states, _ = self.encoder(x, tokens, extent, execution=execution)
        return EncoderOutput(states, tokens, extent)

    def _own_extent(self, stack: Stack, tokens: TokenPositions, length: int) -> Extent:
        """Return the length that encodings adapt to: one per example, without padding, if segment ids are given."""
        if tokens.segment_ids is None or not any(encoding.adapt for encoding in (stack.encoding, self.cross)):
            return length
        adapted = lambda params: adapt(stack.encoding, params, length)
        jax.eval_shape(adapted, stack.embed_params())  # raises if the encoding does not support this length
        return jnp.maximum(jnp.sum((tokens.segment_ids != 0).astype(jnp.int32), axis=1), 1)

    def cross_context(self, encoded: EncoderOutput, tokens: TokenPositions, extent: Extent) -> CrossContext:
        """Return the inputs of cross-attention, with positions as the policy numbers them.

        Args:
            encoded: the encoder's output.
            tokens: positions of the target tokens.
            extent: the length or lengths of the target.
        """
        queries, total = tokens, encoded.extent
        if self.config.cross == "unified":
            queries = tokens._replace(positions=tokens.positions + source_lengths(encoded, tokens))
            total = total + extent  # pyright: ignore[reportOperatorIssue]  # lengths of sequences, never grids
        return CrossContext(encoded.states, nnx.as_pure(self.position), queries, encoded.tokens, total)

    def empty_cache(self, encoded: EncoderOutput, slots: int) -> Cache:
        """Return the decoder's cache: the keys and values of the source, and `slots` empty slots for the target."""
        cache = self.decoder.empty_cache(encoded.states.shape[0], slots)
        static, params = nnx.split(self.decoder.layers.blocks)

        def source_keys(params: Any) -> KeysValues:
            return nnx.merge(static, params).cross.keys_values(encoded.states)  # pyright: ignore[reportOptionalMemberAccess]

        return cache._replace(layers=LayerCache(cache.layers.own, jax.vmap(source_keys)(params)))

    def cached(
        self, ids: Int[Array, "B T"], cache: Cache, encoded: EncoderOutput, *, tokens: TokenPositions, extent: Extent
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Return, for every target token, the logits of the token after it, and the cache with these tokens added.

        Args:
            ids: ids of the target tokens that follow those in the cache.
            cache: from `empty_cache`, or from the previous call.
            encoded: the encoder's output.
            tokens: positions of these tokens.
            extent: the final length, or lengths `(B,)`, of the target; the same in every step.
        """
        cross = self.cross_context(encoded, tokens, extent)._replace(states=None)
        x = self.embedding(ids, self.config.dtype)
        x, cache = self.decoder(x, tokens, extent, cache=cache, cross_context=cross)  # pyright: ignore[reportAssignmentType]
        return self.logits(x), cache

    def logits(self, x: Float[Array, "B T C"]) -> Float[Array, "B T V"]:
        """Return the logits of the decoder's normalized states, in float32."""
        kernel = self.embedding.table[...].T if self.head is None else self.head.kernel[...]
        logits = product(x, kernel)
        chex.assert_shape(logits, (*x.shape[:2], self.config.vocab))
        return logits


def source_lengths(encoded: EncoderOutput, tokens: TokenPositions) -> int | Int[Array, "B T"]:
    """Return the number of source tokens in the segment of each target token."""
    sources, targets = encoded.tokens.segment_ids, tokens.segment_ids
    if sources is None and targets is None:
        return encoded.states.shape[1]
    sources = jnp.ones(encoded.states.shape[:2], jnp.int32) if sources is None else sources
    targets = jnp.ones((len(sources), 1), jnp.int32) if targets is None else targets
    return jax.vmap(lambda own, all: jnp.sum((own[:, None] == all).astype(jnp.int32), axis=1))(targets, sources)
