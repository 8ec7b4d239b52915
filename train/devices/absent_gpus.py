"""GPUs that are not here: XLA's compiler takes a description of a card in its place.

Reference:
    OpenXLA, `xla/backends/gpu/target_config/specs`: the figures of each card; `GpuTargetConfigProto`: their names.
"""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from jax.experimental import topologies

INSTALL = "pip install -e '.[cuda]'"
"""Command that installs the compiler."""

ON_A_MACHINE = 8
"""Maximum number of GPUs of one machine."""


class Card(NamedTuple):
    """What XLA's compiler asks of a card.

    Attributes:
        name: its `device_kind` in JAX.
        capability: major compute capability.
        accelerated: whether it has instructions of its own architecture alone, as "sm_90a".
        cores: streaming multiprocessors.
        units: float32 units of each of them.
        shared: bytes of shared memory of each of them; a block may have 1,024 less.
        cache: bytes of the L2 cache.
        clock: GHz.
        bandwidth: bytes per second of its memory.
        memory: bytes.
    """

    name: str
    capability: int
    accelerated: bool
    cores: int
    units: int
    shared: int
    cache: int
    clock: float
    bandwidth: int
    memory: int


CARDS = {
    "a100": Card("NVIDIA A100-SXM4-80GB", 8, False, 108, 64, 167936, 41943040, 1.41, 2039040000000, 85100068864),
    "h100": Card("NVIDIA H100 80GB HBM3", 9, True, 132, 128, 233472, 52428800, 1.98, 3352320000000, 84942979072),
    "h200": Card("NVIDIA H200", 9, True, 132, 128, 233472, 52428800, 1.98, 4800000000000, 151397597184),
    "b200": Card("NVIDIA B200", 10, True, 148, 128, 233472, 132644864, 1.965, 7672320000000, 191514411008),
}
"""Cards by family."""

DESCRIPTION = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 shared_memory_per_block: 49152
  shared_memory_per_core: {card.shared} shared_memory_per_block_optin: {optin}
  core_count: {card.cores} fpus_per_core: {card.units} clock_rate_ghz: {card.clock} l2_cache_size: {card.cache}
  memory_bandwidth: {card.bandwidth} device_memory_size: {card.memory}
  cuda_compute_capability {{ major: {card.capability} feature_extension: {extension} }}
}}
platform_name: "CUDA" device_description_str: "{card.name}"
dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 13 }}
"""
"""A `GpuTargetConfigProto`; the versions are those of jax[cuda13]."""


def missing_compiler() -> list[str]:
    """Return the packages that compiling for a GPU needs and that are not installed."""
    return [name for name, present in (("jax-cuda13-plugin", _plugin), ("nvidia-cuda-nvcc", _ptxas)) if not present()]


def _plugin() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("jax_cuda13_plugin", "jax_plugins.xla_cuda13"))


def _ptxas() -> bool:
    return toolkit() is not None or shutil.which("ptxas") is not None


def toolkit() -> Path | None:
    """Return the folder of NVIDIA's compiler packages, with `bin/ptxas`, or None."""
    spec = importlib.util.find_spec("nvidia.cu13") if importlib.util.find_spec("nvidia") else None
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return next((folder for folder in folders if os.access(folder / "bin/ptxas", os.X_OK)), None)


def absent_gpus(family: str, count: int = 1) -> list[Any]:
    """Return devices that programs can be compiled for.

    Args:
        family: one of `CARDS`.
        count: number of devices.
    """
    card = CARDS[family]
    extension = "ACCELERATED_FEATURES" if card.accelerated else "NONE"
    text = DESCRIPTION.format(card=card, optin=card.shared - 1024, extension=extension)
    topology = "x".join(map(str, (1, *machines(count))))  # one slice
    description: Any = topologies.get_topology_desc(platform="cuda", target_config=text, topology=topology)
    return list(description.devices)


def machines(count: int) -> tuple[int, int]:
    """Return a number of machines and of GPUs in each, as many as fit into one, that make up this number of GPUs."""
    each = max(size for size in range(1, ON_A_MACHINE + 1) if count % size == 0)
    return count // each, each
