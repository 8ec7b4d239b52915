"""Models in Flax NNX that receive position as an `Encoding` record."""

from pejax.models.adapter import PositionalAttention, attention_module
from pejax.models.sharding import logical_axes, partition_specs
from pejax.models.vit import ViT, ViTConfig

__all__ = ["PositionalAttention", "ViT", "ViTConfig", "attention_module", "logical_axes", "partition_specs"]
