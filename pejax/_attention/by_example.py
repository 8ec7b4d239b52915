"""Attention where every example, or every query, has an extent of its own."""

import dataclasses
import functools
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pejax._attention.core.dropout import check_dropout
from pejax._attention.core.hooks import HOOK_NAMES, bound_hooks
from pejax._ops.backend import vmap_or_map
from pejax._record.encoding import Encoding, Params, adapt, rotate_keys, rotate_queries
from pejax._tokens.positions import TokenPositions, rotary_positions


def rotates_alone(encoding: Encoding) -> bool:
    """Return whether attention has nothing of an encoding but its rotations: neither bands nor hooks of pairs."""
    return not encoding.bands and all(getattr(encoding, name) is None for name in HOOK_NAMES)


def follows_extent(encoding: Encoding, params: Params) -> bool:
    """Return whether what `adapt` returns depends on the extent, a length: a fixed factor does not, for example."""
    if encoding.adapt is None:
        return False
    program = jax.make_jaxpr(functools.partial(adapt, encoding, params))(jax.ShapeDtypeStruct((), jnp.int32)).jaxpr
    reached = set(map(id, program.invars))
    for step in program.eqns:
        if any(id(operand) in reached for operand in step.invars):
            reached.update(map(id, step.outvars))
    return any(id(result) in reached for result in program.outvars)


def rotate_by_example(
    encoding: Encoding,
    params: Params,
    keys_are_rotated: bool,
    run: Callable[..., Any],
    extent: Array,
    q: Array,
    k: Array,
    v: Array,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Array | None = None,
) -> Any:
    """Rotate each example's queries and keys at its own extent, and attend once, with an encoding that rotates alone.

    Arguments as in `rotate_and_attend`, with an extent `(B,)`, or `(B, A)`.
    """

    def rotated(extent: Array, q: Array, k: Array, q_positions: Array, k_positions: Array) -> tuple[Array, Array]:
        adapted = adapt(encoding, params, extent)
        k = k if keys_are_rotated else rotate_keys(encoding, adapted, k, k_positions)
        return rotate_queries(encoding, adapted, q, q_positions), k

    def positions_of(tokens: TokenPositions, x: Array) -> Array:
        shape = x.shape[:-2]
        return jnp.broadcast_to(rotary_positions(tokens, shape), (*shape, *extent.shape[1:]))

    q, k = jax.vmap(rotated)(extent, q, k, positions_of(q_tokens, q), positions_of(k_tokens, k))
    run = functools.partial(run, positions=q_tokens, k_positions=k_tokens, hooks=bound_hooks(encoding, params))
    return run(q, k, v) if key_bias is None else run(q, k, v, key_bias=key_bias)


def attend_at_extents(
    attend_at: Callable[..., Array],
    extent: Array,
    axes: int,
    split: tuple[str, ...],
    dropout: tuple[Array, float] | None,
    q: Array,
    k: Array,
    v: Array,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Array | None,
) -> Any:
    """Attend with one extent per example, or one per query; `split` names the mesh axes that split the examples.

    `dropout` counts from 0 in each of them, so each gets a key of its own.
    """
    count = extent.shape[:1] if axes > 1 else extent.shape
    if count not in (q.shape[:1], q.shape[:2]):
        raise ValueError(f"extent must be one length, (B,) or (B, T) of q {q.shape}, got {extent.shape}")
    keys, rate = None, check_dropout(dropout)[1]
    if dropout is not None and rate:
        keys = jax.vmap(functools.partial(jax.random.fold_in, dropout[0]))(jnp.arange(prod(count)))
        keys = keys.reshape(*count, *keys.shape[1:])

    def attend_one(setting: tuple[Array, Array | None], *operands: Any) -> Any:
        extent, key = setting
        return attend_at(extent, *operands, dropout=None if key is None else (key, rate))

    sides = (batched(q_tokens, *q.shape[:2], axes=axes), batched(k_tokens, *k.shape[:2], axes=axes))
    operands = (extent, keys), q, k, v, *sides, key_bias
    if count == q.shape[:1]:
        lift = functools.partial(jax.vmap, spmd_axis_name=split) if split else vmap_or_map
        return lift(attend_one)(*operands)
    return jax.vmap(functools.partial(_query_by_query, attend_one))(*operands)


def within_example(options: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the mesh axes that split the examples, and the options of attention within one example."""
    sharding = options.get("sharding")
    if sharding is None:
        return (), options
    return sharding.batch, {**options, "sharding": dataclasses.replace(sharding, batch=())}


def _query_by_query(
    attend_one: Callable[..., Any],
    setting: tuple[Array, Array | None],
    q: Array,
    k: Array,
    v: Array,
    q_tokens: TokenPositions,
    k_tokens: TokenPositions,
    key_bias: Array | None,
) -> Any:
    """Attend from one query of a sequence at a time, each with its own extent and key of dropout."""

    def one_query(operands: tuple[tuple[Array, Array | None], Array, TokenPositions]) -> Any:
        setting, q, tokens = operands
        q_tokens = jax.tree.map(lambda leaf: leaf[None], tokens)
        result = attend_one(setting, q[None], k, v, q_tokens, k_tokens, key_bias)
        return jax.tree.map(lambda leaf: leaf[0], result)  # an output, or with its log-sum-exp

    return jax.lax.map(one_query, (setting, q, q_tokens))


def batched(tokens: TokenPositions, batch: int, length: int, axes: int = 1) -> TokenPositions:
    """Return tokens on A axes with a batch axis in every field."""

    def with_batch(leaf: Array | None, unbatched_rank: int) -> Any:
        if leaf is None or (leaf.ndim > unbatched_rank and leaf.shape[:2] == (batch, length)):
            return leaf
        return jnp.broadcast_to(leaf, (batch, *leaf.shape))

    return TokenPositions(with_batch(tokens.positions, 1 + (axes > 1)), *(with_batch(leaf, 1) for leaf in tokens[1:]))
