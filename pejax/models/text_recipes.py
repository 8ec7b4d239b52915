"""Recipes: the settings of the usual text models, and the records that follow from them.

The layers are Llama's (RMSNorm, SwiGLU, no biases) or GPT-2's (LayerNorm, GELU, biases).

Reference:
    Touvron et al. 2023, "Llama 2" (arXiv 2307.09288), section 2.2; Radford et al. 2019, "Language Models are
    Unsupervised Multitask Learners", section 2.3.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from pejax._dims import Dims
from pejax._extensions.extension import Extension
from pejax.models.cross_positions import CROSS
from pejax.models.layer_records import Attention, Block, Head, Mlp, Norm
from pejax.models.model_records import Text, TextPair
from pejax.models.periods import check_spec, first_spec, layer_specs


class Style(NamedTuple):
    """The kind of layers of a usual model: its norm, its MLP, and the linear maps of attention that have a bias."""

    norm: Norm
    activation: str
    gated: bool
    bias: str


STYLES = {
    "llama": Style(Norm("rms"), "silu", True, ""),
    "gpt2": Style(Norm("layer", bias=True), "gelu", False, "qkvo"),
}


@dataclass(frozen=True)
class DecoderConfig:
    """The settings of a usual `Decoder`: a recipe for its record, a `Text`.

    Args:
        vocab: V, size of the vocabulary.
        length: trained context, tokens.
        width: C, channels of the residual stream.
        layers: L.
        heads: H.
        kv_heads: K, key/value heads; None = H.
        hidden: channels inside the MLP; None = 4·C, or 8/3·C rounded up to a multiple of 16 if the MLP is gated.
        pe: spec of the encoding, as in `make_encoding`, or a period over the layers such as "rope*3 + none*1"
            (`pejax.models.periods`).
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
        _ = self.record

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
    def record(self) -> Text:
        """The model as data, with one record per layer."""
        blocks = tuple(_block(self, pe, self.qk_norm) for pe in layer_specs(self.pe, self.layers))
        norm = STYLES[self.style].norm
        head = Head(tied=self.tied)
        return Text(self.vocab, self.width, self.length, blocks, self.causal, norm, head=head, dtype=self.dtype)


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """The settings of a usual `EncoderDecoder`: a recipe for its record, a `TextPair`.

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
        _ = self.record

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
    def record(self) -> TextPair:
        """The model as data, with one record per layer."""
        decoder_pe = self.decoder_pe or self.pe
        cross = _attention(self, self.cross_pe or first_spec(decoder_pe), qk_norm=False)
        norm, head = STYLES[self.style].norm, Head(tied=self.tied)
        encoder = tuple(_block(self, pe, self.qk_norm) for pe in layer_specs(self.pe, self.encoder_layers))
        decoder = tuple(
            dataclasses.replace(_block(self, pe, self.qk_norm), cross=cross)
            for pe in layer_specs(decoder_pe, self.decoder_layers)
        )
        text = functools.partial(Text, self.vocab, self.width, norm=norm, dtype=self.dtype)
        return TextPair(
            text(length=self.source_length, blocks=encoder, causal=False, head=None),
            text(length=self.target_length, blocks=decoder, head=head),
            self.cross,
        )


def hidden_channels(width: int, gated: bool, hidden: int | None) -> int:
    """Return the channels inside an MLP: `hidden`, or 4·C, or 8/3·C rounded up to a multiple of 16 if it is gated."""
    if hidden is not None:
        return hidden
    return 16 * math.ceil(width / 6) if gated else 4 * width


def channels_per_head(width: int, heads: int) -> int:
    """Return D = C / H of a model whose width is split evenly among its heads.

    Args:
        width: C, channels.
        heads: H.

    Raises:
        ValueError: a count below 1, or a width that is not a multiple of heads.
    """
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"width must be a multiple of heads, got width={width}, heads={heads}")
    return width // heads


def _attention(config: DecoderConfig | EncoderDecoderConfig, pe: str, qk_norm: bool) -> Attention:
    """Return the attention of a layer with this encoding."""
    heads, head_dim = config.heads, channels_per_head(config.width, config.heads)
    kv_heads = heads if config.kv_heads is None else config.kv_heads
    norm = Norm("rms") if qk_norm else None
    return Attention(
        heads, kv_heads, head_dim, pe, config.extend, bias=STYLES[config.style].bias, qk_norm=norm,
        soft_cap=config.soft_cap,
    )  # fmt: skip


def _block(config: DecoderConfig | EncoderDecoderConfig, pe: str, qk_norm: bool) -> Block:
    """Return a layer with this encoding."""
    style = STYLES[config.style]
    hidden = hidden_channels(config.width, style.gated, config.hidden)
    mlp = Mlp(hidden, style.activation, style.gated, bias=bool(style.bias))
    return Block(_attention(config, pe, qk_norm), mlp, style.norm)
