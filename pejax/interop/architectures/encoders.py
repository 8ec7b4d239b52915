"""Encoders: BERT, RoBERTa, ELECTRA, MPNet, RoFormer, DistilBERT and XLNet."""

import math
import re
from dataclasses import replace

import numpy as np

from pejax._record.specs import EncodingSpec, Spec, SumSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, channels_per_head, mlp, uniform_model
from pejax.interop.stacks import ModelConfig, head_stack
from pejax.models import AttentionConfig, HeadConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

# BERT, RoBERTa, XLM-RoBERTa and CamemBERT: encoders with norms after the sums.
# They have no logits if the file has no language model's head.

BERT_BODY = {
    "table": "embeddings.word_embeddings", "position": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings", "embed_norm": "embeddings.LayerNorm",
    **prefixed(
        "encoder.layer.{n}.", q="attention.self.query", k="attention.self.key", v="attention.self.value",
        o="attention.output.dense", norm_attention_sum="attention.output.LayerNorm", up="intermediate.dense",
        down="output.dense", norm_mlp_sum="output.LayerNorm",
    ),
}  # fmt: skip
BERT_NAMES = {
    **prefixed("bert.", **BERT_BODY), "head": "cls.predictions.decoder", "head_bias": "cls.predictions",
    **prefixed("cls.predictions.transform.", dense="dense", dense_norm="LayerNorm"),
}  # fmt: skip
ROBERTA_NAMES = {
    **prefixed("roberta.", **BERT_BODY), "head_bias": "lm_head",
    **prefixed("lm_head.", head="decoder", dense="dense", dense_norm="layer_norm"),
}  # fmt: skip
BERT_INERT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "directionality", "pooler_fc_size", "pooler_type",
              "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
              "embedding_size")  # fmt: skip
PADDING = 1
"""The default of `pad_token_id` of RoBERTa."""
BERT_CARRIED = r"(^|\.)(pooler\.dense\.(weight|bias)|embeddings\.position_ids)$|^cls\.seq_relationship\.(weight|bias)$"


def bert(
    c: Config,
    skipped_rows: int = 0,
    pe: Spec = EncodingSpec("learned"),
    head_activation: str | None = None,
    feed: MlpConfig | None = None,
    bias: str = "qkvo",
) -> TransformerConfig:
    """Read BertConfig.

    Args:
        c: the config.
        skipped_rows: number of rows before the table of positions.
        pe: the encoding.
        head_activation: activation in the head. None = that of the layers.
        feed: the MLP. None = a plain one with biases.
        bias: linear maps of attention with a bias, as in `AttentionConfig`.
    """
    c.must("is_decoder", False)
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-12), bias=True)
    layers, length = c.count("num_hidden_layers"), c.count("max_position_embeddings", 512) - skipped_rows
    feed = feed or mlp(c, "gelu", gated=False, bias=True)
    layer = LayerConfig(attention(c, pe=pe, bias=bias), feed, norm, order="post")
    head = HeadConfig(
        c.flag("tie_word_embeddings", True), bias=True, transform=(head_activation or feed.activation, norm)
    )
    return TransformerConfig(
        c.count("vocab_size"), c.count("hidden_size"), length, (layer,) * layers, causal=False, norm=None,
        embed_norm=norm, types=c.count("type_vocab_size", 2, least=0), head=head, padding="counted",
    )  # fmt: skip


def absolute(c: Config) -> TransformerConfig:
    """Read BertConfig."""
    c.must("position_embedding_type", "absolute")
    return bert(c)


def roberta(c: Config) -> TransformerConfig:
    """Read RobertaConfig; positions count the ids that are not padding, from the row after that of `pad_token_id`.

    The head's activation is no key: transformers computes the exact GELU there, whatever `hidden_act` says.
    """
    c.must("position_embedding_type", "absolute")
    padding = c.count("pad_token_id", PADDING, least=0)
    return replace(bert(c, skipped_rows=1 + padding, head_activation="gelu"), padding=padding)


BERT_COPIES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
ROBERTA = Architecture(
    roberta,
    ROBERTA_NAMES,
    "roberta.",
    BERT_INERT,
    BERT_CARRIED,
    padding=PADDING,
    copies={"lm_head.decoder.bias": "lm_head.bias"},
)
BERT = {
    "bert": Architecture(absolute, BERT_NAMES, "bert.", BERT_INERT, BERT_CARRIED, copies=BERT_COPIES),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
}


# ELECTRA: a BERT whose generator has a head, and whose discriminator's head is carried.

ELECTRA_NAMES = {
    **prefixed("electra.", **BERT_BODY), "head": "generator_lm_head",
    **prefixed("generator_predictions.", dense="dense", dense_norm="LayerNorm"),
}  # fmt: skip
ELECTRA_INERT = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "summary_type", "summary_use_proj"),
    *("summary_activation", "summary_last_dropout"),
)
ELECTRA_CARRIED = r"(^|\.)embeddings\.position_ids$|^discriminator_predictions\."


