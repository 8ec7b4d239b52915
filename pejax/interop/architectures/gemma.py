"""Gemma: norms whose weights are offsets from 1; from Gemma 2 on also after branches, with windows in turn."""

from dataclasses import replace

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES, QK_NORMS
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

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
    """Read GemmaConfig, in which "gelu" means the approximate one."""
    c.must("use_bidirectional_attention", False)
    c.defaults(num_key_value_heads=16, head_dim=256, max_position_embeddings=8192)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6), offset=1.0)
    attention_config = attention(c, bias="qkvo" if c.flag("attention_bias", False) else "")
    gated = mlp(c, "gelu_pytorch_tanh")
    gated = replace(gated, activation="gelu_tanh") if gated.activation == "gelu" else gated
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


ARCHITECTURES = {
    "gemma": Architecture(first, NAMES, "model.", inert=("hidden_activation",)),
    "gemma2": Architecture(gemma2, GEMMA, "model.", inert=("hidden_act", "cache_implementation")),
    "vaultgemma": Architecture(vaultgemma, VAULT, "model.", inert=("hidden_act", "cache_implementation")),
    "gemma3_text": Architecture(gemma3, {**GEMMA, **QK_NORMS}, "model.", inert=("cache_implementation",)),
}
