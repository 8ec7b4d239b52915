"""The device at hand: its description, read in a process of its own, and reasons against its use."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CUDNN = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
PACKAGES = ("pejax", "jax", "jaxlib", "flax", "optax", "numpy", "torch", "triton", *CUDNN)

DRIVERS = {"jax-cuda13-plugin": 580, "jax-cuda12-plugin": 525}
"""The oldest driver of NVIDIA that each plugin of JAX takes."""

COMPILERS = ("jax", "jaxlib", *DRIVERS, *CUDNN)
"""Packages whose versions a compiled program depends on."""

LEAST_CAPABILITY = (8, 0)
"""The oldest GPUs that multiply bfloat16 in matrix units, as the kernels do."""

SHARE = 4.0
"""GiB of memory of a process beside others."""

LEAST_MEMORY = 16.0
"""GiB that measurements need."""


def ready(card: str = "", named: bool = False, before: str = "") -> dict[str, Any]:
    """Start JAX on its device, so that no case pays for it.

    Args:
        card: the card that programs are compiled for, which is absent; empty = the device at hand.
        named: name compiled programs by their card, as those that are made ahead.
        before: an earlier checkout, whose pejax and train are used; empty = those of this one.
    """
    import jax

    if named:
        from benchmarks.hardware import programs

        programs.use(card)
    if before:
        prefer(before)
    if not card:
        jax.block_until_ready(jax.numpy.zeros(8) + 1)
    return {"outcome": "made"}


def prefer(checkout: str) -> None:
    """Import pejax and train from another checkout from now on; what measures them stays that of this one."""
    own = ("pejax", "train")
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]
    sys.path.insert(0, checkout)
    for name in own:
        importlib.import_module(name)
    sys.path.remove(checkout)


def facts() -> dict[str, Any]:
    """Return the description of the first device by JAX and the driver."""
    import jax

    machine: dict[str, Any] = {"outcome": "made", "versions": versions(), "torch": torch_build(), **driver()}
    try:
        device = jax.devices()[0]
    except RuntimeError as refused:
        return {**machine, "platform": "", "problem": str(refused).strip().splitlines()[0][:300]}
    known = {"platform": device.platform, "card": device.device_kind, "problem": ""}
    known["capability"] = str(getattr(device, "compute_capability", ""))
    limit = (device.memory_stats() or {}).get("bytes_limit", 0) / 2**30
    return {**machine, **known, "memory": machine["memory"] or limit}


def versions() -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    installed = {}
    for name in (*PACKAGES, *DRIVERS):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def torch_build() -> str:
    """Return the CUDA version that torch is built for, "none" where it is built without, empty where it is missing."""
    module = importlib.util.find_spec("torch")
    if module is None or module.origin is None:
        return ""
    text = (Path(module.origin).parent / "version.py").read_text(encoding="utf-8")  # importing it takes seconds
    built = re.search(r"^cuda\b[^=\n]*=\s*'([\d.]+)'", text, re.MULTILINE)
    return built[1] if built else "none"


def driver() -> dict[str, Any]:
    """Return the version of NVIDIA's driver and the free memory of the first GPU in GiB; empty and 0 without one."""
    query = ["nvidia-smi", "--query-gpu=driver_version,memory.free", "--format=csv,noheader,nounits", "--id=0"]
    try:
        line = subprocess.run(
            query, capture_output=True, text=True, encoding="utf-8", timeout=30, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return {"driver": "", "memory": 0.0}
    name, _, free = line.partition(", ")
    return {"driver": name, "memory": float(free) / 1024 if free.isdigit() else 0.0}


def refusal(machine: Mapping[str, Any]) -> str:
    """Return why the command cannot use a device, in one line; empty where it can."""
    for plugin, least in DRIVERS.items():
        if plugin in machine["versions"] and machine["driver"] and int(machine["driver"].split(".")[0]) < least:
            return f"NVIDIA's driver must be at least {least} for {plugin}, got {machine['driver']}"
    if machine["platform"] not in ("gpu", "cuda"):
        why = machine["problem"] or f"its first device is a {machine['platform'].upper()}"
        return f"a GPU is needed, and JAX sees none ({why}): --rehearse runs every stage on the CPU with toy sizes"
    if not re.fullmatch(r"\d+\.\d+", machine["capability"]):
        return f"the GPU must be one of NVIDIA, got {machine['card']}"
    if tuple(map(int, machine["capability"].split("."))) < LEAST_CAPABILITY:
        least = ".".join(map(str, LEAST_CAPABILITY))
        return f"the GPU must have compute capability {least} or more, got {machine['capability']} of {machine['card']}"
    if 0 < machine["memory"] < LEAST_MEMORY:
        return f"the GPU must have {LEAST_MEMORY:.0f} GiB free, got {machine['memory']:.1f} GiB of {machine['card']}"
    return ""


def remarks(machine: Mapping[str, Any]) -> list[str]:
    """Return the omissions and the differences from the plan, in lines."""
    lines = []
    if machine["torch"] in ("", "none"):
        lines.append(
            f"torch is {'not installed' if not machine['torch'] else 'built without CUDA'}: its rows are left out"
        )
    if machine["capability"] and not machine["capability"].startswith("9."):
        lines.append(
            f"expected times are those of an H200; {machine['card']} has compute capability {machine['capability']}"
        )
    return lines


def side_by_side(machine: Mapping[str, Any], most: int) -> int:
    """Return how many processes the card and the cores hold."""
    return max(1, min(most, (os.cpu_count() or 2) - 1, int(0.9 * machine["memory"] / SHARE)))
