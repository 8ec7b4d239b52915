"""FLOPs of a training step, counted from the shape of the model, and peak FLOP/s of devices.

    product of (m, k) and (k, n)       2·m·k·n
    attention                          4·D per head and pair of query and key that the mask admits
    training step                      3 times the forward pass: the backward pass has two products for each

Norms, activations, the encoding and recomputation are left out. So the count is the same for every encoding, and the
fraction of the peak is comparable between runs.

Reference:
    Chowdhery et al. 2022, "PaLM" (arXiv 2204.02311), appendix B: model FLOPs utilization.
"""

from typing import Any

from jax.sharding import Mesh

from pejax.models.decoder import DecoderConfig, hidden_channels
from pejax.models.encoder_decoder import EncoderDecoderConfig
from pejax.models.vit import ViTConfig

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
    known = [name for name in PEAKS if kind == name or kind.startswith((f"{name} ", f"{name}-"))]
    return PEAKS[max(known, key=len)] if known else None


def peak_seconds(flops: int, mesh: Mesh) -> float:
    """Return the seconds that FLOPs take at the peak of all devices of a mesh, or 0 if unknown."""
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    return flops / (peak * mesh.size) if peak else 0.0


def decoder_flops(config: DecoderConfig, batch: int, length: int) -> int:
    """Return the FLOPs of a training step of a decoder.

    Args:
        config: of the model.
        batch: B.
        length: T, tokens per example, from one document.
    """
    pairs = length * (length + 1) // 2 if config.causal else length * length
    hidden = hidden_channels(config.width, config.layer_style, config.hidden)
    layer = length * (self_products(config) + mlp_products(config, hidden)) + pairs * pair_products(config)
    return TRAINING * batch * (config.layers * layer + length * 2 * config.width * config.vocab)


def vit_flops(config: ViTConfig, batch: int) -> int:
    """Return the FLOPs of a training step of a vision transformer at its own image size.

    Args:
        config: of the model.
        batch: B.
    """
    patches = config.grid[0] * config.grid[1]
    tokens = patches + (config.pool == "cls") + config.registers
    mlp = 2 * 2 * config.width * config.mlp_ratio * config.width
    layer = tokens * (self_products(config) + mlp) + tokens * tokens * pair_products(config)
    ends = patches * 2 * config.patch**2 * config.channels * config.width + 2 * config.width * config.classes
    return TRAINING * batch * (config.layers * layer + ends)


def encoder_decoder_flops(config: EncoderDecoderConfig, batch: int, source: int, target: int) -> int:
    """Return the FLOPs of a training step of an encoder-decoder.

    Args:
        config: of the model.
        batch: B.
        source: tokens per source.
        target: tokens per target.
    """
    style = config.layer_style
    mlp, pair = mlp_products(config, hidden_channels(config.width, style, config.hidden)), pair_products(config)
    encoder = source * (self_products(config) + mlp) + source * source * pair
    inner, kv = _columns(config)
    cross = 2 * config.width * (2 * target * inner + 2 * source * kv) + target * source * pair
    decoder = target * (self_products(config) + mlp) + target * (target + 1) // 2 * pair + cross
    head = target * 2 * config.width * config.vocab
    return TRAINING * batch * (config.encoder_layers * encoder + config.decoder_layers * decoder + head)


def self_products(config: Any) -> int:
    """Return the FLOPs per token of queries, keys, values and output of one layer, forward pass."""
    inner, kv = _columns(config)
    return 2 * config.width * (2 * inner + 2 * kv)


def mlp_products(config: Any, hidden: int) -> int:
    """Return the FLOPs per token of the MLP of one layer, forward pass."""
    return 2 * config.width * hidden * (3 if config.layer_style.gated else 2)


def pair_products(config: Any) -> int:
    """Return the FLOPs per pair of query and key in one layer, all heads, forward pass: a logit and its value."""
    return 4 * _columns(config)[0]


def _columns(config: Any) -> tuple[int, int]:
    """Return H·D and K·D."""
    heads, kv_heads = config.heads, config.kv_heads or config.heads
    head_dim = config.width // heads
    return heads * head_dim, kv_heads * head_dim
