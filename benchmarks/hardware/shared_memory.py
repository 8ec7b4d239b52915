"""The shared memory of every kernel for GPUs, by arithmetic, beside the limit of a program."""

from pejax._attention.gpu.gpu_padding import tile_sizes
from pejax._attention.gpu.shared_memory import CONTENTS, LIMITS, shared_bytes

WIDTHS = {
    "bfloat16, D=64": 128,
    "bfloat16, D=128": 256,
    "float32, D=64": 256,
    "float32, D=128": 512,
    "float32, D=256": 1024,
}
"""Bytes of a head of one token."""


def table(capability: str = "9.0") -> str:
    """Return the KiB that a program of each kernel holds at most, by type and head dim, in its tiles."""
    limit = LIMITS[capability] * 1024
    lines = [f"Shared memory of a program, KiB at most, of {limit // 1024} (compute capability {capability}):"]
    for name, width in WIDTHS.items():
        forward, backward = tile_sizes(width, limit)
        sizes = (shared_bytes(kernel, forward if kernel == "forward" else backward, width) for kernel in CONTENTS)
        told = ", ".join(f"{kernel} {size / 1024:.0f}" for kernel, size in zip(CONTENTS, sizes, strict=True))
        lines.append(f"  {name}, tiles {forward[0]}x{forward[1]} and {backward[0]}x{backward[1]}: {told}")
    return "\n".join(lines)
