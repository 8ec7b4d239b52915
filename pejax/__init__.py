"""Positional encodings in JAX for text, pictures, videos and points in space."""

from pejax._process import versions as _versions  # noqa: F401 - first: it refuses another Python or JAX in one line

# isort: split
import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from pejax import encodings as encodings
from pejax import extensions as extensions
from pejax import functions as functions
from pejax import placement as placement
from pejax._attention.api import attention_weights, dot_product_attention, explain_attention
from pejax._attention.core.hooks import Hooks, attention_hooks
from pejax._attention.core.merge import merge_attention
from pejax._attention.encoded import attend, caches_rotated_keys
from pejax._attention.flax_api import attention_fn
from pejax._attention.kernel_check import check_kernels
from pejax._attention.linear import linear_attention
from pejax._attention.sharding import Sharding
from pejax._encodings.alibi import alibi_bias, alibi_slopes
from pejax._encodings.rope import pairing_permutation, rope_frequencies
from pejax._encodings.rope_axial import rope_axial_frequencies
from pejax._encodings.rope_mixed import rope_mixed_frequencies
from pejax._encodings.sinusoidal import sinusoidal_embedding
from pejax._encodings.t5 import t5_bucket
from pejax._extensions.apply import extend_encoding
from pejax._extensions.base import Rotary
from pejax._extensions.interpolation import interpolate_positions
from pejax._extensions.longrope import extend_longrope
from pejax._extensions.longrope_search import search_longrope
from pejax._extensions.temperature import scale_queries
from pejax._extensions.yarn import extend_yarn
from pejax._naming import pickling as _pickling  # noqa: F401 - encodings by name for pickle
from pejax._naming.explain import explain
from pejax._naming.make import make_encoding
from pejax._naming.register import register_encoding
from pejax._ops.rotary import rope_apply
from pejax._placement.from_host import offset_positions, segment_ids_of
from pejax._placement.sequence import positions_of
from pejax._record.compose import compose_encodings
from pejax._record.dims import Dims
from pejax._record.encoding import Band, Encoding, adapt, from_distance, init_params, merge_params
from pejax._tokens.patches import Patches, patchify, unpatchify
from pejax._tokens.positions import (
    TokenPositions,
    augment_positions,
    grid_positions,
    normalized_positions,
    packed_positions,
    segment_positions,
    segments_of_positions,
)
from pejax.encodings import ENCODINGS
from pejax.extensions import EXTENSIONS

try:
    __version__ = version("pejax")
except PackageNotFoundError:  # a copy of the repository, on a machine where nothing can be installed
    __version__ = "0+copy"

__all__ = [
    "ENCODINGS",
    "EXTENSIONS",
    "Band",
    "Dims",
    "Encoding",
    "Hooks",
    "Patches",
    "Rotary",
    "Sharding",
    "TokenPositions",
    "adapt",
    "alibi_bias",
    "alibi_slopes",
    "attend",
    "attention_fn",
    "attention_hooks",
    "attention_weights",
    "augment_positions",
    "caches_rotated_keys",
    "check_kernels",
    "compose_encodings",
    "dot_product_attention",
    "explain",
    "explain_attention",
    "extend_encoding",
    "extend_longrope",
    "extend_yarn",
    "from_distance",
    "grid_positions",
    "init_params",
    "interpolate_positions",
    "linear_attention",
    "make_encoding",
    "merge_attention",
    "merge_params",
    "normalized_positions",
    "offset_positions",
    "packed_positions",
    "pairing_permutation",
    "patchify",
    "positions_of",
    "register_encoding",
    "rope_apply",
    "rope_axial_frequencies",
    "rope_frequencies",
    "rope_mixed_frequencies",
    "scale_queries",
    "search_longrope",
    "segment_ids_of",
    "segment_positions",
    "segments_of_positions",
    "sinusoidal_embedding",
    "t5_bucket",
    "unpatchify",
]


def __getattr__(name: str) -> ModuleType:
    """Import specs, and the modules that need extras, when they are first used."""
    if name in ("interop", "models", "specs", "testing", "visualize"):
        return importlib.import_module(f"pejax.{name}")
    raise AttributeError(f"module 'pejax' has no attribute {name!r}")
