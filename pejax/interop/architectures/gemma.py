"""Gemma: norms whose weights are offsets from 1; from Gemma 2 on also after branches, with windows in turn."""

from dataclasses import replace

from pejax._record.specs import NONE
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES, QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import EncoderDecoderConfig, LayerConfig, NormConfig, TransformerConfig

GEMMA = {
    **NAMES,
    **prefixed(
        "model.layers.{n}.", norm_attention_after="post_attention_layernorm", norm_mlp="pre_feedforward_layernorm",
        norm_mlp_after="post_feedforward_layernorm",
    ),
}  # fmt: skip

VAULT = {part: name for part, name in GEMMA.items() if not part.endswith("_after")}


def gemma(
    c: Config,
    period: int,
    caps: tuple[float | None, float | None],
    *,
    is_gemma3: bool = False,
    order: str = "sandwich",
) -> TransformerConfig:
    """Read the config of Gemma 2 or 3, or of VaultGemma.

    Args:
        c: the config.
        period: number of layers from one layer without a window to the next.
        caps: defaults of the caps of attention and of the logits.
        is_gemma3: whether queries and keys have norms, and layers with windows a base of their own. Tokens may see
            those after them, as in EmbeddingGemma; a window is then of `sliding_window // 2` tokens on either side.
        order: places of the norms, as in `LayerConfig`.
    """
    both_sides = is_gemma3 and c.flag("use_bidirectional_attention", False)
    if not is_gemma3:
        c.must("use_bidirectional_attention", False)
    c.defaults(num_key_value_heads=4, head_dim=256, attn_logit_softcapping=caps[0], final_logit_softcapping=caps[1])
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6), offset=1.0)
    types = ["sliding_attention" if (n + 1) % period else "full_attention" for n in range(c.count("num_hidden_layers"))]
    attention_config = attention(
        c, bias="qkvo" if c.flag("attention_bias", False) else "", qk_norm=norm if is_gemma3 else None,
        scale=c.positive("query_pre_attn_scalar", 256) ** -0.5, soft_cap=c.positive("attn_logit_softcapping", None),
    )  # fmt: skip
    layer = LayerConfig(attention_config, mlp(c, "gelu_pytorch_tanh", key="hidden_activation"), norm, order=order)
    window = c.count("sliding_window", 4096)
    model = rotary_decoder(
        c, layer, head(c, tied=True, cap=c.positive("final_logit_softcapping", None)), types=layer_types(c, types),
        window=window // 2 + 1 if both_sides else window, embed_scale=c.count("hidden_size") ** 0.5,
        bases={"full_attention": 1e6, "sliding_attention": 1e4} if is_gemma3 else {"full_attention": 1e4},
    )  # fmt: skip
    return replace(model, causal=False) if both_sides else model


def first(c: Config) -> TransformerConfig:
    """Read GemmaConfig, in which "gelu", but not "gelu_python", means the approximate one."""
    c.must("use_bidirectional_attention", False)
    c.defaults(num_key_value_heads=16, head_dim=256, max_position_embeddings=8192)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6), offset=1.0)
    attention_config = attention(c, bias="qkvo" if c.flag("attention_bias", False) else "")
    gated = mlp(c, "gelu_pytorch_tanh")
    gated = replace(gated, activation="gelu_tanh") if c.keys.get("hidden_act") == "gelu" else gated
    layer, scale = LayerConfig(attention_config, gated, norm), c.count("hidden_size") ** 0.5
    return rotary_decoder(c, layer, head(c, tied=True), types=layer_types(c), embed_scale=scale)


def gemma2(c: Config) -> TransformerConfig:
    """Read Gemma2Config."""
    c.defaults(max_position_embeddings=8192)
    c.must("sliding_window_size", c.count("sliding_window", 4096))
    return gemma(c, 2, (50.0, 30.0))


def vaultgemma(c: Config) -> TransformerConfig:
    """Read VaultGemmaConfig."""
    c.defaults(max_position_embeddings=8192)
    return gemma(c, 2, (50.0, 30.0), order="pre")


def gemma3(c: Config) -> TransformerConfig:
    """Read Gemma3TextConfig, which has a cap of attention that nothing reads."""
    c.defaults(max_position_embeddings=131072)
    c.must("attn_logit_softcapping", None)
    period = c.count("sliding_window_pattern", c.count("_sliding_window_pattern", 6))
    return gemma(c, period, (None, None), is_gemma3=True)


# T5Gemma: an encoder and a decoder, each a Gemma 2 with a table of its own.

NORMS = {
    "norm_attention": "pre_self_attn_layernorm", "norm_attention_after": "post_self_attn_layernorm",
    "norm_cross": "pre_cross_attn_layernorm", "norm_cross_after": "post_cross_attn_layernorm",
}  # fmt: skip
PAIR = {
    "table": "model.decoder.embed_tokens", "source_table": "model.encoder.embed_tokens", "head": "lm_head.out_proj",
    **{
        f"{side}.{part}": name.replace("model.", f"model.{side}.", 1)
        for side in ("encoder", "decoder")
        for part, name in {
            **GEMMA, **prefixed("model.layers.{n}.", **NORMS),
            **prefixed("model.layers.{n}.cross_attn.", **{f"cross_{part}": f"{part}_proj" for part in "qkvo"}),
        }.items()
        if part not in ("table", "head")
    },
}  # fmt: skip


def with_next(layer: LayerConfig) -> LayerConfig:
    """Return the layer with a window of one more token, if it has one."""
    window = layer.attention.window
    wider = window + 1 if isinstance(window, int) else window
    return replace(layer, attention=replace(layer.attention, window=wider))


def t5gemma(c: Config) -> EncoderDecoderConfig | TransformerConfig:
    """Read T5GemmaConfig; tokens of the encoder's layers with windows see `sliding_window` others on either side."""
    stacks = {}
    for side in ("encoder", "decoder"):
        part = c.part(side, inert=("dropout_rate", "hidden_act"))
        part.defaults(**T5GEMMA_SIZES)
        stacks[side] = gemma(part, 2, (50.0, 30.0))
    encoder, decoder = (stacks[side] for side in ("encoder", "decoder"))
    c.must("vocab_size", decoder.vocab)
    encoder = replace(encoder, causal=False, head=None, layers=tuple(map(with_next, encoder.layers)))
    tied = c.flag("tie_word_embeddings", True)
    if not c.flag("is_encoder_decoder", True):
        return encoder
    crossed = lambda layer: replace(layer, cross=replace(layer.attention, pe=NONE, window=None))
    own_head = None if decoder.head is None else replace(decoder.head, tied=tied)
    decoder = replace(decoder, head=own_head, layers=tuple(map(crossed, decoder.layers)))
    return EncoderDecoderConfig(encoder, decoder, two_tables=True)


T5GEMMA_SIZES = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "max_position_embeddings": 8192,
}  # fmt: skip
ARCHITECTURES = {
    "t5gemma": Architecture(t5gemma, PAIR, "model.", inert=("dropout_rate", "classifier_dropout_rate")),
    "gemma": Architecture(first, NAMES, "model.", inert=("hidden_activation",)),
    "gemma2": Architecture(gemma2, GEMMA, "model.", inert=("hidden_act", "cache_implementation")),
    "vaultgemma": Architecture(vaultgemma, VAULT, "model.", inert=("hidden_act", "cache_implementation")),
    "gemma3_text": Architecture(gemma3, {**GEMMA, **QK_NORMS}, "model.", inert=("cache_implementation",)),
}
