"""GPT-J: attention and MLP read one norm; neighboring channels are rotated together."""

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import channels_per_head, head, uniform_model
from pejax.models import AttentionConfig, LayerConfig, MlpConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "transformer.wte", "norm": "transformer.ln_f", "head": "lm_head",
    **prefixed(
        "transformer.h.{n}.", norm_attention="ln_1", q="attn.q_proj", k="attn.k_proj", v="attn.v_proj",
        o="attn.out_proj", up="mlp.fc_in", down="mlp.fc_out",
    ),
}  # fmt: skip
INERT = (
    *("n_ctx", "rotary", "scale_attn_weights", "summary_type", "summary_use_proj", "summary_activation"),
    *("summary_proj_to_labels", "summary_first_dropout"),
)
BUFFERS = r"\.attn\.(bias|masked_bias|embed_positions)$"


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


ARCHITECTURES = {"gptj": Architecture(gptj, NAMES, "transformer.", INERT, BUFFERS)}
