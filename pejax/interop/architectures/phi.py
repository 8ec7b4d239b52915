"""Phi-1 and Phi-2: attention and MLP read one norm; biases everywhere, the head included."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

PHI = {
    **{part: name for part, name in NAMES.items() if part not in ("gate", "norm_mlp")},
    "norm": "model.final_layernorm",
    **prefixed("model.layers.{n}.", o="self_attn.dense", up="mlp.fc1", down="mlp.fc2"),
}


def phi(c: Config) -> TransformerConfig:
    """Read PhiConfig."""
    c.must("qk_layernorm", False)
    c.defaults(max_position_embeddings=2048)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5), bias=True)
    plain = mlp(c, "gelu_new", gated=False, bias=True)
    layer = LayerConfig(attention(c, bias="qkvo"), plain, norm, parallel="one")
    return rotary_decoder(c, layer, head(c, bias=True), types=layer_types(c), rotated_fraction=0.5)


ARCHITECTURES = {"phi": Architecture(phi, PHI, "model.")}
