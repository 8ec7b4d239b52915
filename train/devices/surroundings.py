"""Checks of a process's surroundings before JAX is imported, which would end without a word of why."""

import os
import re
import resource
from collections.abc import Mapping

from train.devices.memory import GIB

LEAST_ADDRESSES = 5 * 2**29
"""Bytes of address space below which XLA cannot start its threads and compile: the smallest run needs 2.3 GiB."""

MOST_DEVICES = 4096
"""Most devices of a CPU; JAX takes seconds for a thousand of them, and never ends for a million."""

MUST_BE_OFF = {
    "JAX_DISABLE_JIT": "operation by operation no training step would end",
    "JAX_ENABLE_X64": "part of a run would be float64, and its checkpoints could not be read again",
}
"""Switches of JAX that no trainer can have, and why."""


def require_surroundings(environ: Mapping[str, str]) -> None:
    """Check the working directory, the limit on memory, and JAX's environment variables on CPUs and compilation.

    Raises:
        ValueError: one of them breaks a rule; the message says which.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ValueError("the working directory must exist, got one that was deleted: change to another") from None
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY and addresses < LEAST_ADDRESSES:
        raise ValueError(
            f"the limit on address space (ulimit -v) must be at least {LEAST_ADDRESSES / GIB} GiB, "
            f"got {addresses / GIB:.2f} GiB"
        )
    devices = environ.get("JAX_NUM_CPU_DEVICES", "1")
    if not re.fullmatch(r"0*[1-9]\d{0,6}", devices, re.ASCII) or int(devices) > MOST_DEVICES:
        raise ValueError(f"JAX_NUM_CPU_DEVICES must be from 1 to {MOST_DEVICES}, got {devices!r}")
    for name, why in MUST_BE_OFF.items():
        value = environ.get(name, "")
        if value.lower() in ("y", "yes", "t", "true", "on", "1"):
            raise ValueError(f"{name} must be off: {why}, got {value!r}")
