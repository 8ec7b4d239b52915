"""Attention with position as functions: a dense reference, tiles with linear memory, and adapters."""

from pejax.attention.adapter import attention_fn
from pejax.attention.dispatch import attention, attention_weights, explain_attention
from pejax.attention.encoded import caches_rotated_keys, encoded_attention
from pejax.attention.linear import linear_attention
from pejax.attention.merge import merge_attention
from pejax.attention.sharded import sharded_attention

__all__ = [
    "attention",
    "attention_fn",
    "attention_weights",
    "caches_rotated_keys",
    "encoded_attention",
    "explain_attention",
    "linear_attention",
    "merge_attention",
    "sharded_attention",
]
