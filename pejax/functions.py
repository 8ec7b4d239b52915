"""The pure functions of arrays behind encodings and extensions. They need no record and no model.

Letters in shapes: B batch, T query length, S key length, H query heads, K key/value heads, D head dim, F = D/2
frequencies, A position axes, R relative distances, C channels.
"""

from pejax._encodings.alibi import alibi_bias, alibi_slopes
from pejax._encodings.cpb import cpb_bias
from pejax._encodings.fire import fire_bias
from pejax._encodings.kerple import kerple_bias
from pejax._encodings.lookhere import lookhere_bias, lookhere_cones, lookhere_slopes
from pejax._encodings.relative_table import relative_table_bias
from pejax._encodings.rope import pairing_permutation, rope_frequencies
from pejax._encodings.rope_axial import rope_axial_frequencies
from pejax._encodings.rope_mixed import rope_mixed_frequencies
from pejax._encodings.shaw import shaw_logits, shaw_values
from pejax._encodings.sinusoidal import sinusoidal_embedding
from pejax._encodings.t5 import t5_bias, t5_bucket
from pejax._encodings.transformer_xl import transformer_xl_logits
from pejax._extensions.by_step import extend_by_step
from pejax._extensions.clips import extend_hard_clip, extend_soft_clip
from pejax._extensions.interpolation import interpolate_positions
from pejax._extensions.linear import extend_linear
from pejax._extensions.llama3 import extend_llama3
from pejax._extensions.longrope import extend_longrope
from pejax._extensions.ntk import extend_dynamic_ntk, extend_ntk
from pejax._extensions.resonance import extend_resonance
from pejax._extensions.riflex import extend_riflex
from pejax._extensions.slopes import scale_alibi_slopes
from pejax._extensions.temperature import llama4_temperature, log_n_temperature
from pejax._extensions.yarn import extend_yarn
from pejax._ops.resize import lookup_embedding, resize_embedding
from pejax._ops.rotary import rope_apply

__all__ = [
    "alibi_bias",
    "alibi_slopes",
    "cpb_bias",
    "extend_by_step",
    "extend_dynamic_ntk",
    "extend_hard_clip",
    "extend_linear",
    "extend_llama3",
    "extend_longrope",
    "extend_ntk",
    "extend_resonance",
    "extend_riflex",
    "extend_soft_clip",
    "extend_yarn",
    "fire_bias",
    "interpolate_positions",
    "kerple_bias",
    "llama4_temperature",
    "log_n_temperature",
    "lookhere_bias",
    "lookhere_cones",
    "lookhere_slopes",
    "lookup_embedding",
    "pairing_permutation",
    "relative_table_bias",
    "resize_embedding",
    "rope_apply",
    "rope_axial_frequencies",
    "rope_frequencies",
    "rope_mixed_frequencies",
    "scale_alibi_slopes",
    "shaw_logits",
    "shaw_values",
    "sinusoidal_embedding",
    "t5_bias",
    "t5_bucket",
    "transformer_xl_logits",
]
