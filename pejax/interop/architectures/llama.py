"""Llama and its descendants: the same names of tensors, with other norms, biases, windows or positions."""

from dataclasses import replace
from typing import Any

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, channels_per_head, head, layer_types, mlp, rotary_decoder
from pejax.models import HeadConfig, LayerConfig, NormConfig, TransformerConfig

# Llama and SmolLM2; Mistral, whose layers have windows, and Ministral, of which some have.

NAMES = {
    "table": "model.embed_tokens", "norm": "model.norm", "head": "lm_head",
    **prefixed(
        "model.layers.{n}.", norm_attention="input_layernorm", norm_mlp="post_attention_layernorm",
        q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.o_proj",
        gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj",
    ),
}  # fmt: skip


def llama(c: Config) -> TransformerConfig:
    """Read LlamaConfig."""
    c.defaults(max_position_embeddings=2048)
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6))
    layer = LayerConfig(attention(c, bias=bias), mlp(c, bias=c.flag("mlp_bias", False)), norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


def mistral(c: Config) -> TransformerConfig:
    """Read MistralConfig."""
    c.defaults(num_key_value_heads=8, sliding_window=4096, max_position_embeddings=131072)
    window = c.count("sliding_window", None)
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    layer = LayerConfig(attention(c), mlp(c), NormConfig("rms", c.number("rms_norm_eps", 1e-6)))
    return rotary_decoder(c, layer, head(c), types=types, window=window)


def ministral(c: Config) -> TransformerConfig:
    """Read MinistralConfig."""
    c.defaults(num_key_value_heads=8, sliding_window=4096, max_position_embeddings=131072)
    window = c.count("sliding_window", None)
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    layer = LayerConfig(attention(c), mlp(c), NormConfig("rms", c.number("rms_norm_eps", 1e-6)))
    return rotary_decoder(c, layer, head(c), types=layer_types(c, types), window=window)


LLAMA_INERT = ("is_llama_config", "internal_version")
LLAMA_NEUTRAL = {"rope_interleaved": False}
LLAMA = {
    "llama": Architecture(llama, NAMES, "model.", LLAMA_INERT, r"rotary_emb\.inv_freq$", neutral=LLAMA_NEUTRAL),
    "ministral": Architecture(ministral, NAMES, "model."),
    "mistral": Architecture(mistral, NAMES, "model.", ignored=r"rotary_emb\.inv_freq$"),
}


# Qwen2, with biases of queries, keys and values, Qwen3, with norms of queries and keys, and the texts of their models
# of images: in a text without pictures, all sections of the channels have the same position.

QK_NORMS = prefixed("model.layers.{n}.self_attn.", q_norm="q_norm", k_norm="k_norm")


def qwen(c: Config, base: float = 1e4, **options: Any) -> TransformerConfig:
    """Read what the configs share: the layers from `max_window_layers` on may have windows."""
    c.defaults(
        num_key_value_heads=32, sliding_window=4096, max_window_layers=28, max_position_embeddings=32768
    )  # fmt: skip
    layers, first = c.count("num_hidden_layers"), c.count("max_window_layers", least=0)
    window = c.count("sliding_window", None) if c.flag("use_sliding_window", False) else None
    types = ["sliding_attention" if window and n >= first else "full_attention" for n in range(layers)]
    layer = LayerConfig(attention(c, **options), mlp(c), NormConfig("rms", c.number("rms_norm_eps", 1e-6)))
    bases = {"full_attention": base}
    return rotary_decoder(c, layer, head(c), types=layer_types(c, types), window=window, bases=bases)


def qwen2(c: Config) -> TransformerConfig:
    """Read Qwen2Config."""
    return qwen(c, bias="qkv")


def mimo(c: Config) -> TransformerConfig:
    """Read the config of MiMo-7B, in its makers' code: a Qwen2; layers that predict later tokens are carried."""
    c.must("attention_bias", True)
    return qwen2(c)


def without_sections(c: Config) -> Config:
    """Return the config without the sections of the channels that turn with each axis."""
    for key in ("rope_scaling", "rope_parameters"):
        said = c.object(key)
        if "mrope_section" in said:
            plain = {name: "default" for name in ("type", "rope_type") if said.get(name) == "mrope"}
            sections = ("mrope_section", "mrope_interleaved")
            c.keys[key] = {name: value for name, value in {**said, **plain}.items() if name not in sections}
    return c


def of_images(c: Config) -> TransformerConfig:
    """Read Qwen2VLTextConfig or Qwen2_5_VLTextConfig."""
    c.defaults(num_key_value_heads=8, rms_norm_eps=1e-5, max_window_layers=80)
    return qwen(without_sections(c), base=1e6, bias="qkv")


def qwen3_of_images(c: Config) -> TransformerConfig:
    """Read Qwen3VLTextConfig."""
    c.defaults(head_dim=128, num_key_value_heads=32, max_position_embeddings=128000)
    norm, bias = NormConfig("rms", c.number("rms_norm_eps", 1e-6)), "qkvo" if c.flag("attention_bias", False) else ""
    layer = LayerConfig(attention(without_sections(c), bias=bias, qk_norm=norm), mlp(c), norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c), bases={"full_attention": 5e5})


