"""One plain, small call of every public function, factory, extension and constructor, by name."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import pejax
from pejax import functions as f
from pejax import models, placement
from pejax.extensions import EXTENSIONS
from pejax.specs import EncodingSpec, LayerPattern, SumSpec

DIMS = pejax.Dims(4, 8, extent=8, causal=True)


class Call(NamedTuple):
    """A function and its arguments by name. `slow`: whether calls compile programs."""

    function: Callable
    arguments: dict[str, Any]
    slow: bool = False


NO_CALLS = {
    "ENCODINGS": "a table",
    "EXTENSIONS": "a table",
    "register_encoding": "it has tests of refusals of its own",
    "Band": "a record that attention reads, checked where it is an argument",
    "Hooks": "attention_hooks makes it",
    "Patches": "patchify makes it",
    "Part": "text, image, video and unplaced make it",
    "Rotary": "a record, checked field by field where it is an argument",
    "TokenPositions": "a pytree, checked field by field where it is an argument",
}
"""Public names that are not called, and why."""


def floats(*shape: int) -> jax.Array:
    """Return an array of different numbers."""
    return jnp.asarray(np.linspace(-1.0, 1.0, int(np.prod(shape)), dtype=np.float32).reshape(shape))


@functools.cache
def plain_calls(group: str) -> dict[str, Call]:
    """Return the calls of one of `GROUPS` by name."""
    return GROUPS[group]()


def _functions() -> dict[str, Call]:
    at, keys, key = jnp.arange(5), jnp.arange(7), jax.random.key(0)
    sides, slopes = {"q_positions": at, "k_positions": keys}, jnp.asarray([0.5, 0.25, 0.125])
    grid, grid_of = pejax.grid_positions(2, 3), lambda sizes, **options: pejax.grid_positions(sizes, **options)
    patches = {"q_positions": grid, "k_positions": grid}
    frequencies = pejax.rope_frequencies(8)
    rotary = {"frequencies": frequencies, "rotary": pejax.Rotary(10000.0, 8, 64)}
    scaled = {**rotary, "factor": 4.0, "trained_length": 16}
    q, cones = floats(5, 3, 8), f.lookhere_cones(4)
    cpb = pejax.init_params(pejax.encodings.cpb(pejax.Dims(3, 8, extent=5), hidden=6), key)
    fire_params = pejax.init_params(pejax.encodings.fire(pejax.Dims(3, 8, extent=5), hidden=6), key)
    calls = {
        "alibi_bias": (f.alibi_bias, {**sides, "slopes": slopes}),
        "alibi_slopes": (f.alibi_slopes, {"heads": 6, "bias_max": 8.0}),
        "cpb_bias": (f.cpb_bias, {**sides, "params": cpb, "extent": 5}),
        "fire_bias": (f.fire_bias, {**sides, "params": fire_params, "causal": True, "threshold": 4.0}),
        "kerple_bias": (f.kerple_bias, {**sides, "r1": slopes, "r2": slopes, "variant": "log"}),
        "lookhere_cones": (f.lookhere_cones, {"heads": 4, "axes": 2, "fov": 90}),
        "lookhere_slopes": (f.lookhere_slopes, {"cones": cones, "depth": 0.5}),
        "lookhere_bias": (f.lookhere_bias, {**patches, "slopes": floats(4), "cones": cones}),
        "relative_table_bias": (f.relative_table_bias, {**sides, "table": floats(3, 9)}),
        "shaw_logits": (f.shaw_logits, {"q": q, **sides, "key_table": floats(5, 8), "scale": 0.5}),
        "shaw_values": (f.shaw_values, {"weights": floats(3, 5, 7), **sides, "value_table": floats(5, 8)}),
        "sinusoidal_embedding": (
            f.sinusoidal_embedding,
            {"positions": at, "width": 8, "axes": 1, "base": 100.0, "layout": "concat"},
        ),
        "t5_bias": (f.t5_bias, {**sides, "table": floats(3, 8), "bidirectional": True, "max_distance": 16}),
        "t5_bucket": (f.t5_bucket, {"relative": at, "bidirectional": True, "buckets": 8, "max_distance": 16}),
        "transformer_xl_logits": (
            f.transformer_xl_logits,
            {"q": q, "k": floats(7, 3, 8), **sides, "u": floats(3, 8), "v": floats(3, 8), "w_r": floats(3, 4, 8),
             "scale": 0.5, "base": 100.0},
        ),
        "rope_apply": (
            f.rope_apply,
            {"x": q, "positions": at, "frequencies": frequencies, "pairing": "half", "attention_factor": 1.5},
        ),
        "rope_frequencies": (
            f.rope_frequencies, {"head_dim": 8, "base": 100.0, "rotary_dim": 4, "layout": "proportional"},
        ),
        "rope_axial_frequencies": (
            f.rope_axial_frequencies, {"head_dim": 8, "axes": 2, "base": 100.0, "layout": "concat"},
        ),
        "rope_mixed_frequencies": (
            f.rope_mixed_frequencies, {"key": key, "heads": 3, "head_dim": 8, "axes": 2, "base": 10.0},
        ),
        "pairing_permutation": (
            f.pairing_permutation, {"head_dim": 8, "source": "half", "target": "interleaved", "rotary_dim": 4},
        ),
        "interpolate_positions": (f.interpolate_positions, {"positions": keys, "trained_length": 4, "length": 7}),
        "log_n_temperature": (f.log_n_temperature, {"positions": keys, "trained_length": 4}),
        "llama4_temperature": (f.llama4_temperature, {"positions": keys, "floor_length": 2, "scale": 0.1, "offset": 0}),
        "scale_alibi_slopes": (f.scale_alibi_slopes, {"slopes": slopes, "trained_length": 4, "length": 8}),
        "resize_embedding": (
            f.resize_embedding,
            {"table": floats(7, 8), "old_grid": (2, 3), "new_grid": (4, 6), "method": "bilinear", "antialias": False,
             "prefix": 1},
        ),
        "lookup_embedding": (f.lookup_embedding, {"table": floats(7, 8), "positions": at}),
        "extend_linear": (f.extend_linear, scaled),
        "extend_ntk": (f.extend_ntk, scaled),
        "extend_dynamic_ntk": (f.extend_dynamic_ntk, scaled),
        "extend_riflex": (
            f.extend_riflex,
            {"frequencies": f.rope_axial_frequencies(8, axes=1), "rotary": pejax.Rotary(100.0, 8, 64), "axis": 0,
             "repeats_at": 9, "trained_length": 16},
        ),
        "extend_soft_clip": (f.extend_soft_clip, {**rotary, "pairs": 3}),
        "extend_hard_clip": (f.extend_hard_clip, {**rotary, "trained_length": 16}),
        "extend_resonance": (f.extend_resonance, rotary),
        "extend_by_step": (
            f.extend_by_step,
            {"frequencies": frequencies, "rotary": pejax.Rotary(10000.0, 8, 64, step=0.5),
             "below": pejax.extensions.linear(), "above": pejax.extensions.ntk(), "watershed": 0.5,
             "trained_length": 16},
        ),
        "extend_llama3": (f.extend_llama3, {**scaled, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
        "extend_yarn": (
            f.extend_yarn,
            {**scaled, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 0.7,
             "attention_factor": 1.5, "truncate": True, "ramp": "turns"},
        ),
        "extend_longrope": (
            f.extend_longrope,
            {**scaled, "long_factors": (1.0, 2.0, 3.0, 4.0), "short_factors": (1.0, 1.0, 1.0, 1.0),
             "attention_factor": 1.5},
        ),
        "grid_positions": (grid_of, {"sizes": (2, 3), "indexing": "xy"}),
        "grid_positions of a volume": (grid_of, {"sizes": (2, 3, 2)}),
        "segment_positions": (pejax.segment_positions, {"segment_ids": jnp.asarray([1, 1, 2, 0])}),
        "segments_of_positions": (pejax.segments_of_positions, {"positions": jnp.asarray([0, 1, 0, 1])}),
        "packed_positions": (pejax.packed_positions, {"segment_ids": jnp.asarray([1, 1, 2, 0])}),
        "segment_ids_of": (pejax.segment_ids_of, {"labels": np.asarray([[3, 0, 3]]), "padding": 0}),
        "offset_positions": (
            pejax.offset_positions, {"values": np.asarray([2.0, 4.0]), "origin": 1.0, "unit": 2.0}
        ),
        "patchify": (pejax.patchify, {"images": [floats(4, 6, 1), floats(2, 2, 1)], "patch": 2, "budget": 8}),
        "unpatchify": (
            pejax.unpatchify, {"pixels": floats(2, 8, 4), "extent": np.asarray([[2, 3], [1, 1]]), "patch": 2},
        ),
        "normalized_positions": (pejax.normalized_positions, {"positions": grid, "extent": (2, 3), "by": "max"}),
        "normalized_positions of images": (
            pejax.normalized_positions,
            {"positions": jnp.stack([grid, grid]), "extent": jnp.asarray([[2, 3], [4, 3]]), "by": "max"},
        ),
        "augment_positions": (
            pejax.augment_positions,
            {"key": key, "positions": grid, "shift": 0.1, "jitter": 1.5, "rescale": 2.0, "noise": 0.1},
        ),
        "search_longrope": (
            pejax.search_longrope,
            {"loss": lambda factors: jnp.sum(factors), "rotary_dim": 8, "factor": 4.0, "key": key,
             "trained_length": 16, "base": 100.0, "generations": 2, "population": 8, "parents": 4, "mutations": 2,
             "crossovers": 2, "rate": 0.3, "chunk": 4},
        ),
    }  # fmt: skip
    return {
        name: Call(*call, slow=name in ("search_longrope", "fire_bias", "cpb_bias")) for name, call in calls.items()
    }


IMAGE = pejax.Dims(4, 8, axes=2, extent=(4, 4))

OPTIONS: dict[str, tuple[pejax.Dims, dict[str, Any]]] = {
    "alibi": (DIMS, {"slope_scale": 2.0, "bias_max": 8.0, "learned": True}),
    "cpb": (IMAGE, {"hidden": 6, "share": "layer"}),
    "fire": (DIMS, {"hidden": 6, "threshold": 4.0, "share": "model", "signed": False}),
    "fourier": (IMAGE, {"kind": "random", "scale": 2.0, "features": 6, "seed": 3}),
    "kerple": (DIMS, {"variant": "power", "share": "model"}),
    "learned": (IMAGE, {"method": "bilinear", "antialias": True, "factorized": True}),
    "lookhere": (IMAGE, {"fov": 90, "slope_scale": 2.0, "depth": 0.5}),
    "none": (DIMS, {}),
    "relative_table": (IMAGE, {"method": "bicubic", "share": "layer"}),
    "rope": (
        DIMS,
        {
            "base": 100.0,
            "rotary_dim": 4,
            "pairing": "half",
            "layout": "proportional",
            "sections": None,
            "periodic": 16.0,
        },
    ),
    "rope_axial": (
        IMAGE,
        {
            **{"base": 50.0, "layout": "alternate", "indexing": "xy", "pairing": "half"},
            **{"widths": (2, 4), "rotary_dim": 6, "spectrum": "inclusive", "rest": "first", "across_heads": False},
            **{"heads": None, "preset": None, "periodic": (None, 8.0)},
        },
    ),
    "rope_mixed": (IMAGE, {"base": 50.0, "pairing": "half"}),
    "shaw": (DIMS, {"clip": 4, "values": True}),
    "sinusoidal": (DIMS, {"base": 100.0, "layout": "concat", "indexing": "ij"}),
    "t5": (DIMS, {"buckets": 8, "max_distance": 16, "share": "model"}),
    "transformer_xl": (DIMS, {"base": 100.0}),
}
"""Dims and options of every encoding."""


def _factories() -> dict[str, Call]:
    assert OPTIONS.keys() == pejax.ENCODINGS.keys(), "OPTIONS must have every encoding"
    return {
        f"encodings.{name}": Call(pejax.ENCODINGS[name], {"dims": dims, **options, "extend": None})
        for name, (dims, options) in OPTIONS.items()
    }


def _parameters() -> dict[str, Call]:
    calls = {}
    for name, (dims, _) in OPTIONS.items():
        encoding = pejax.ENCODINGS[name](dims)
        params = pejax.init_params(encoding, jax.random.key(0))
        calls[f"adapt {name}"] = Call(pejax.adapt, {"encoding": encoding, "params": params, "extent": dims.extent})
        if encoding.embed is not None:
            at = jnp.arange(5) if dims.axes == 1 else pejax.grid_positions(2, 3)
            adapted = pejax.adapt(encoding, params, dims.extent)
            operands = {"params": adapted, "x": floats(len(at), dims.width), "positions": at}
            calls[f"embed {name}"] = Call(
                lambda params, x, positions, of=encoding: of.embed(params, x, positions), operands
            )
    return calls


def _records() -> dict[str, Call]:
    rope, learned = pejax.encodings.rope(DIMS), pejax.encodings.learned(DIMS)
    spec = EncodingSpec("rope", {"base": 100.0})
    return {
        "Dims": Call(
            pejax.Dims,
            {"heads": 4, "head_dim": 8, "width": 32, "kv_heads": 2, "axes": 1, "extent": 8, "scale": 0.5,
             "causal": True},
        ),
        "Dims of an image": Call(pejax.Dims, {"heads": 4, "head_dim": 8, "axes": 2, "extent": (4, 4)}),
        "Encoding": Call(
            pejax.Encoding,
            {"init": rope.init, "rotate": rope.rotate, "bands": (), "shift_invariant": True, "dims": DIMS,
             "spec": rope.spec},
        ),
        "Sharding": Call(
            pejax.Sharding, {"mesh": None, "batch": ("data",), "heads": "heads", "sequence": None, "method": "ring"}
        ),
        "EncodingSpec": Call(EncodingSpec, {"name": "rope", "options": {"base": 100.0}, "extend": None}),
        "SumSpec": Call(SumSpec, {"parts": (EncodingSpec("learned"), spec), "extend": None}),
        "LayerPattern": Call(LayerPattern, {"specs": (spec, EncodingSpec("none"))}),
        "parse": Call(pejax.specs.parse, {"spec": "rope"}),
        "parse_pattern": Call(pejax.specs.parse_pattern, {"pattern": "rope*3 + none*1"}),
        "parse_extension": Call(pejax.specs.parse_extension, {"extend": "yarn(factor=8)"}),
        "make_encoding": Call(pejax.make_encoding, {"spec": "rope", "dims": DIMS, "extend": "yarn(factor=8)"}),
        "compose_encodings": Call(
            lambda parts: pejax.compose_encodings(parts, rope), {"parts": learned}
        ),
        "extend_encoding": Call(
            pejax.extend_encoding, {"encoding": rope, "dims": DIMS, "extend": pejax.extensions.pi()}
        ),
        "scale_queries": Call(
            pejax.scale_queries, {"encoding": rope, "temperature": lambda positions: positions}
        ),
        "explain": Call(pejax.explain, {"encoding": rope, "dims": None}),
        "from_distance": Call(pejax.from_distance, {"distance": lambda params, relative: relative}),
        "init_params": Call(pejax.init_params, {"encoding": learned, "key": jax.random.key(0)}),
        "merge_params": Call(pejax.merge_params, {"shared": {"a": floats(2)}, "layer": {"b": floats(2)}}),
        "caches_rotated_keys": Call(pejax.caches_rotated_keys, {"encoding": rope}),
        "attention_hooks": Call(
            pejax.attention_hooks, {"encoding": rope, "params": {}, "rotated": True, "embedded": False}
        ),
    }  # fmt: skip


def _attention() -> dict[str, Call]:
    rope = pejax.encodings.rope(DIMS)
    q, k = floats(2, 5, 4, 8), floats(2, 5, 2, 8)
    arrays, ids = {"q": q, "k": k, "v": k}, jnp.asarray([1, 1, 1, 2, 2])
    tokens = pejax.packed_positions(ids)
    masks = {"window": 3, "scale": 0.5, "soft_cap": 8.0}
    extras = {"key_bias": floats(2, 5, 4), "sink": floats(4)}
    sides = {"positions": tokens, "k_positions": jnp.arange(5)}
    named = {"implementation": "reference"}
    hooks = {"hooks": pejax.attention_hooks(pejax.encodings.alibi(DIMS), {})}
    plain = {**sides, **hooks, "causal": True, **masks, "distance_range": (0, 4)}
    parts = [(floats(2, 5, 4, 8), floats(2, 5, 4))] * 2
    table = pejax.encodings.relative_table(IMAGE)
    grid = jnp.asarray([[[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]], [[0, 0], [1, 0], [2, 0], [0, 0], [0, 0]]])
    calls = {
        "dot_product_attention": (
            pejax.dot_product_attention, {**arrays, **plain, **extras, "dropout": None, "return_lse": True, **named},
        ),
        "attention_weights": (pejax.attention_weights, {"q": q, "k": k, **plain, **extras}),
        "explain_attention": (pejax.explain_attention, {**arrays, **plain, **named, "compile": False}),
        "attend": (
            pejax.attend,
            {"encoding": rope, **arrays, "params": {}, **sides, "extent": 5, "axes": 1, "keys_are_rotated": False,
             "embedded": False, "causal": True, **extras, **masks, **named},
        ),
        "attend at the grid of each image": (
            functools.partial(pejax.attend, table, q, q, q, params=pejax.init_params(table, jax.random.key(0))),
            {"positions": pejax.TokenPositions(grid, segment_ids=jnp.asarray([[1] * 5, [1] * 3 + [0] * 2])),
             "extent": jnp.asarray([[2, 3], [3, 1]])},
        ),
        "attend learned slopes": (
            pejax.attend,
            {"encoding": pejax.encodings.alibi(DIMS, learned=True), **arrays,
             "params": {"heads": {"slope": floats(4)}}, **named},
        ),
        "linear_attention": (
            pejax.linear_attention,
            {"encoding": rope, **arrays, "params": {}, **sides, "extent": 5, "embedded": False, "causal": True},
        ),
        "attention_fn": (
            _attending(q, k),
            {"encoding": rope, "params": {}, **sides, "extent": 5, "embedded": False, "causal": True, **masks, **named},
        ),
        "attention_fn()": (
            pejax.attention_fn(rope, implementation="reference"),
            {"query": q, "key": k, "value": k, "bias": floats(5, 5), "mask": jnp.ones((5, 5), bool),
             "broadcast_dropout": True, "dropout_rng": jax.random.key(0), "dropout_rate": 0.5, "deterministic": False,
             "dtype": jnp.float32, "precision": None, "module": None, "force_fp32_for_softmax": True,
             "is_causal": True, "einsum_dot_general": None, "input_positions": np.arange(5)},
        ),
        "merge_attention": (pejax.merge_attention, {"parts": parts}),
        "check_kernels": (
            pejax.check_kernels, {"head_dims": (8,), "dtypes": ("float32",), "implementations": ("reference",)},
        ),
    }  # fmt: skip
    return {name: Call(*call, slow=True) for name, call in calls.items()}


def _attending(q: jax.Array, k: jax.Array) -> Callable:
    """Return `attention_fn` with its signature; the function that it makes is called once."""

    @functools.wraps(pejax.attention_fn)
    def attend(*args: Any, **options: Any) -> jax.Array:
        return pejax.attention_fn(*args, **options)(q, k, k)

    return attend


def _extensions() -> dict[str, Call]:
    options: dict[str, dict[str, Any]] = {
        "linear": {"factor": 4.0, "trained_length": 16},
        "ntk": {"factor": 4.0, "trained_length": 16},
        "dynamic_ntk": {"factor": 4.0, "trained_length": 16},
        "yarn": {"factor": 4.0, "trained_length": 16, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7,
                 "mscale_all_dim": 0.7, "attention_factor": 1.5, "truncate": False, "ramp": "pair"},
        "llama3": {"factor": 4.0, "trained_length": 16, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
        "longrope": {"long_factors": (1.0, 2.0, 3.0, 4.0), "short_factors": (1.0, 1.0, 1.0, 1.0), "factor": 4.0,
                     "trained_length": 16, "attention_factor": 1.5},
        "riflex": {"axis": 0, "repeats_at": 9, "trained_length": 16},
        "soft_clip": {"pairs": 2},
        "hard_clip": {"trained_length": 16},
        "resonance": {},
        "by_step": {"below": pejax.extensions.linear(factor=4.0), "above": pejax.extensions.ntk(factor=4.0),
                    "watershed": 0.5, "trained_length": 16},
        "pi": {"proportional": False, "stretch": False},
        "self_extend": {"group": 4, "window": 2},
        "rerope": {"window": 2},
        "log_n": {"trained_length": 16},
        "llama4": {"floor_length": 4, "scale": 0.2, "offset": 0},
        "slopes": {},
        "resize": {},
    }  # fmt: skip
    assert options.keys() == EXTENSIONS.keys(), "options must have every extension"
    own = {"function": lambda frequencies, rotary: (frequencies, 1.0), "varies": False, "scales": (0,)}
    return {f"extensions.{name}": Call(_used(name), arguments) for name, arguments in options.items()} | {
        "extensions.extension": Call(pejax.extensions.extension, own)
    }


def _used(name: str) -> Callable:
    """Return the function that makes an extension; its signature is kept, and what it makes is used once."""

    @functools.wraps(EXTENSIONS[name])
    def use(**options: Any) -> Any:
        extend = EXTENSIONS[name](**options)
        e = pejax.encodings
        factories = {"slopes": e.alibi, "resize": e.learned, "riflex": e.rope_axial}
        factory = factories.get(name, e.rope)
        factory(pejax.Dims(4, 8, extent=8, causal=True), extend=extend)
        return extend

    return use


NORM, MLP = models.NormConfig("rms", 1e-6, False, 0.0), models.MlpConfig(16, "silu", True, False)
ATTENTION = models.AttentionConfig(4, 2, 8, EncodingSpec("rope"))
LAYER = models.LayerConfig(ATTENTION, MLP, NORM)
ADAPTIVE = models.LayerConfig(ATTENTION, MLP, models.NormConfig("layer", weight=False), adaptive=True)
TEXT = models.TransformerConfig(16, 32, 8, (LAYER,))
PAIR = models.EncoderDecoderConfig(
    models.TransformerConfig(16, 32, 8, (LAYER,), causal=False, head=None),
    models.TransformerConfig(16, 32, 8, (models.LayerConfig(ATTENTION, MLP, NORM, cross=ATTENTION),)),
)


def _configs() -> dict[str, Call]:
    calls: dict[str, tuple[Callable, dict[str, Any]]] = {
        "NormConfig": (models.NormConfig, {"kind": "layer", "epsilon": 1e-6, "bias": True, "offset": 1.0}),
        "AttentionConfig": (
            models.AttentionConfig,
            {"heads": 4, "kv_heads": 2, "head_dim": 8, "pe": EncodingSpec("rope"), "scale": 0.5, "window": 4,
             "bias": "qk", "qk_norm": NORM, "qk_norm_over": "head", "soft_cap": 4.0, "sinks": True},
        ),
        "MlpConfig": (models.MlpConfig, {"hidden": 16, "activation": "silu", "gated": True, "bias": False}),
        "MoEConfig": (
            models.MoEConfig, {"count": 4, "chosen": 2, "mlp": MLP, "router_bias": True, "over_chosen": True},
        ),
        "LayerConfig": (
            models.LayerConfig,
            {"attention": ATTENTION, "mlp": MLP, "norm": NORM, "order": "pre", "parallel": "", "layer_scale": 0.1,
             "bare": False, "cross": ATTENTION},
        ),
        "LayerConfig adaptive": (
            models.LayerConfig, {"attention": ATTENTION, "mlp": MLP, "norm": ADAPTIVE.norm, "adaptive": True},
        ),
        "HeadConfig": (
            models.HeadConfig,
            {"tied": True, "bias": True, "transform": ("gelu", NORM), "scale": 2.0, "cap": 4.0,
             "transform_bias": True},
        ),
        "TransformerConfig": (
            models.TransformerConfig,
            {"vocab": 16, "width": 32, "length": 8, "layers": (LAYER,), "causal": True, "norm": NORM,
             "embed_norm": NORM, "embed_scale": 2.0, "mask_id": None, "types": 2, "head": models.HeadConfig(),
             "dtype": "float32"},
        ),
        "EncoderDecoderConfig": (
            models.EncoderDecoderConfig, {"encoder": PAIR.encoder, "decoder": PAIR.decoder, "cross": "none",
                                          "two_tables": False},
        ),
        "ViTConfig": (
            models.ViTConfig,
            {"image_size": (8, 8), "patch": 4, "channels": 1, "width": 32, "layers": (LAYER,), "norm": NORM,
             "embed_norm": NORM, "patch_norm": NORM, "patch_bias": True, "cls": True, "registers": 1, "pool": "cls",
             "classes": 3, "distilled": True, "coordinates": "index", "stochastic_depth": 0.1, "dtype": "float32"},
        ),
        "DiTConfig": (
            models.DiTConfig,
            {"image_size": (8, 8), "patch": 4, "channels": 1, "width": 32, "layers": (ADAPTIVE,), "classes": 3,
             "norm": ADAPTIVE.norm, "dtype": "float32", "frames": 2},
        ),
        "Execution": (
            models.Execution,
            {"mesh": None, "batch": ("data",), "heads": "tensor", "sequence": None, "remat": "none", "local": False},
        ),
        "Rolling": (models.Rolling, {"window": 4, "first": 1, "renumber": False, "empty": True}),
        "decoder": (
            models.decoder,
            {"vocab": 16, "length": 8, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 16,
             "pe": "rope", "extend": "yarn(factor=2)", "style": "llama", "qk_norm": True, "soft_cap": 4.0,
             "tied": True, "causal": True, "dtype": "float32"},
        ),
        "encoder_decoder": (
            models.encoder_decoder,
            {"vocab": 16, "source_length": 8, "target_length": 8, "width": 32, "encoder_layers": 1,
             "decoder_layers": 1, "heads": 4, "kv_heads": 2, "hidden": 16, "pe": "rope", "decoder_pe": "rope",
             "extend": None, "cross": "none", "cross_pe": "", "style": "llama", "qk_norm": True, "soft_cap": 4.0,
             "tied": True, "dtype": "float32"},
        ),
        "vit": (
            models.vit,
            {"image_size": (8, 8), "patch": 4, "channels": 1, "classes": 3, "width": 32, "layers": 1, "heads": 4,
             "kv_heads": 2, "mlp_ratio": 2, "pe": "rope_mixed", "extend": None, "pool": "mean", "registers": 1,
             "layer_scale": 0.1, "stochastic_depth": 0.1, "dtype": "float32"},
        ),
        "dit": (
            models.dit,
            {"image_size": (8, 8), "patch": 4, "channels": 1, "classes": 3, "width": 32, "layers": 1, "heads": 4,
             "kv_heads": 2, "mlp_ratio": 2, "pe": "rope_axial", "extend": None, "dtype": "float32", "frames": 0},
        ),
    }  # fmt: skip
    return {f"models.{name}": Call(*call) for name, call in calls.items()}


def _models() -> dict[str, Call]:
    picture, noisy, execution = models.vit(8, 4, 1, 3, 16, 1, 2), models.dit(8, 4, 1, 3, 16, 1, 2), models.Execution()
    patches = pejax.patchify([floats(8, 8, 1), floats(4, 12, 1)], 4)
    rngs, ids = nnx.Rngs(0), jnp.asarray([[1, 2, 3, 4]])
    rope = pejax.encodings.rope(pejax.Dims(4, 8))
    calls: dict[str, tuple[Callable, dict[str, Any]]] = {
        "attention_module": (
            models.attention_module,
            {"encoding": rope, "dims": pejax.Dims(4, 8), "rngs": rngs, "shared": None, "embedded": False},
        ),
        "Decoder": (models.Decoder, {"config": TEXT, "encoding": None, "rngs": rngs}),
        "EncoderDecoder": (models.EncoderDecoder, {"config": PAIR, "rngs": rngs}),
        "ViT": (models.ViT, {"config": picture, "encoding": None, "rngs": rngs}),
        "DiT": (models.DiT, {"config": noisy, "encoding": None, "rngs": rngs}),
        "Decoder()": (
            models.Decoder(TEXT, rngs=rngs),
            {"ids": ids, "segment_ids": jnp.ones((1, 4), jnp.int32), "tokens": None, "extent": 4, "type_ids": None,
             "execution": execution},
        ),
        "EncoderDecoder()": (
            models.EncoderDecoder(PAIR, rngs=rngs),
            {"source": ids, "target": ids[:, :3], "source_segments": None, "target_segments": None,
             "source_extent": 4, "target_extent": 3, "execution": execution},
        ),
        "ViT()": (
            models.ViT(picture, rngs=rngs),
            {"images": floats(1, 8, 8, 1), "positions": pejax.grid_positions(2, 2), "extent": (2, 2), "train": False,
             "key": None, "execution": execution},
        ),
        "DiT()": (
            models.DiT(noisy, rngs=rngs),
            {"images": floats(1, 8, 8, 1), "time": jnp.asarray([0.5]), "labels": jnp.asarray([2]),
             "positions": pejax.grid_positions(2, 2), "extent": (2, 2), "step": None, "execution": execution},
        ),
        "DiT() of videos": (
            models.DiT(models.dit(8, 4, 1, 3, 24, 1, 2, frames=2), rngs=rngs),
            {"images": floats(1, 2, 8, 8, 1), "time": jnp.asarray([0.5]), "labels": None, "extent": (2, 2, 2)},
        ),
        "ViT() of several sizes": (
            models.ViT(picture, rngs=rngs), {"images": patches, "positions": None, "extent": patches.extent},
        ),
    }  # fmt: skip
    return {f"models.{name}": Call(*call, slow=name != "attention_module") for name, call in calls.items()}


def _placement() -> dict[str, Call]:
    p, picture = placement, placement.image(2, 4)
    place = lambda parts: [p.equal(p.counted(part.tokens), 2) for part in parts]
    packed = lambda sequences, **options: pejax.positions_of(sequences, (picture,), **options)
    rule = {"name": "mine", "axes": ("row", "column"), "place": place, "kinds": ("image",), "pictures": 2}
    calls = {
        "text": (p.text, {"tokens": 4}),
        "unplaced": (p.unplaced, {"tokens": 4}),
        "image": (p.image, {"height": 4, "width": 8, "patch": 2}),
        "sound": (p.sound, {"tokens": 4, "fps": 2.5}),
        "next_position": (pejax.next_position, {"parts": (picture,), "rule": "qwen3_vl"}),
        "video of numbers": (p.video, {"frames": (0, 7), "height": 4, "width": 8}),
        "video": (p.video, {"frames": 4, "height": 4, "width": 8, "patch": (2, 2, 2), "fps": 2.5}),
        "positions_of": (packed, {"sequences": (picture,), "rule": "qwen3_vl", "length": 40, "mutual": ("image",)}),
        "mutual": (p.mutual, {"tokens": 4}),
        "causal": (p.causal, {"tokens": 4}),
        "blocks": (p.blocks, {"tokens": 4, "size": 2}),
        "Run": (p.Run, {"tokens": 4, "size": 2}),
        "order_of": (p.order_of, {"runs": (p.causal(3), p.mutual(2))}),
        "Rule": (p.Rule, {**rule, "fps": "optional", "generates": True}),
        "grid": (lambda axes: p.grid(axes, np.arange(3)), {"axes": np.arange(2)}),
        "counted": (p.counted, {"count": 4, "start": 2}),
        "centered": (p.centered, {"count": 4}),
        "fitted": (p.fitted, {"count": 4, "reference": 8}),
        "middles": (p.middles, {"count": 4}),
        "equal": (p.equal, {"coordinates": np.arange(3), "axes": 3}),
        "qwen2_vl": (p.qwen2_vl, {"resume": "side"}),
        "qwen2_5_vl": (p.qwen2_5_vl, {"tokens_per_second": 2.0, "resume": "side"}),
        "flux2": (p.flux2, {"reference_step": 10}),
        "longcat_image": (p.longcat_image, {"start": 512}),
        "cosmos": (p.cosmos, {"fps": 24.0}),
        "cosmos3": (p.cosmos3, {"margin": 15000, "fps": 24.0}),
        "cogvideox": (p.cogvideox, {"trained": (30, 45)}),
        "flux3": (p.flux3, {"scale": 0.5}),
        "fibo2": (p.fibo2, {"gist": 512}),
        "ideogram4": (p.ideogram4, {"start": 65536}),
        "z_image_omni": (p.z_image_omni, {"captions": (20, 7), "siglip": 1}),
        "ltx2_audio": (p.ltx2_audio, {"stride": 4}),
        "vision_tower": (p.vision_tower, {"block": 2}),
        "minimax_m3_vision": (p.minimax_m3_vision, {"block": 2}),
        "sam3": (p.sam3, {"window": 24}),
        "ltx": (p.ltx, {"stride": (8, 32, 32)}),
        "ltx2": (p.ltx2, {"stride": (8, 32, 32)}),
        "kandinsky6": (p.kandinsky6, {"scale": (1.0, 2.0, 2.0)}),
        "cogview4": (p.cogview4, {"reference": (256, 256)}),
    }
    return {name: Call(*call) for name, call in calls.items()}


GROUPS = {
    "functions": _functions,
    "placement": _placement,
    "factories": _factories,
    "parameters": _parameters,
    "records": _records,
    "attention": _attention,
    "extensions": _extensions,
    "configs": _configs,
    "models": _models,
}
"""The functions that make the calls, by group."""
