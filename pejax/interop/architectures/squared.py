"""Llamas whose MLP is a squared ReLU: Arcee, Nemotron, Jais 2 and nanochat."""

from dataclasses import replace

from pejax.interop.architecture import Architecture, prefixed
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


# nanochat: norms without weights, also before the first layer and of rotated queries and keys, which is the same as
# before the rotation as long as this keeps lengths; channels turn in the other direction.

NANOCHAT_NAMES = {
    **{part: name for part, name in PLAIN.items() if not part.startswith("norm")},
    **prefixed("model.layers.{n}.mlp.", up="fc1", down="fc2"),
}


def nanochat(c: Config) -> TransformerConfig:
    """Read NanoChatConfig."""
    c.defaults(max_position_embeddings=2048, final_logit_softcapping=15.0)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6), weight=False)
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    layer = LayerConfig(attention(c, bias=bias, qk_norm=norm), mlp(c, "relu2", gated=False), norm)
    capped = head(c, cap=c.positive("final_logit_softcapping", None))
    model = replace(rotary_decoder(c, layer, capped, types=layer_types(c)), embed_norm=norm)
    extension = model.layers[0].attention.pe.extend
    if extension is not None and {term.name for term in extension.terms} & {"yarn", "longrope"}:
        raise ValueError(f"{c.where}: rope_type must not scale rotated vectors, which have a norm, got {extension}")
    return model


ARCHITECTURES = {
    "nanochat": Architecture(nanochat, NANOCHAT_NAMES, "model.", turns_back=True),
    "arcee": Architecture(arcee, PLAIN, "model."),
    "nemotron": Architecture(nemotron, PLAIN, "model."),
    "jais2": Architecture(jais2, PLAIN, "model."),
}
