"""T5, T5 v1.1, Flan-T5, mT5 and UMT5: encoder and decoder have relative biases of their own, q·k has no scale."""

from collections.abc import Callable
from dataclasses import replace

from pejax._record.specs import NONE, EncodingSpec
from pejax.interop.architecture import Architecture, if_gated, prefixed
from pejax.interop.config import Config
from pejax.models import (
    AttentionConfig,
    EncoderDecoderConfig,
    HeadConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
    TransformerConfig,
)


def _names(side: str, mlp: int) -> dict[str, str]:
    """Return the names of a stack; `mlp` is the number of the MLP among the parts of a layer in the file."""
    dense = f"{mlp}.DenseReluDense."
    names = {
        "relative": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        "norm": f"{side}.final_layer_norm",
        **prefixed(
            f"{side}.block.{{n}}.layer.", layer_relative="0.SelfAttention.relative_attention_bias",
            norm_attention="0.layer_norm", norm_cross="1.layer_norm", norm_mlp=f"{mlp}.layer_norm", up=f"{dense}wi",
            down=f"{dense}wo",
            **{part: f"0.SelfAttention.{part}" for part in "qkvo"},
            **{f"cross_{part}": f"1.EncDecAttention.{part}" for part in "qkvo"},
        ),
    }  # fmt: skip
    return {f"{side}.{part}": name for part, name in names.items()}


NAMES = {"table": "shared", "head": "lm_head", **_names("encoder", 1), **_names("decoder", 2)}
GATED = {f"{side}.{part}": NAMES[f"{side}.up"] + end
         for side in ("encoder", "decoder") for part, end in (("gate", "_0"), ("up", "_1"))}  # fmt: skip
CARRIED = r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$"
COPIES = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}
INERT = ("dropout_rate", "initializer_factor")


def _mlp(c: Config, projection: str) -> MlpConfig:
    """Return the MLP; "gated-gelu" is the approximate GELU, "gelu" the exact one."""
    said = c("feed_forward_proj", projection)
    gated = str(said).startswith("gated-")
    name = "gelu_new" if said == "gated-gelu" else str(said).removeprefix("gated-")
    c.must("is_gated_act", gated)
    c.must("dense_act_fn", name)
    mlp = Config({"feed_forward_proj": name}, c.where)
    return MlpConfig(c.count("d_ff", 2048), mlp.activation("feed_forward_proj"), gated)


def encoder_decoder(
    c: Config, projection: str, *, scaled: bool, shared: bool = True
) -> EncoderDecoderConfig | TransformerConfig:
    """Read the config of T5 or mT5; `is_encoder_decoder` is false in that of the encoder alone.

    Args:
        c: the config.
        projection: the default of `feed_forward_proj`.
        scaled: whether the states before the head are multiplied by width^-0.5.
        shared: whether all layers of a stack share one table of the bias.
    """
    heads, width, layers = c.count("num_heads", 8), c.count("d_model", 512), c.count("num_layers", 6)
    norm, mlp = NormConfig("rms", c.number("layer_norm_epsilon", 1e-6)), _mlp(c, projection)
    buckets, farthest = c.count("relative_attention_num_buckets", 32), c.count("relative_attention_max_distance", 128)
    own_table = {} if shared else {"share": "layer"}
    pe = EncodingSpec("t5", {"buckets": buckets, "max_distance": farthest, **own_table})
    attention_config = AttentionConfig(heads, heads, c.count("d_kv", 64), pe, scale=1.0)
    layer = LayerConfig(attention_config, mlp, norm)
    crossed = replace(layer, cross=replace(attention_config, pe=NONE))
    vocab, length = c.count("vocab_size"), c.count("n_positions", 512)
    decoder_layers = c.count("num_decoder_layers", layers)
    head = HeadConfig(c.flag("tie_word_embeddings", True), scale=width**-0.5 if scaled else 1.0)
    encoder = TransformerConfig(vocab, width, length, (layer,) * layers, causal=False, norm=norm, head=None)
    decoder = TransformerConfig(vocab, width, length, (crossed,) * decoder_layers, norm=norm, head=head)
    return EncoderDecoderConfig(encoder, decoder) if c.flag("is_encoder_decoder", True) else encoder


def scales_states(c: Config) -> bool:
    """Whether the states are scaled before the head; without the key, unless the config unties the head; null = no."""
    c.defaults(scale_decoder_outputs=c("tie_word_embeddings", True) is not False)
    return c.flag("scale_decoder_outputs", False)


def t5(c: Config) -> EncoderDecoderConfig | TransformerConfig:
    """Read T5Config."""
    return encoder_decoder(c, "relu", scaled=scales_states(c))


def mt5(c: Config) -> EncoderDecoderConfig | TransformerConfig:
    """Read MT5Config: the states are never scaled."""
    c.defaults(d_ff=1024, num_heads=6, num_layers=8)
    return encoder_decoder(c, "gated-gelu", scaled=False)


def umt5(c: Config) -> EncoderDecoderConfig | TransformerConfig:
    """Read UMT5Config, whose states are scaled as T5's."""
    c.defaults(d_ff=1024, num_heads=6, num_layers=8)
    return encoder_decoder(c, "gated-gelu", scaled=scales_states(c), shared=False)


def _entry(read: Callable[[Config], EncoderDecoderConfig | TransformerConfig]) -> Architecture:
    return Architecture(read, NAMES, inert=INERT, ignored=CARRIED, copies=COPIES, by_layer=if_gated(GATED))


ARCHITECTURES = {"t5": _entry(t5), "mt5": _entry(mt5), "umt5": _entry(umt5)}
