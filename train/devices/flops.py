"""FLOPs of a training step, counted from the shape of the model, and peak FLOP/s of devices.

    product of (m, k) and (k, n)       2·m·k·n
    attention                          4·D per head and pair of query and key that the mask admits
    training step                      3 times the forward pass: the backward pass has two products for each

Norms, activations, the encoding and recomputation are left out. So the count is the same for every encoding, and the
fraction of the peak is comparable between runs.

Reference:
    Chowdhery et al. 2022, "PaLM" (arXiv 2204.02311), appendix B: model FLOPs utilization.
"""

import math

from jax.sharding import Mesh

from pejax.models import (
    AttentionConfig,
    DiTConfig,
    EncoderDecoderConfig,
    LayerConfig,
    MlpConfig,
    MoEConfig,
    TransformerConfig,
    ViTConfig,
)

TRAINING = 3
"""FLOPs of a training step, in forward passes."""

PEAKS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 1153.5e12,
    "Tesla T4": 65e12,
    "Tesla V100": 125e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}
"""Peak FLOP/s of one device in dense bfloat16 (else float16) by the start of its `device_kind`, from data sheets."""


def peak_flops(kind: str) -> float | None:
    """Return the peak FLOP/s of one device, or None if unknown.

    Args:
        kind: `device_kind` of the device; the longest known name that it starts with is used.
    """
    names = [name for name in PEAKS if kind == name or kind.startswith((f"{name} ", f"{name}-"))]
    return PEAKS[max(names, key=len)] if names else None


def peak_seconds(flops: int, mesh: Mesh) -> float:
    """Return the seconds that FLOPs take at the peak of all devices of a mesh, or 0 if unknown."""
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    return flops / (peak * mesh.size) if peak else 0.0


def text_flops(text: TransformerConfig, batch: int, length: int) -> int:
    """Return the FLOPs of a training step of a decoder or an encoder.

    Args:
        text: the config of the model.
        batch: B.
        length: T, tokens per example, from one document.
    """
    layers = sum(layer_flops(layer, text.width, length, text.causal) for layer in text.layers)
    return TRAINING * batch * (layers + length * head_products(text))


def vit_flops(picture: ViTConfig, batch: int) -> int:
    """Return the FLOPs of a training step of a vision transformer at its own image size, for a batch of B images."""
    patches = picture.grid[0] * picture.grid[1]
    layers = sum(layer_flops(layer, picture.width, patches + picture.prefix, False) for layer in picture.layers)
    heads = 2 * picture.classes * (picture.pooled + picture.distilled * picture.width)
    ends = patches * 2 * picture.patch**2 * picture.channels * picture.width + heads
    return TRAINING * batch * (layers + ends)


def dit_flops(picture: DiTConfig, batch: int, shape: tuple[int, ...] | None = None) -> int:
    """Return the FLOPs of a training step of a diffusion transformer.

    Args:
        picture: the config of the model.
        batch: B.
        shape: height and width of the images, pixels, behind the frames of videos; None = its own.
    """
    patches = math.prod(picture.grid_of(shape or picture.shape))
    channels = picture.width
    layers = sum(layer_flops(layer, channels, patches, False) for layer in picture.layers)
    modulations = 2 * channels * channels * (6 * len(picture.layers) + 2)
    return TRAINING * batch * (layers + modulations + patches * 4 * picture.pixels * channels)


def text_pair_flops(pair: EncoderDecoderConfig, batch: int, source: int, target: int) -> int:
    """Return the FLOPs of a training step of an encoder-decoder.

    Args:
        pair: the config of the model.
        batch: B.
        source: tokens per source.
        target: tokens per target.
    """
    width, decoder = pair.decoder.width, pair.decoder
    encoder = sum(layer_flops(layer, width, source, False) for layer in pair.encoder.layers)
    layers = sum(layer_flops(layer, width, target, decoder.causal) for layer in decoder.layers)
    inner, kv = columns(pair.cross_attention)
    cross = 2 * width * (2 * target * inner + 2 * source * kv) + target * source * pair_products(pair.cross_attention)
    head = target * head_products(decoder)
    return TRAINING * batch * (encoder + layers + len(decoder.layers) * cross + head)


def layer_flops(layer: LayerConfig, width: int, tokens: int, causal: bool) -> int:
    """Return the FLOPs of self-attention and MLP of a layer for one example, forward pass."""
    return tokens * layer_products(layer, width) + layer_pairs(layer, tokens, causal)


def layer_products(layer: LayerConfig, width: int) -> int:
    """Return the FLOPs per token of the linear maps of a layer, forward pass."""
    return self_products(layer.attention, width) + mlp_products(layer.mlp, width)


def layer_pairs(layer: LayerConfig, tokens: int, causal: bool) -> int:
    """Return the FLOPs of all pairs of query and key of a layer's self-attention for one example, forward pass."""
    return visible_pairs(tokens, causal, layer.attention.window) * pair_products(layer.attention)


def visible_pairs(tokens: int, causal: bool, window: int | tuple[int, int] | None) -> int:
    """Return the number of pairs of query and key that the masks of one sequence admit."""
    before, after = window if isinstance(window, tuple) else (tokens if window is None else window - 1,) * 2

    def on_one_side(reach: int) -> int:
        reach = min(reach, tokens)
        return reach * tokens - reach * (reach + 1) // 2

    return tokens + on_one_side(before) + (0 if causal else on_one_side(after))


def head_products(text: TransformerConfig) -> int:
    """Return the FLOPs per token of the logits and of the dense layer before them, forward pass."""
    if text.head is None:
        return 0
    return 2 * text.width * (text.vocab + (text.width if text.head.transform else 0))


def self_products(attention: AttentionConfig, width: int) -> int:
    """Return the FLOPs per token of queries, keys, values and output of one layer, forward pass."""
    inner, kv = columns(attention)
    return 2 * width * (2 * inner + 2 * kv)


def mlp_products(mlp: MlpConfig | MoEConfig, width: int) -> int:
    """Return the FLOPs per token of an MLP, or of a router and all its experts, forward pass."""
    router = 2 * width * mlp.count if isinstance(mlp, MoEConfig) else 0
    return router + 2 * width * mlp.hidden * (3 if mlp.gated else 2)


def pair_products(attention: AttentionConfig) -> int:
    """Return the FLOPs per pair of query and key in one layer, all heads, forward pass: a logit and its value."""
    return 4 * columns(attention)[0]


def columns(attention: AttentionConfig) -> tuple[int, int]:
    """Return H·D and K·D."""
    return attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
