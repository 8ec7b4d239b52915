"""Attention on one device for a sequence sharded over devices: with all keys gathered, or passed around a ring.

The ring attends to one shard of the keys per step, and combines the results as `merge_attention` does. The backward
pass goes around the ring again. For shard p with output o_p and log-sum-exp lse_p, let w = e^(lse_p - lse) be its
weight in the merged result. The cotangents of o_p and lse_p are

    do_p = w do,   dlse_p = w (Σ_d do_d o_p,d - Σ_d do_d o_d + dlse)

From these, the attention to that shard is computed again, and gives the gradients. The gradients of the keys travel
with the keys, and return to their device with them. With the ring, no array on a device is larger than its shard.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pejax._attention.backends import run
from pejax._attention.core.derivatives import tiled_rules
from pejax._attention.core.merge import merge_attention
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.xla.blocks import row_means
from pejax._ops.derivatives import differentiable
from pejax._ops.pytrees import cotangent_of, own_floats, wide, with_floats, zeros_of
from pejax._tokens.positions import TokenPositions


class ShardSettings(NamedTuple):
    """The static settings of attention on one device's shard; hashable.

    Attributes:
        options: static options of the attention.
        layout: which operands are batched.
        implementation: name of the implementation; None = the fastest.
        axis: mesh axis that the sequence is split over.
        devices: number of devices on that axis.
    """

    options: Options
    layout: Layout
    implementation: str | None
    axis: str
    devices: int


class Keys(NamedTuple):
    """The keys and values of one shard, which are passed around the ring, with their positions."""

    k: Float[Array, "N K S D"]
    v: Float[Array, "N K S D"]
    tokens: TokenPositions
    bias: Float[Array, "N K G S"] | None


Part = tuple[Array, Array]
"""Attention to some of the keys: output `(N, T, H, D)` and log-sum-exp `(N, T, H)`."""


def attend(settings: ShardSettings, operands: Operands) -> Part:
    """Attend from the queries to the keys in `operands`, on this device alone."""
    n, groups, heads, t, dim = operands.q.shape
    return run(settings.options, settings.layout, operands, settings.implementation, (n, t, groups * heads, dim))


def gather(settings: ShardSettings, operands: Operands) -> Part:
    """Attend to the keys of all devices, gathered on this device."""
    collect = lambda x, axis: lax.all_gather(x, settings.axis, axis=axis, tiled=True)
    fields = zip(operands.k_tokens, settings.layout.k_axes, strict=True)
    tokens: list[Any] = [None if x is None else collect(x, 0 if axis is None else 1) for x, axis in fields]
    k, v = collect(operands.k, 2), collect(operands.v, 2)
    key_bias = None if operands.key_bias is None else collect(operands.key_bias, 3)
    origin = operands.origin._replace(key=jnp.uint32(0))
    return attend(
        settings, operands._replace(k=k, v=v, k_tokens=TokenPositions(*tokens), key_bias=key_bias, origin=origin)
    )


def ring(settings: ShardSettings, operands: Operands) -> Part:
    """Attend to the keys of all devices, one shard after the other."""
    output, lse = differentiable(RULES, settings, operands)
    return output, lse


def _around(settings: ShardSettings, operands: Operands) -> Part:
    """Return attention to the keys of all devices, by operations that have forward mode."""
    queries, keys = _split_keys(operands)

    def step(carry: tuple[Keys, Part], shift: Array) -> tuple[tuple[Keys, Part], None]:
        keys, merged = carry
        output, lse = _attend_to(settings, queries, keys, shift)
        return (_send_to_next(settings, keys), merge_attention([merged, (wide(output), lse)])), None

    n, groups, heads, t, dim = queries.q.shape
    dtype = wide(queries.q).dtype
    empty = jnp.zeros((n, t, groups * heads, dim), dtype), jnp.full((n, t, groups * heads), -jnp.inf, dtype)
    (_, (output, lse)), _ = lax.scan(step, (keys, empty), jnp.arange(settings.devices, dtype=jnp.uint32))
    return output.astype(queries.q.dtype), lse


def _pull(settings: ShardSettings, operands: Operands, outputs: Part, cotangents: Part) -> Operands:
    """Return the gradients of the operands, from a second pass around the ring."""
    output, lse = outputs
    queries, keys = _split_keys(operands)
    d_output, d_lse = (wide(x) for x in cotangents)
    mean = row_means(output, d_output, d_lse)
    # Of a query that sees no key: the weight exp(part_lse - lse) of every part is then exp(-inf) = 0, not NaN.
    lse = jnp.where(jnp.isneginf(lse), 0.0, lse)

    def step(carry: tuple[Keys, list[Array], list[Array]], shift: Array) -> tuple[Any, None]:
        keys, d_keys, d_queries = carry

        def part(queries_floats: list[Array], keys_floats: list[Array]) -> Part:
            return _attend_to(settings, with_floats(queries, queries_floats), with_floats(keys, keys_floats), shift)

        (output, part_lse), pull = jax.vjp(part, own_floats(queries), own_floats(keys))
        weight = jnp.exp(part_lse - lse)
        d_part_lse = weight * row_means(output, d_output, mean)
        gradients = pull(((weight[..., None] * d_output).astype(output.dtype), d_part_lse))
        d_queries, d_keys = (_add(*pair) for pair in zip((d_queries, d_keys), gradients, strict=True))
        return (*_send_to_next(settings, (keys, d_keys)), d_queries), None

    start = keys, zeros_of(keys), zeros_of(queries)
    (_, d_keys, d_queries), _ = lax.scan(step, start, jnp.arange(settings.devices, dtype=jnp.uint32))
    d_operands, (k, v, k_tokens, key_bias) = cotangent_of(queries, d_queries), cotangent_of(keys, d_keys)
    return d_operands._replace(k=k, v=v, k_tokens=k_tokens, key_bias=key_bias)


RULES = tiled_rules(run=_around, plain=_around, save=lambda settings, operands, outputs: outputs, pull=_pull)


def _split_keys(operands: Operands) -> tuple[Operands, Keys]:
    """Split the operands into those that stay on this device, all but the keys, and the keys, which are passed on."""
    keys = Keys(operands.k, operands.v, operands.k_tokens, operands.key_bias)
    return operands._replace(k=None, v=None, k_tokens=None, key_bias=None), keys


def _attend_to(settings: ShardSettings, queries: Operands, keys: Keys, shift: Array) -> Part:
    """Attend to keys that were passed on `shift` times, so their home is the device `shift` places before this one."""
    devices = jnp.uint32(settings.devices)
    home = (lax.axis_index(settings.axis).astype(jnp.uint32) + devices - shift) % devices
    origin = queries.origin._replace(key=home * jnp.uint32(keys.k.shape[2]))
    fields = {"k": keys.k, "v": keys.v, "k_tokens": keys.tokens, "key_bias": keys.bias}
    return attend(settings, queries._replace(**fields, origin=origin))


def _send_to_next(settings: ShardSettings, tree: Any) -> Any:
    """Send a pytree to the next device of the ring, and return the one received from the previous device."""
    return lax.ppermute(tree, settings.axis, [(i, (i + 1) % settings.devices) for i in range(settings.devices)])


def _add(totals: list[Array], gradients: list[Array]) -> list[Array]:
    """Return the sums of corresponding arrays, in the types of the totals."""
    return [total + gradient.astype(total.dtype) for total, gradient in zip(totals, gradients, strict=True)]
