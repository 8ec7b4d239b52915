"""Models in Flax NNX that receive position as an `Encoding` record."""

from pejax._process.versions import require_version, requirement

try:
    import flax
except ImportError as error:
    raise ImportError(f"pejax.models needs Flax: pip install {requirement('flax')}") from error
else:
    require_version("flax", flax.__version__, by="pejax.models")

from pejax.models.configs.layer import AttentionConfig, HeadConfig, LayerConfig, MlpConfig, MoEConfig, NormConfig
from pejax.models.configs.model import DiTConfig, EncoderDecoderConfig, TransformerConfig, ViTConfig
from pejax.models.configs.recipes import decoder, dit, encoder_decoder, vit
from pejax.models.execution import Execution
from pejax.models.generation.answers import generate_answers
from pejax.models.generation.decoder import generate, stream
from pejax.models.generation.sampling import Sampling
from pejax.models.networks.decoder import Decoder
from pejax.models.networks.dit import DiT
from pejax.models.networks.encoder_decoder import EncoderDecoder
from pejax.models.networks.vit import ViT
from pejax.models.nnx_attention import PositionalAttention, attention_module
from pejax.models.parts.rolling import Rolling
from pejax.models.sharding import logical_axes, partition_specs

__all__ = [
    "AttentionConfig",
    "Decoder",
    "DiT",
    "DiTConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Execution",
    "HeadConfig",
    "LayerConfig",
    "MlpConfig",
    "MoEConfig",
    "NormConfig",
    "PositionalAttention",
    "Rolling",
    "Sampling",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "attention_module",
    "decoder",
    "dit",
    "encoder_decoder",
    "generate",
    "generate_answers",
    "logical_axes",
    "partition_specs",
    "stream",
    "vit",
]
