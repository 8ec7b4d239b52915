"""Attention whose batch, heads and sequence are split over a mesh of devices, with the results of a single device.

Each device holds its shard of queries, keys and values, with their positions, order and segments in the whole sequence.
So encodings and masks work unchanged, and dropout drops the same pairs. If the sequence is split over n devices, keys
and values reach the queries of other devices in one of two ways:

    ring     keys and values are passed around the devices; each step attends to one shard, and the parts are merged by
             log-sum-exp. The backward pass passes them around again, with their gradients. Memory O(S/n) per device.
    gather   every device gathers all keys and values, memory O(S), and attends once.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from pejax._attention import ring
from pejax._attention.api import checked, run
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.operands import Layout, Operands, Origin
from pejax._attention.core.options import Options
from pejax._attention.core.sink import check_sink, with_sink
from pejax._positions import TokenPositions

METHODS = {"ring": ring.ring, "gather": ring.gather}


class Split(NamedTuple):
    """What is split over which axes of a mesh; hashable."""

    mesh: Mesh
    batch: tuple[str, ...]
    head: str | None
    sequence: str | None
    method: str

    def devices(self, *axes: str | None) -> int:
        """Return how many devices these axes have together."""
        return math.prod(self.mesh.shape[axis] for axis in axes if axis is not None)


def sharded_attention(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    v: Float[Array, "*B S K D"],
    *,
    positions: TokenPositions | Array | None = None,
    k_positions: TokenPositions | Array | None = None,
    hooks: Hooks = Hooks(),
    causal: bool = False,
    window: int | None = None,
    distance_range: tuple[int, int] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sink: Float[Array, " H"] | None = None,
    dropout: tuple[Array, float] | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    mesh: Mesh | None = None,
    batch_axes: str | tuple[str, ...] = (),
    head_axis: str | None = None,
    sequence_axis: str | None = None,
    method: str = "ring",
) -> Float[Array, "*B T H D"] | tuple[Float[Array, "*B T H D"], Float[Array, "*B T H"]]:
    """Attend as `dot_product_attention` does, with batch, heads and sequence split over the axes of a mesh.

    Outputs and gradients are those of a single device: positions, order and segments are those in the whole sequence,
    gradients of parameters that all heads share are summed over the devices, per-head parameters are split with the
    heads, and dropout drops the same pairs. Devices along mesh axes that are not named here repeat the same work.

    On several CPU devices, a loop that launches programs must wait for a result about once in eight launches
    (docs/known-traps.md).

    Args:
        q: queries, already rotated; this and all arguments up to `implementation` as in `dot_product_attention`.
        k: keys, already rotated.
        v: values.
        positions: positions of the queries, split with the queries.
        k_positions: positions of the keys. None = `positions`.
        hooks: from `attention_hooks`.
        causal: whether keys after the query are masked. If each device holds consecutive tokens, the first devices then
            have the least work; if device i of n holds tokens i, i + n, i + 2n, ... (`TokenPositions.order`), all have
            equal work.
        window: in tokens.
        distance_range: `(lo, hi)`, in tokens.
        scale: factor that multiplies q·k. None = D**-0.5.
        soft_cap: in logits.
        sink: logits `(H,)`, applied once to the merged result.
        dropout: `(key, rate)`.
        return_lse: whether to return the log-sum-exps as well.
        implementation: of the attention to one shard of keys.
        mesh: the mesh of devices. None = the mesh set by `jax.set_mesh`.
        batch_axes: the mesh axes that *B, flattened, is split over.
        head_axis: the mesh axis that H and K are split over. None = not split.
        sequence_axis: the mesh axis that T and S are split over. None = not split.
        method: "ring" passes keys and values around the devices, memory O(S/n) per device; "gather" gathers all of them
            on every device, memory O(S), and does not repeat the forward pass in the backward pass.

    Returns:
        The outputs of `dot_product_attention`.

    Raises:
        ValueError: no mesh, an axis that the mesh does not have or that is named twice, a size that is not a multiple
            of the devices along its axis, or arguments that `dot_product_attention` refuses.
        TypeError: an argument of a wrong type.

    Reference:
        Liu, Zaharia & Abbeel 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context" (arXiv
        2310.01889); for the order of tokens Brandon et al. 2023, "Striped Attention" (arXiv 2311.09431).
    """
    options, layout, operands = checked(
        q, k, v, positions, k_positions, hooks, causal, window, distance_range, scale, soft_cap, dropout
    )
    check_sink(sink, q.shape[-2])
    split = _check_split(mesh, batch_axes, head_axis, sequence_axis, method)
    _check_sizes(split, operands)
    if 0 in q.shape or 0 in k.shape:
        output, lse = run(options, layout, operands, implementation, q.shape)
    else:
        output, lse = _sharded(split, options, layout, implementation, operands)
    output, lse = with_sink(output.reshape(q.shape), lse.reshape(q.shape[:-1]), sink)
    return (output, lse) if return_lse else output


def _check_split(
    mesh: Mesh | None, batch_axes: str | tuple[str, ...], head_axis: str | None, sequence_axis: str | None, method: str
) -> Split:
    """Return the split, or raise ValueError for one that the mesh does not have."""
    found: Any = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    if found.empty:
        raise ValueError("mesh must be given, or be in use by jax.set_mesh, got None")
    batch = (batch_axes,) if isinstance(batch_axes, str) else tuple(batch_axes)
    named = [axis for axis in (*batch, head_axis, sequence_axis) if axis is not None]
    for axis in named:
        if axis not in found.shape:
            raise ValueError(f"axes must be of the mesh, {tuple(found.shape)}, got {axis!r}")
        if named.count(axis) > 1:
            raise ValueError(f"an axis of the mesh splits one thing, got {axis!r} twice")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return Split(found, batch, head_axis, sequence_axis, method)


def _check_sizes(split: Split, operands: Operands) -> None:
    """Raise ValueError where the devices would not all have the same share."""
    (n, groups, _, t, _), s = operands.q.shape, operands.k.shape[-2]
    for name, size, axes in (
        ("the batch", n, split.batch),
        ("k's heads", groups, (split.head,)),
        ("T", t, (split.sequence,)),
        ("S", s, (split.sequence,)),
    ):
        if size % (devices := split.devices(*axes)):
            raise ValueError(f"{name} must be a multiple of the {devices} devices of {axes}, got {size}")


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _sharded(
    split: Split, options: Options, layout: Layout, implementation: str | None, operands: Operands
) -> tuple[Array, Array]:
    """Return output `(N, T, H, D)` and log-sum-exp `(N, T, H)`, split as the operands are."""
    batch, head, sequence, method = split.batch or None, split.head, split.sequence, ring.attend
    if sequence is not None and split.devices(sequence) > 1:
        method, layout = METHODS[split.method], layout._replace(in_order=False)  # only the first shard begins at 0
    share = ring.Share(options, layout, implementation, sequence or "", split.devices(sequence))

    def attend(operands: Operands) -> tuple[Array, Array]:
        return method(share, operands._replace(origin=_origin(split, operands)))

    def of_tokens(tokens: TokenPositions, axes: TokenPositions) -> TokenPositions:
        specs = (PartitionSpec(batch, sequence) if axis == 0 else PartitionSpec(sequence) for axis in axes)
        fields: list[Any] = [None if x is None else spec for x, spec in zip(tokens, specs, strict=True)]
        return TokenPositions(*fields)

    whole = lambda tree: jax.tree.map(lambda _: PartitionSpec(), tree)
    specs: dict[str, Any] = {
        "q": PartitionSpec(batch, head, None, sequence),
        "k": PartitionSpec(batch, head, sequence),
        "v": PartitionSpec(batch, head, sequence),
        "shared": whole(operands.shared),
        "per_head": jax.tree.map(lambda _: PartitionSpec(head), operands.per_head),
        "q_tokens": of_tokens(operands.q_tokens, layout.q_axes),
        "k_tokens": of_tokens(operands.k_tokens, layout.k_axes),
        "seed": whole(operands.seed),
        "pairs": operands.pairs,
        "origin": whole(operands.origin),
    }
    out, placed = PartitionSpec(batch, sequence, head), Operands(**specs)
    operands = jax.tree.map(functools.partial(_reshard, split.mesh), operands, placed)
    return jax.shard_map(attend, mesh=split.mesh, in_specs=(placed,), out_specs=(out, out), check_vma=False)(operands)


def _reshard(mesh: Mesh | AbstractMesh, x: Array, spec: PartitionSpec) -> Array:
    """Split x over the explicit axes of a mesh, where `shard_map` takes only what is split already."""
    explicit = {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if not explicit:
        return x
    parts = [(part,) if isinstance(part, str) else part or () for part in spec]
    own = PartitionSpec(*(tuple(axis for axis in part if axis in explicit) for part in parts))
    return jax.reshard(x, NamedSharding(mesh, own))


def _origin(split: Split, operands: Operands) -> Origin:
    """Return where this device's batch, heads, queries and keys begin."""
    n, groups, heads, t, _ = operands.q.shape
    shares = (split.batch, n), (split.head, groups * heads), (split.sequence, t), (split.sequence, operands.k.shape[2])
    return Origin(*(_begin(axes, size) for axes, size in shares))


def _begin(axes: str | tuple[str, ...] | None, size: int) -> Array:
    return lax.axis_index(axes).astype(jnp.uint32) * jnp.uint32(size) if axes else jnp.uint32(0)
