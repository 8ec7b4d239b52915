"""One kind of attention by one implementation on the device, against float64 on the host: outputs and all gradients."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.hardware import oracle, programs
from benchmarks.hardware.kinds import BATCH, Kind, kind_of, tokens_of
from benchmarks.hardware.oracle import Fixed, Terms, relative_error
from benchmarks.hardware.outcomes import verdict
from pejax import Sharding, adapt, attention_hooks, dot_product_attention, init_params, make_encoding
from pejax._attention.api import prepared
from pejax._attention.core.dropout import Dropout, keep_pairs
from pejax._attention.core.masks import visible
from pejax._attention.core.operands import over_heads
from pejax._attention.core.reference import placed_pairs
from pejax._record.encoding import rotate_keys, rotate_queries
from pejax._tokens.positions import TokenPositions, rotary_positions

TOLERANCES = {"highest": 1e-5, "default": 2e-3, "bfloat16": 2e-2}
"""Largest norm of an error over the norm of the right value: float32 at precision "highest", at the default (TF32 on a
GPU), and bfloat16."""


def prove(kind: str, implementation: str, precision: str, toy: bool, only_compile: bool = False) -> dict[str, Any]:
    """Return whether one implementation is right, with the relative error of every output and gradient.

    Args:
        kind: one of `KINDS`.
        implementation: one of `dot_product_attention`, or "sharded": on a mesh of one device.
        precision: one of `TOLERANCES`.
        toy: a few tokens.
        only_compile: leave the program in the cache.
    """
    dtype = "bfloat16" if precision == "bfloat16" else "float32"
    with_lse = implementation != "cudnn"  # whose own gradients serve where nobody asks for log-sum-exps

    def run(learned: dict[str, Any]) -> dict[str, Array]:
        output, lse = attend(kind_of(kind, toy), implementation, learned)
        return {"output": output, "lse": lse} if with_lse else {"output": output}

    def differentiate(learned: dict[str, Any], cotangents: dict[str, Array]) -> tuple[Any, Any]:
        outputs, pull = jax.vjp(run, learned)
        return outputs, pull({name: cotangents[name] for name in outputs})[0]

    with programs.on_host():
        operands = drawn(kind_of(kind, toy), dtype)
    with jax.default_matmul_precision("highest" if precision == "highest" else None):
        program = programs.compiled(differentiate, *operands)
    if only_compile:
        return {"outcome": "made"}
    learned, cotangents, (right_outputs, right_gradients) = reference(kind, dtype, toy, with_lse)
    outputs, gradients = jax.device_get(program(*programs.put((learned, cotangents))))
    errors = {name: relative_error(outputs[name], right_outputs[name]) for name in outputs}
    right, learns = _named(right_gradients), lambda name: name.startswith("params")
    # The terms of a single number may cancel, so its size does not tell theirs: the gradients beside it do.
    least = 0.1 * max((np.linalg.norm(want) for name, want in right.items() if learns(name)), default=0.0)
    for name, got in _named(gradients).items():
        errors[f"d_{name}"] = relative_error(got, right[name], least if learns(name) else 0.0)
    return verdict(errors, TOLERANCES[precision])


def attend(kind: Kind, implementation: str, learned: dict[str, Any]) -> tuple[Array, Array]:
    """Return the outputs and the log-sum-exps of an implementation.

    Args:
        kind: what is asked.
        implementation: one of those of `prove`.
        learned: `q`, `k`, `v`, `params`, and `sink`, `q_positions` and `k_positions` where there are such.
    """
    encoding, q, k, (q_tokens, k_tokens) = rotated(kind, learned)
    call: Any = functools.partial(dot_product_attention, implementation=implementation)
    if implementation == "sharded":
        call = functools.partial(dot_product_attention, sharding=Sharding(programs.mesh(), heads="heads"))
    hooks = attention_hooks(encoding, adapt(encoding, learned["params"], kind.dims.extent), rotated=True)
    sink = {"sink": learned["sink"]} if kind.sink else {}
    return call(
        q, k, learned["v"], positions=q_tokens, k_positions=k_tokens, hooks=hooks, return_lse=True, **arguments(kind),
        **sink,
    )  # fmt: skip


def arguments(kind: Kind) -> dict[str, Any]:
    """Return the arguments of attention that are neither arrays with gradients nor tokens."""
    options = {"causal": kind.causal, "scale": kind.dims.scale, **kind.options}
    return {**options, "dropout": (jax.random.key(3), kind.rate)} if kind.rate else options


def rotated(kind: Kind, learned: dict[str, Any]) -> tuple[Any, Array, Array, tuple[TokenPositions, TokenPositions]]:
    """Return the encoding, the rotated queries and keys, and the tokens, with the positions that have gradients."""
    encoding, tokens = make_encoding(kind.spec, kind.dims), tokens_of(kind)
    if kind.floats:
        names = ("q_positions", "k_positions")
        tokens = tuple(side._replace(positions=learned[n]) for side, n in zip(tokens, names, strict=True))
    params = adapt(encoding, learned["params"], kind.dims.extent)
    q, k = learned["q"], learned["k"]
    q = rotate_queries(encoding, params, q, rotary_positions(tokens[0], q.shape[:-2]))
    k = rotate_keys(encoding, params, k, rotary_positions(tokens[1], k.shape[:-2]))
    return encoding, q, k, (tokens[0], tokens[1])


def drawn(kind: Kind, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return random parameters, off their initial values so that no zero hides a mistake, and cotangents."""
    rng, dims = np.random.default_rng(0), kind.dims
    draw = lambda *shape, kind="float32": jnp.asarray(rng.standard_normal(shape, np.float32), kind)
    heads = {"q": (kind.queries, dims.heads), "k": (kind.keys, dims.kv_heads), "v": (kind.keys, dims.kv_heads)}
    learned: dict[str, Any] = {name: draw(BATCH, *x, dims.head_dim, kind=dtype) for name, x in heads.items()}
    params = init_params(make_encoding(kind.spec, dims), jax.random.key(0))
    learned["params"] = jax.tree.map(lambda x: x + 0.1 * draw(*x.shape), params)
    if kind.sink:
        learned["sink"] = draw(dims.heads)
    if kind.floats:
        for name, side in zip(("q_positions", "k_positions"), tokens_of(kind), strict=True):
            learned[name] = side.positions
    rows = (BATCH, kind.queries, dims.heads)
    return learned, {"output": draw(*rows, dims.head_dim, kind=dtype), "lse": draw(*rows)}


