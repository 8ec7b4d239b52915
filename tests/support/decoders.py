"""Tiny decoders for every encoding of sequences, all numbers arbitrary, and one compiled forward pass for each."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pejax import ENCODINGS, make_encoding
from pejax._record.encoding import adapt, merge_params
from pejax.models import Decoder, TransformerConfig, decoder

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
    return of_config(decoder(**(TINY | options)), seed)


def of_config(config: TransformerConfig, seed: int = 0) -> Decoder:
    """Make the decoder of a config in which no parameter is zero."""
    draw = np.random.default_rng(seed)
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


@functools.lru_cache(maxsize=16)
def compiled(hook: Callable) -> Callable:
    """Return the hook of a pair as one program, which hundreds of pairs share."""
    return jax.jit(hook)


def rows_oracle(model: Decoder, ids, seen: Callable = lambda i: {j: j for j in range(i + 1)}) -> np.ndarray:
    """Return the logits where query i and its keys have the parameters of one length: a loop over pairs, float64.

    Args:
        model: a tiny decoder.
        ids: the tokens of one text.
        seen: i -> the position of every key that query i sees, its own last; the length is that position + 1.
    """
    stack, dims = model.stack, model.stack.dims
    encoding = stack.encoding
    at = functools.partial(adapt, encoding)
    turn_keys = encoding.rotate_keys or encoding.rotate
    x = model.embedding(ids[None])
    shared = nnx.as_pure(stack.position)
    if encoding.embed is not None:
        place = lambda i: encoding.embed(at(shared, seen(i)[i] + 1), x[:, i : i + 1], jnp.array([seen(i)[i]]))
        x = jnp.concatenate([place(i) for i in range(len(ids))], axis=1)
    for number in range(len(model.config.layers)):
        static, params = nnx.split(stack.layers.blocks)
        block = nnx.merge(static, jax.tree.map(lambda leaf: leaf[number], params))  # noqa: B023
        q, k, v = block.attention._heads(block.norm_attention(x))
        by_depth = encoding.layer_constants or (lambda layers: {})
        constants = jax.tree.map(lambda leaf: leaf[number], by_depth(len(model.config.layers)))  # noqa: B023
        layer_params = merge_params(merge_params(shared, constants), nnx.as_pure(block.attention.position))
        rows = []
        for i in range(len(ids)):
            keys = seen(i)
            position = keys[i]
            p = at(layer_params, position + 1)
            pairs = []
            for j, key_position in keys.items():
                bands = [
                    band
                    for band in encoding.bands
                    if band.low <= position - key_position
                    and (band.high is None or position - key_position < band.high)
                ]
                turn, turn_k = (bands[0].rotate, bands[0].rotate_keys) if bands else (encoding.rotate, turn_keys)
                qi, kj = q[:, i : i + 1], k[:, j : j + 1]
                qi = qi if turn is None else compiled(turn)(p, qi, jnp.array([position]))
                kj = kj if turn_k is None else compiled(turn_k)(p, kj, jnp.array([key_position]))
                pairs.append((key_position, np.asarray(qi[0, 0]), np.asarray(kj[0, 0])))
            heads = []
            for h in range(dims.heads):
                g = h // (dims.heads // dims.kv_heads)
                scores = []
                for key_position, qi, kj in pairs:
                    score = dims.scale * np.dot(np.float64(qi[h]), np.float64(kj[g]))
                    scores.append(score + bias(encoding, p, h, qi[h], kj[g], position, key_position))
                weights = np.exp(np.array(scores) - max(scores))
                weights /= weights.sum()
                heads.append(
                    weights @ np.float64(v[0, [*keys], g]) + value(encoding, p, h, weights, position, [*keys.values()])
                )
            rows.append(np.concatenate(heads))
        x = x + block.attention.out(jnp.asarray(np.stack(rows), jnp.float32)[None])
        x = x + block.mlp(block.norm_mlp(x))
    return np.asarray(model.logits(stack.norm(x))[0])


def of_head(params, h):
    return {**params.get("all", {}), **jax.tree.map(lambda leaf: leaf[h], params.get("heads", {}))}


def bias(encoding, params, h, q, k, i, j) -> float:
    if encoding.bias is None:
        return 0.0
    q, k = jnp.asarray(q)[None], jnp.asarray(k)[None]
    return float(compiled(encoding.bias)(of_head(params, h), q, k, jnp.array([i]), jnp.array([j]))[0, 0])


def value(encoding, params, h, weights, i, keys):
    if encoding.relative_values is None:
        return 0.0
    weights = jnp.asarray(weights, jnp.float32)[None]
    return np.asarray(encoding.relative_values(of_head(params, h), weights, jnp.array([i]), jnp.array(keys))[0])
