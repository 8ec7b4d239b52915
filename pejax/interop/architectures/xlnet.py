"""XLNet as one stream over one text: Transformer-XL's encoding in both directions, norms after the sums."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, uniform_model
from pejax.models import AttentionConfig, HeadConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "transformer.word_embedding", "head": "lm_loss",
    **prefixed(
        "transformer.layer.{n}.", q="rel_attn.q", k="rel_attn.k", v="rel_attn.v", o="rel_attn.o", u="rel_attn.r_w_bias",
        v_r="rel_attn.r_r_bias", w_r="rel_attn.r", norm_attention_sum="rel_attn.layer_norm", up="ff.layer_1",
        down="ff.layer_2", norm_mlp_sum="ff.layer_norm",
    ),
}  # fmt: skip
CARRIED = r"(^|\.)(mask_emb|rel_attn\.(r_s_bias|seg_embed))$"
INERT = (
    *("start_n_top", "end_n_top", "mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "summary_activation"),
    *("summary_last_dropout", "summary_type", "summary_use_proj"),
)


def xlnet(c: Config) -> TransformerConfig:
    """Read XLNetConfig.

    The second stream, permutations, memories and segments need other inputs and are not computed. Their tensors are
    carried.
    """
    for key, value in {"attn_type": "bi", "bi_data": False, "clamp_len": -1, "same_length": False}.items():
        c.must(key, value)
    c.must("untie_r", True)
    width, heads = c.count("d_model", 1024), c.count("n_head", 16)
    channels = channels_per_head(c, width, heads)
    c.must("d_head", channels)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-12), bias=True)
    plain = MlpConfig(c.count("d_inner", 4096), c.activation("ff_activation", "gelu"), bias=True)
    attention = AttentionConfig(heads, heads, channels, EncodingSpec("transformer_xl"))
    layer = LayerConfig(attention, plain, norm, order="post")
    head = HeadConfig(c.flag("tie_word_embeddings", True), bias=True)
    return uniform_model(c, layer, width=width, layers="n_layer", length=512, norm=None, head=head, causal=False)


ARCHITECTURES = {"xlnet": Architecture(xlnet, NAMES, "transformer.", INERT, CARRIED, by_head=True)}
