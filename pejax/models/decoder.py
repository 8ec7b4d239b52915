"""A decoder-only language model whose positions enter through an `Encoding` record and nowhere else.

    x = table[ids]  ->  embed  ->  L pre-norm blocks, causal  ->  norm  ->  head

The layers are Llama's (RMSNorm, SwiGLU, no biases) by default, GPT-2's (LayerNorm, GELU, biases) with `style="gpt2"`.
Model and initialization are the same for every encoding.

Reference:
    Touvron et al. 2023, "Llama 2" (arXiv 2307.09288), section 2.2; Radford et al. 2019, "Language Models are
    Unsupervised Multitask Learners", section 2.3.
"""

import math
from dataclasses import dataclass

import chex
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from pejax._dims import Dims
from pejax._encoding import Encoding, Extent
from pejax._extensions.extension import Extension
from pejax._make import make_encoding
from pejax._ops.matmul import product
from pejax._positions import TokenPositions
from pejax.models.execution import Execution
from pejax.models.layers import LLAMA, Style, channels_per_head, check_spec, linear
from pejax.models.transformer import Cache, Embedding, Stack, sequence_tokens

STYLES = {"llama": LLAMA, "gpt2": Style()}


@dataclass(frozen=True)
class DecoderConfig:
    """The settings of a `Decoder`.

    Args:
        vocab: V, size of the vocabulary.
        length: trained context, tokens.
        width: C, channels of the residual stream.
        layers: L.
        heads: H.
        kv_heads: K, key/value heads; None = H.
        hidden: channels inside the MLP; None = 4·C, or 8/3·C rounded up to a multiple of 16 if the MLP is gated.
        pe: spec of the encoding, as in `make_encoding`.
        extend: extension of the encoding beyond the trained length, a record of `pejax.extensions` or its string.
        style: "llama" (RMSNorm, SwiGLU, no biases) or "gpt2" (LayerNorm, GELU, biases).
        qk_norm: whether each query and key head is normalized (RMSNorm).
        soft_cap: cap c of the attention logits, `c · tanh(logits / c)`; None = no cap.
        tied: whether the head is the embedding table.
        causal: whether keys after the query are masked.
        dtype: of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, or an unknown style or dtype.
    """

    vocab: int = 256
    length: int = 128
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    pe: str = "rope"
    extend: str | Extension = "none"
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
        check_spec(self.pe)
        _ = self.dims

    @property
    def dims(self) -> Dims:
        """The sizes of this model that the encoding may depend on."""
        return Dims(
            self.heads,
            channels_per_head(self.width, self.heads),
            kv_heads=self.kv_heads,
            extent=self.length,
            causal=self.causal,
        )

    @property
    def layer_style(self) -> Style:
        """The kind of layers the model is made of."""
        base = STYLES[self.style]
        return Style(base.norm, base.gated, base.bias, self.qk_norm, self.soft_cap)


def hidden_channels(width: int, style: Style, hidden: int | None) -> int:
    """Return the channels inside an MLP: `hidden`, or 4·C, or 8/3·C rounded up to a multiple of 16 if it is gated."""
    if hidden is not None:
        return hidden
    return 16 * math.ceil(width / 6) if style.gated else 4 * width


class Decoder(nnx.Module):
    """A decoder-only transformer. Its head starts at zero unless it is tied: before training, all logits are zero.

    Attributes:
        config: its settings.
        stack: its layers; `stack.encoding` is the encoding, `stack.dims` the dims that the encoding was made for.

    Args:
        config: the settings.
        encoding: an encoding made for `config.dims`, for example your own. None = the encoding that `config.pe` names.
        rngs: draws the parameters from its `params` stream.

    Raises:
        ValueError: settings that the encoding refuses.
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
        segment_ids: Int[Array, "B T"] | None = None,
        tokens: TokenPositions | None = None,
        extent: Extent | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B T V"]:
        """Return, for every token, the logits of the token after it.

        Args:
            ids: token ids, from 0 to V-1.
            segment_ids: the document that each token belongs to, for documents packed one after the other; positions
                restart in each; 0 = padding.
            tokens: positions of the tokens, in place of `segment_ids`; None = 0 ... T-1, restarting in each segment.
            extent: the length, in tokens, that the encoding adapts to; None = T.
            execution: device mesh, sharding and rematerialization.

        Raises:
            ValueError: both `segment_ids` and `tokens`, or an encoding that does not support this length.
        """
        return self.logits(self.states(ids, segment_ids=segment_ids, tokens=tokens, extent=extent, execution=execution))

    def states(
        self,
        ids: Int[Array, "B T"],
        *,
        segment_ids: Int[Array, "B T"] | None = None,
        tokens: TokenPositions | None = None,
        extent: Extent | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B T C"]:
        """Return the normalized states after the last layer, the input of `logits`; arguments as in `__call__`."""
        if tokens is None:
            tokens = sequence_tokens(ids, segment_ids)
        elif segment_ids is not None:
            raise ValueError("segment_ids and tokens must not both be given: tokens hold their own segment_ids")
        extent = ids.shape[1] if extent is None else extent
        x = self.embedding(ids, self.config.dtype, execution)
        return self.stack(x, tokens, extent, execution=execution)[0]

    def cached(
        self, ids: Int[Array, "B T"], cache: Cache, *, tokens: TokenPositions, extent: Extent
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Return, for every token, the logits of the token after it, and the cache with these tokens added.

        Args:
            ids: ids of the tokens that follow those in the cache.
            cache: from `stack.empty_cache`, or from the previous call.
            tokens: positions of these tokens, with segment ids if the cache holds padding or several segments.
            extent: the length or lengths that the encoding adapts to, as in `attend`.
        """
        x, cache = self.stack(self.embedding(ids, self.config.dtype), tokens, extent, cache=cache)  # pyright: ignore[reportAssignmentType]
        return self.logits(x), cache

    def logits(self, x: Float[Array, "B T C"]) -> Float[Array, "B T V"]:
        """Return the logits of normalized states, in float32."""
        logits = product(x, self.columns())
        chex.assert_shape(logits, (*x.shape[:2], self.config.vocab))
        return logits

    def columns(self) -> Float[Array, "C V"]:
        """Return the matrix from normalized states to logits: that of the head, or the embedding table transposed."""
        return self.embedding.table[...].T if self.head is None else self.head.kernel[...]
