"""GPT-2: learned positions, LayerNorm, linear layers whose kernels are stored as ours (Conv1D)."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, head, uniform_model
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "transformer.wte", "position": "transformer.wpe", "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="ln_1", norm_mlp="ln_2", qkv="attn.c_attn", o="attn.c_proj",
        up="mlp.c_fc", down="mlp.c_proj",
    ),
}  # fmt: skip
INERT = (
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


ARCHITECTURES = {
    "gpt2": Architecture(gpt2, NAMES, "transformer.", INERT, r"\.attn\.(bias|masked_bias)$", in_out=True),
}
