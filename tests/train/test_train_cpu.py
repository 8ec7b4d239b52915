"""A CPU prepared for training: a device for each core, and huge pages where they help, asked for once."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from train.devices import cpu
from train.devices.cpu import MOST, TUNABLE, cores, prepare_cpu, worthwhile

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone can be asked")


def tree(root: Path, mode: str = "always [madvise] never", device: str = "null") -> Path:
    """Return a file system with this mode of huge pages and this device."""
    for path, text in (("sys/kernel/mm/transparent_hugepage/enabled", mode), (f"dev/{device}", "")):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize("device", ["nvidia0", "kfd", "accel0", "vfio/0"])
def test_an_accelerator_needs_none(device, tmp_path):
    root = tree(tmp_path, device=device)
    assert not worthwhile({}, root)
    assert worthwhile({"JAX_PLATFORMS": "cpu"}, root)


def test_a_cpu_wants_them_where_asking_helps(tmp_path):
    assert worthwhile({}, tree(tmp_path / "asked"))
    assert not worthwhile({"JAX_PLATFORMS": "cuda"}, tmp_path / "asked")
    assert not worthwhile({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, tmp_path / "asked")
    assert not worthwhile({}, tree(tmp_path / "always", mode="[always] madvise never"))
    assert not worthwhile({}, tmp_path / "no such kernel")


@pytest.mark.parametrize(
    ("allowed", "variables", "devices"),
    [
        ({0}, {}, "1"),
        ({0, 1, 5}, {}, "3"),
        (set(range(64)), {}, str(MOST)),
        ({0, 1}, {"JAX_NUM_CPU_DEVICES": "7"}, "7"),
        ({0, 1}, {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, None),
        ({0, 1}, {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}, "2"),
    ],
)
def test_a_core_is_a_device_unless_told_otherwise(allowed, variables, devices, tmp_path, monkeypatch):
    for name in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS"):
        monkeypatch.setenv(name, "")  # to be put back
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed, raising=False)
    monkeypatch.setattr("train.devices.cpu.prepare_imports", lambda: None)  # Ctrl-C is pytest's
    prepare_cpu(tmp_path)  # no such kernel: the process goes on
    assert os.environ.get("JAX_NUM_CPU_DEVICES") == devices


@pytest.mark.slow
def test_a_program_has_a_device_for_each_core(tmp_path):
    script = """
import pathlib, sys
from train.devices.cpu import prepare_cpu
prepare_cpu(pathlib.Path(sys.argv[1]))
from train.devices.mesh import make_mesh
print([make_mesh(devices, batch=batch).size for devices, batch in ((0, 0), (0, 12), (0, 7), (1, 12))])
"""
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environ, capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    ).stdout  # fmt: skip
    devices = min(cores(), MOST)
    assert said == f"{[devices, devices, 1, 1]}\n"


@pytest.mark.parametrize("ending", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_the_process_starts_over_once(ending, tmp_path):
    script = f"""
import os, signal, sys
from train.devices.cpu import prepare_cpu
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), sys.argv[1:], flush=True)
prepare_cpu(__import__("pathlib").Path({str(tree(tmp_path))!r}))
{ending}
"""
    environ = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    process = subprocess.Popen(
        [sys.executable, "-c", script, "--pe=a b"], env=environ, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    said, _ = process.communicate()
    assert said.splitlines() == [
        f"{process.pid} None ['--pe=a b']",
        f"{process.pid} {TUNABLE['GLIBC_TUNABLES']} ['--pe=a b']",
    ]
    assert process.returncode == (3 if "exit" in ending else -15)


def output_of(script: str) -> str:
    """Return what a script prints whose malloc is told what the trainers tell it."""
    environ = {**os.environ, **TUNABLE}
    return subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(
    not HUGE_PAGES.is_file() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="this kernel need not be asked",
)
def test_memory_is_asked_for_in_huge_pages():
    script = """
import re
kept = b"x" * 2**26
maps = re.findall(r"Size: +(\\d+) kB.*?VmFlags: (.*?)\\n", open("/proc/self/smaps").read(), re.DOTALL)
print(*(flags for size, flags in maps if int(size) >= 2**16))
"""
    assert "hg" in output_of(script).split()  # the kernel may have none left to give


def test_threads_do_not_share_an_arena():
    """XLA's operations allocate as they run, on a thread for each device."""
    script = """
import ctypes, threading
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
allocated = threading.Barrier(3)

def allocate():
    libc.malloc(ctypes.c_size_t(2**12))
    allocated.wait()

threads = [threading.Thread(target=allocate) for _ in range(2)]
[thread.start() for thread in threads]
allocated.wait()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""
    assert output_of(script).count("<heap nr=") >= 3


LOOP = """
import os, sys
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
os.environ["PJRT_NPROC"] = "2"
os.environ["XLA_FLAGS"] = " ".join(f"--xla_cpu_collective_call_{end}_seconds=5" for end in sys.argv[1:])
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from train.devices.mesh import limit_launches, make_mesh
mesh = make_mesh(2)
x = jax.device_put(jnp.ones((256, 256)), NamedSharding(mesh, PartitionSpec("data")))
step = jax.jit(lambda x: jnp.tanh(x @ x.T).sum(0, keepdims=True) / 256 + x / 2, out_shardings=x.sharding)
step = limit_launches(step, mesh)
found = [jnp.sum(x := step(x)) for _ in range(400)]
print(len(jax.device_get(found)))
"""


@pytest.mark.slow
def test_a_loop_of_programs_that_sum_over_the_devices_ends():
    """Launched in hundreds on as many devices as threads: without pace nothing would move any more."""
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ended = subprocess.run(
        [sys.executable, "-c", LOOP, "warn_stuck_timeout", "terminate_timeout"], env=environ, capture_output=True,
        text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "400\n"), ended.stderr[-2000:]


def test_the_writers_of_a_failed_checkpoint_and_dropped_stops_are_not_heard(monkeypatch):
    events = []
    monkeypatch.setattr(sys, "__unraisablehook__", events.append)
    errors = RuntimeError("Event loop is closed"), cpu.Stopped(2), RuntimeError("other")
    closed, stopped, other = (SimpleNamespace(exc_value=error, exc_type=type(error)) for error in errors)
    for event in (closed, stopped, other):
        cpu._unraisable(event)
    assert events == [other]


@pytest.mark.slow
def test_a_command_that_failed_waits_for_no_thread():
    """All endings in one process: each is a fork of it, since the imports take most of the time."""
    script = """
import os, sys, threading, warnings
import pejax._process.text
from train.devices.cpu import finish

def main(status, ending):
    threading.Thread(target=threading.Event().wait, args=(None if status else 0.1,)).start()
    print("said ·")
    return ending()

warnings.simplefilter("ignore")
def closed():
    raise BrokenPipeError

for status, ending in ((2, lambda: sys.exit(2)), (141, closed), (0, lambda: 0)):
    child = os.fork()
    if not child:
        finish(lambda: main(status, ending))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "said -\n2\nsaid -\n141\nsaid -\n0\n"), ended.stderr


@pytest.mark.parametrize("finished", [False, True])
def test_ctrl_c_during_imports_is_not_lost(finished, tmp_path):
    """Extensions make an ImportError of it, and packages that try an import go on without."""
    program = f"""
import pathlib, signal
from train.devices.cpu import finish, prepare_cpu
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run behind a &
prepare_cpu(pathlib.Path({str(tmp_path)!r}))
def interrupted():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return 3
    print("went on")
{"finish(interrupted)" if finished else "interrupted()"}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = (3, "", "") if finished else (130, "", "stopped\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == said
