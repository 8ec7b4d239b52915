"""NVIDIA GPUs that XLA compiles for on a machine without one, by their description."""

from typing import Any, NamedTuple

import jax
from jax.experimental import topologies


class Card(NamedTuple):
    """A card of compute capability 9.0, as the driver describes it.

    Attributes:
        kind: its name in JAX.
        bandwidth: bytes that its memory moves in a second.
        memory: bytes of its memory.
    """

    kind: str
    bandwidth: int
    memory: int


CARDS = {
    "h200": Card("NVIDIA H200", 4_800_000_000_000, 151_397_597_184),
    "h100": Card("NVIDIA H100 80GB HBM3", 3_352_320_000_000, 84_942_979_072),
}

DESCRIPTION = """gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: {memory}
  shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 13 }}
device_description_str: "{kind}"
"""


def absent_device(card: str) -> Any:
    """Return the device that stands for a card.

    Raises:
        NotImplementedError: JAX's CUDA plugin is not installed.
    """
    target = DESCRIPTION.format(**CARDS[card]._asdict())
    try:
        known = topologies.get_topology_desc(platform="cuda", target_config=target, topology="1x1x1")
    except RuntimeError as refused:
        raise NotImplementedError(f"compiling for an absent GPU needs JAX's CUDA plugin: {refused}") from None
    return known.devices[0]
