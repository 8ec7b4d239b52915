"""Mixtral: a Mistral whose MLPs are experts."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, experts, head, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

EXPERTS = prefixed(
    "model.layers.{n}.block_sparse_moe.", router="gate", gate="experts.{e}.w1", up="experts.{e}.w3",
    down="experts.{e}.w2",
)  # fmt: skip
INERT = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")


def mixtral(c: Config) -> TransformerConfig:
    """Read MixtralConfig."""
    c.defaults(num_key_value_heads=8, max_position_embeddings=131072)
    window = c.count("sliding_window", None)
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    layer = LayerConfig(attention(c), experts(c, mlp(c), 8, 2), norm)
    return rotary_decoder(c, layer, head(c), types=types, window=window, bases={"full_attention": 1e6})


ARCHITECTURES = {"mixtral": Architecture(mixtral, {**NAMES, **EXPERTS}, "model.", INERT)}
