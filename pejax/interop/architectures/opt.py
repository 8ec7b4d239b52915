"""OPT: learned positions whose table has two rows before the first, ReLU."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, head, uniform_model
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "model.decoder.embed_tokens", "position": "model.decoder.embed_positions",
    "norm": "model.decoder.final_layer_norm", "head": "lm_head",
    **prefixed(
        "model.decoder.layers.{n}.", norm_attention="self_attn_layer_norm", norm_mlp="final_layer_norm",
        q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.out_proj", up="fc1", down="fc2",
    ),
}  # fmt: skip


def opt(c: Config) -> TransformerConfig:
    """Read OPTConfig."""
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    c.must("do_layer_norm_before", True)
    c.must("_remove_final_layer_norm", False)
    c.must("word_embed_proj_dim", width)
    c.must("enable_bias", True)
    c.must("layer_norm_elementwise_affine", True)
    norm = NormConfig("layer", 1e-5, bias=True)
    attention = AttentionConfig(heads, heads, channels_per_head(c, width, heads), EncodingSpec("learned"), bias="qkvo")
    activation = c.activation("activation_function", "relu")
    layer = LayerConfig(attention, MlpConfig(c.count("ffn_dim"), activation, bias=True), norm)
    length = c.count("max_position_embeddings", 2048)
    tied = head(c, tied=True)
    return uniform_model(c, layer, width=width, layers="num_hidden_layers", length=length, norm=norm, head=tied,
                 padding="skipped")  # fmt: skip


INERT = ("activation_dropout", "layerdrop", "init_std", "prefix")
ARCHITECTURES = {"opt": Architecture(opt, NAMES, "model.", INERT, skipped_rows=2)}
