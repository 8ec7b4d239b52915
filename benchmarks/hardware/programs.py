"""Programs of the device that is measured: compiled where it is, or ahead of time on a machine without it.

JAX's own cache of compiled programs carries them: a file per program, with XLA's executable in it and nothing that
Python unpickles. JAX names a file by the program, the flags, the versions and the machine: its topology, with the type
of the host's processor, and the version of the platform, which an absent GPU does not know. So programs that are made
ahead would never be found. `use` names those of the device by its card in place of the machine. Where a future JAX does
not ask for that name, none is found, and programs are compiled where they run.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import jax
from jax._src import cache_key
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.hardware.device import COMPILERS, versions
from train.devices.absent_gpus import absent_gpus

WITH_PATHS = ("--xla_gpu_dump_autotune_results_to=", "--xla_gpu_load_autotune_results_from=")
"""Flags of XLA that differ between machines."""

TARGET: list[Any] = []
"""The device that programs are for, where it is not JAX's first one."""

ASKED: dict[str, bool] = {}
"""The programs of the device that were asked for, by name, and whether they were read; filled by `use`."""

HIT = "/jax/compilation_cache/cache_hits"
"""JAX's event when it has read a program in place of compiling it."""


def use(card: str = "") -> None:
    """Name programs by their card, and compile them for it.

    Args:
        card: one of `CARDS`, which is absent; empty = JAX's first device.
    """
    if card:
        TARGET[:] = absent_gpus(card)
    kind, platform, name_by_machine = device().device_kind, device().platform, cache_key.get
    compilers = {package: number for package, number in versions().items() if package in COMPILERS}
    last = [""]

    def name(module: Any, devices: Any, options: Any, backend: Any, compression: str = "", *more: Any) -> str:
        last[0] = ""
        if backend.platform != platform:  # the host's own programs are of its processor
            return name_by_machine(module, devices, options, backend, compression, *more)
        flags = sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(WITH_PATHS))
        digest = hashlib.sha256(repr((kind, compilers, flags, options.env_option_overrides, compression)).encode())
        cache_key._hash_computation(digest, module, *more)
        last[0] = f"{module.operation.attributes['sym_name'].value}-{digest.hexdigest()}"
        ASKED[last[0]] = False
        return last[0]

    def note(event: str, **_: Any) -> None:
        if event == HIT and last[0]:
            ASKED[last[0]] = True

    cache_key.get = name
    jax.monitoring.register_event_listener(note)


def asked() -> dict[str, bool]:
    """Return the programs that were asked for since the last call, by name, and whether they were read."""
    names = dict(ASKED)
    ASKED.clear()
    return names


def device() -> Any:
    """Return the device that programs are for."""
    return TARGET[0] if TARGET else jax.devices()[0]


def mesh() -> Mesh:
    """Return the mesh of that device alone."""
    return jax.make_mesh((1,), ("heads",), axis_types=(AxisType.Auto,), devices=[device()])


def compiled(function: Callable, *operands: Any, options: dict[str, Any] | None = None) -> Any:
    """Compile a function for the device. The program is the same where the device is absent.

    Args:
        function: function of the operands.
        operands: shapes and arrays, of which only the shapes count.
        options: XLA's flags of this program.
    """
    return compile_jitted(jax.jit(function), *shapes_of(operands), on=mesh(), options=options)


def shapes_of(operands: Any) -> Any:
    """Return the shapes of operands on the device."""
    place = NamedSharding(mesh(), PartitionSpec())
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), operands)


def compile_jitted(program: Any, *shapes: Any, on: Mesh, options: dict[str, Any] | None = None) -> Any:
    """Compile a jitted function for shapes on a mesh, with XLA's flags of this program."""
    with on_host(), jax.set_mesh(on):  # by which pejax knows the platform
        return program.lower(*shapes).compile(options)


def on_host() -> Any:
    """Let the host compute, in a `with` statement: constants of programs are the same where the device is absent."""
    return jax.default_device(jax.devices("cpu")[0])


def put(operands: Any) -> Any:
    """Move arrays to the device, as operands of a compiled program."""
    return jax.device_put(operands, NamedSharding(mesh(), PartitionSpec()))
