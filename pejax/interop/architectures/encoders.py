"""BERT, RoBERTa, XLM-RoBERTa and CamemBERT: encoders with norms after the sums.

They have no logits if the file has no language model's head.
"""

from dataclasses import replace

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp
from pejax.models import HeadConfig, LayerConfig, NormConfig, TransformerConfig

BODY = {
    "table": "embeddings.word_embeddings", "position": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings", "embed_norm": "embeddings.LayerNorm",
    **prefixed(
        "encoder.layer.{n}.", q="attention.self.query", k="attention.self.key", v="attention.self.value",
        o="attention.output.dense", norm_attention_sum="attention.output.LayerNorm", up="intermediate.dense",
        down="output.dense", norm_mlp_sum="output.LayerNorm",
    ),
}  # fmt: skip
BERT = {
    **prefixed("bert.", **BODY), "head": "cls.predictions.decoder", "head_bias": "cls.predictions",
    **prefixed("cls.predictions.transform.", dense="dense", dense_norm="LayerNorm"),
}  # fmt: skip
ROBERTA = {
    **prefixed("roberta.", **BODY), "head_bias": "lm_head",
    **prefixed("lm_head.", head="decoder", dense="dense", dense_norm="layer_norm"),
}  # fmt: skip
INERT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "directionality", "pooler_fc_size", "pooler_type",
         "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head")  # fmt: skip
PADDING = 1
"""The default of `pad_token_id` of RoBERTa."""
CARRIED = r"(^|\.)(pooler\.dense\.(weight|bias)|embeddings\.position_ids)$|^cls\.seq_relationship\.(weight|bias)$"


def bert(c: Config, skipped_rows: int = 0, pe: EncodingSpec = EncodingSpec("learned")) -> TransformerConfig:
    """Read BertConfig; a table of positions begins after the skipped rows."""
    c.must("position_embedding_type", "absolute")
    c.must("is_decoder", False)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-12), bias=True)
    layers, length = c.count("num_hidden_layers"), c.count("max_position_embeddings", 512) - skipped_rows
    plain = mlp(c, "gelu", gated=False, bias=True)
    layer = LayerConfig(attention(c, pe=pe, bias="qkvo"), plain, norm, order="post")
    head = HeadConfig(c.flag("tie_word_embeddings", True), bias=True, transform=(plain.activation, norm))
    return TransformerConfig(
        c.count("vocab_size"), c.count("hidden_size"), length, (layer,) * layers, causal=False, norm=None,
        embed_norm=norm, types=c.count("type_vocab_size", 2), head=head, padding="counted",
    )  # fmt: skip


def roberta(c: Config) -> TransformerConfig:
    """Read RobertaConfig; positions count the ids that are not padding, from the row after that of `pad_token_id`."""
    padding = c.count("pad_token_id", PADDING, least=0)
    return replace(bert(c, skipped_rows=1 + padding), padding=padding)


COPIES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
OF_ROBERTA = Architecture(
    roberta, ROBERTA, "roberta.", INERT, CARRIED, padding=PADDING, copies={"lm_head.decoder.bias": "lm_head.bias"}
)
ARCHITECTURES = {
    "bert": Architecture(bert, BERT, "bert.", INERT, CARRIED, copies=COPIES),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), OF_ROBERTA),
}
