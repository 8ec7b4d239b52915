"""Training on a CPU: one JAX device per core, and huge pages, which a process must request before it starts."""

import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from train.devices.surroundings import require_surroundings

TUNABLE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Environment of glibc's malloc: request transparent huge pages, so that large arrays have fewer TLB misses. A single
arena that never returns memory (`arena_max=1` and high thresholds) would save the kernel from clearing temporaries, but
XLA's operations allocate while they run, and two devices with one arena took up to 50 % longer."""

ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel*", "vfio/[0-9]*")
"""Device files of NVIDIA and AMD GPUs and of TPUs, below /dev."""

TRAINING_COMPILER = {
    "xla_cpu_copy_insertion_use_region_analysis": True,
    "xla_cpu_enable_concurrency_optimized_scheduler": False,
    "xla_cpu_prefer_vector_width": 512,
}
"""Compiler options of XLA:CPU for training. Region analysis avoids a copy of all moments per step: they are updated in
place, and the parameters' update reads the old ones. The concurrency-optimized scheduler is off: with one core per
device it made steps 2 to 9 % slower. Vectors of 512 bits instead of 256, where the CPU has them, made a step 1 to 4 %
faster on an Intel Xeon with AMX."""

EVALUATION_COMPILER: dict[str, str | bool] = {"xla_backend_optimization_level": "1"}
"""Compiler options of XLA:CPU for evaluation: compilation takes a third less time, and the programs are as fast."""

PACKAGES = frozenset(
    ("flax", "gguf", "grain", "jinja2", "matplotlib", "optax", "orbax", "PIL", "rich", "safetensors", "simple_parsing",
     "tensorboardX", "tokenizers")
)  # fmt: skip
"""What the programs import of the extra `train`."""

MOST = 4
"""Maximum number of cores used as devices: each has its own copy of the parameters and moments."""


class Stopped(BaseException):
    """Raised by a signal to stop, with its number."""


def prepare_cpu(root: Path = Path("/")) -> None:
    """Make JAX use one device per core, unless the environment sets it, and huge pages if they help.

    With one device, XLA parallelizes single operations, and all but the largest leave cores idle; with one device per
    core, the batch is sharded over the cores. For huge pages this process executes the interpreter again with `TUNABLE`
    set. Call this before heavy imports, which would otherwise run twice.
    """
    prepare_imports()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(cores(), MOST)))
    if sys.executable and worthwhile(os.environ, root):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **TUNABLE})


def finish(command: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its status, immediately if that is not 0.

    At its exit Python waits for threads, and those of a failed checkpoint take minutes.
    """
    from pejax._process.text import discard, plain_output  # brings in JAX, which `prepare_cpu` must precede

    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    plain_output()
    try:
        status = command()
    except SystemExit as ended:
        status = ended.code
    except BrokenPipeError:  # nobody reads on what it only prints
        status = 128 + signal.SIGPIPE
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # as after `| head -1`
            discard(stream)
    if status:
        os._exit(status if isinstance(status, int) else 1)
    raise SystemExit(0)


def prepare_imports() -> None:
    """Report errors before `finish` in one line: Ctrl-C, a missing package, and an environment that JAX cannot have.

    Ctrl-C ends the process at once: during the import of an extension it would be an error.

    Raises:
        SystemExit: status 2, after a line about the environment.
    """
    sys.excepthook, sys.unraisablehook = _report, _unraisable
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    try:
        require_surroundings(os.environ)
    except ValueError as wrong:
        sys.stderr.write(f"error: {wrong}\n")
        raise SystemExit(2) from None


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    os.write(2, b"stopped\n")
    os._exit(128 + number)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    refusal = re.search(r"for (?:environment '|JAX flag )(\w+)", f"{error}")
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
    elif issubclass(kind, ValueError) and refusal:  # by the import of JAX
        name = refusal[1].upper()
        sys.stderr.write(f"error: {name} must be what JAX takes, got {os.environ.get(name)!r}: {error}\n")
        sys.stderr.flush()
        os._exit(2)
    elif isinstance(error, ModuleNotFoundError) and (name := f"{error.name}".partition(".")[0]) in PACKAGES:
        sys.stderr.write(f'error: this program needs {name}, which is not installed: pip install -e ".[train]"\n')
        sys.stderr.flush()
        os._exit(2)
    else:
        sys.__excepthook__(kind, error, trace)


def _unraisable(report: "sys.UnraisableHookArgs") -> None:
    """Report errors that cannot be raised, except for stops and errors of the writers of a failed checkpoint.

    A stop is raised again. The first writer that fails ends their event loop and raises the error; the others then find
    the loop closed.
    """
    if not issubclass(report.exc_type, Stopped) and str(report.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(report)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worthwhile(environ: Mapping[str, str], root: Path) -> bool:
    """Return whether JAX will run on a CPU under Linux with glibc, and the kernel gives huge pages on request."""
    if environ.keys() & TUNABLE or platform.libc_ver()[0] != "glibc":
        return False
    mode = root / "sys/kernel/mm/transparent_hugepage/enabled"
    if not mode.is_file() or "[madvise]" not in mode.read_text(encoding="utf-8"):
        return False
    platforms = environ.get("JAX_PLATFORMS", "")
    has_accelerator = any(path for pattern in ACCELERATORS for path in (root / "dev").glob(pattern))
    return platforms == "cpu" or (not platforms and not has_accelerator)
