"""ModernBERT, an encoder, and its decoder: norms without bias, rotary positions with a base per layer type."""

from collections.abc import Mapping

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, layer_types, mlp
from pejax.interop.rope import read_rope
from pejax.models import HeadConfig, LayerConfig, NormConfig, TransformerConfig

# ModernBERT: tokens of layers with windows see as many tokens before as behind.

ENCODER_NAMES = {
    "table": "model.embeddings.tok_embeddings", "embed_norm": "model.embeddings.norm", "norm": "model.final_norm",
    "head": "decoder", "dense": "head.dense", "dense_norm": "head.norm",
    **prefixed(
        "model.layers.{n}.", norm_attention="attn_norm", norm_mlp="mlp_norm", qkv="attn.Wqkv", o="attn.Wo",
        gate_up="mlp.Wi", down="mlp.Wo",
    ),
}  # fmt: skip
BASES = {"full_attention": ("global_rope_theta", 1.6e5), "sliding_attention": ("local_rope_theta", 1e4)}
INERT = (
    *("classifier_pooling", "deterministic_flash_attn", "embedding_dropout", "initializer_cutoff_factor"),
    *("layer_norm_eps", "mlp_dropout", "position_embedding_type", "reference_compile", "repad_logits_with_grad"),
    *("sparse_prediction", "sparse_pred_ignore_index"),
)


def read(c: Config, *, windows: Mapping[str, int], causal: bool) -> TransformerConfig:
    """Return the config of both; `windows` are those of the types of layers that have one."""
    c.must("rope_theta", None)
    c.defaults(max_position_embeddings=8192)
    layers, period = c.count("num_hidden_layers"), c.count("global_attn_every_n_layers", 3)
    types = layer_types(c, ["sliding_attention" if n % period else "full_attention" for n in range(layers)])
    norm = NormConfig("layer", c.number("norm_eps", 1e-5), c.flag("norm_bias", False))
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    gated = mlp(c, "gelu", key="hidden_activation", bias=c.flag("mlp_bias", False))
    bases = {kind: c.number(*default) for kind, default in BASES.items()}

    def layer(number: int, kind: str) -> LayerConfig:
        pe = read_rope(c, kind, base=bases[kind], local=False)
        attention_config = attention(c, pe=pe, bias=bias, window=windows.get(kind))
        return LayerConfig(attention_config, gated, norm, bare=number == 0)

    transform = c.activation("classifier_activation", "gelu"), norm
    head = HeadConfig(
        c.flag("tie_word_embeddings", True), c.flag("decoder_bias", True), transform,
        transform_bias=c.flag("classifier_bias", False),
    )  # fmt: skip
    return TransformerConfig(
        c.count("vocab_size"), c.count("hidden_size"), c.count("max_position_embeddings"),
        tuple(layer(number, kind) for number, kind in enumerate(types)), causal, norm=norm, embed_norm=norm,
        head=head, padding="counted",
    )  # fmt: skip


def encoder(c: Config) -> TransformerConfig:
    """Read ModernBertConfig: tokens of layers with windows see `local_attention // 2` others on either side."""
    return read(c, windows={"sliding_attention": c.count("local_attention", 128) // 2 + 1}, causal=False)


# Its decoder: queries, keys and values have tensors of their own.

DECODER_NAMES = {
    **{part: name for part, name in ENCODER_NAMES.items() if part != "qkv"},
    "dense": "lm_head.dense", "dense_norm": "lm_head.norm",
    **prefixed("model.layers.{n}.attn.", q="q_proj", k="k_proj", v="v_proj"),
}  # fmt: skip


def decoder(c: Config) -> TransformerConfig:
    """Read ModernBertDecoderConfig, whose window is `local_attention // 2` tokens, the token itself included."""
    window = max(c.count("local_attention", 128) // 2, 1)
    c.must("sliding_window", window)
    return read(c, windows={"sliding_attention": window}, causal=True)


ARCHITECTURES = {
    "modernbert": Architecture(encoder, ENCODER_NAMES, "model.", INERT),
    "modernbert-decoder": Architecture(decoder, DECODER_NAMES, "model.", INERT, neutral={"causal_mask": True}),
}
