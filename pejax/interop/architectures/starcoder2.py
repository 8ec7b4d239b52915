"""StarCoder 2: LayerNorm, plain MLPs and biases around rotary positions."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

MLP = prefixed("model.layers.{n}.mlp.", up="c_fc", down="c_proj")


def starcoder2(c: Config) -> TransformerConfig:
    """Read Starcoder2Config."""
    c.must("norm_type", "layer_norm")
    c.must("mlp_type", "default")
    c.defaults(num_key_value_heads=2, max_position_embeddings=4096)
    window, bias = c.count("sliding_window", None), c.flag("use_bias", True)
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    norm = NormConfig("layer", c.number("norm_epsilon", 1e-5), bias=True)
    plain = mlp(c, "gelu_pytorch_tanh", gated=False, bias=bias)
    layer = LayerConfig(attention(c, bias="qkvo" if bias else ""), plain, norm)
    return rotary_decoder(c, layer, head(c, tied=True), types=types, window=window)


INERT = (
    *("residual_dropout", "embedding_dropout", "activation_function", "layer_norm_epsilon", "rms_norm_eps"),
    *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
)
"""Of training, and of GPT-BigCode, whose `activation_function` says "gelu" beside the `hidden_act` that is used."""
NEUTRAL = {"scale_attn_weights": True}
ARCHITECTURES = {"starcoder2": Architecture(starcoder2, {**NAMES, **MLP}, "model.", INERT, neutral=NEUTRAL)}
