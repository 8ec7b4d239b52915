"""Execution: device mesh, sharding and rematerialization. Results do not depend on it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from pejax._attention.api import dot_product_attention
from pejax._attention.sharding import Sharding
from pejax._calls.arguments import checked_fields
from pejax._ops.remat import REMAT_NAME

REMAT: dict[str, Any] = {
    "none": None,
    "products": jax.checkpoint_policies.save_only_these_names(REMAT_NAME),
    "full": jax.checkpoint_policies.nothing_saveable,
}
"""Values of `Execution.remat`, and the policies of `jax.checkpoint` that say which arrays of a layer are kept."""


@checked_fields
@dataclass(frozen=True)
class Execution:
    """Device mesh, sharding and rematerialization of a model.

    By default a model runs on one device, or as `jax.jit` partitions it by the shardings of its arguments.

    Args:
        mesh: the devices. With a mesh, states and attention are sharded as below.
        batch: mesh axes that the batch is split over.
        heads: mesh axis that heads are split over.
        sequence: mesh axis that tokens are split over (context parallelism).
        remat: what the backward pass recomputes: "none", norms and activations only; "products", everything except the
            outputs of linear layers and attention; "full", everything, from the state before each layer.
        unroll: layers that follow one pattern are compiled one by one if there are at most so many, else as a loop. A
            loop on a GPU copies what each layer saves for the backward pass. Recomputed layers are always a loop.
        local: whether parameters are replicated and each device runs all layers on its shard of the batch without
            communication; gradients are then summed over the devices once, after the last layer.

    Raises:
        ValueError: an unknown `remat`, a negative `unroll`, or `local` where more than the batch is split.
    """

    mesh: Mesh | None = None
    batch: tuple[str, ...] = ()
    heads: str | None = None
    sequence: str | None = None
    remat: str = "none"
    unroll: int = 0
    local: bool = False

    def __post_init__(self) -> None:
        if self.remat not in REMAT:
            raise ValueError(f"remat must be one of {', '.join(REMAT)}, got {self.remat!r}")
        if self.unroll < 0:
            raise ValueError(f"unroll must be at least 0, got {self.unroll}")
        sizes = {} if self.mesh is None else self.mesh.shape
        shards = math.prod(sizes.get(axis, 1) for axis in self.batch)
        if self.local and (self.mesh is None or shards != math.prod(sizes.values())):
            raise ValueError(f"local needs a mesh that splits nothing but the batch, got {dict(sizes)}")

    @property
    def sharding(self) -> Sharding | None:
        """The split of attention over the mesh."""
        if self.mesh is None:
            return None
        return Sharding(self.mesh, self.batch, self.heads, self.sequence)

    @property
    def attention(self) -> Callable[..., Any]:
        """The attention function, with the arguments of `dot_product_attention`; a subclass may measure in it."""
        return dot_product_attention

    def shard_states(self, x: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        """Return states, sharded over batch and tokens."""
        return self._constrain(x, self.batch or None, self.sequence)

    def replicate(self, table: Float[Array, "V C"]) -> Float[Array, "V C"]:
        """Return an embedding table, replicated on every device because rows are looked up by index."""
        return self._constrain(table)

    def _constrain(self, x: Array, *axes: Any) -> Array:
        """Constrain the sharding of x: one mesh axis, or None, per leading axis of x."""
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*axes)))

    def per_shard(self, layers: Callable[..., Array], operands: Any, axes: Any) -> Float[Array, "B T C"]:
        """Return `layers(execution, operands)`, where each device computes its shard of the batch by itself.

        Args:
            layers: returns states; its first argument is an `Execution` without a mesh.
            operands: a pytree; leaves that are not arrays are passed unchanged.
            axes: the batch axis of each array, a prefix of the tree; -1 = the array has no batch axis.
        """
        leaves, tree = jax.tree.flatten(operands)
        is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        spec = lambda axis: PartitionSpec() if axis < 0 else PartitionSpec(*axis * [None], self.batch)
        leaf_axes = jax.tree.leaves(jax.tree.broadcast(axes, operands))
        arrays = [leaf for leaf, passed in zip(leaves, is_array, strict=True) if passed]
        specs = [spec(axis) for axis, passed in zip(leaf_axes, is_array, strict=True) if passed]

        def run_shard(shards: list[Array]) -> Array:
            next_shard = iter(shards)
            local = [next(next_shard) if passed else leaf for leaf, passed in zip(leaves, is_array, strict=True)]
            return layers(Execution(remat=self.remat, unroll=self.unroll), tree.unflatten(local))

        return jax.shard_map(run_shard, mesh=self.mesh, in_specs=(specs,), out_specs=spec(0), check_vma=False)(arrays)

    def scan(
        self, steps: Sequence[Callable], x: Array, layers: Sequence[Any], *, first: int = 0
    ) -> tuple[Array, tuple[Any, ...]]:
        """Scan over layers that repeat a pattern, rematerialized in the backward pass as `remat` says.

        Args:
            steps: `(x, layer) -> (x, output)`, one per layer of the pattern.
            x: states before the first layer.
            layers: one pytree per layer of the pattern, with a leading axis of repetitions: the parameters, caches and
                factors of the layers at that place.
            first: the number of the first layer in the model, for subclasses that collect results by layer.

        Returns:
            The states after the last layer, and the outputs of the layers at each place of the pattern, stacked.
        """
        del first
        if self.remat != "none":
            steps = [jax.checkpoint(step, policy=REMAT[self.remat], prevent_cse=False) for step in steps]

        def pattern(x: Array, layers: Sequence[Any]) -> tuple[Array, tuple[Any, ...]]:
            outputs = []
            for step, layer in zip(steps, layers, strict=True):
                x, output = step(x, layer)
                outputs.append(output)
            return x, tuple(outputs)

        repeats = len(jax.tree.leaves(layers)[0])
        is_unrolled = self.remat == "none" and repeats * len(steps) <= self.unroll
        return jax.lax.scan(pattern, x, layers, unroll=repeats if is_unrolled else 1)
