"""Devices: one named mesh, batches split over its `data` axis, parameters on every device.

`pjit` is `jax.jit` with shardings today: the trainers give `jax.jit` the shardings made here and nothing else changes
between one device and many.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data",)
"""Mesh axes a batch is split over."""


def make_mesh(devices: int = 0) -> Mesh:
    """Return the mesh `(data,)` over the first `devices` visible devices, or over all of them when 0.

    Raises:
        ValueError: more devices asked for than there are.
    """
    visible = jax.devices()
    if devices > len(visible):
        raise ValueError(f"devices must be at most {len(visible)}, what is visible, got {devices}")
    chosen = visible[: devices or len(visible)]
    return jax.make_mesh((len(chosen),), AXES, axis_types=(AxisType.Auto,), devices=chosen)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that keeps a whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def split_batch(mesh: Mesh) -> NamedSharding:
    """Return the sharding that splits the leading axis over the devices."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def require_divisible(batch: int, mesh: Mesh) -> None:
    """Check that every device gets the same share of a batch.

    Raises:
        ValueError: it does not divide.
    """
    if batch % mesh.size:
        raise ValueError(f"batch must be a multiple of the number of devices, {mesh.size}, got {batch}")


def put_batch(batch: Any, mesh: Mesh) -> Any:
    """Move a pytree of host arrays to the devices; each process gives its own part of the batch."""
    sharding = split_batch(mesh)
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), batch)
