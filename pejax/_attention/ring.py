"""One device's share of attention over a sequence that is split: all keys gathered, or passed round a ring.

Forward, share by share of the keys, with the merge of `merge_attention`. Backward goes round again: with w = e^(lse_p -
lse) the share's part of the whole, its output o_p and log-sum-exp have the cotangents

    do_p = w do,   dlse_p = w (Σ_d do_d o_p,d - Σ_d do_d o_d + dlse)

which the attention to that share, computed again, turns into gradients. Those of the keys travel with the keys, and are
home when these are; nothing that a device keeps is larger than its share.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pejax._attention.api import run
from pejax._attention.core.merge import merge_attention
from pejax._attention.core.operands import Layout, Operands
from pejax._attention.core.options import Options
from pejax._attention.xla.blocks import row_means
from pejax._ops.pytrees import cotangent_of, own_floats, wide, with_floats, zeros_of
from pejax._ops.remat import kept
from pejax._tokens import TokenPositions


class Share(NamedTuple):
    """What is static about the share of one device; hashable.

    Attributes:
        options: of the attention.
        layout: of the operands.
        implementation: its name, None = the fastest.
        axis: of the mesh, that the sequence is split over.
        devices: how many that axis has.
    """

    options: Options
    layout: Layout
    implementation: str | None
    axis: str
    devices: int


class Keys(NamedTuple):
    """What goes round: the keys of one share."""

    k: Float[Array, "N K S D"]
    v: Float[Array, "N K S D"]
    tokens: TokenPositions


Part = tuple[Array, Array]
"""Output `(N, T, H, D)` and log-sum-exp `(N, T, H)`."""


def attend(share: Share, operands: Operands) -> Part:
    """Attend from the queries of this device to the keys in `operands`."""
    n, groups, heads, t, dim = operands.q.shape
    return run(share.options, share.layout, operands, share.implementation, (n, t, groups * heads, dim))


def gather(share: Share, operands: Operands) -> Part:
    """Attend to the keys of all devices, brought here."""
    collect = lambda x, axis: lax.all_gather(x, share.axis, axis=axis, tiled=True)
    fields = zip(operands.k_tokens, share.layout.k_axes, strict=True)
    tokens: list[Any] = [None if x is None else collect(x, 0 if axis is None else 1) for x, axis in fields]
    k, v = collect(operands.k, 2), collect(operands.v, 2)
    origin = operands.origin._replace(key=jnp.uint32(0))
    return attend(share, operands._replace(k=k, v=v, k_tokens=TokenPositions(*tokens), origin=origin))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def ring(share: Share, operands: Operands) -> Part:
    """Attend to the keys of all devices, one share after the other."""
    queries, keys = _apart(operands)

    def step(carry: tuple[Keys, Part], turn: Array) -> tuple[tuple[Keys, Part], None]:
        keys, whole = carry
        output, lse = _attend_to(share, queries, keys, turn)
        return (_pass_on(share, keys), merge_attention([whole, (wide(output), lse)])), None

    n, groups, heads, t, dim = queries.q.shape
    kind = wide(queries.q).dtype
    nothing = jnp.zeros((n, t, groups * heads, dim), kind), jnp.full((n, t, groups * heads), -jnp.inf, kind)
    (_, (output, lse)), _ = lax.scan(step, (keys, nothing), jnp.arange(share.devices, dtype=jnp.uint32))
    return output.astype(queries.q.dtype), lse


def _forward(share: Share, operands: Operands) -> tuple[Part, tuple[Operands, Part]]:
    whole: Any = kept(ring(share, operands))
    return whole, (operands, whole)


def _backward(share: Share, saved: tuple[Operands, Part], cotangents: Part) -> tuple[Operands]:
    operands, (output, lse) = saved
    queries, keys = _apart(operands)
    d_output, d_lse = (wide(x) for x in cotangents)
    mean = row_means(output, d_output, d_lse)
    lse = jnp.where(jnp.isneginf(lse), 0.0, lse)

    def step(carry: tuple[Keys, list[Array], list[Array]], turn: Array) -> tuple[Any, None]:
        keys, d_keys, d_queries = carry

        def part(queries_floats: list[Array], keys_floats: list[Array]) -> Part:
            return _attend_to(share, with_floats(queries, queries_floats), with_floats(keys, keys_floats), turn)

        (output, part_lse), pull = jax.vjp(part, own_floats(queries), own_floats(keys))
        weight = jnp.exp(part_lse - lse)
        d_part_lse = weight * row_means(output, d_output, mean)
        slopes = pull(((weight[..., None] * d_output).astype(output.dtype), d_part_lse))
        d_queries, d_keys = (_add(*pair) for pair in zip((d_queries, d_keys), slopes, strict=True))
        return (*_pass_on(share, (keys, d_keys)), d_queries), None

    start = keys, zeros_of(keys), zeros_of(queries)
    (_, d_keys, d_queries), _ = lax.scan(step, start, jnp.arange(share.devices, dtype=jnp.uint32))
    slopes, (k, v, k_tokens) = cotangent_of(queries, d_queries), cotangent_of(keys, d_keys)
    return (slopes._replace(k=k, v=v, k_tokens=k_tokens),)


ring.defvjp(_forward, _backward)


def _apart(operands: Operands) -> tuple[Operands, Keys]:
    """Return what stays, and the keys."""
    return operands._replace(k=None, v=None, k_tokens=None), Keys(operands.k, operands.v, operands.k_tokens)


def _attend_to(share: Share, queries: Operands, keys: Keys, turn: Array) -> Part:
    """Attend to the keys that are here at this turn: at turn r those of the device r places before."""
    devices = jnp.uint32(share.devices)
    home = (lax.axis_index(share.axis).astype(jnp.uint32) + devices - turn) % devices
    origin = queries.origin._replace(key=home * jnp.uint32(keys.k.shape[2]))
    return attend(share, queries._replace(k=keys.k, v=keys.v, k_tokens=keys.tokens, origin=origin))


def _pass_on(share: Share, tree: Any) -> Any:
    """Send to the next device, receive from the one before."""
    return lax.ppermute(tree, share.axis, [(i, (i + 1) % share.devices) for i in range(share.devices)])


def _add(totals: list[Array], slopes: list[Array]) -> list[Array]:
    return [total + slope.astype(total.dtype) for total, slope in zip(totals, slopes, strict=True)]
