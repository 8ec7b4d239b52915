"""OLMoE: norms of all channels of queries and keys together, experts weighted by the softmax over all of them."""

from pejax.interop.architecture import Architecture
from pejax.interop.architectures.llama import NAMES
from pejax.interop.architectures.qwen import QK_NORMS
from pejax.interop.architectures.qwen3_moe import EXPERTS
from pejax.interop.config import Config
from pejax.interop.readers import attention, experts, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig


def olmoe(c: Config) -> TransformerConfig:
    """Read OlmoeConfig."""
    c.must("clip_qkv", None)
    c.defaults(intermediate_size=2048, max_position_embeddings=4096)
    norm = NormConfig("rms", c.number("rms_norm_eps", 1e-5))
    bias = "qkvo" if c.flag("attention_bias", False) else ""
    chosen = experts(c, mlp(c), 64, 8, over_chosen=c.flag("norm_topk_prob", False))
    layer = LayerConfig(attention(c, bias=bias, qk_norm=norm, qk_norm_over="all"), chosen, norm)
    return rotary_decoder(c, layer, head(c), types=layer_types(c))


INERT = ("output_router_logits", "router_aux_loss_coef")
ARCHITECTURES = {"olmoe": Architecture(olmoe, {**NAMES, **QK_NORMS, **EXPERTS}, "model.", INERT)}
