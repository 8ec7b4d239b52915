"""GPT-2 and the decoders after it, each with names of tensors of its own: GPT-NeoX, OPT, GPT-J and GPT-Neo."""

from dataclasses import replace

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, channels_per_head, head, layer_types, mlp, rotary_decoder, uniform_model
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

# GPT-2: learned positions, LayerNorm, linear layers whose kernels are stored as ours (Conv1D).

GPT2_NAMES = {
    "table": "transformer.wte", "position": "transformer.wpe", "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="ln_1", norm_mlp="ln_2", qkv="attn.c_attn", o="attn.c_proj",
        up="mlp.c_fc", down="mlp.c_proj",
    ),
}  # fmt: skip
GPT2_INERT = (
    *("n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "summary_type", "summary_use_proj"),
    *("summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
)


def gpt2(c: Config) -> TransformerConfig:
    """Read GPT2Config."""
    c.must("scale_attn_weights", True)
    c.must("scale_attn_by_inverse_layer_idx", False)
    width, heads = c.count("n_embd", 768), c.count("n_head", 12)
    norm = NormConfig("layer", c.number("layer_norm_epsilon", 1e-5), bias=True)
    attention = AttentionConfig(heads, heads, channels_per_head(c, width, heads), EncodingSpec("learned"), bias="qkvo")
    hidden = c.count("n_inner", 4 * width)
    layer = LayerConfig(attention, MlpConfig(hidden, c.activation("activation_function", "gelu_new"), bias=True), norm)
    length = c.count("n_positions", 1024)
    return uniform_model(c, layer, width=width, layers="n_layer", length=length, norm=norm, head=head(c, tied=True))


GPT2 = {
    "gpt2": Architecture(gpt2, GPT2_NAMES, "transformer.", GPT2_INERT, r"\.attn\.(bias|masked_bias)$", in_out=True),
}


# GPT-NeoX and Pythia: attention and MLP in parallel, a quarter of the channels rotated.

GPT_NEOX_NAMES = {
    "table": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out",
    **prefixed(
        "gpt_neox.layers.{n}.", norm_attention="input_layernorm", norm_mlp="post_attention_layernorm",
        qkv="attention.query_key_value", o="attention.dense", up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
    ),
}  # fmt: skip
GPT_NEOX_BUFFERS = r"attention\.(bias|masked_bias|rotary_emb\.inv_freq)$"


def gpt_neox(c: Config) -> TransformerConfig:
    """Read GPTNeoXConfig, whose keys are `rotary_emb_base` and `rotary_pct`; those of others must agree with them."""
    norm = NormConfig("layer", c.number("layer_norm_eps", 1e-5), bias=True)
    bias = "qkvo" if c.flag("attention_bias", True) else ""
    parallel = "two" if c.flag("use_parallel_residual", True) else ""
    layer = LayerConfig(attention(c, bias=bias), mlp(c, "gelu", gated=False, bias=True), norm, parallel=parallel)
    c.defaults(max_position_embeddings=2048)
    base, fraction = c.number("rotary_emb_base", 1e4), c.number("rotary_pct", 0.25)
    c.must("rope_theta", base)
    c.must("partial_rotary_factor", fraction)
    return rotary_decoder(
        c, layer, head(c), types=layer_types(c), rotated_fraction=fraction, bases={"full_attention": base}
    )


GPT_NEOX = {"gpt_neox": Architecture(gpt_neox, GPT_NEOX_NAMES, "gpt_neox.", ignored=GPT_NEOX_BUFFERS, qkv_by_head=True)}


# OPT: learned positions whose table has two rows before the first, ReLU.

OPT_NAMES = {
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


OPT_INERT = ("activation_dropout", "layerdrop", "init_std", "prefix")
OPT = {"opt": Architecture(opt, OPT_NAMES, "model.", OPT_INERT, skipped_rows=2)}


# GPT-J: attention and MLP read one norm; neighboring channels are rotated together.

GPTJ_NAMES = {
    "table": "transformer.wte", "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="ln_1", q="attn.q_proj", k="attn.k_proj", v="attn.v_proj",
        o="attn.out_proj", up="mlp.fc_in", down="mlp.fc_out",
    ),
}  # fmt: skip
GPTJ_INERT = (
    *("n_ctx", "rotary", "scale_attn_weights", "summary_type", "summary_use_proj", "summary_activation"),
    *("summary_proj_to_labels", "summary_first_dropout"),
)
GPTJ_BUFFERS = r"\.attn\.(bias|masked_bias|embed_positions)$"


def gptj(c: Config) -> TransformerConfig:
    """Read GPTJConfig."""
    width, heads = c.count("n_embd", 4096), c.count("n_head", 16)
    norm = NormConfig("layer", c.number("layer_norm_epsilon", 1e-5), bias=True)
    channels, turned = channels_per_head(c, width, heads), c.count("rotary_dim", 64)
    pe = EncodingSpec("rope", {"base": 10000.0, "pairing": "interleaved", "rotary_dim": turned})
    attention = AttentionConfig(heads, heads, channels, pe)
    hidden = c.count("n_inner", 4 * width)
    plain = MlpConfig(hidden, c.activation("activation_function", "gelu_new"), bias=True)
    layer, length = LayerConfig(attention, plain, norm, parallel="one"), c.count("n_positions", 2048)
    return uniform_model(c, layer, width=width, layers="n_layer", length=length, norm=norm, head=head(c, bias=True))


GPTJ = {"gptj": Architecture(gptj, GPTJ_NAMES, "transformer.", GPTJ_INERT, GPTJ_BUFFERS)}


# GPT-Neo: learned positions, q·k without a scale, layers with and without windows in turn.

GPT_NEO_NAMES = {
    "table": "transformer.wte", "position": "transformer.wpe", "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="ln_1", norm_mlp="ln_2", q="attn.attention.q_proj",
        k="attn.attention.k_proj", v="attn.attention.v_proj", o="attn.attention.out_proj", up="mlp.c_fc",
        down="mlp.c_proj",
    ),
}  # fmt: skip
GPT_NEO_INERT = ("embed_dropout", "resid_dropout", "summary_type", "summary_use_proj", "summary_activation",
                 "summary_proj_to_labels", "summary_first_dropout")  # fmt: skip
GPT_NEO_BUFFERS = r"\.attn\.attention\.(bias|masked_bias)$"


def _kinds(c: Config, layers: int) -> list[str]:
    """Return "global" or "local" for every layer, from `attention_types`: pairs of a pattern and its repeats."""
    value = c("attention_types", [[["global", "local"], 12]])
    is_pair = lambda item: isinstance(item, list) and [type(part) for part in item] == [list, int] and item[1] > 0
    pairs = value if isinstance(value, list) and all(map(is_pair, value)) else []
    fits = sum(len(pattern) * repeats for pattern, repeats in pairs) == layers
    kinds = [kind for pattern, repeats in pairs for kind in pattern * repeats] if fits else []
    if not kinds or any(kind not in ("global", "local") for kind in kinds):
        rule = f"attention_types must be pairs of names out of global, local and repeats, for num_layers={layers}"
        raise ValueError(f"{c.where}: {rule}, got {str(value)[:80]}")
    c.must("attention_layers", kinds)
    return kinds


def gpt_neo(c: Config) -> TransformerConfig:
    """Read GPTNeoConfig."""
    width, heads, layers = c.count("hidden_size", 2048), c.count("num_heads", 16), c.count("num_layers", 24)
    norm = NormConfig("layer", c.number("layer_norm_epsilon", 1e-5), bias=True)
    channels, window = channels_per_head(c, width, heads), c.count("window_size", 256)
    hidden, activation = c.count("intermediate_size", 4 * width), c.activation("activation_function", "gelu_new")
    everywhere = AttentionConfig(heads, heads, channels, EncodingSpec("learned"), scale=1.0, bias="o")
    plain = MlpConfig(hidden, activation, bias=True)
    attentions = {"global": everywhere, "local": replace(everywhere, window=window)}
    return TransformerConfig(
        c.count("vocab_size"), width, c.count("max_position_embeddings", 2048),
        tuple(LayerConfig(attentions[kind], plain, norm) for kind in _kinds(c, layers)), norm=norm,
        head=head(c, tied=True), padding="counted",
    )  # fmt: skip


GPT_NEO = {"gpt_neo": Architecture(gpt_neo, GPT_NEO_NAMES, "transformer.", GPT_NEO_INERT, GPT_NEO_BUFFERS)}
