"""BLOOM and MPT, which have ALiBi, and Falcon, whose tensors have the names of BLOOM's."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, head, layer_types, rotary_decoder, uniform_model
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

# BLOOM: ALiBi, a norm of the token vectors, tanh-GELU.

BLOOM_NAMES = {
    "table": "transformer.word_embeddings", "embed_norm": "transformer.word_embeddings_layernorm",
    "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="input_layernorm", norm_mlp="post_attention_layernorm",
        qkv="self_attention.query_key_value", o="self_attention.dense", up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    ),
}  # fmt: skip
BLOOM_INERT = ("offset_alibi", "seq_length", "skip_bias_add", "skip_bias_add_qkv", "unk_token_id",
               "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion")  # fmt: skip
BLOOM_NEUTRAL = {"slow_but_exact": False}
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


BLOOM = {
    "bloom": Architecture(bloom, BLOOM_NAMES, "transformer.", BLOOM_INERT, qkv_by_head=True, neutral=BLOOM_NEUTRAL)
}


# MPT: ALiBi, no biases at all.

MPT_NAMES = {
    "table": "transformer.wte", "norm": "transformer.norm_f", "head": "lm_head",
    **prefixed(
        "transformer.blocks.{n}.", norm_attention="norm_1", norm_mlp="norm_2", qkv="attn.Wqkv", o="attn.out_proj",
        up="ffn.up_proj", down="ffn.down_proj",
    ),
}  # fmt: skip
MPT_INERT = ("emb_pdrop", "init_config", "init_device", "learned_pos_emb", "verbose", "resid_pdrop",
         "tokenizer_name")  # fmt: skip


def mpt(c: Config) -> TransformerConfig:
    """Read MptConfig; with ALiBi there are no learned positions, whatever `learned_pos_emb` says."""
    c.must("no_bias", True)
    c.must("logit_scale", None)
    c.must("embedding_fraction", 1.0)
    c.must("norm_type", "low_precision_layernorm")
    attn_config = c.part("attn_config", inert=("attn_impl", "attn_pdrop"))
    for key, value in {"alibi": True, "clip_qkv": None, "qk_ln": False, "prefix_lm": False}.items():
        attn_config.must(key, value)
    attn_config.must("attn_type", "multihead_attention")
    attn_config.must("attn_uses_sequence_id", False)
    scale, steepest = attn_config.number("softmax_scale", None), attn_config.count("alibi_bias_max", 8)
    width, heads = c.count("d_model", 2048), c.count("n_heads", 16)
    pe = EncodingSpec("alibi", {} if steepest == 8 else {"bias_max": float(steepest)})
    attention = AttentionConfig(heads, heads, channels_per_head(c, width, heads), pe, scale=scale)
    norm = NormConfig("layer", c.number("layer_norm_epsilon", 1e-5))
    layer = LayerConfig(attention, MlpConfig(c.count("expansion_ratio", 4) * width, "gelu"), norm)
    length = c.count("max_seq_len", 2048)
    return uniform_model(c, layer, width=width, layers="n_layers", length=length, norm=norm, head=head(c, tied=True))


MPT = {"mpt": Architecture(mpt, MPT_NAMES, "transformer.", MPT_INERT)}


# Falcon with rotary positions: attention and MLP in parallel, or one after the other in early models.

FALCON_NAMES = {part: name for part, name in BLOOM_NAMES.items() if part != "embed_norm"}
TWO_NORMS = prefixed("transformer.h.{n}.", norm_attention="ln_attn", norm_mlp="ln_mlp")


def _parallel(c: Config, is_new: bool) -> str:
    """Return the kind of parallel branches, as in `LayerConfig`."""
    if not is_new:
        c.must("num_ln_in_parallel_attn", None, 1)
        return "one" if c.flag("parallel_attn", True) else ""
    c.must("parallel_attn", True)
    c.must("num_ln_in_parallel_attn", 2, 1)
    return "two" if c("num_ln_in_parallel_attn", 2) == 2 else "one"


def falcon(c: Config) -> TransformerConfig:
    """Read FalconConfig; ALiBi, which transformers rounds to bfloat16 there, is refused."""
    c.must("alibi", False)
    c.must("apply_residual_connection_post_layernorm", False)
    heads, width = c.count("num_attention_heads"), c.count("hidden_size")
    c.must("n_head", heads)
    c.must("n_layer", c.count("num_hidden_layers"))
    is_new, one_key = c.flag("new_decoder_architecture", False), c.flag("multi_query", True)
    kv_heads = c.count("num_kv_heads", heads) if is_new else 1 if one_key else heads
    c.defaults(max_position_embeddings=2048)
    channels, bias = channels_per_head(c, width, heads), c.flag("bias", False)
    c.must("head_dim", channels)
    plain = MlpConfig(c.count("ffn_hidden_size", 4 * width), c.activation("activation", "gelu"), bias=bias)
    norm = NormConfig("layer", c.number("layer_norm_epsilon", 1e-5), bias=True)
    attention_config = AttentionConfig(heads, kv_heads, channels, bias="qkvo" if bias else "")
    layer = LayerConfig(attention_config, plain, norm, parallel=_parallel(c, is_new))
    return rotary_decoder(c, layer, head(c, tied=True), types=layer_types(c))


def two_norms(layer: LayerConfig) -> dict[str, str]:
    """Return the names of the norms of parallel branches with a norm each."""
    return TWO_NORMS if layer.parallel == "two" else {}


FALCON_INERT = ("num_kv_heads",)
"""Of models before `new_decoder_architecture`, which have one key head or as many as heads."""
FALCON = {
    "falcon": Architecture(falcon, FALCON_NAMES, "transformer.", FALCON_INERT, qkv_by_head=True, by_layer=two_norms),
}