def qwen3(c: Config) -> TransformerConfig:
    """Read Qwen3Config."""
    c.defaults(head_dim=128)
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    return qwen(c, bias=bias, qk_norm=NormConfig("rms", c.number("rms_norm_eps", 1e-6)))


WINDOW = ("sliding_window",)
"""A key that is read only where `use_sliding_window` is true."""
QWEN = {
    "qwen2": Architecture(qwen2, NAMES, "model.", WINDOW, neutral={"use_mrope": False}),
    "mimo": Architecture(mimo, NAMES, "model.", (*WINDOW, "num_nextn_predict_layers"), r"^model\.mtp_layers\."),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), Architecture(of_images, NAMES, "model.", WINDOW)),
    "qwen3_vl_text": Architecture(qwen3_of_images, {**NAMES, **QK_NORMS}, "model."),
    "qwen3": Architecture(qwen3, {**NAMES, **QK_NORMS}, "model.", WINDOW),
}


# InternLM3, CWM, Helium and EuroBERT: Llamas of which one renames keys, one has windows, one rotates neighboring
# channels, and one is an encoder.


def internlm3(c: Config) -> TransformerConfig:
    """Read InternLM3Config, which has one flag for the biases of attention and one for those of the MLP, both equal."""
    c.defaults(num_key_value_heads=2, head_dim=128, rms_norm_eps=1e-5, max_position_embeddings=32768)
    for new, old in {"attention_bias": "qkv_bias", "mlp_bias": "bias"}.items():
        stated = c(old, c(new, False))
        c.defaults(**{new: stated})
        c.must(new, stated)
    c.must("mlp_bias", c.flag("attention_bias"))
    return llama(c)


def cwm(c: Config) -> TransformerConfig:
    """Read CwmConfig."""
    c.defaults(num_key_value_heads=8, head_dim=128, sliding_window=8192, max_position_embeddings=131072)
    if not c.object("rope_scaling") and not c.object("rope_parameters"):
        c.keys["rope_scaling"] = CWM_SCALING
    types = ["sliding_attention" if n % 4 else "full_attention" for n in range(c.count("num_hidden_layers"))]
    feed, norm = mlp(c, bias=c.flag("mlp_bias", False)), NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    window = c.count("sliding_window", None)
    bases = {"full_attention": 1e6}
    layer = LayerConfig(attention(c), feed, norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c, types), window=window, bases=bases)


def helium(c: Config) -> TransformerConfig:
    """Read HeliumConfig; its output map has no bias, and is as wide as the states."""
    c.defaults(num_key_value_heads=20, head_dim=128, max_position_embeddings=4096)
    heads, width = c.count("num_attention_heads"), c.count("hidden_size")
    c.must("head_dim", channels_per_head(c, width, heads))
    bias, norm = "qkv" if c.flag("attention_bias", False) else "", NormConfig("rms", c.number("rms_norm_eps", 1e-8))
    layer = LayerConfig(attention(c, bias=bias), mlp(c, bias=c.flag("mlp_bias", False)), norm)
    bases = {"full_attention": 1e5}
    return rotary_decoder(c, layer, head(c), types=layer_types(c), bases=bases, pairing="interleaved")


def eurobert(c: Config) -> TransformerConfig:
    """Read EuroBertConfig, whose head has a bias where the MLPs have them."""
    c.defaults(max_position_embeddings=8192, rms_norm_eps=1e-5)
    c.must("is_causal", False)
    model = llama(c)
    return replace(model, causal=False, head=HeadConfig(head(c).tied, bias=c.flag("mlp_bias", False)))


CWM_SCALING = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
EUROBERT_INERT = (
    *("classifier_pooling", "clf_pooling", "mask_token_id"),
    *("bos_token", "eos_token", "pad_token", "mask_token"),  # in the makers' files, which name code of their own
)
LLAMAS = {
    "internlm3": Architecture(internlm3, NAMES, "model."),
    "cwm": Architecture(cwm, NAMES, "model."),
    "helium": Architecture(helium, NAMES, "model."),
    "eurobert": Architecture(eurobert, NAMES, "model.", inert=EUROBERT_INERT),
}


# SmolLM3: a Llama in which every fourth layer has no positions.


