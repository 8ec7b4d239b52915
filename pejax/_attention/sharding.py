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
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from pejax._attention import ring
from pejax._attention.backends import run
from pejax._attention.core.operands import Layout, Operands, Origin
from pejax._attention.core.options import Options
from pejax._calls.arguments import checked_fields
from pejax._tokens.positions import TokenPositions

METHODS = {"ring": ring.ring, "gather": ring.gather}


@checked_fields
@dataclass(frozen=True)
class Sharding:
    """The axes of a mesh of devices that the batch, the heads and the sequence of attention are split over; hashable.

    Outputs and gradients are those of a single device: positions, order and segments are those in the whole sequence,
    gradients of parameters that all heads share are summed over the devices, per-head parameters are split with the
    heads, and dropout drops the same pairs. Devices along mesh axes that are not named here repeat the same work.

    With a causal mask, if each device holds consecutive tokens, the first devices have the least work; if device i of n
    holds tokens i, i + n, i + 2n, ..., all have equal work. Then give their order (`TokenPositions.order`): without
    one, a token sees those before it in the arrays.

    On several CPU devices, a Python loop over jitted calls can deadlock: call `jax.block_until_ready` on a result about
    once in eight calls (docs/known-traps.md).

    Attributes:
        mesh: the mesh of devices. None = the mesh set by `jax.set_mesh`.
        batch: the mesh axis, or axes, that *B, flattened, is split over.
        heads: the mesh axis that H and K are split over. None = not sharding.
        sequence: the mesh axis that T and S are split over. None = not sharding.
        method: "ring" passes keys and values around the devices, memory O(S/n) per device; "gather" gathers all of them
            on every device, memory O(S), and does not repeat the forward pass in the backward pass.

    Raises:
        ValueError: an axis that is named twice, or an unknown method. Attention raises ValueError for no mesh, an axis
            that the mesh does not have, and a size that is not a multiple of the devices along its axis.

    Examples:
        >>> import jax.numpy as jnp, pejax
        >>> mesh = jax.make_mesh((1,), ("heads",), axis_types=(AxisType.Auto,))
        >>> q = k = v = jnp.ones((2, 5, 8, 16))
        >>> pejax.dot_product_attention(q, k, v, sharding=Sharding(mesh, heads="heads")).shape
        (2, 5, 8, 16)

    Reference:
        Liu, Zaharia & Abbeel 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context" (arXiv
        2310.01889); for the order of tokens Brandon et al. 2023, "Striped Attention" (arXiv 2311.09431).
    """

    mesh: Mesh | AbstractMesh | None = None
    batch: str | tuple[str, ...] = ()
    heads: str | None = None
    sequence: str | None = None
    method: str = "ring"

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", (self.batch,) if isinstance(self.batch, str) else tuple(self.batch))
        for axis in self.axes:
            if self.axes.count(axis) > 1:
                raise ValueError(f"batch, heads and sequence must be different axes of the mesh, got {axis!r} twice")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that are named."""
        return tuple(axis for axis in (*self.batch, self.heads, self.sequence) if axis is not None)

    def on_mesh(self) -> "Sharding":
        """Return the same with the mesh in use where none is given; refuse axes that it does not have."""
        mesh: Any = jax.sharding.get_abstract_mesh() if self.mesh is None else self.mesh
        if mesh.empty:
            raise ValueError("mesh must be given, or be in use by jax.set_mesh, got None")
        for axis in self.axes:
            if axis not in mesh.shape:
                raise ValueError(f"axes must be among those of the mesh, {tuple(mesh.shape)}, got {axis!r}")
        return replace(self, mesh=mesh)

    def devices(self, *axes: str | None) -> int:
        """Return how many devices these axes have together."""
        mesh: Any = self.mesh
        return math.prod(mesh.shape[axis] for axis in axes if axis is not None)


def run_sharded(
    sharding: Sharding,
    options: Options,
    layout: Layout,
    operands: Operands,
    implementation: str | None,
    shape: tuple[int, ...],
) -> tuple[Array, Array]:
    """Attend as `backends.run` does, split over a mesh."""
    sharding = sharding.on_mesh()
    _check_sizes(sharding, operands)
    if 0 in operands.q.shape or 0 in operands.k.shape:
        return run(options, layout, operands, implementation, shape)
    output, lse = _sharded(sharding, options, layout, implementation, operands)
    return output.reshape(shape), lse.reshape(shape[:-1])


def _check_sizes(sharding: Sharding, operands: Operands) -> None:
    """Raise ValueError where the devices would not all have the same share."""
    (n, groups, _, t, _), s = operands.q.shape, operands.k.shape[-2]
    for name, size, axes in (
        ("the batch", n, sharding.batch),
        ("k's heads", groups, (sharding.heads,)),
        ("T", t, (sharding.sequence,)),
        ("S", s, (sharding.sequence,)),
    ):
        if size % (devices := sharding.devices(*axes)):
            raise ValueError(f"{name} must be a multiple of the {devices} devices of {axes}, got {size}")


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _sharded(
    sharding: Sharding, options: Options, layout: Layout, implementation: str | None, operands: Operands
) -> tuple[Array, Array]:
    """Return output `(N, T, H, D)` and log-sum-exp `(N, T, H)`, split as the operands are."""
    batch, head, sequence, method = sharding.batch or None, sharding.heads, sharding.sequence, ring.attend
    if sequence is not None and sharding.devices(sequence) > 1:
        method, layout = (
            METHODS[sharding.method],
            layout._replace(in_order=False, box=None),
        )  # only the first shard begins at 0
    settings = ring.ShardSettings(options, layout, implementation, sequence or "", sharding.devices(sequence))

    def attend(operands: Operands) -> tuple[Array, Array]:
        return method(settings, operands._replace(origin=_origin(sharding, operands)))

    def of_tokens(tokens: TokenPositions, axes: TokenPositions) -> TokenPositions:
        specs = (PartitionSpec(batch, sequence) if axis == 0 else PartitionSpec(sequence) for axis in axes)
        fields: list[Any] = [None if x is None else spec for x, spec in zip(tokens, specs, strict=True)]
        return TokenPositions(*fields)

    replicated = lambda tree: jax.tree.map(lambda _: PartitionSpec(), tree)
    specs: dict[str, Any] = {
        "q": PartitionSpec(batch, head, None, sequence),
        "k": PartitionSpec(batch, head, sequence),
        "v": PartitionSpec(batch, head, sequence),
        "shared": replicated(operands.shared),
        "per_head": jax.tree.map(lambda _: PartitionSpec(head), operands.per_head),
        "q_tokens": of_tokens(operands.q_tokens, layout.q_axes),
        "k_tokens": of_tokens(operands.k_tokens, layout.k_axes),
        "key_bias": None if operands.key_bias is None else PartitionSpec(batch, head, None, sequence),
        "seed": replicated(operands.seed),
        "pair_arrays": operands.pair_arrays,
        "origin": replicated(operands.origin),
    }
    out, placed = PartitionSpec(batch, sequence, head), Operands(**specs)
    operands = jax.tree.map(functools.partial(_reshard, sharding.mesh), operands, placed)
    # Without the checks of varying axes: Pallas's interpreter, which runs kernels on other devices, fails under them.
    mapped = jax.shard_map(attend, mesh=sharding.mesh, in_specs=(placed,), out_specs=(out, out), check_vma=False)
    return mapped(operands)


def _reshard(mesh: Any, x: Array, spec: PartitionSpec) -> Array:
    """Split x over the explicit axes of a mesh, where `shard_map` takes only what is split already."""
    explicit = {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if not explicit:
        return x
    parts = [(part,) if isinstance(part, str) else part or () for part in spec]
    explicit_spec = PartitionSpec(*(tuple(axis for axis in part if axis in explicit) for part in parts))
    return jax.reshard(x, NamedSharding(mesh, explicit_spec))


def _origin(sharding: Sharding, operands: Operands) -> Origin:
    """Return where this device's batch, heads, queries and keys begin."""
    (n, groups, heads, t, _), s, sequence = operands.q.shape, operands.k.shape[2], sharding.sequence
    shares = (sharding.batch, n), (sharding.heads, groups * heads), (sequence, t), (sequence, s)
    return Origin(*(_begin(axes, size) for axes, size in shares))


def _begin(axes: str | tuple[str, ...] | None, size: int) -> Array:
    return lax.axis_index(axes).astype(jnp.uint32) * jnp.uint32(size) if axes else jnp.uint32(0)
