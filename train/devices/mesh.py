"""The device mesh, and over which of its axes arrays are sharded.

    data        the batch; parameters are on every device
    fsdp        the batch, and parameters along their model channels: each device keeps a shard and gathers the rest of
                a layer when it needs it
    tensor      heads and the channels inside MLPs, and their parameters
    sequence    tokens (context parallelism); positions are those in the full sequence

The training programs pass these shardings to `jax.jit`; nothing else differs between one device and many, or between
one process and many.
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

from pejax._process.devices import visible_devices
from pejax.models import Execution, partition_specs
from pejax.models.sharding import AXES, RULES

BATCH = ("data", "fsdp")
"""Axes that a training batch is sharded over."""

EVALUATED = (*BATCH, "sequence")
"""Axes that an evaluation batch is sharded over; tokens are not sharded, because lengths and image sizes vary."""

UNROLLED = 24
"""Most layers that are compiled one by one for GPUs."""

AHEAD = 8
"""Maximum number of unfinished launches of a program, far fewer than the 32 that a CPU admits."""


def parse_mesh(text: str) -> dict[str, int]:
    """Return the sizes of a mesh given as "data=4,fsdp=2"; other axes have size 1.

    Raises:
        ValueError: an unknown axis, one that is named twice, or a size that is not a positive integer.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*", part)
        if not match:
            raise ValueError(f"mesh must be AXIS=DEVICES, separated by commas, such as data=4,fsdp=2, got {text!r}")
        name, size = match[1], int(match[2])
        if name not in AXES:
            raise ValueError(f"mesh must be of the axes {', '.join(AXES)}, got {name!r}")
        if name in sizes:
            raise ValueError(f"mesh must name an axis once, got {name} twice in {text!r}")
        sizes[name] = size
    return {name: sizes.get(name, 1) for name in AXES}


def make_mesh(devices: int = 0, sizes: str = "", batch: int = 0) -> Mesh:
    """Return the mesh over the first `devices` visible devices, or over all of them when 0.

    Args:
        devices: number of devices of all processes together.
        sizes: devices per axis in the syntax of `parse_mesh`; empty = all on `data`.
        batch: examples that pass through the model at once. If neither of the above is given, and the devices are cores
            of one CPU, the number of them that are used divides it.

    Raises:
        ValueError: more devices than there are, or sizes whose product is not the number of devices.
    """
    visible = visible_devices()
    if devices > len(visible):
        raise ValueError(f"devices must be at most {len(visible)}, the number of visible devices, got {devices}")
    if batch and not devices and not sizes and visible[0].platform == "cpu" and jax.process_count() == 1:
        devices = math.gcd(batch, len(visible))
    return mesh_of(visible[: devices or len(visible)], sizes)


