"""A decoder-only language model whose positions enter through `Encoding` records and nowhere else.

    x = table[ids]  ->  embed  ->  L blocks, causal  ->  norm  ->  head

An encoder is the same model without the causal mask. Model and initialization are the same for every encoding.
"""

import chex
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from pejax._attention.core.order import follow_arrays
from pejax._calls.arguments import checked
from pejax._ops.open_sizes import as_length
from pejax._record.encoding import Encoding, Extent
from pejax._tokens.positions import TokenPositions
from pejax.models.configs.model import TransformerConfig
from pejax.models.execution import Execution
from pejax.models.parts.text_ends import Embedding, TextHead
from pejax.models.stack.extents import own_extents, with_segments
from pejax.models.stack.transformer import Cache, Stack, masked_tokens, sequence_tokens


class Decoder(nnx.Module):
    """A decoder-only transformer. Its head starts at zero unless it is tied: before training, all logits are zero.

    Attributes:
        config: config of the model.
        stack: the layers; `stack.encoding` is the encoding of the first layer, `stack.dims` its dims.

    Args:
        config: sizes, layers and ends of the model.
        encoding: encoding of all layers, made for `config.dims`, for example your own. None = as `config` says.
        rngs: random streams; parameters are drawn from `params`.

    Raises:
        ValueError: a config that the encoding refuses.
    """

    @checked
    def __init__(self, config: TransformerConfig, encoding: Encoding | None = None, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = Embedding(self.config, rngs=rngs)
        self.stack = Stack(self.config, encoding, rngs=rngs)
        head = self.config.head
        self.head = None if head is None else TextHead(head, self.config, rngs=rngs)

    @checked
    def __call__(
        self,
        ids: Int[Array, "B T"],
        *,
        segment_ids: Int[Array, "B T"] | None = None,
        tokens: TokenPositions | None = None,
        extent: Extent | None = None,
        type_ids: Int[Array, "B T"] | None = None,
        attention_mask: Int[Array, "B T"] | Bool[Array, "B T"] | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B T V"]:
        """Return, for every token, the logits of the next token, or of the token itself without the causal mask.

        Args:
            ids: token ids, from 0 to V-1. Under jit ids outside are not refused, because they cannot be seen.
            segment_ids: the document that each token belongs to, for documents packed one after the other; positions
                restart in each; 0 = padding.
            tokens: positions of the tokens, in place of `segment_ids`; None = 0 ... T-1, restarting in each segment.
            extent: the length, in tokens, or lengths `(B,)`, that the encoding adapts to. None = T; with padding or
                several documents in a row, the length of the longest document of each row.
            type_ids: the type of each token, in a model with token types; None = type 0.
            attention_mask: 1 = a token, 0 = padding, as tokenizers return it. Positions are those of the architecture
                (`config.padding`), as in the same call of transformers; `segment_ids` never count padding.
            execution: device mesh, sharding and rematerialization.

        Raises:
            ValueError: an id outside the vocabulary, more than one of `segment_ids`, `tokens` and `attention_mask`, or
                an encoding that does not support this length.
        """
        options = {"segment_ids": segment_ids, "tokens": tokens, "extent": extent, "type_ids": type_ids}
        return self.logits(self.states(ids, **options, attention_mask=attention_mask, execution=execution))

    @checked
    def states(
        self,
        ids: Int[Array, "B T"],
        *,
        segment_ids: Int[Array, "B T"] | None = None,
        tokens: TokenPositions | None = None,
        extent: Extent | None = None,
        type_ids: Int[Array, "B T"] | None = None,
        attention_mask: Int[Array, "B T"] | Bool[Array, "B T"] | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B T C"]:
        """Return the normalized states after the last layer, the input of `logits`; arguments as in `__call__`."""
        options = {"segment_ids": segment_ids, "tokens": tokens, "attention_mask": attention_mask}
        named = [name for name, value in options.items() if value is not None]
        if len(named) > 1:
            raise ValueError(
                f"at most one of {', '.join(options)} may be given: each says what is padding, got {named}"
            )
        if attention_mask is not None or (not named and isinstance(self.config.padding, int)):
            tokens = masked_tokens(ids, attention_mask, self.config.padding)
        elif tokens is None:
            tokens = sequence_tokens(ids, segment_ids)
        else:
            tokens = follow_arrays(tokens, ids.shape, causal=self.config.causal, spans=True)
        if extent is None:
            counted = tokens if "tokens" not in named else with_segments(tokens)
            extent = own_extents(counted, as_length(ids.shape[1]), self.stack.encodings, self.stack.encoding_params)
        x = self.embedding(ids, execution, type_ids=type_ids, segment_ids=tokens.segment_ids)
        # Attention that knows its positions to be 0 ... T-1 compiles to less, above all on a GPU.
        in_order = not named and not isinstance(self.config.padding, int)
        return self.stack(x, None if in_order else tokens, extent, execution=execution)[0]

    def cached(
        self, ids: Int[Array, "B T"], cache: Cache, *, tokens: TokenPositions, extent: Extent
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Return, for every token, the logits of the token after it, and the cache with these tokens added.

        Args:
            ids: ids of the tokens that follow those in the cache.
            cache: result of `stack.empty_cache`, or of the previous call; `cache.cut(length)` drops its last tokens.
            tokens: positions of these tokens, which no token of their segment has, with segment ids if the cache holds
                padding or several segments.
            extent: the length or lengths that the encoding adapts to, as in `attend`.
        """
        x, cache = self.stack(self.embedding(ids), tokens, extent, cache=cache)  # pyright: ignore[reportAssignmentType]
        return self.logits(x), cache

    def logits(self, x: Float[Array, "B T C"]) -> Float[Array, "B T V"]:
        """Return the logits of normalized states, in float32.

        Raises:
            ValueError: a model without a head.
        """
        if self.head is None:
            raise ValueError("a model without a head has states, no logits, got head=None")
        logits = self.head(x, self.embedding.table[...])
        chex.assert_shape(logits, (*x.shape[:2], self.config.vocab))
        return logits

    def columns(self) -> Float[Array, "C V"]:
        """Return the matrix from normalized states to logits: the head's kernel, or the embedding table transposed.

        Raises:
            ValueError: a model whose logits are not the product of states and this matrix.
        """
        if self.head is None or not self.head.is_product:
            raise ValueError(f"the logits must be a product of states and a matrix, got head={self.config.head}")
        return self.head.columns(self.embedding.table[...])
