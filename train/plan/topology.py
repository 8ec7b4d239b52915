"""Machines by name, "v5p:8x8x8" or "h100:64": memory and speed of their devices, and meshes of those that are absent.

The figures are for one JAX device; a TPU v7 chip has two.

Reference:
    Cloud TPU documentation, pages "TPU v5e", "TPU v5p", "TPU v6e" and "TPU7x (Ironwood)", tables of specifications: HBM
    capacity, chips of a slice, bidirectional bandwidth between chips (half of it each way). NVIDIA's data sheets of
    A100 80GB, H100, H200 and B200, and of the DGX systems around them: one network adapter for each GPU.
"""

import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

from jax.errors import JaxRuntimeError
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh

from train.devices.absent_gpus import absent_gpus, missing_compiler
from train.devices.flops import PEAKS
from train.devices.memory import GIB
from train.devices.mesh import AXES, parse_mesh

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment of libtpu, read when it is loaded: do not query the machine, and allow several compilers at once."""


class Device(NamedTuple):
    """The capacities of one device.

    Attributes:
        kind: its `device_kind` in JAX.
        memory: bytes.
        network: bytes per second that it can send over all its links together.
        slice: maximum number of devices that this network connects; 0 = no limit.
        chip: devices per chip.
        axes: number of dimensions of a slice; 0 = no slices.
    """

    kind: str
    memory: int
    network: float
    slice: int
    chip: int = 1
    axes: int = 0

    @property
    def peak(self) -> float:
        """FLOP/s in bfloat16."""
        return PEAKS[self.kind]


DEVICES = {
    "v5e": Device("TPU v5 lite", 16 * GIB, 200e9, 256, axes=2),
    "v5p": Device("TPU v5", 95 * GIB, 600e9, 6144, axes=3),
    "v6e": Device("TPU v6 lite", 32 * GIB, 400e9, 256, axes=2),
    "tpu7x": Device("TPU7x", 96 * GIB, 300e9, 18432, chip=2, axes=3),
    "a100": Device("NVIDIA A100", 80 * 10**9, 25e9, 0),
    "h100": Device("NVIDIA H100", 80 * 10**9, 50e9, 0),
    "h200": Device("NVIDIA H200", 141 * 10**9, 50e9, 0),
    "b200": Device("NVIDIA B200", 180 * 10**9, 50e9, 0),
}
"""Devices by family. The network of a GPU is the adapter that connects its machine to others."""


MOST = 1_000_000
"""Maximum number of devices, because all meshes over them are enumerated."""


class Topology(NamedTuple):
    """A number of devices of one family."""

    name: str
    device: Device
    devices: int

    @property
    def family(self) -> str:
        """The family of its devices."""
        return self.name.partition(":")[0]

    @property
    def is_gpu(self) -> bool:
        """Whether its devices are GPUs."""
        return self.device.axes == 0

    @property
    def missing(self) -> list[str]:
        """Packages that compiling for it without having it needs, and that are not installed."""
        if self.is_gpu:
            return missing_compiler()
        return [] if importlib.util.find_spec("libtpu") else ["libtpu"]


def parse_topology(text: str) -> Topology:
    """Return the machine "v5p:8x8x8" (chips along each axis of a slice) or "h100:64" (number of GPUs).

    Raises:
        ValueError: an unknown family, or a shape that the family does not have.
    """
    family, _, shape = text.partition(":")
    if family not in DEVICES:
        raise ValueError(f"topology must be of {', '.join(DEVICES)}, such as v5p:8x8x8 or h100:64, got {text!r}")
    device = DEVICES[family]
    rule = f"{device.axes} counts of chips joined by x" if device.axes else "a count of GPUs"
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape) or shape.count("x") + 1 != max(1, device.axes):
        raise ValueError(f"the shape of {family} must be {rule}, got {shape!r}")
    topology = Topology(text, device, device.chip * math.prod(map(int, shape.split("x"))))
    if topology.devices > MOST:
        raise ValueError(f"topology must have at most {MOST:,} devices, got {text!r}")
    return topology


def absent_mesh(topology: Topology, sizes: str = "") -> Mesh:
    """Return the mesh over the devices of a machine, which need not be present.

    Args:
        topology: the machine.
        sizes: devices per axis in the syntax of `parse_mesh`; empty = all on `data`.

    Raises:
        ValueError: the compiler is missing or does not know the machine, or the product of the sizes is wrong.
    """
    shape = require_product(topology, sizes)
    devices = absent_gpus(topology.family, topology.devices) if topology.is_gpu else _slice(topology)
    if len(devices) != topology.devices:
        raise ValueError(f"topology {topology.name} must have {topology.devices} devices, libtpu has {len(devices)}")
    grid = mesh_utils.create_device_mesh(tuple(shape.values()), devices, allow_split_physical_axes=True)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _slice(topology: Topology) -> list[Any]:
    """Return the devices of a slice of TPUs."""
    if topology.missing:
        raise ValueError("libtpu must be installed to compile for a TPU: pip install -e '.[tpu]', got none")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        description: Any = topologies.get_topology_desc(platform="tpu", topology_name=topology.name)
    except (JaxRuntimeError, ValueError) as unknown:
        reason = " ".join(str(unknown).split())
        raise ValueError(f"topology must be a slice that libtpu knows, got {topology.name}: {reason}") from None
    return list(description.devices)


def require_product(topology: Topology, sizes: str) -> dict[str, int]:
    """Return the sizes of a mesh.

    Raises:
        ValueError: their product is not the number of devices.
    """
    shape = parse_mesh(sizes or f"data={topology.devices}")
    if math.prod(shape.values()) != topology.devices:
        got = f"{sizes} = {math.prod(shape.values())}"
        raise ValueError(f"the product of mesh must be the {topology.devices} devices of {topology.name}, got {got}")
    return shape