def mesh_of(devices: list[Any], sizes: str = "") -> Mesh:
    """Return the mesh over these devices; nearby devices are adjacent on the last axes.

    Raises:
        ValueError: sizes whose product is not the number of devices.
    """
    shape = parse_mesh(sizes or f"data={len(devices)}")
    if math.prod(shape.values()) != len(devices):
        raise ValueError(
            f"the product of mesh must be {len(devices)} devices, got {sizes} = {math.prod(shape.values())}"
        )
    return jax.make_mesh(tuple(shape.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def training_execution(mesh: Mesh, remat: str = "none") -> Execution:
    """Return the execution of a model in training on the mesh.

    If the devices of a CPU shard only the batch, they sum the gradients of all layers at once: sums do not overlap with
    computation there, and waiting for the slowest core in every layer would cost time. GPUs run layers one by one.
    """
    platform = mesh.devices.flat[0].platform
    unroll = 0 if platform in ("cpu", "tpu") else UNROLLED
    if mesh.size == 1:
        return Execution(remat=remat, unroll=unroll)
    local = mesh.shape["data"] == mesh.size and platform == "cpu"
    return Execution(mesh, batch=BATCH, heads="tensor", sequence="sequence", remat=remat, unroll=unroll, local=local)


def evaluation_execution(mesh: Mesh) -> Execution:
    """Return the execution of a model in evaluation on the mesh, with batches sharded over `EVALUATED`."""
    return Execution() if mesh.size == 1 else Execution(mesh, batch=EVALUATED, heads="tensor")


def limit_launches(program: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Return a program that may be launched in a loop: on a CPU, every `AHEAD`th launch waits for its results.

    On a CPU, XLA runs the parts of a program, one per device, on a pool of threads, one per core or device, and
    launches later programs from the same threads. With 32 programs in flight on a device, a launch blocks its thread.
    Blocked launches can so occupy all threads, and a part that the others need for a sum over devices never runs: a
    deadlock, after which XLA ends the process in a minute. Fewer programs in flight exclude it. So do two threads per
    device (`PJRT_NPROC`), but XLA splits operations over all threads, and training took 30 % longer.

    Args:
        program: launched from one thread.
        mesh: the devices that it runs on.
    """
    if mesh.size == 1 or mesh.devices.flat[0].platform != "cpu":
        return program
    launches = itertools.count(1)

    def launch(*operands: Any) -> Any:
        results = program(*operands)
        return jax.block_until_ready(results) if next(launches) % AHEAD == 0 else results

    return launch


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding that keeps a full copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, axes: tuple[str, ...] = BATCH) -> NamedSharding:
    """Return the sharding along the leading axis."""
    return NamedSharding(mesh, PartitionSpec(axes))


def chunk_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of `(chunks, examples, ...)` along the second axis, over `EVALUATED`."""
    return NamedSharding(mesh, PartitionSpec(None, EVALUATED))


def parameter_shardings(variables: Any, mesh: Mesh) -> Any:
    """Return the shardings of the parameters of a model, as a pytree of dicts.

    An axis whose size is not a multiple of the number of devices is not sharded.

    Args:
        variables: state of the module, arrays or shapes, with axis names.
        mesh: the devices.
    """

    def shard(spec: PartitionSpec, shape: tuple[int, ...]) -> NamedSharding:
        fits = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(spec, shape, strict=True)]
        return NamedSharding(mesh, PartitionSpec(*fits))

    specs = nnx.to_pure_dict(partition_specs(variables, RULES))
    shapes = jax.tree.map(lambda leaf: leaf.shape, nnx.to_pure_dict(variables))
    return jax.tree.map(shard, specs, shapes, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))


def require_divisible(sizes: Mapping[str, int], *, batch: int, kv_heads: int, length: int) -> None:
    """Check that the mesh divides the work evenly.

    Args:
        sizes: devices along each axis of the mesh.
        batch: examples that pass through the model at once.
        kv_heads: key heads of a layer.
        length: tokens of an example.

    Raises:
        ValueError: naming the size that the number of devices does not divide.
    """
    sizes_and_axes = {"batch": (batch, BATCH), "key heads": (kv_heads, ("tensor",)), "tokens": (length, ("sequence",))}
    for name, (size, axes) in sizes_and_axes.items():
        devices = math.prod(sizes[axis] for axis in axes)
        if size % devices:
            raise ValueError(f"{name} must be a multiple of {devices}, the devices of {' x '.join(axes)}, got {size}")


def own_rows(mesh: Mesh, batch: int) -> range:
    """Return the rows of a batch that belong to the devices of this process."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch,)).values()
    spans = [index[0].indices(batch) for index in indices if index is not None]
    return range(min(start for start, _, _ in spans), max(stop for _, stop, _ in spans))


def put_batch(batch: Any, mesh: Mesh, size: int = 0, axes: tuple[str, ...] = BATCH) -> Any:
    """Move host arrays to the devices.

    Args:
        batch: a pytree of arrays with the rows of this process (`own_rows`).
        mesh: the devices.
        size: number of rows of the full batch; 0 = this process has all rows.
        axes: the rows are sharded over these axes of the mesh.
    """
    sharding = batch_sharding(mesh, axes)

    def put(leaf: np.ndarray) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_process_local_data(sharding, leaf, (size or len(leaf), *leaf.shape[1:]))

    return jax.tree.map(put, batch)
