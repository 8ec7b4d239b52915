"""MPT: ALiBi, no biases at all."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, head, uniform_model
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "transformer.wte", "norm": "transformer.norm_f", "head": "lm_head",
    **prefixed(
        "transformer.blocks.{n}.", norm_attention="norm_1", norm_mlp="norm_2", qkv="attn.Wqkv", o="attn.out_proj",
        up="ffn.up_proj", down="ffn.down_proj",
    ),
}  # fmt: skip
INERT = ("emb_pdrop", "init_config", "init_device", "learned_pos_emb", "verbose", "resid_pdrop",
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


ARCHITECTURES = {"mpt": Architecture(mpt, NAMES, "transformer.", INERT)}
