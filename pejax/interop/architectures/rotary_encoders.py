"""Encoders with norms after the sums and rotary positions: Nomic BERT, Jina Embeddings v3, and GTE."""

import re
from typing import Any

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.encoders import bert
from pejax.interop.config import Config
from pejax.interop.readers import mlp
from pejax.interop.rope import read_rope
from pejax.models import TransformerConfig

DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
CARRIED = r"(^|\.)(pooler\.dense\.(weight|bias)|embeddings\.position_ids|inv_freq)$"

# Nomic BERT: gated MLPs, no biases. Its makers' files have keys of GPT-2, and names without a prefix or with BERT's.

NOMIC_NAMES = {
    **prefixed(
        "nomic_bert.", table="embeddings.word_embeddings", types="embeddings.token_type_embeddings", embed_norm="emb_ln"
    ),
    **prefixed(
        "nomic_bert.encoder.layers.{n}.", qkv="attn.Wqkv", o="attn.out_proj", norm_attention_sum="norm1", up="mlp.fc11",
        gate="mlp.fc12", down="mlp.fc2", norm_mlp_sum="norm2",
    ),
    "head": "cls.predictions.decoder", "head_bias": "cls.predictions",
    **prefixed("cls.predictions.transform.", dense="dense", dense_norm="layer_norm"),
}  # fmt: skip
NOMIC_KEYS = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
    "max_trained_positions": "max_position_embeddings",
}  # fmt: skip
"""Keys of the makers' files, and those of transformers."""
NOMIC_FIXED = {
    "activation_function": "swiglu", "prenorm": False, "parallel_block": False, "parallel_block_tied_norm": False,
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "use_rms_norm": False, "causal": False, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
}  # fmt: skip
"""Keys of the makers' files that must have these values."""
NOMIC_INERT = (
    *DROPOUT,
    *("dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "n_positions", "pad_vocab_size_multiple"),
    *("reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
    *("summary_type", "summary_use_proj", "use_flash_attn", "use_xentropy"),
)


def nomic(c: Config) -> TransformerConfig:
    """Read NomicBertConfig, or the config of the makers' own code."""
    if "n_embd" in c.keys:
        for key, value in NOMIC_FIXED.items():
            c.must(key, value)
        for old, new in NOMIC_KEYS.items():
            value = c(old, None)
            if value is not None:
                c.defaults(**{new: value})
                c.must(new, value)
        base = c.object("rope_parameters").get("rope_theta", c("rope_theta", None))
        c.must("rotary_emb_base", base)
    c.defaults(max_position_embeddings=2048)
    return bert(c, pe=read_rope(c, base=1000.0), feed=mlp(c), bias="")


NOMIC = {
    "nomic_bert": Architecture(
        nomic,
        NOMIC_NAMES,
        "nomic_bert.",
        NOMIC_INERT,
        CARRIED,
        copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
        inside=({}, {"nomic_bert.": "bert."}, {"nomic_bert.": ""}),
    )
}


# Jina Embeddings v3: an XLM-RoBERTa with rotary positions.

JINA_NAMES = {
    **prefixed(
        "roberta.", table="embeddings.word_embeddings", types="embeddings.token_type_embeddings", embed_norm="emb_ln"
    ),
    **prefixed(
        "roberta.encoder.layers.{n}.", qkv="mixer.Wqkv", o="mixer.out_proj", norm_attention_sum="norm1", up="mlp.fc1",
        down="mlp.fc2", norm_mlp_sum="norm2",
    ),
    **prefixed("lm_head.", head="decoder", dense="dense", dense_norm="layer_norm"), "head_bias": "lm_head",
}  # fmt: skip


def jina(c: Config) -> TransformerConfig:
    """Read JinaEmbeddingsV3Config; the head's activation is no key."""
    c.defaults(max_position_embeddings=8194, type_vocab_size=1, layer_norm_eps=1e-5)
    return bert(c, pe=read_rope(c, base=2e4), head_activation="gelu")


JINA = {
    "jina_embeddings_v3": Architecture(
        jina, JINA_NAMES, "roberta.", DROPOUT, CARRIED, copies={"lm_head.decoder.bias": "lm_head.bias"}
    )
}


# GTE: gated MLPs whose last map alone has a bias. The makers' files have the model_type "new", and call it NTK scaling.

GTE_NAMES = {
    **prefixed(
        "gte.embeddings.", table="word_embeddings", types="token_type_embeddings", embed_norm="LayerNorm"
    ),
    **prefixed(
        "gte.encoder.layer.{n}.", qkv="attention.qkv_proj", o="attention.o_proj", norm_attention_sum="attn_ln",
        up_gate="mlp.up_gate_proj", down="mlp.down_proj", norm_mlp_sum="mlp_ln",
    ),
    **prefixed("lm_head.", head="decoder", dense="dense", dense_norm="norm"),
}  # fmt: skip
NEW_FIXED = {
    "position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False,
    "pack_qkv": True,
}  # fmt: skip
NEW_INERT = (*DROPOUT, "unpad_inputs", "use_memory_efficient_attention", "logn_attention_clip1")


def gated_encoder(c: Config, base: float, **options: Any) -> TransformerConfig:
    """Read what both configs share; `base` is the default, `options` are those of `bert`."""
    return bert(c, pe=read_rope(c, base=base), feed=mlp(c, "gelu", bias="down"), **options)


def gte(c: Config) -> TransformerConfig:
    """Read GteConfig; the head's activation is no key."""
    c.defaults(max_position_embeddings=8192, type_vocab_size=1)
    return gated_encoder(c, 1.6e5, head_activation="gelu")


def new(c: Config) -> TransformerConfig:
    """Read the config of the makers' code: with factor f, angles have the base f·b and are divided by f^(2/D)."""
    for key, value in NEW_FIXED.items():
        c.must(key, value)
    c.defaults(max_position_embeddings=2048, type_vocab_size=1, rope_theta=1e4)
    scaling = c.part("rope_scaling", {**c.object("rope_scaling")})
    if scaling.keys:
        scaling.must("type", "ntk")
        scaling.must("mixed_b", None)
        factor, width = scaling.positive("factor"), c.count("hidden_size") // c.count("num_attention_heads")
        c.keys["rope_theta"] = c.positive("rope_theta") * factor
        c.keys["rope_scaling"] = {"type": "linear", "factor": factor ** (2.0 / width)}
    return gated_encoder(c, 1e4)


GTE = {
    "gte": Architecture(gte, GTE_NAMES, "gte.", DROPOUT, CARRIED, inside=({}, {"gte.": "new."}, {"gte.": ""})),
    "new": Architecture(
        new, {part: re.sub(r"^gte\.", "new.", name) for part, name in GTE_NAMES.items()}, "new.", NEW_INERT, CARRIED
    ),
}
