"""DistilBERT: a BERT without token types."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head
from pejax.models import AttentionConfig, HeadConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    **prefixed(
        "distilbert.embeddings.", table="word_embeddings", position="position_embeddings", embed_norm="LayerNorm"
    ),
    **prefixed(
        "distilbert.transformer.layer.{n}.", q="attention.q_lin", k="attention.k_lin", v="attention.v_lin",
        o="attention.out_lin", norm_attention_sum="sa_layer_norm", up="ffn.lin1", down="ffn.lin2",
        norm_mlp_sum="output_layer_norm",
    ),
    "head": "vocab_projector", "dense": "vocab_transform", "dense_norm": "vocab_layer_norm",
}  # fmt: skip
INERT = ("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_")
CARRIED = r"(^|\.)embeddings\.position_ids$"


def distilbert(c: Config) -> TransformerConfig:
    """Read DistilBertConfig; its positions are in the file, however they were made."""
    width, heads, norm = c.count("dim", 768), c.count("n_heads", 12), NormConfig("layer", 1e-12, bias=True)
    plain = MlpConfig(c.count("hidden_dim", 3072), c.activation("activation", "gelu"), bias=True)
    attention_config = AttentionConfig(
        heads, heads, channels_per_head(c, width, heads), EncodingSpec("learned"), bias="qkvo"
    )
    layers = (LayerConfig(attention_config, plain, norm, order="post"),) * c.count("n_layers", 6)
    head = HeadConfig(c.flag("tie_word_embeddings", True), bias=True, transform=(plain.activation, norm))
    return TransformerConfig(
        c.count("vocab_size"), width, c.count("max_position_embeddings", 512), layers, causal=False, norm=None,
        embed_norm=norm, head=head, padding="counted",
    )  # fmt: skip


ARCHITECTURES = {"distilbert": Architecture(distilbert, NAMES, "distilbert.", INERT, CARRIED)}
