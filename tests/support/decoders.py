"""Tiny decoders for every encoding of sequences, all numbers arbitrary, and one compiled forward pass for each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pejax import ENCODINGS, make_encoding
from pejax.models import Decoder, decoder

VOCAB, LENGTH = 11, 16
TINY = {"vocab": VOCAB, "length": LENGTH, "width": 16, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 16}
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def serves_text(name: str) -> bool:
    try:
        make_encoding(name, decoder(**TINY).dims)
    except ValueError:
        return False
    return True


TEXT_ENCODINGS = [name for name in ENCODINGS if serves_text(name)]


@functools.cache
def make(seed: int = 0, **options) -> Decoder:
    """Make a tiny decoder in which no parameter is zero."""
    draw = np.random.default_rng(seed)
    config = decoder(**(TINY | options))
    static, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    fill = lambda leaf: jnp.asarray(0.5 + draw.normal(size=leaf.shape, scale=0.3), leaf.dtype)
    center = lambda path, leaf: leaf - (0.5 if "kernel" in jax.tree_util.keystr(path) else 0.0)
    return nnx.merge(static, jax.tree_util.tree_map_with_path(center, jax.tree.map(fill, shapes)))


def ids_of(*shape: int, seed: int = 1) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(VOCAB, size=shape), jnp.int32)


@functools.partial(jax.jit, static_argnames="static", compiler_options=FAST)
def _logits(static, params, ids, segments, extent):
    return nnx.merge(static, params)(ids, segment_ids=segments, extent=extent)


def logits(model: Decoder, ids, segment_ids=None, *, extent=None) -> jax.Array:
    """Return the logits; models of equal configs share a compilation."""
    return _logits(*nnx.split(model), ids, segment_ids, extent)
