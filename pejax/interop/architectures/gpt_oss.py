"""gpt-oss: attention sinks, layers with and without windows in turn, YaRN, experts with biases and a clamped SwiGLU."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.architectures.llama import NAMES
from pejax.interop.config import Config
from pejax.interop.readers import attention, experts, head, layer_types, rotary_decoder
from pejax.models import LayerConfig, MlpConfig, NormConfig, TransformerConfig

OWN = prefixed(
    "model.layers.{n}.", sinks="self_attn.sinks", router="mlp.router", gate_up="mlp.experts.gate_up_proj",
    down="mlp.experts.down_proj",
)  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096}  # fmt: skip
INERT = ("initial_context_length", "output_router_logits", "router_aux_loss_coef", "experts_per_token")


def gpt_oss(c: Config) -> TransformerConfig:
    """Read GptOssConfig."""
    for key, value in {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0}.items():
        c.must(key, value)
    if not c.object("rope_scaling") and not c.object("rope_parameters"):
        c.keys["rope_scaling"] = YARN
    c.defaults(num_key_value_heads=8, head_dim=64, sliding_window=128, max_position_embeddings=131072)
    types = ["full_attention" if n % 2 else "sliding_attention" for n in range(c.count("num_hidden_layers"))]
    bias = "qkvo" if c.flag("attention_bias", True) else ""
    mlp = MlpConfig(c.count("intermediate_size"), "clamped_swiglu", gated=True, bias=True)
    router = experts(c, mlp, 128, 4, router_bias=True)
    layer = LayerConfig(attention(c, bias=bias, sinks=True), router, NormConfig("rms", c.number("rms_norm_eps", 1e-5)))
    return rotary_decoder(
        c, layer, head(c), types=layer_types(c, types), window=c.count("sliding_window", None),
        bases={"full_attention": 150000.0},
    )  # fmt: skip


ARCHITECTURES = {"gpt_oss": Architecture(gpt_oss, {**NAMES, **OWN}, "model.", INERT, experts="stacked")}
