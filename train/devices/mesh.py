"""Devices: one named mesh, and which of its axes each thing is split over.

    data        the batch; parameters are on every device
    fsdp        the batch, and parameters by their model channels: each device keeps its share, and gets the rest of a
                layer when it needs it
    tensor      heads and the channels inside MLPs, and the parameters that belong to them
    sequence    tokens: context parallelism, positions are those of the whole sequence

`pjit` is `jax.jit` with shardings today: the trainers give `jax.jit` the shardings made here and nothing else changes
between one device and many, or between one process and many.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pejax.models import Execution, partition_specs

AXES = ("data", "fsdp", "tensor", "sequence")

BATCH = ("data", "fsdp")
"""Axes that a batch is split over."""

EVALUATED = (*BATCH, "sequence")
"""Axes that a batch is split over in evaluation, where tokens are not: lengths and image sizes are any."""

RULES = {"embed": "fsdp", "heads": "tensor", "mlp": "tensor", "vocab": "tensor", "classes": "tensor"}
"""Name of an axis of a parameter -> axis of the mesh; names that are absent are not split."""

AHEAD = 8
"""Launches of a paced program that may be under way at once, far fewer than the 32 that XLA:CPU admits."""


def parse_mesh(text: str) -> dict[str, int]:
    """Return the sizes of a mesh given as "data=4,fsdp=2"; what is not named is 1.

    Raises:
        ValueError: an axis that there is not, or that is named twice, or a size that is no positive number.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*", part)
        if not found:
            raise ValueError(f"mesh must be AXIS=DEVICES, separated by commas, such as data=4,fsdp=2, got {text!r}")
        name, size = found[1], int(found[2])
        if name not in AXES:
            raise ValueError(f"mesh must be of the axes {', '.join(AXES)}, got {name!r}")
        if name in sizes:
            raise ValueError(f"mesh must name an axis once, got {name} twice in {text!r}")
        sizes[name] = size
    return {name: sizes.get(name, 1) for name in AXES}


def make_mesh(devices: int = 0, sizes: str = "", batch: int = 0) -> Mesh:
    """Return the mesh over the first `devices` visible devices, or over all of them when 0.

    Args:
        devices: of all processes together.
        sizes: as `parse_mesh` takes them; empty = all devices on `data`.
        batch: examples that pass through the model at once. Cores of one CPU stand for devices, whatever the batch;
            where none of the above is given, as many of them are taken as divide it.

    Raises:
        ValueError: more devices asked for than there are, or sizes that do not multiply to them.
    """
    visible = jax.devices()
    if devices > len(visible):
        raise ValueError(f"devices must be at most {len(visible)}, what is visible, got {devices}")
    if batch and not devices and not sizes and visible[0].platform == "cpu" and jax.process_count() == 1:
        devices = math.gcd(batch, len(visible))
    return mesh_of(visible[: devices or len(visible)], sizes)


