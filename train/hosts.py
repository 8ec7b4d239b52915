"""Several processes as one program: how they find each other, and what they agree upon.

--hosts=auto                    as SLURM, Open MPI, GKE or a Cloud TPU says
--hosts=ADDRESS:PORT,N,I        process I of N; process 0 listens at ADDRESS:PORT
"""

import re

import jax
import numpy as np
from jax.experimental import multihost_utils

JOINED_WITHIN = 300
"""Seconds that a process waits for the others at the start."""

HEARTBEAT = 30
"""Seconds after which a process that is not heard of is taken for lost, and the others end."""


def join(hosts: str) -> None:
    """Join the other processes of this run; must come before anything asks for devices.

    Args:
        hosts: "auto", "ADDRESS:PORT,N,I", or empty for a run of one process.

    Raises:
        ValueError: another text, or no cluster that says who is there.
        RuntimeError: the others do not answer, or the port is in use.
    """
    if not hosts:
        return
    if hosts == "auto":
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
        except ValueError:
            raise ValueError("hosts=auto needs SLURM, Open MPI, GKE or a Cloud TPU, got none of them") from None
        return
    address, count, own = parse_hosts(hosts)
    jax.distributed.initialize(
        address, count, own, initialization_timeout=JOINED_WITHIN, heartbeat_timeout_seconds=HEARTBEAT
    )


def parse_hosts(hosts: str) -> tuple[str, int, int]:
    """Return address, number of processes and the number of this one.

    Raises:
        ValueError: a text of another form, or a process that is none of them.
    """
    found = re.fullmatch(r"([^,\s]+:\d+),([1-9]\d*),(\d+)", hosts)
    if not found or int(found[3]) >= int(found[2]):
        raise ValueError(f"hosts must be auto or ADDRESS:PORT,N,I with I from 0 to N - 1, got {hosts!r}")
    return found[1], int(found[2]), int(found[3])


def first() -> bool:
    """Return whether this process is the one that speaks and writes for all."""
    return jax.process_index() == 0


def agreed(well: bool) -> bool:
    """Return whether all is well in every process; all must ask."""
    if jax.process_count() == 1:
        return well
    return bool(np.all(multihost_utils.process_allgather(np.asarray(well))))