def electra(c: Config) -> TransformerConfig:
    """Read ElectraConfig; token vectors must be as wide as the states. The head's activation is no key."""
    c.must("position_embedding_type", "absolute")
    c.defaults(embedding_size=128, hidden_size=256)
    c.must("embedding_size", c.count("hidden_size"))
    return bert(c, head_activation="gelu")


ELECTRA = {"electra": Architecture(electra, ELECTRA_NAMES, "electra.", ELECTRA_INERT, ELECTRA_CARRIED)}


# MPNet: a RoBERTa without token types, which has a T5 bias beside the table of positions.

MPNET_NAMES = {
    **{part: re.sub(r"^roberta\.", "mpnet.", name) for part, name in ROBERTA_NAMES.items() if part != "types"},
    "relative": "mpnet.encoder.relative_attention_bias",
    **prefixed(
        "mpnet.encoder.layer.{n}.attention.", q="attn.q", k="attn.k", v="attn.v", o="attn.o",
        norm_attention_sum="LayerNorm",
    ),
}  # fmt: skip
MPNET_CARRIED = r"(^|\.)(pooler\.dense\.(weight|bias)|embeddings\.position_ids)$"
BUCKETS, FARTHEST = 32, 128
"""Of the T5 bias; neither is a key that transformers reads, but the number of buckets is that of the table's rows."""


def mpnet(c: Config) -> TransformerConfig:
    """Read MPNetConfig; positions count the ids that are not 1, whatever `pad_token_id` says."""
    c.must("relative_attention_num_buckets", BUCKETS)
    c.must("position_embedding_type", "absolute")
    c.defaults(type_vocab_size=0)
    c.must("type_vocab_size", 0)
    pe = SumSpec((EncodingSpec("learned"), EncodingSpec("t5", {"buckets": BUCKETS, "max_distance": FARTHEST})))
    return replace(bert(c, skipped_rows=1 + PADDING, pe=pe, head_activation="gelu"), padding=PADDING)


MPNET = {
    "mpnet": Architecture(
        mpnet,
        MPNET_NAMES,
        "mpnet.",
        ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        MPNET_CARRIED,
        skipped_rows=1 + PADDING,
        copies={"lm_head.decoder.bias": "lm_head.bias"},
    )
}


# RoFormer: a BERT with rotary positions in place of learned ones.

ROFORMER_BASE = 10000.0
ROFORMER_NAMES = {
    part: re.sub(r"^bert\.", "roformer.", name) for part, name in BERT_NAMES.items() if part != "position"
}
ANGLES = r"(^|\.)encoder\.embed_positions\.weight$"


def roformer(c: Config) -> TransformerConfig:
    """Read RoFormerConfig: queries and keys are rotated, values are not."""
    c.must("rotary_value", False)
    c.must("position_embedding_type", "absolute")
    c.must("embedding_size", c.count("hidden_size"))
    c.defaults(max_position_embeddings=1536)
    return bert(c, pe=EncodingSpec("rope", {"base": ROFORMER_BASE, "pairing": "interleaved"}))


def sines_and_cosines(config: ModelConfig) -> np.ndarray:
    """Return the table of the angles of all positions, sines first, that the files of RoFormer hold."""
    text = head_stack(config)
    channels = text.layers[0].attention.head_dim
    frequencies = [math.pow(ROFORMER_BASE, -2 * pair / channels) for pair in range(channels // 2)]
    angles = np.arange(text.length)[:, None] * np.asarray(frequencies)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


ROFORMER = {
    "roformer": Architecture(
        roformer,
        ROFORMER_NAMES,
        "roformer.",
        BERT_INERT,
        f"{BERT_CARRIED}|{ANGLES}",
        copies=BERT_COPIES,
        fixed=((ANGLES, sines_and_cosines),),
    )
}


# DistilBERT: a BERT without token types.

DISTILBERT_NAMES = {
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
DISTILBERT_INERT = ("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_")
DISTILBERT_CARRIED = r"(^|\.)embeddings\.position_ids$"


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


DISTILBERT = {
    "distilbert": Architecture(distilbert, DISTILBERT_NAMES, "distilbert.", DISTILBERT_INERT, DISTILBERT_CARRIED)
}


# XLNet as one stream over one text: Transformer-XL's encoding in both directions, norms after the sums.

XLNET_NAMES = {
    "table": "transformer.word_embedding", "head": "lm_loss",
    **prefixed(
        "transformer.layer.{n}.", q="rel_attn.q", k="rel_attn.k", v="rel_attn.v", o="rel_attn.o", u="rel_attn.r_w_bias",
        v_r="rel_attn.r_r_bias", w_r="rel_attn.r", norm_attention_sum="rel_attn.layer_norm", up="ff.layer_1",
        down="ff.layer_2", norm_mlp_sum="ff.layer_norm",
    ),
}  # fmt: skip
XLNET_CARRIED = r"(^|\.)(mask_emb|rel_attn\.(r_s_bias|seg_embed))$"
XLNET_INERT = (
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


XLNET = {"xlnet": Architecture(xlnet, XLNET_NAMES, "transformer.", XLNET_INERT, XLNET_CARRIED, by_head=True)}
