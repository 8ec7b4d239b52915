"""An encoder-decoder transformer whose positions enter through `Encoding` records and nowhere else.

    encoder   x = table[source]  ->  embed  ->  L blocks, bidirectional  ->  norm
    decoder   y = table[target]  ->  embed  ->  L blocks, causal, with cross-attention to x  ->  norm  ->  head

Encoder, decoder and cross-attention each have their own encodings; `pejax.models.stack.cross_positions` relates
positions in the target to those in the source. An encoding that embeds is applied to the inputs of both encoder and
decoder.

Reference:
    Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), section 3.1; Raffel et al. 2020, "Exploring
    the Limits of Transfer Learning" (arXiv 1910.10683), section 2.1, whose cross-attention has no positions.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from pejax._calls.arguments import checked
from pejax._ops.open_sizes import as_length
from pejax._record.encoding import Extent, shared_params
from pejax._tokens.positions import TokenPositions
from pejax.models.configs.model import EncoderDecoderConfig
from pejax.models.execution import Execution
from pejax.models.parts.attention import CrossContext, KeysValues
from pejax.models.parts.text_ends import Embedding, TextHead
from pejax.models.sharding import position_variables
from pejax.models.stack.cross_positions import cross_encoding
from pejax.models.stack.extents import own_extents
from pejax.models.stack.transformer import Cache, Stack, sequence_tokens


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
    """An encoder-decoder transformer.

    Attributes:
        config: config of the model.
        source_embedding: the table of the source; None = that of the target serves both.
        encoder: layers of the encoder; `encoder.encoding` is the encoding of the first, `encoder.dims` its dims.
        decoder: layers of the decoder.
        cross: the encoding of cross-attention.
        position: the parameters of `cross` that all layers share.

    Args:
        config: encoder, decoder and cross-attention of the model.
        rngs: random streams; parameters are drawn from `params`.

    Raises:
        ValueError: a config that the encodings refuse.
    """

    @checked
    def __init__(self, config: EncoderDecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        dims = config.cross_dims
        self.cross = cross_encoding(config.cross, config.cross_attention.pe, dims)
        self.embedding = Embedding(config.decoder, rngs=rngs)
        self.source_embedding = Embedding(config.encoder, rngs=rngs) if config.two_tables else None
        self.encoder = Stack(config.encoder, rngs=rngs)
        self.decoder = Stack(config.decoder, cross=(dims, self.cross), rngs=rngs)
        self.position = nnx.data(position_variables(shared_params(self.cross, rngs.params())))
        head = config.decoder.head
        self.head = None if head is None else TextHead(head, config.decoder, rngs=rngs)

    @checked
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
                uses the same numbers; 0 = padding, so an attention mask of 0 and 1 is one.
            target_segments: the example that each target token belongs to.
            source_extent: the length, or lengths `(B,)`, that encodings adapt to; None = the number of tokens of each
                source, without padding; of several packed into a row, that of the longest.
            target_extent: length or lengths of the target, as `source_extent`.
            execution: device mesh, sharding and rematerialization.

        Raises:
            ValueError: segments of another shape, or an encoding that does not support the length with its padding.
        """
        encoded = self.encode(source, source_segments, extent=source_extent, execution=execution)
        tokens = sequence_tokens(target, target_segments, "target")
        extent = (
            self._own_extents(self.decoder, tokens, as_length(target.shape[1]))
            if target_extent is None
            else target_extent
        )
        x = self.embedding(target, execution)
        cross = self.cross_context(encoded, tokens, extent)
        own_tokens = None if target_segments is None else tokens
        x, _ = self.decoder(x, own_tokens, extent, cross_context=cross, execution=execution)
        return self.logits(x)

    @checked
    def encode(
        self,
        source: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"] | None = None,
        *,
        extent: Extent | None = None,
        execution: Execution = Execution(),
    ) -> EncoderOutput:
        """Return the output of the encoder; arguments as for the source in `__call__`."""
        tokens = sequence_tokens(source, segment_ids, "source")
        extent = self._own_extents(self.encoder, tokens, as_length(source.shape[1])) if extent is None else extent
        x = (self.source_embedding or self.embedding)(source, execution)
        states, _ = self.encoder(x, None if segment_ids is None else tokens, extent, execution=execution)
        return EncoderOutput(states, tokens, extent)

    def _own_extents(self, stack: Stack, tokens: TokenPositions, length: Extent) -> Extent:
        """Return the length that the encodings of a stack and of cross-attention adapt to, or that of each example."""
        also = self.cross.adapt is not None
        return own_extents(tokens, length, stack.encodings, stack.encoding_params, also)

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

        def source_keys_values(static: Any, params: Any) -> KeysValues:
            return nnx.merge(static, params).cross.keys_values(encoded.states)

        split = [nnx.split(self.decoder.layers.stacked(body)) for body in self.decoder.layers.bodies]
        keys = [jax.vmap(functools.partial(source_keys_values, static))(params) for static, params in split]
        layers = tuple(layer._replace(cross=cross) for layer, cross in zip(cache.layers, keys, strict=True))
        return cache._replace(layers=layers)

    def cached(
        self, ids: Int[Array, "B T"], cache: Cache, encoded: EncoderOutput, *, tokens: TokenPositions, extent: Extent
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Return, for every target token, the logits of the token after it, and the cache with these tokens added.

        Args:
            ids: ids of the target tokens that follow those in the cache.
            cache: result of `empty_cache`, or of the previous call.
            encoded: the encoder's output.
            tokens: positions of these tokens.
            extent: the final length, or lengths `(B,)`, of the target; the same in every step.
        """
        cross = self.cross_context(encoded, tokens, extent)._replace(states=None)
        x = self.embedding(ids)
        x, cache = self.decoder(x, tokens, extent, cache=cache, cross_context=cross)  # pyright: ignore[reportAssignmentType]
        return self.logits(x), cache

    def logits(self, x: Float[Array, "B T C"]) -> Float[Array, "B T V"]:
        """Return the logits of the decoder's normalized states, in float32."""
        if self.head is None:
            raise ValueError("a model without a head has states, no logits, got head=None")
        logits = self.head(x, self.embedding.table[...])
        chex.assert_shape(logits, (*x.shape[:2], self.config.decoder.vocab))
        return logits


def source_lengths(encoded: EncoderOutput, tokens: TokenPositions) -> int | Int[Array, "B T"]:
    """Return the number of source tokens in the segment of each target token."""
    sources, targets = encoded.tokens.segment_ids, tokens.segment_ids
    if sources is None and targets is None:
        return encoded.states.shape[1]
    sources = jnp.ones(encoded.states.shape[:2], jnp.int32) if sources is None else sources
    targets = jnp.ones((len(sources), 1), jnp.int32) if targets is None else targets
    return jax.vmap(lambda target, all: jnp.sum((target[:, None] == all).astype(jnp.int32), axis=1))(targets, sources)