def mesh_of(devices: list[Any], sizes: str = "") -> Mesh:
    """Return the mesh over these devices, near ones beside each other on the last axes.

    Raises:
        ValueError: sizes that do not multiply to the number of devices.
    """
    shape = parse_mesh(sizes or f"data={len(devices)}")
    if math.prod(shape.values()) != len(devices):
        raise ValueError(f"mesh must multiply to {len(devices)} devices, got {sizes} = {math.prod(shape.values())}")
    return jax.make_mesh(tuple(shape.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def training_execution(mesh: Mesh, remat: str = "none") -> Execution:
    """Return how a model is trained on the mesh.

    Where a CPU's devices split nothing but the batch, they sum the gradients of all layers at once: nothing overlaps
    with a sum there, and cores that wait for each other layer by layer take the time of the slower one in each.
    """
    if mesh.size == 1:
        return Execution(remat=remat)
    alone = mesh.shape["data"] == mesh.size and mesh.devices.flat[0].platform == "cpu"
    return Execution(mesh, batch=BATCH, heads="tensor", sequence="sequence", remat=remat, local=alone)


def evaluation_execution(mesh: Mesh) -> Execution:
    """Return how a model is evaluated on the mesh, batches split over `EVALUATED`."""
    return Execution() if mesh.size == 1 else Execution(mesh, batch=EVALUATED, heads="tensor")


def paced(program: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Return a program to be launched in a loop: on the devices of a CPU every `AHEAD`th launch waits for its results.

    XLA:CPU computes the devices' parts of a program on a pool of threads, one per core or device, and launches the
    parts of later programs from the same threads. With 32 programs under way on a device, a launch waits and keeps its
    thread. Launches can so hold all threads, and a part that others wait for to sum over the devices finds none:
    nothing moves any more, and XLA ends the process after a minute. Fewer programs under way exclude that. So do two
    threads per device (`PJRT_NPROC`), but XLA splits operations over all threads, and training took 30 % longer.

    Args:
        program: launched from one thread.
        mesh: the devices it runs on.
    """
    if mesh.size == 1 or mesh.devices.flat[0].platform != "cpu":
        return program
    launches = itertools.count(1)

    def launch(*operands: Any) -> Any:
        results = program(*operands)
        return jax.block_until_ready(results) if next(launches) % AHEAD == 0 else results

    return launch


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that keeps a whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def split_batch(mesh: Mesh, axes: tuple[str, ...] = BATCH) -> NamedSharding:
    """Return the sharding that splits the leading axis."""
    return NamedSharding(mesh, PartitionSpec(axes))


def split_chunks(mesh: Mesh) -> NamedSharding:
    """Return the sharding that splits the second axis over `EVALUATED`: every chunk of `(chunks, examples, ...)`."""
    return NamedSharding(mesh, PartitionSpec(None, EVALUATED))


def parameter_shardings(variables: Any, mesh: Mesh) -> Any:
    """Return how the parameters of a model are split, as a pytree of dicts.

    An axis of a parameter that the devices do not divide is not split.

    Args:
        variables: state of the module, arrays or shapes, with the names of the axes.
        mesh: the devices.
    """

    def divided(spec: PartitionSpec, shape: tuple[int, ...]) -> NamedSharding:
        fits = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(spec, shape, strict=True)]
        return NamedSharding(mesh, PartitionSpec(*fits))

    specs = nnx.to_pure_dict(partition_specs(variables, RULES))
    shapes = jax.tree.map(lambda leaf: leaf.shape, nnx.to_pure_dict(variables))
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)
    return jax.tree.map(divided, specs, shapes, is_leaf=is_spec)


def require_divisible(sizes: Mapping[str, int], *, batch: int, kv_heads: int, length: int) -> None:
    """Check that every device gets the same share of the work.

    Args:
        sizes: devices along each axis of the mesh.
        batch: examples that pass through the model at once.
        kv_heads: key heads of a layer.
        length: tokens of an example.

    Raises:
        ValueError: naming what does not divide.
    """
    shared = {"batch": (batch, BATCH), "key heads": (kv_heads, ("tensor",)), "tokens": (length, ("sequence",))}
    for name, (size, axes) in shared.items():
        devices = math.prod(sizes[axis] for axis in axes)
        if size % devices:
            raise ValueError(f"{name} must be a multiple of {devices}, the devices of {' x '.join(axes)}, got {size}")


def own_rows(mesh: Mesh, batch: int) -> range:
    """Return the rows of a batch that the devices of this process need."""
    places = split_batch(mesh).addressable_devices_indices_map((batch,)).values()
    spans = [index[0].indices(batch) for index in places if index is not None]
    return range(min(start for start, _, _ in spans), max(stop for _, stop, _ in spans))


def put_batch(batch: Any, mesh: Mesh, size: int = 0, axes: tuple[str, ...] = BATCH) -> Any:
    """Move host arrays to the devices.

    Args:
        batch: a pytree of arrays, whose rows are those that the devices of this process need (`own_rows`).
        mesh: the devices.
        size: rows of the whole batch; 0 = all are here.
        axes: that the rows are split over.
    """
    sharding = split_batch(mesh, axes)

    def put(leaf: np.ndarray) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_process_local_data(sharding, leaf, (size or len(leaf), *leaf.shape[1:]))

    return jax.tree.map(put, batch)
