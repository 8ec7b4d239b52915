"""Models in Flax NNX that receive position as an `Encoding` record."""

try:
    import flax  # noqa: F401
except ImportError as error:
    raise ImportError('pejax.models needs Flax: pip install "pejax[models]"') from error

from pejax.models.decoder import Decoder, DecoderConfig
from pejax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from pejax.models.execution import Execution
from pejax.models.generation import generate, stream
from pejax.models.layer_records import Attention, Block, Experts, Head, Mlp, Norm
from pejax.models.model_records import Picture, Text, TextPair
from pejax.models.nnx_attention import PositionalAttention, attention_module
from pejax.models.sampling import Sampling
from pejax.models.seq2seq_generate import generate_answers
from pejax.models.sharding import logical_axes, partition_specs
from pejax.models.vit import ViT, ViTConfig

__all__ = [
    "Attention",
    "Block",
    "Decoder",
    "DecoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Execution",
    "Experts",
    "Head",
    "Mlp",
    "Norm",
    "Picture",
    "PositionalAttention",
    "Sampling",
    "Text",
    "TextPair",
    "ViT",
    "ViTConfig",
    "attention_module",
    "generate",
    "generate_answers",
    "logical_axes",
    "partition_specs",
    "stream",
]
