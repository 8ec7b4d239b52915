"""Several processes as one program: how they connect, agree on values, and end together.

--hosts=auto                    from SLURM, Open MPI, GKE or a Cloud TPU
--hosts=ADDRESS:PORT,N,I        process I of N; process 0 listens at ADDRESS:PORT
"""

import contextlib
import ctypes
import hashlib
import json
import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state  # the only way to a barrier with a time limit
from jax.experimental import multihost_utils

import pejax
from pejax._process.text import complain

JOIN_TIMEOUT = 300
"""Seconds that a process waits for the others at the start."""

HEARTBEAT = 30
"""Seconds without a heartbeat after which a process counts as lost, and the others end."""

EXIT_TIMEOUT = 5
"""Seconds that a failing process waits for the others to fail too, before it ends."""

LOST = 1
"""Exit status of a process that ends because another one was lost."""


def join(hosts: str) -> None:
    """Connect to the other processes of this run, before any use of JAX devices.

    If they do not answer, JAX ends the process.

    Args:
        hosts: "auto", "ADDRESS:PORT,N,I", or empty for a run of one process.

    Raises:
        ValueError: a malformed text, a port in use, or no supported cluster for "auto".
    """
    if not hosts:
        return
    rule = "start all of them, with the same address and different numbers"
    with last_words(lambda: f"error: hosts={hosts}: not all processes answered within {JOIN_TIMEOUT} s: {rule}"):
        if hosts == "auto":
            try:
                jax.distributed.initialize(initialization_timeout=JOIN_TIMEOUT, heartbeat_timeout_seconds=HEARTBEAT)
            except ValueError:
                raise ValueError("hosts=auto needs SLURM, Open MPI, GKE or a Cloud TPU, got none of them") from None
            return
        address, count, index = parse_hosts(hosts)
        if index == 0:
            _require_free(address)
        jax.distributed.initialize(
            address, count, index, initialization_timeout=JOIN_TIMEOUT, heartbeat_timeout_seconds=HEARTBEAT
        )


def _require_free(address: str) -> None:
    """Check that a port of this machine is free; JAX's own error does not name it."""
    try:
        socket.create_server(("", int(address.rpartition(":")[2]))).close()
    except (OSError, OverflowError) as refused:
        raise ValueError(f"hosts: process 0 cannot listen at {address}: {refused}") from None


@contextlib.contextmanager
def end_together(hosts: str, hint: Callable[[], str]) -> Iterator[None]:
    """End all processes of a run when one ends, each with a line that says why.

    Args:
        hosts: processes, in the syntax of `join`.
        hint: returns a text on the saved step and the command that goes on.
    """
    if not hosts:
        yield
        return

    def line() -> str:
        return f"error: another process of this run was lost; {hint()}"

    with last_words(line):
        try:
            yield
        except SystemExit as ended:
            if ended.code:
                _fail(ended.code if isinstance(ended.code, int) else 1)
            raise
        except Exception as broken:  # whatever it is, the other processes must not wait for this one
            if is_process_loss(broken):
                _end(LOST, line())
            traceback.print_exc()
            _fail(1)
            raise SystemExit(1) from None
        wait_for_all_processes()  # the first process may still have been writing
        jax.distributed.shutdown()


def parse_hosts(hosts: str) -> tuple[str, int, int]:
    """Return the address, the number of processes and the index of this one.

    Raises:
        ValueError: a malformed text, or an index that is too large.
    """
    match = re.fullmatch(r"([^,\s]+:\d+),([1-9]\d*),(\d+)", hosts)
    if not match or int(match[3]) >= int(match[2]):
        raise ValueError(f"hosts must be auto or ADDRESS:PORT,N,I with I from 0 to N - 1, got {hosts!r}")
    return match[1], int(match[2]), int(match[3])


def is_main_process() -> bool:
    """Return whether this is the first process, which prints and writes for all."""
    return jax.process_index() == 0


def all_processes_agree(condition: bool) -> bool:
    """Return whether the condition holds in all processes; all must call this, and each waits for the others."""
    if jax.process_count() == 1:
        return condition
    return bool(np.all(multihost_utils.process_allgather(np.asarray(condition))))


def wait_for_all_processes() -> None:
    """Wait until all processes have called this."""
    all_processes_agree(True)


def from_main_process(values: list[int], most: int) -> list[int]:
    """Return the values of the first process in all processes, since network file systems show new files with delays.

    Args:
        values: non-negative integers.
        most: maximum number of values; further ones are left out.
    """
    if jax.process_count() == 1:
        return values[:most]
    array = np.full(most, -1, np.int32)
    array[: len(values)] = values[:most]
    return [int(value) for value in multihost_utils.broadcast_one_to_all(array) if value >= 0]


def require_same_settings(settings: Mapping[str, Any]) -> None:
    """Check that all processes have the same settings, code and version of JAX; all must call this.

    Raises:
        ValueError: naming the first setting that differs, the process, and both values.
    """
    if jax.process_count() == 1:
        return
    description = json.dumps({**settings, "jax": jax.__version__, "code": code_digest()}).encode()
    digest = np.frombuffer(hashlib.sha256(description).digest(), np.uint32)
    if all_processes_agree(bool(np.array_equal(multihost_utils.broadcast_one_to_all(digest), digest))):
        return
    longest = int(np.max(multihost_utils.process_allgather(np.int32(len(description)))))
    texts = multihost_utils.process_allgather(np.frombuffer(description.ljust(longest), np.uint8))
    reference, *peers = (json.loads(bytes(text)) for text in texts)
    for number, peer in enumerate(peers, 1):
        for name in sorted(reference.keys() | peer.keys()):
            was, now = reference.get(name), peer.get(name)
            if was != now:
                raise ValueError(f"all processes must be started alike: 0 has {name}={was!r}, {number} {name}={now!r}")


def code_digest() -> str:
    """Return a digest of the source of this package and of pejax."""
    folders = (Path(__file__).parents[1], Path(pejax.__file__).parent)
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def is_process_loss(error: BaseException) -> bool:
    """Return whether an error may come from the loss of another process: any error of XLA except out of memory."""
    several = isinstance(error, jax.errors.JaxRuntimeError) and jax.process_count() > 1
    return several and "RESOURCE_EXHAUSTED" not in str(error)


@contextlib.contextmanager
def last_words(line: Callable[[], str]) -> Iterator[None]:
    """Print a last line when JAX aborts the process because another process was lost.

    JAX aborts in a thread of its own, while the main thread waits for the lost process. A Python signal handler would
    wait for the main thread; this C handler runs immediately.
    """
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: _end(LOST, line()))
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(signal.SIGABRT, before)


def _fail(status: int) -> None:
    """End with an error; if the other processes failed too, end together."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        global_state.client.wait_at_barrier("failed", 1000 * EXIT_TIMEOUT)  # pyright: ignore[reportOptionalMemberAccess]
        jax.distributed.shutdown()
    except jax.errors.JaxRuntimeError:  # they did not fail: they end when they miss this process
        os._exit(status)


def _end(status: int, line: str) -> None:
    """End at once, without JAX's shutdown, which would wait for the other processes."""
    sys.stdout.flush()
    complain(line)
    os._exit(status)
