"""Llamas whose MLP is a squared ReLU: Arcee, Nemotron and Jais 2."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

# Arcee; Nemotron and Jais 2, whose norms are LayerNorms. In Nemotron, half of a head turns.

PLAIN = {part: name for part, name in NAMES.items() if part != "gate"}


def squared(c: Config, norm: NormConfig, rotated_fraction: float | None = None) -> TransformerConfig:
    """Read what both configs share; `rotated_fraction` as in `rotary_decoder`."""
    c.defaults(max_position_embeddings=4096)
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    plain = mlp(c, "relu2", gated=False, bias=c.flag("mlp_bias", False))
    layer = LayerConfig(attention(c, bias=bias), plain, norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c), rotated_fraction=rotated_fraction)


def arcee(c: Config) -> TransformerConfig:
    """Read ArceeConfig."""
    return squared(c, NormConfig("rms", c.number("rms_norm_eps", 1e-5)))


def nemotron(c: Config) -> TransformerConfig:
    """Read NemotronConfig."""
    return squared(c, NormConfig("layer", c.number("norm_eps", 1e-5), bias=True, offset=1.0), rotated_fraction=0.5)


def jais2(c: Config) -> TransformerConfig:
    """Read Jais2Config."""
    c.defaults(max_position_embeddings=8192, attention_bias=True, mlp_bias=True)
    return squared(c, NormConfig("layer", c.number("layer_norm_eps", 1e-5), bias=True))


ARCHITECTURES = {
    "arcee": Architecture(arcee, PLAIN, "model."),
    "nemotron": Architecture(nemotron, PLAIN, "model."),
    "jais2": Architecture(jais2, PLAIN, "model."),
}
