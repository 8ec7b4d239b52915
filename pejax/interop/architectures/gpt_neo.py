"""GPT-Neo: learned positions, q·k without a scale, layers with and without windows in turn."""

from dataclasses import replace

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, head
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "transformer.wte", "position": "transformer.wpe", "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="ln_1", norm_mlp="ln_2", q="attn.attention.q_proj",
        k="attn.attention.k_proj", v="attn.attention.v_proj", o="attn.attention.out_proj", up="mlp.c_fc",
        down="mlp.c_proj",
    ),
}  # fmt: skip
INERT = ("embed_dropout", "resid_dropout", "summary_type", "summary_use_proj", "summary_activation",
         "summary_proj_to_labels", "summary_first_dropout")  # fmt: skip
BUFFERS = r"\.attn\.attention\.(bias|masked_bias)$"


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


ARCHITECTURES = {"gpt_neo": Architecture(gpt_neo, NAMES, "transformer.", INERT, BUFFERS)}
