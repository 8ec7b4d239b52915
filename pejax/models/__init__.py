"""Models in Flax NNX that receive position as an `Encoding` record."""

from pejax.models.adapter import PositionalAttention, attention_module
from pejax.models.answers import generate_answers
from pejax.models.decoder import Decoder, DecoderConfig
from pejax.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from pejax.models.execution import Execution
from pejax.models.generate import Sampling, generate
from pejax.models.sharding import logical_axes, partition_specs
from pejax.models.vit import ViT, ViTConfig

__all__ = [
    "Decoder",
    "DecoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Execution",
    "PositionalAttention",
    "Sampling",
    "ViT",
    "ViTConfig",
    "attention_module",
    "generate",
    "generate_answers",
    "logical_axes",
    "partition_specs",
]
