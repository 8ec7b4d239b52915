"""The environment of a run, beside its config: versions, devices, size of the model, and the peak of its memory."""

import json
import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from train.engine.files import read_object, with_digest, write_atomic

FILE = "environment.json"
"""Name of the file in a run folder."""

PACKAGES = ("pejax", "jax", "jaxlib", "flax", "optax")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that determine numbers; a package that is not installed: ""."""
    by_package = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            by_package[name] = version(name)
        except PackageNotFoundError:
            by_package[name] = ""
    return by_package


def record(folder: Path, parameters: int, flops: int, mesh: Mesh, modules: dict[str, str] | None = None) -> None:
    """Write the environment of a run into its folder.

    Args:
        folder: run folder.
        parameters: number of them.
        flops: FLOPs of a training step; 0 = unknown.
        mesh: the devices.
        modules: sha256 of the files of imported modules of encodings.
    """
    devices = f"{mesh.size} x {mesh.devices.flat[0].device_kind}"
    content = {"versions": versions(), "devices": devices, "parameters": parameters, "flops": flops}
    content |= {"modules": modules} if modules else {}
    write_atomic(folder / FILE, json.dumps(with_digest(content), indent=2) + "\n")


def record_peak(folder: Path, mesh: Mesh) -> None:
    """Add the peak memory of training to the record of a run, if it has one."""
    content = read(folder)
    if content:
        number, of = peak_memory(mesh)
        content = with_digest({**content, "peak_bytes": number, "peak_of": of})
        write_atomic(folder / FILE, json.dumps(content, indent=2) + "\n")


def peak_memory(mesh: Mesh) -> tuple[int, str]:
    """Return the peak memory in bytes, and its owner: a device, or on a CPU this process."""
    measured = mesh.local_devices[0].memory_stats() or {}
    if "peak_bytes_in_use" in measured:
        return int(measured["peak_bytes_in_use"]), "a device"
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "the process"


def read(folder: Path) -> dict[str, Any]:
    """Return the record of a run, or an empty one where there is none.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / FILE
    try:
        content = read_object(path)
        kinds = {"versions": dict, "devices": str, "parameters": int, "flops": int, "peak_bytes": int, "peak_of": str,
                 "modules": dict}  # fmt: skip
        if "digest" in content and with_digest(content) != content:
            raise ValueError("it has changed since it was written")
        if "digest" not in content and content.keys() - kinds:  # of 0.3.0, which had no digest: all entries are known
            raise ValueError(f"it has another entry, {min(content.keys() - kinds)[:40]!r}")
        content.pop("digest", None)
        names = [name for name, kind in kinds.items() if type(content.get(name, kind())) is not kind]
        names = names or [name for name, number in content["versions"].items() if not isinstance(number, str)]
        names = names or [name for name in ("parameters", "flops", "peak_bytes") if content.get(name, 0) < 0]
        if names:
            raise ValueError(f"{names[0]} is of another type, or negative")
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError) as wrong:
        raise ValueError(f"{FILE} must be written by a trainer, got {path}: {wrong}") from None
    return content
