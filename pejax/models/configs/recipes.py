"""Recipes: functions that return the config of a usual model.

The layers of text models are Llama's (RMSNorm, SwiGLU, no biases) or GPT-2's (LayerNorm, GELU, biases).

Reference:
    Touvron et al. 2023, "Llama 2" (arXiv 2307.09288), section 2.2; Radford et al. 2019, "Language Models are
    Unsupervised Multitask Learners", section 2.3; Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"
    (arXiv 2010.11929), section 3.1; Peebles & Xie 2023, "Scalable Diffusion Models with Transformers"
    (arXiv 2212.09748), section 3.2.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

from pejax._calls.arguments import checked
from pejax._naming.make import extended_once
from pejax._naming.parse import parse, parse_pattern
from pejax._ops.checks import check_choice
from pejax._record.specs import Extension, LayerPattern, Spec
from pejax.models.configs.layer import AttentionConfig, HeadConfig, LayerConfig, MlpConfig, NormConfig
from pejax.models.configs.model import (
    CROSS,
    LAYER_NORM,
    PLAIN_NORM,
    DiTConfig,
    EncoderDecoderConfig,
    TransformerConfig,
    ViTConfig,
)


class Style(NamedTuple):
    """The kind of layers of a usual model: its norm, its MLP, and the linear maps of attention that have a bias."""

    norm: NormConfig
    activation: str
    gated: bool
    bias: str


STYLES = {
    "llama": Style(NormConfig("rms"), "silu", True, ""),
    "gpt2": Style(LAYER_NORM, "gelu", False, "qkvo"),
}


@checked
def decoder(
    vocab: int = 256,
    length: int = 128,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    *,
    kv_heads: int | None = None,
    hidden: int | None = None,
    pe: str | Spec | LayerPattern = "rope",
    extend: str | Extension | None = None,
    style: str = "llama",
    qk_norm: bool = False,
    soft_cap: float | None = None,
    tied: bool = False,
    causal: bool = True,
    dtype: str = "float32",
) -> TransformerConfig:
    """Return the config of a usual `Decoder`.

    Args:
        vocab: V, size of the vocabulary.
        length: trained context, tokens.
        width: C, channels of the residual stream.
        layers: L, number of layers.
        heads: H, attention heads.
        kv_heads: K, key/value heads; None = H.
        hidden: channels inside the MLP; None = 4·C, or 8/3·C rounded up to a multiple of 16 if the MLP is gated.
        pe: spec of the encoding, as in `make_encoding`, or a pattern over the layers such as "rope*3 + none*1"
            (`pejax.specs.LayerPattern`).
        extend: extension of the encoding beyond the trained length, a record of `pejax.extensions` or its string.
        style: "llama" (RMSNorm, SwiGLU, no biases) or "gpt2" (LayerNorm, GELU, biases).
        qk_norm: whether each query and key head is normalized (RMSNorm).
        soft_cap: cap c of the attention logits, `c · tanh(logits / c)`; None = no cap.
        tied: whether the head is the embedding table.
        causal: whether keys after the query are masked.
        dtype: type of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, a width that is not a multiple of heads, or an unknown style or dtype.

    Examples:
        >>> decoder(vocab=97, layers=3, pe="rope(base=500000.0)").layers[0].attention
        AttentionConfig(heads=4, kv_heads=4, head_dim=32, pe=rope(base=500000.0))
    """
    check_choice("style", style, tuple(STYLES))
    _check_counts(vocab=vocab, length=length, width=width, layers=layers, heads=heads, hidden=hidden)
    layer = functools.partial(_layer, width, heads, kv_heads, hidden, extend, STYLES[style], qk_norm, soft_cap)
    return TransformerConfig(
        vocab, width, length, tuple(map(layer, parse_pattern(pe).layers(layers))), causal, STYLES[style].norm,
        head=HeadConfig(tied=tied), dtype=dtype,
    )  # fmt: skip


@checked
def encoder_decoder(
    vocab: int = 64,
    source_length: int = 32,
    target_length: int = 32,
    width: int = 64,
    encoder_layers: int = 2,
    decoder_layers: int = 2,
    heads: int = 4,
    *,
    kv_heads: int | None = None,
    hidden: int | None = None,
    pe: str | Spec | LayerPattern = "rope",
    decoder_pe: str | Spec | LayerPattern = "",
    extend: str | Extension | None = None,
    cross: str = "none",
    cross_pe: str | Spec = "",
    style: str = "llama",
    qk_norm: bool = False,
    soft_cap: float | None = None,
    tied: bool = False,
    dtype: str = "float32",
) -> EncoderDecoderConfig:
    """Return the config of a usual `EncoderDecoder`.

    Args:
        vocab: V, size of the vocabulary that source and target share.
        source_length: trained length of sources, tokens.
        target_length: trained length of targets, tokens.
        width: C, channels of the residual stream.
        encoder_layers: number of layers of the encoder.
        decoder_layers: number of layers of the decoder.
        heads: H, attention heads.
        kv_heads: K, key/value heads; None = H.
        hidden: channels inside the MLP; None = 4·C, or 8/3·C rounded up to a multiple of 16 if the MLP is gated.
        pe: spec of the encoder's encoding, as in `decoder`.
        decoder_pe: spec of the decoder's encoding; "" = `pe`.
        extend: extension of all encodings beyond the trained lengths, a record of `pejax.extensions` or its string.
        cross: position policy of cross-attention: "none", "query_only", "separate" or "unified".
        cross_pe: spec of the encoding of cross-attention; "" = as in the decoder's first layer.
        style: "llama" (RMSNorm, SwiGLU, no biases) or "gpt2" (LayerNorm, GELU, biases).
        qk_norm: whether each query and key head is normalized (RMSNorm) in self-attention.
        soft_cap: cap c of the attention logits, `c · tanh(logits / c)`; None = no cap.
        tied: whether the head is the embedding table.
        dtype: type of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, or an unknown policy, style or dtype.
    """
    check_choice("style", style, tuple(STYLES))
    check_choice("cross", cross, CROSS)
    _check_counts(
        vocab=vocab, source_length=source_length, target_length=target_length, width=width,
        encoder_layers=encoder_layers, decoder_layers=decoder_layers, heads=heads, hidden=hidden,
    )  # fmt: skip
    pe, norm = parse_pattern(pe), STYLES[style].norm
    decoder_pe = parse_pattern(decoder_pe) if decoder_pe else pe
    layer = functools.partial(_layer, width, heads, kv_heads, hidden, extend, STYLES[style], qk_norm, soft_cap)
    crossed = dataclasses.replace(layer(parse(cross_pe) if cross_pe else decoder_pe.specs[0]).attention, qk_norm=None)
    text = functools.partial(TransformerConfig, vocab, width, norm=norm, dtype=dtype)
    encoder = tuple(map(layer, pe.layers(encoder_layers)))
    decoder = tuple(dataclasses.replace(layer(spec), cross=crossed) for spec in decoder_pe.layers(decoder_layers))
    return EncoderDecoderConfig(
        text(source_length, encoder, causal=False, head=None),
        text(target_length, decoder, head=HeadConfig(tied=tied)),
        cross,
    )


@checked
def vit(
    image_size: int | tuple[int, int] = 28,
    patch: int = 4,
    channels: int = 1,
    classes: int = 10,
    width: int = 64,
    layers: int = 3,
    heads: int = 4,
    *,
    kv_heads: int | None = None,
    mlp_ratio: int = 4,
    pe: str | Spec | LayerPattern = "rope_mixed",
    extend: str | Extension | None = None,
    pool: str = "cls",
    registers: int = 0,
    layer_scale: float | None = None,
    stochastic_depth: float = 0.0,
    dtype: str = "float32",
) -> ViTConfig:
    """Return the config of a usual `ViT`.

    Args:
        image_size: side, or (height, width), of the training images, pixels.
        patch: side of a patch, pixels.
        channels: number of image channels.
        classes: number of classes, and of logits.
        width: C, channels of the residual stream.
        layers: L, number of layers.
        heads: H, attention heads.
        kv_heads: K, key/value heads; None = H.
        mlp_ratio: channels inside the MLP, as a multiple of C.
        pe: spec of the encoding, as in `make_encoding`, or a pattern over the layers such as "rope_axial*3 + none*1"
            (`pejax.specs.LayerPattern`).
        extend: extension of the encoding beyond the trained grid, a record of `pejax.extensions` or its string.
        pool: input of the head: "cls", a learned token, or "mean", the average of the patches.
        registers: number of learned tokens without position that the head does not read.
        layer_scale: initial factor of each residual branch; None = no factor.
        stochastic_depth: probability that an example skips a branch of the last layer in training; it grows linearly
            with depth from 0 in the first layer. 0 = no stochastic depth.
        dtype: type of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, an image whose sides are not multiples of the patch, an unknown pool or dtype, or
            a rate outside [0, 1).
    """
    check_choice("pool", pool, ("cls", "mean"))
    _check_counts(classes=classes, width=width, layers=layers, heads=heads, mlp_ratio=mlp_ratio)
    style = Style(LAYER_NORM, "gelu", False, "qkvo")
    layer = functools.partial(_layer, width, heads, kv_heads, mlp_ratio * width, extend, style, False, None)
    return ViTConfig(
        (image_size, image_size) if isinstance(image_size, int) else image_size, patch, channels, width,
        tuple(dataclasses.replace(layer(spec), layer_scale=layer_scale) for spec in parse_pattern(pe).layers(layers)),
        cls=pool == "cls", registers=registers, pool=pool, classes=classes, stochastic_depth=stochastic_depth,
        dtype=dtype,
    )  # fmt: skip


@checked
def dit(
    image_size: int | tuple[int, int] = 28,
    patch: int = 4,
    channels: int = 1,
    classes: int = 10,
    width: int = 64,
    layers: int = 3,
    heads: int = 4,
    *,
    kv_heads: int | None = None,
    mlp_ratio: int = 4,
    pe: str | Spec | LayerPattern = "rope_axial",
    extend: str | Extension | None = None,
    dtype: str = "float32",
    frames: int = 0,
) -> DiTConfig:
    """Return the config of a usual `DiT`: layers with adaptive norms without weights (adaLN-Zero).

    Args:
        image_size: side, or (height, width), of the training images, pixels.
        patch: side of a patch, pixels.
        channels: number of image channels.
        classes: number of classes.
        width: C, channels of the residual stream.
        layers: L, number of layers.
        heads: H, attention heads.
        kv_heads: K, key/value heads; None = H.
        mlp_ratio: channels inside the MLP, as a multiple of C.
        pe: spec of the encoding, as in `make_encoding`, or a pattern over the layers such as "rope_axial*3 + none*1"
            (`pejax.specs.LayerPattern`).
        extend: extension of the encoding beyond the trained grid, a record of `pejax.extensions` or its string.
        dtype: type of the computation, "float32" or "bfloat16"; parameters and the output are float32.
        frames: F, frames of the training videos; 0 = the model is one of pictures.

    Raises:
        ValueError: a count below 1, negative frames, an image whose sides are not multiples of the patch, or an unknown
            dtype.

    Examples:
        >>> dit(image_size=(28, 56), patch=4).grid
        (7, 14)
        >>> dit(image_size=28, patch=4, frames=8, heads=2, width=96).grid
        (8, 7, 7)
    """
    _check_counts(classes=classes, width=width, layers=layers, heads=heads, mlp_ratio=mlp_ratio)
    style = Style(PLAIN_NORM, "gelu_tanh", False, "qkvo")
    layer = functools.partial(_layer, width, heads, kv_heads, mlp_ratio * width, extend, style, False, None)
    return DiTConfig(
        (image_size, image_size) if isinstance(image_size, int) else image_size, patch, channels, width,
        tuple(dataclasses.replace(layer(spec), adaptive=True) for spec in parse_pattern(pe).layers(layers)),
        classes=classes, dtype=dtype, frames=frames,
    )  # fmt: skip


def _check_counts(**counts: int | None) -> None:
    """Raise ValueError for a count below 1."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def _layer(
    width: int,
    heads: int,
    kv_heads: int | None,
    hidden: int | None,
    extend: str | Extension | None,
    style: Style,
    qk_norm: bool,
    soft_cap: float | None,
    pe: Spec,
) -> LayerConfig:
    """Return the config of a layer with this encoding."""
    if width % heads:
        raise ValueError(f"width must be a multiple of heads, got width={width}, heads={heads}")
    if hidden is None:
        hidden = 16 * math.ceil(width / 6) if style.gated else 4 * width
    attention = AttentionConfig(
        heads, heads if kv_heads is None else kv_heads, width // heads, extended_once(pe, extend), bias=style.bias,
        qk_norm=NormConfig("rms") if qk_norm else None, soft_cap=soft_cap,
    )  # fmt: skip
    return LayerConfig(attention, MlpConfig(hidden, style.activation, style.gated, bias=bool(style.bias)), style.norm)