def smollm3(c: Config) -> TransformerConfig:
    """Read SmolLM3Config."""
    c.defaults(num_key_value_heads=4, max_position_embeddings=32768)
    layers, interval = c.count("num_hidden_layers"), c.count("no_rope_layer_interval", 4)
    rotated = c("no_rope_layers", [int((n + 1) % interval != 0) for n in range(layers)])
    if not isinstance(rotated, list) or len(rotated) != layers or not all(flag in (0, 1) for flag in rotated):
        rule = f"no_rope_layers must be num_hidden_layers={layers} numbers, 0 for a layer without positions, else 1"
        raise ValueError(f"{c.where}: {rule}, got {str(rotated)[:80]}")
    window = c.count("sliding_window", None) if c.flag("use_sliding_window", False) else None
    types = ["sliding_attention" if window and not turned else "full_attention" for turned in rotated]
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6))
    layer = LayerConfig(attention(c, bias=bias), mlp(c, bias=c.flag("mlp_bias", False)), norm)
    return rotary_decoder(
        c, layer, head(c, tied=True), types=layer_types(c, types), window=window, bases={"full_attention": 2e6},
        rotated=[bool(turned) for turned in rotated],
    )  # fmt: skip


SMOLLM3 = {"smollm3": Architecture(smollm3, NAMES, "model.", inert=("sliding_window", "max_window_layers"))}


# StarCoder 2: LayerNorm, plain MLPs and biases around rotary positions.

STARCODER2_MLP = prefixed("model.layers.{n}.mlp.", up="c_fc", down="c_proj")


def starcoder2(c: Config) -> TransformerConfig:
    """Read Starcoder2Config."""
    c.must("norm_type", "layer_norm")
    c.must("mlp_type", "default")
    c.defaults(num_key_value_heads=2, max_position_embeddings=4096)
    window, bias = c.count("sliding_window", None), c.flag("use_bias", True)
    types = ["sliding_attention" if window else "full_attention"] * c.count("num_hidden_layers")
    norm = NormConfig("layer", c.number("norm_epsilon", 1e-5), bias=True)
    plain = mlp(c, "gelu_pytorch_tanh", gated=False, bias=bias)
    layer = LayerConfig(attention(c, bias="qkvo" if bias else ""), plain, norm)
    return rotary_decoder(c, layer, head(c, tied=True), types=types, window=window)


STARCODER2_INERT = (
    *("residual_dropout", "embedding_dropout", "activation_function", "layer_norm_epsilon", "rms_norm_eps"),
    *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
)
"""Of training, and of GPT-BigCode, whose `activation_function` says "gelu" beside the `hidden_act` that is used."""
STARCODER2_NEUTRAL = {"scale_attn_weights": True}
STARCODER2 = {
    "starcoder2": Architecture(
        starcoder2, {**NAMES, **STARCODER2_MLP}, "model.", STARCODER2_INERT, neutral=STARCODER2_NEUTRAL
    )
}


# Seed-OSS and ERNIE 4.5: Llamas with biases of their own; ERNIE rotates neighboring channels.


def seed_oss(c: Config) -> TransformerConfig:
    """Read SeedOssConfig."""
    c.defaults(num_key_value_heads=8, head_dim=128, max_position_embeddings=524288)
    letters = {"qkv": c.flag("attention_bias", True), "o": c.flag("attention_out_bias", False)}
    bias = "".join(letter for letter, present in letters.items() if present)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-6))
    layer = LayerConfig(attention(c, bias=bias), mlp(c, bias=c.flag("mlp_bias", False)), norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


def ernie(c: Config) -> TransformerConfig:
    """Read Ernie4_5Config."""
    c.defaults(num_key_value_heads=2, head_dim=128, max_position_embeddings=131072)
    biased, norm = c.flag("use_bias", False), NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    layer = LayerConfig(attention(c, bias="qkvo" if biased else ""), mlp(c, bias=biased), norm)
    bases = {"full_attention": 5e5}
    return rotary_decoder(c, layer, head(c, tied=True), types=layer_types(c), bases=bases, pairing="interleaved")


SEED_OSS = {
    "seed_oss": Architecture(seed_oss, NAMES, "model.", inert=("residual_dropout",)),
    "ernie4_5": Architecture(ernie, NAMES, "model."),
}


# StableLM: a Llama with LayerNorms, a quarter of the channels rotated, and in some models a norm for every head.

PER_HEAD = prefixed("model.layers.{n}.self_attn.", q_norm="q_layernorm.norms.{h}", k_norm="k_layernorm.norms.{h}")


def stablelm(c: Config) -> TransformerConfig:
    """Read StableLmConfig."""
    c.defaults(max_position_embeddings=4096, num_key_value_heads=32)
    epsilon = c.number("layer_norm_eps", 1e-5)
    qk_norm = NormConfig("layer", epsilon) if c.flag("qk_layernorm", False) else None
    c.must("head_dim", channels_per_head(c, c.count("hidden_size"), c.count("num_attention_heads")))
    attention_config = attention(
        c, bias="qkv" if c.flag("use_qkv_bias", False) else "", qk_norm=qk_norm, qk_norm_over="heads"
    )
    parallel = "one" if c.flag("use_parallel_residual", False) else ""
    layer = LayerConfig(attention_config, mlp(c), NormConfig("layer", epsilon, bias=True), parallel=parallel)
    return rotary_decoder(c, layer, head(c), types=layer_types(c), rotated_fraction=0.25)


STABLELM = {"stablelm": Architecture(stablelm, {**NAMES, **PER_HEAD}, "model.")}
