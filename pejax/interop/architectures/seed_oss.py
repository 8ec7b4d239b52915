"""Seed-OSS and ERNIE 4.5: Llamas with biases of their own; ERNIE rotates neighboring channels."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig


def seed_oss(c: Config) -> TransformerConfig:
    """Read SeedOssConfig."""
    c.defaults(num_key_value_heads=8, head_dim=128, max_position_embeddings=524288)
    letters = {"qkv": c.flag("attention_bias", True), "o": c.flag("attention_out_bias", False)}
    bias = "".join(letter for letter, present in letters.items() if present)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6))
    layer = LayerConfig(attention(c, bias=bias), mlp(c, bias=c.flag("mlp_bias", False)), norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


def ernie(c: Config) -> TransformerConfig:
    """Read Ernie4_5Config."""
    c.defaults(num_key_value_heads=2, head_dim=128, max_position_embeddings=131072)
    biased, norm = c.flag("use_bias", False), NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    layer = LayerConfig(attention(c, bias="qkvo" if biased else ""), mlp(c, bias=biased), norm)
    bases = {"full_attention": 5e5}
    return rotary_decoder(c, layer, head(c, tied=True), types=layer_types(c), bases=bases, pairing="interleaved")


ARCHITECTURES = {
    "seed_oss": Architecture(seed_oss, NAMES, "model.", inert=("residual_dropout",)),
    "ernie4_5": Architecture(ernie, NAMES, "model."),
}
