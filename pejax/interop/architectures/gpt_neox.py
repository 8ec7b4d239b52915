"""GPT-NeoX and Pythia: attention and MLP in parallel, a quarter of the channels rotated."""

from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.interop.readers import attention, head, layer_types, mlp, rotary_decoder
from pejax.models import LayerConfig, NormConfig, TransformerConfig

NAMES = {
    "table": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out",
    **prefixed(
        "gpt_neox.layers.{n}.", norm_attention="input_layernorm", norm_mlp="post_attention_layernorm",
        qkv="attention.query_key_value", o="attention.dense", up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
    ),
}  # fmt: skip
BUFFERS = r"attention\.(bias|masked_bias|rotary_emb\.inv_freq)$"


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


ARCHITECTURES = {"gpt_neox": Architecture(gpt_neox, NAMES, "gpt_neox.", ignored=BUFFERS, qkv_by_head=True)}
