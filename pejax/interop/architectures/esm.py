"""ESM-1b and ESM-2, encoders of proteins: norms before the branches, rotary or learned positions, token dropout."""

from dataclasses import replace

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, mlp
from pejax.models import HeadConfig, LayerConfig, NormConfig, TransformerConfig

NAMES = {
    **prefixed(
        "esm.embeddings.", table="word_embeddings", position="position_embeddings", embed_norm="layer_norm"
    ),
    "norm": "esm.encoder.emb_layer_norm_after",
    **prefixed(
        "esm.encoder.layer.{n}.", norm_attention="attention.LayerNorm", q="attention.self.query",
        k="attention.self.key", v="attention.self.value", o="attention.output.dense", norm_mlp="LayerNorm",
        up="intermediate.dense", down="output.dense",
    ),
    **prefixed("lm_head.", head="decoder", dense="dense", dense_norm="layer_norm"), "head_bias": "lm_head",
}  # fmt: skip
INERT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "mask_token_id", "vocab_list", "rope_theta")
"""The last is unread where positions are learned."""
FREQUENCIES = r"(^|\.)rotary_embeddings\.inv_freq$"
CARRIED = (
    r"(^|\.)(pooler\.dense|contact_head\.regression)\.(weight|bias)$"
    rf"|(^|\.)embeddings\.(position_ids|position_embeddings\.weight)$|{FREQUENCIES}"
)
"""Files of ESM-2 may have a table of positions that nothing reads."""
PADDING = 1
"""The `pad_token_id` of all published models."""


def esm(c: Config) -> TransformerConfig:
    """Read EsmConfig; activations are the exact GELU, whatever `hidden_act` says."""
    for key, value in {"is_folding_model": False, "is_decoder": False, "hidden_act": "gelu"}.items():
        c.must(key, value)
    c.must("position_embedding_type", "absolute", "rotary")
    learned, padding = c("position_embedding_type", "absolute") == "absolute", c.count("pad_token_id", least=0)
    base = {} if learned else {"base": c.positive("rope_theta", 1e4), "pairing": "half"}
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-12), bias=True)
    attention_config = attention(c, pe=EncodingSpec("learned" if learned else "rope", base), bias="qkvo")
    layer = LayerConfig(attention_config, mlp(c, "gelu", gated=False, bias=True), norm)
    length = c.count("max_position_embeddings", 1026) - (1 + padding if learned else 0)
    model = TransformerConfig(
        c.count("vocab_size"), c.count("hidden_size"), length, (layer,) * c.count("num_hidden_layers"), causal=False,
        norm=norm, embed_norm=norm if c.flag("emb_layer_norm_before", False) else None, padding="counted",
        head=HeadConfig(c.flag("tie_word_embeddings", True), bias=True, transform=("gelu", norm)),
        mask_id=c.count("mask_token_id", least=0) if c.flag("token_dropout", False) else None,
    )  # fmt: skip
    return replace(model, padding=padding) if learned else model


ARCHITECTURES = {
    "esm": Architecture(
        esm,
        NAMES,
        "esm.",
        INERT,
        CARRIED,
        padding=PADDING,
        copies={"lm_head.decoder.bias": "lm_head.bias"},
        stored_rotation=FREQUENCIES,
    )
}
