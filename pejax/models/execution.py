"""Execution: device mesh, sharding and rematerialization. Results do not depend on it."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from pejax._attention.api import dot_product_attention
from pejax._attention.sharded import sharded_attention
from pejax._ops.remat import KEPT

REMAT: dict[str, Any] = {
    "none": None,
    "products": jax.checkpoint_policies.save_only_these_names(KEPT),
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclass(frozen=True)
class Execution:
    """How a model is computed. The default is one device, or what `jax.jit` makes of its arguments' shardings.

    Args:
        mesh: the devices; with one, states are kept split as said here and attention runs by `sharded_attention`.
        batch: axes of the mesh that the batch is split over.
        heads: the axis that heads are split over.
        sequence: the axis that tokens are split over: context parallelism.
        remat: what the backward pass computes again: "none", norms and activations; "products", all but linear layers
            and attention; "full", all, from the state before each layer.
        local: the parameters are replicated, and each device runs all layers on its shard of the batch
            without waiting for the others: gradients are summed over the devices once, after the last layer.

    Raises:
        ValueError: an unknown `remat`, or `local` where more than the batch is split.
    """

    mesh: Mesh | None = None
    batch: tuple[str, ...] = ()
    heads: str | None = None
    sequence: str | None = None
    remat: str = "none"
    local: bool = False

    def __post_init__(self) -> None:
        if self.remat not in REMAT:
            raise ValueError(f"remat must be one of {', '.join(REMAT)}, got {self.remat!r}")
        sizes = {} if self.mesh is None else self.mesh.shape
        shares = math.prod(sizes.get(axis, 1) for axis in self.batch)
        if self.local and (self.mesh is None or shares != math.prod(sizes.values())):
            raise ValueError(f"local needs a mesh that splits nothing but the batch, got {dict(sizes)}")

    @property
    def attention(self) -> Callable[..., Any]:
        """`dot_product_attention`, or `sharded_attention` over the mesh."""
        if self.mesh is None:
            return dot_product_attention
        return functools.partial(
            sharded_attention,
            mesh=self.mesh,
            batch_axes=self.batch,
            head_axis=self.heads,
            sequence_axis=self.sequence,
        )

    def place(self, x: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        """Return states, split over the batch and the tokens."""
        return self._split(x, self.batch or None, self.sequence)

    def gathered(self, table: Float[Array, "V C"]) -> Float[Array, "V C"]:
        """Return a table of vectors, whole on every device: rows are taken from it by index."""
        return self._split(table)

    def _split(self, x: Array, *axes: Any) -> Array:
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*axes)))

    def by_share(self, layers: Callable[..., Array], operands: Any, axes: Any) -> Float[Array, "B T C"]:
        """Return `layers(execution, operands)`, computed by each device of its share of the batch alone.

        Args:
            layers: gives states; it receives how to execute what it does.
            operands: a pytree; what is no array is passed on as it is.
            axes: of each array the axis that is the batch's, -1 = it has none; a prefix of the tree.
        """
        leaves, tree = jax.tree.flatten(operands)
        is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        spec = lambda axis: PartitionSpec() if axis < 0 else PartitionSpec(*axis * [None], self.batch)
        every = jax.tree.leaves(jax.tree.broadcast(axes, operands))
        arrays = [leaf for leaf, held in zip(leaves, is_array, strict=True) if held]
        specs = [spec(axis) for axis, held in zip(every, is_array, strict=True) if held]

        def own(arrays: list[Array]) -> Array:
            given = iter(arrays)
            filled = [next(given) if held else leaf for leaf, held in zip(leaves, is_array, strict=True)]
            return layers(Execution(remat=self.remat), tree.unflatten(filled))

        return jax.shard_map(own, mesh=self.mesh, in_specs=(specs,), out_specs=spec(0), check_vma=False)(arrays)

    def scan(self, step: Callable, x: Array, layers: Any) -> tuple[Array, Any]:
        """Apply the step of a layer for every one of `layers` in turn, its backward pass as `remat` says."""
        if self.remat != "none":
            step = jax.checkpoint(step, policy=REMAT[self.remat], prevent_cse=False)
        return jax.lax.scan(step, x, layers)
