"""BLOOM: ALiBi, a norm of the token vectors, tanh-GELU."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, head, uniform_model
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "transformer.word_embeddings", "embed_norm": "transformer.word_embeddings_layernorm",
    "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="input_layernorm", norm_mlp="post_attention_layernorm",
        qkv="self_attention.query_key_value", o="self_attention.dense", up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    ),
}  # fmt: skip
INERT = ("offset_alibi", "seq_length", "skip_bias_add", "skip_bias_add_qkv", "unk_token_id",
         "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion")  # fmt: skip
NEUTRAL = {"slow_but_exact": False}
"""With `pretraining_tp` above 1, a true value has transformers leave out biases."""


def bloom(c: Config) -> TransformerConfig:
    """Read BloomConfig; ALiBi needs no trained length, ours is `seq_length` or 2048."""
    c.must("apply_residual_connection_post_layernorm", False)
    width = c.count("hidden_size", c.count("n_embed", 64))
    heads = c.count("n_head", c.count("num_attention_heads", 8))
    norm = NormConfig("layer", c.number("layer_norm_epsilon", 1e-5), bias=True)
    attention = AttentionConfig(heads, heads, channels_per_head(c, width, heads), EncodingSpec("alibi"), bias="qkvo")
    layer = LayerConfig(attention, MlpConfig(4 * width, "gelu_tanh", bias=True), norm)
    layers, length = "n_layer" if "n_layer" in c.keys else "num_hidden_layers", c.count("seq_length", 2048)
    tied = head(c, tied=True)
    return uniform_model(c, layer, width=width, layers=layers, length=length, norm=norm, head=tied, embed_norm=norm,
                 padding="skipped")  # fmt: skip


ARCHITECTURES = {"bloom": Architecture(bloom, NAMES, "transformer.", INERT, qkv_by_head=True, neutral=NEUTRAL)}
