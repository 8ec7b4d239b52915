"""Huge pages: asked for where they help, once, and nothing else about the process changes."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from train.huge_pages import TUNABLE, worthwhile

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


@pytest.mark.parametrize("ending", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_the_process_starts_over_once(ending, tmp_path):
    script = f"""
import os, signal, sys
from train.huge_pages import use_huge_pages
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), sys.argv[1:], flush=True)
use_huge_pages(__import__("pathlib").Path({str(tree(tmp_path))!r}))
{ending}
"""
    environ = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    process = subprocess.Popen(
        [sys.executable, "-c", script, "--pe=a b"], env=environ, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    said, _ = process.communicate()
    assert said.splitlines() == [
        f"{process.pid} None ['--pe=a b']",
        f"{process.pid} {TUNABLE['GLIBC_TUNABLES']} ['--pe=a b']",
    ]
    assert process.returncode == (3 if "exit" in ending else -15)


def test_memory_is_asked_for_once_and_kept():
    """Arrays of 64 MiB, made and dropped again and again, cost page faults once."""
    script = """
import resource, numpy as np
faults = []
for _ in range(6):
    np.ones(2**23)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[1])
"""
    environ = {**os.environ, **TUNABLE}
    said = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert int(said.stdout) < 16