@functools.lru_cache(maxsize=4)
def reference(
    name: str, dtype: str, toy: bool, with_lse: bool
) -> tuple[dict[str, Any], dict[str, Array], tuple[Any, Any]]:
    """Return the parameters, the cotangents, and the right outputs and gradients; on the host.

    Args:
        name: name of the kind.
        dtype: type of queries, keys and values.
        toy: a few tokens.
        with_lse: whether the log-sum-exps have cotangents, too.
    """
    kind = kind_of(name, toy)
    with programs.on_host():
        learned, cotangents = drawn(kind, dtype)
        wide = jax.tree.map(lambda x: x.astype(jnp.float32), learned)
        terms, pull = jax.vjp(jax.jit(functools.partial(terms_of, kind)), wide)
        output, lse, saved = oracle.attend(terms, fixed := fixed_of(kind, wide))
        shape = output.shape
        lead = lambda x: np.moveaxis(x.reshape(shape[0], shape[1] * shape[2], *x.shape[3:]), 1, 2)
        back = lambda x: np.moveaxis(np.asarray(x, np.float64), 2, 1).reshape(*shape[:3], shape[3], *x.shape[3:])
        cotangents["lse"] = jnp.where(np.isfinite(lead(lse)) & with_lse, cotangents["lse"], 0.0)
        wide_cotangents = (back(cotangents[name].astype(jnp.float32)) for name in ("output", "lse"))
        term_gradients = oracle.gradients(terms, fixed, saved, *wide_cotangents)
        (gradients,) = pull(jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), term_gradients, terms))
    return jax.device_get((learned, cotangents, ({"output": lead(output), "lse": lead(lse)}, gradients)))


def sides(tokens: tuple[TokenPositions, TokenPositions]) -> dict[str, TokenPositions]:
    """Return the arguments that say where queries and keys are."""
    return {"positions": tokens[0], "k_positions": tokens[1]}


def terms_of(kind: Kind, learned: dict[str, Any]) -> Terms:
    """Return the arguments of attention, with those of the encoding; differentiable, in float32."""
    encoding, q, k, tokens = rotated(kind, learned)
    hooks = attention_hooks(encoding, adapt(encoding, learned["params"], kind.dims.extent), rotated=True)
    _, layout, operands = prepared(q, k, learned["v"], **sides(tokens), hooks=hooks, **arguments(kind))

    def head(q, k, v, hooks, q_tokens, k_tokens, key_bias, dropout, pairs) -> Any:
        if hooks.bias is None:
            return jnp.zeros((len(q), len(k)))
        bias, placed = hooks.bias(q, k, q_tokens.positions, k_tokens.positions), placed_pairs(q_tokens, k_tokens)
        return bias if placed is None else jnp.where(placed, bias, 0.0)

    n, groups, heads, t, _ = operands.q.shape
    bias: Any = over_heads(head, operands, layout)
    sink = learned["sink"].reshape(groups, heads) if kind.sink else jnp.full((groups, heads), -jnp.inf)
    return Terms(operands.q, operands.k, operands.v, jnp.reshape(bias, (n, groups, heads, t, -1)), sink)


def fixed_of(kind: Kind, learned: dict[str, Any]) -> Fixed:
    """Return the mask of pairs, their factors of dropout, and the terms that are added after the cap."""
    encoding, q, k, tokens = rotated(kind, learned)
    hooks = attention_hooks(encoding, adapt(encoding, learned["params"], kind.dims.extent), rotated=True)
    options, layout, operands = prepared(q, k, learned["v"], **sides(tokens), hooks=hooks, **arguments(kind))

    def head(q, k, v, hooks, q_tokens, k_tokens, key_bias, dropout: Dropout | None, pairs) -> Any:
        everywhere, mask = jnp.ones((len(q), len(k))), visible(options, q_tokens, k_tokens)
        keep = everywhere
        if dropout is not None:
            rows, columns = (jnp.arange(size, dtype=jnp.uint32) for size in everywhere.shape)
            keep = keep_pairs(dropout, rows, columns, options.dropout_rate) / (1 - options.dropout_rate)
        late = jnp.zeros(len(k)) if key_bias is None else key_bias
        return everywhere > 0 if mask is None else everywhere * mask > 0, keep, everywhere * late

    arrays: Any = jax.jit(lambda operands: over_heads(head, operands, layout))(operands)
    seen, keep, late = arrays
    return Fixed(options.scale, options.soft_cap, np.asarray(late), np.asarray(seen), np.asarray(keep))


def _named(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a tree by the path to them."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
