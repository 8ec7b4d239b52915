"""Positional encodings in JAX, for text and for vision."""

from pejax.attention import (
    attention,
    attention_fn,
    attention_weights,
    caches_rotated_keys,
    encoded_attention,
    explain_attention,
    linear_attention,
    merge_attention,
    sharded_attention,
)
from pejax.bands import rerope, self_extend
from pejax.encoding import Dims, Encoding, Tokens, attention_hooks, merge_params
from pejax.encodings.alibi import alibi_bias, alibi_slopes
from pejax.encodings.fire import fire_bias
from pejax.encodings.kerple import kerple_bias
from pejax.encodings.rope import pairing_permutation, rope_frequencies
from pejax.encodings.rope_axial import rope_axial_frequencies
from pejax.encodings.rope_mixed import rope_mixed_frequencies
from pejax.encodings.shaw import shaw_logits, shaw_values
from pejax.encodings.sinusoidal import sinusoidal_embedding
from pejax.encodings.t5 import t5_bias, t5_bucket
from pejax.encodings.transformer_xl import transformer_xl_logits
from pejax.explain import explain
from pejax.extension import (
    EXTENSIONS,
    extend_dynamic_ntk,
    extend_linear,
    extend_llama3,
    extend_longrope,
    extend_ntk,
    extend_yarn,
    scale_alibi_slopes,
)
from pejax.positions import grid_positions, interpolate_positions, packed_positions, packed_tokens
from pejax.registry import ENCODINGS, make_encoding
from pejax.resize import lookup_embedding, resize_embedding
from pejax.rotation import rope_apply
from pejax.search import search_longrope
from pejax.squeeze import squeeze_positions
from pejax.temperature import llama4_temperature, log_n_temperature, scale_queries

__all__ = [
    "ENCODINGS",
    "EXTENSIONS",
    "Dims",
    "Encoding",
    "Tokens",
    "alibi_bias",
    "alibi_slopes",
    "attention",
    "attention_fn",
    "attention_hooks",
    "attention_weights",
    "caches_rotated_keys",
    "encoded_attention",
    "explain",
    "explain_attention",
    "extend_dynamic_ntk",
    "extend_linear",
    "extend_llama3",
    "extend_longrope",
    "extend_ntk",
    "extend_yarn",
    "fire_bias",
    "grid_positions",
    "interpolate_positions",
    "kerple_bias",
    "linear_attention",
    "llama4_temperature",
    "log_n_temperature",
    "lookup_embedding",
    "make_encoding",
    "merge_attention",
    "merge_params",
    "packed_positions",
    "packed_tokens",
    "pairing_permutation",
    "rerope",
    "resize_embedding",
    "rope_apply",
    "rope_axial_frequencies",
    "rope_frequencies",
    "rope_mixed_frequencies",
    "scale_alibi_slopes",
    "scale_queries",
    "search_longrope",
    "self_extend",
    "sharded_attention",
    "shaw_logits",
    "shaw_values",
    "sinusoidal_embedding",
    "squeeze_positions",
    "t5_bias",
    "t5_bucket",
    "transformer_xl_logits",
]
