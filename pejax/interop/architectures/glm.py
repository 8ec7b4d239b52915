"""GLM and GLM-4: half of the channels rotated, neighbors together; GLM-4 also has norms after the branches."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

GLM = {
    **{part: name for part, name in NAMES.items() if part not in ("gate", "up")},
    **prefixed("model.layers.{n}.", gate_up="mlp.gate_up_proj"),
}
AFTER = prefixed(
    "model.layers.{n}.", norm_attention_after="post_self_attn_layernorm", norm_mlp_after="post_mlp_layernorm"
)


def glm(c: Config, order: str = "pre") -> TransformerConfig:
    """Read GlmConfig."""
    c.defaults(num_key_value_heads=2, head_dim=128, max_position_embeddings=131072)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1.5625e-7))
    bias = "qkv" if c.flag("attention_bias", True) else ""
    layer = LayerConfig(attention(c, bias=bias), mlp(c), norm, order=order)
    return rotary_decoder(c, layer, head(c), types=layer_types(c), rotated_fraction=0.5, pairing="interleaved")


def glm4(c: Config) -> TransformerConfig:
    """Read Glm4Config."""
    return glm(c, "sandwich")


ARCHITECTURES = {
    "glm": Architecture(glm, GLM, "model."),
    "glm4": Architecture(glm4, {**GLM, **AFTER}, "model."),
}
